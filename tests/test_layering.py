"""Which way imports point: this test owns the rule, so a module that breaks it says so here."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.sources import Source, source, sources

APP = Path(__file__).parent.parent / "app"

LAYERS = [
    {"errors", "background", "clock", "starting", "version"},
    {"json", "aws", "extensions", "net"},
    {"lenient"},
    {"settings", "protocol", "observability"},
    {"auth", "client", "declare"},
    {"aio", "policy", "storage", "tokens"},
    {"audit"},
    {"replay"},
    {"backends", "roundgate_testing.suites", "roundgate_testing.cassettes"},
    {"config", "tasks"},
    {"operators"},
    {"methods"},
    {"runtime"},
    {"http"},
    {"main"},
    {"cli"},
    {"roundgate_aws", "roundgate_console", "roundgate_testing"},
]
"""Bottom first, without `roundgate.`. A module imports from its own package and from layers below it, never from beside
or above."""

HOMES = {
    "fastapi": {
        "roundgate_console",
        "http.routes",
        "main",
        "roundgate_aws.api_gateway",
    },
    "starlette": {"roundgate_console", "http", "main", "roundgate_aws", "roundgate_testing"},
    "mangum": {"roundgate_aws.api_gateway", "roundgate_aws.http", "roundgate_aws.stream"},
    "h11": {"roundgate_aws.stack"},
    "jinja2": {"roundgate_console.frame"},
    "uvicorn": {"cli.serve", "http.connections", "net.serving"},
    "httpx": {
        *("backends.http", "backends.openapi.documents", "net.connection", "net.http"),
        *("client.session", "client.transport", "roundgate_aws.stack"),
    },
    "httpcore": {"roundgate_aws.stream"},
    "httptools": {"net.connection"},
    "aiohappyeyeballs": {"net.connection"},
    "yaml": {
        *(
            "settings.yaml_file",
            "backends.openapi.documents",
            "settings.frontmatter",
            "roundgate_testing.suites.expecting",
            "roundgate_testing.cassettes.files",
        ),
        *("roundgate_aws.parts", "roundgate_aws.template", "roundgate_aws.stack"),
    },
    "jmespath": {"backends.shaping", "roundgate_testing.suites.variables"},
    "jsonpath_rfc9535": {"backends.openapi.overlays"},
    "jsonschema_rs": {"protocol.schemas"},
    "prompt_toolkit": {"cli.dialogue"},
    "docstring_parser": {"backends.signature"},
    "jiter": {"json", "lenient"},
    "orjson": {"json"},
    "time": {
        *(
            "clock",
            "observability",
            "http.request",
            "http.replica",
            "backends.modules",
        ),
        "backends.http.service",
        "roundgate_aws",  # Lambda's deadlines are times of day; waits for processes of its own
    },
    "secrets": {"tokens.keys", "roundgate_aws.stack.functions"},
    "cryptography": {"tokens.sealed", "client.auth", "net.oauth"},
    "jwt": {"auth", "client.auth", "net.oauth"},
    "asyncpg": {"storage.postgres"},
    "botocore": {"aws", "roundgate_aws.deploying", "roundgate_aws.upload"},
    "opentelemetry": {"observability"},
    "prometheus_client": {"observability.exposition"},
    "sqlite3": {"storage.sqlite", "roundgate_testing.instances"},
    "pytest": {"roundgate_testing.plugin", "roundgate_testing.cassettes.pytest_plugin"},
    # to seed it where a snapshot goes on; generators of handlers, from a remembered seed
    "random": {"clock", "replay.context", "replay.remembered"},
}
"""Where a dependency may be imported: a module or a package."""

PURE = {
    "asyncio",
    "logging",
    "os",
    "socket",
    "time",
    "threading",
    "subprocess",
    "random",
    "secrets",
    "datetime",
}
"""What `protocol` must not import: no I/O, clock or logging."""


@cache
def modules() -> dict[str, Source]:
    """Return each module under its name."""
    found = {
        ".".join(one.path.relative_to(APP).with_suffix("").parts)
        .removesuffix(".__init__")
        .removeprefix("roundgate."): one
        for one in sources(APP)
    }
    return {name: one for name, one in found.items() if name != "roundgate"}


@cache
def imports(module: Source) -> frozenset[str]:
    """Return the full name of each module that is imported, or that a package's `__init__` takes a name from."""
    imported = (alias.name for node in module.nodes(ast.Import) for alias in node.names)
    taken = (
        home(node.module, alias.name)
        for node in module.nodes(ast.ImportFrom)
        if node.module
        for alias in node.names
    )
    return frozenset([*imported, *taken])


def home(module: str, name: str) -> str:
    """Return the module that defines a name, following what packages export."""
    while f"{module}.{name}".removeprefix("roundgate.") not in modules():
        if (module, name) not in exports() or exports()[module, name] == (module, name):
            return module
        module, name = exports()[module, name]
    return f"{module}.{name}"


@cache
def exports() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the package and name that each `__init__` exports, and where it takes the name from."""
    found = {}
    for path in APP.rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(APP).parts)
        for node in source(path).tree.body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("roundgate"):
                for alias in node.names:
                    found[package, alias.asname or alias.name] = (str(node.module), alias.name)
    return found


def layer(name: str) -> int:
    """That of the module, or of the package that it is in."""
    while not (found := [index for index, parts in enumerate(LAYERS) if name in parts]):
        name, dot, _ = name.rpartition(".")
        assert dot, "every module has a layer"
    return found[0]


def package(name: str) -> str:
    return name.partition(".")[0]


def test_every_module_has_a_layer() -> None:
    placed = set().union(*LAYERS)
    assert {package(name) for name in modules()} == {package(name) for name in placed}
    assert {name for name in placed if "." in name} <= modules().keys()


def imported() -> Iterator[tuple[str, str]]:
    """Yield each module with the name of each module that it imports."""
    return ((name, other) for name, module in modules().items() for other in imports(module))


def test_modules_import_only_from_their_package_and_from_layers_below() -> None:
    def is_allowed(name: str, part: str) -> bool:
        beside = package(part) == package(name) and layer(part) == layer(name)
        return beside or layer(part) < layer(name)

    wrong = [
        f"{name} imports {other}"
        for name, other in imported()
        if other.startswith(("roundgate.", "roundgate_"))
        and not is_allowed(name, other.removeprefix("roundgate."))
    ]
    assert wrong == []


def test_a_dependency_is_imported_only_where_it_lives() -> None:
    def is_allowed(name: str, other: str) -> bool:
        homes = HOMES.get(other.partition(".")[0])
        return homes is None or any(name == home or name.startswith(home + ".") for home in homes)

    wrong = [f"{name} imports {other}" for name, other in imported() if not is_allowed(name, other)]
    assert wrong == []


def test_the_protocol_is_pure() -> None:
    used = {other.partition(".")[0] for name, other in imported() if name.startswith("protocol")}
    assert not used & PURE


OF_SESSIONS = "http.older"
"""What only the revisions with sessions have, beside their package."""


def is_of_a_revision(name: str) -> bool:
    return (
        name.split(".")[:1] == ["protocol"]
        and name.count(".") >= 1
        and name.split(".")[1].startswith("v20")
    )


def test_only_the_table_of_revisions_knows_their_packages() -> None:
    known = {"protocol.revisions", "client.messages", "client.types"}
    wrong = [
        f"{name} imports {other}"
        for name, other in imported()
        if is_of_a_revision(other.removeprefix("roundgate."))
        and not (
            is_of_a_revision(name) or f"{name}.".startswith(f"{OF_SESSIONS}.") or name in known
        )
    ]
    assert wrong == []


def users() -> Iterator[tuple[str, Path]]:
    """Yield the name and file of each module that is not a test."""
    for path in sorted(APP.rglob("*.py")):
        yield (
            ".".join(path.relative_to(APP).with_suffix("").parts).removesuffix(".__init__"),
            path,
        )
    for folder in ("bench", "infra"):
        for path in sorted((APP.parent / folder).rglob("*.py")):
            yield ".".join(path.relative_to(APP.parent).with_suffix("").parts), path


USERS = dict(users())


def test_nothing_but_tests_imports_from_tests() -> None:
    assert not [
        user
        for user, path in USERS.items()
        if any(name.partition(".")[0] == "tests" for name in imports(source(path)))
    ]


def loaded_after(statement: str) -> set[str]:
    """The modules that a process has loaded; not measured, which loads some itself."""
    code = f"{statement}\nimport sys; print(*sorted(sys.modules))"
    environment = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return set(done.stdout.split())


def test_the_protocol_loads_no_web_framework() -> None:
    loaded = loaded_after("import roundgate.protocol.revisions")
    assert not loaded & {"fastapi", "starlette", "httpx"}


def test_the_app_loads_nothing_that_only_some_back_ends_need() -> None:
    loaded = loaded_after("import roundgate.main")
    assert not loaded & {
        "httpx",
        "yaml",
        "boto3",
        "jwt",
        "cryptography",
        "docstring_parser",
        "uvicorn",
    }


NOT_FOR_PYTHON_TOOLS = {
    "asyncpg",
    "boto3",
    "cryptography",
    "httpx",
    "jinja2",
    "jmespath",
    "jsonschema_rs",
    "mangum",
    "uvicorn",
    "roundgate.audit",
    "roundgate.backends.aws_lambda",
    "roundgate.backends.exchange",
    "roundgate.backends.http.config",
    "roundgate.backends.http.credential_config",
    "roundgate.backends.openapi.config",
    "roundgate.client",
    "roundgate_console",
    "roundgate.http.older.endpoint",
    "roundgate.http.older.sessions",
    "roundgate.protocol.v2025",
    "roundgate.runtime.protection",
    "roundgate.storage.sqs",
    "roundgate.operators",
    "roundgate.tasks.lease",
    "roundgate.tasks.pool",
    "roundgate.tasks.turn",
    "roundgate.tasks.watchdog",
    "roundgate.tasks.worker",
}
"""What a gateway with Python tools pays nothing for until somebody needs it."""


def loaded_by_a_served_gateway(folder: Path) -> set[str]:
    """The modules of a process that has built the app of a gateway with one Python tool."""
    (folder / "tools.py").write_text(
        "from roundgate import tool\n\n@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    )
    (folder / "gateway.yaml").write_text("backends: [{kind: python, name: own, path: tools.py}]\n")
    environment = {
        "GATEWAY_CONFIG": str(folder / "gateway.yaml"),
        "GATEWAY_STORE": f"sqlite:///{folder / 'store.db'}",
    }
    return loaded_after(
        f"import os; os.environ.update({environment})\n"
        "from roundgate.main import create_app; create_app()"
    )


def test_a_gateway_with_python_tools_loads_no_other_kind_and_no_older_revision(
    tmp_path: Path,
) -> None:
    loaded = loaded_by_a_served_gateway(tmp_path)
    assert "roundgate.backends.python.backend" in loaded
    assert not loaded & NOT_FOR_PYTHON_TOOLS


def test_commands_load_no_pytest() -> None:
    """A user's machine may not have it."""
    commands = "roundgate_testing.cassette_command, roundgate_testing.suite_command"
    loaded = loaded_after(f"import {commands}, roundgate.cli.check")
    assert not loaded & {"pytest", "_pytest"}


def test_reading_a_command_line_loads_no_other_command() -> None:
    loaded = loaded_after("from roundgate.cli import parse; parse(['ping', 'https://h/mcp'])")
    commands = {name for name in loaded if name.startswith("roundgate.cli.")}
    modules = {"arguments", "reading", "remote", "output"}
    assert commands == {f"roundgate.cli.{name}" for name in modules}
    assert not loaded & {"roundgate.main", "roundgate_testing", "roundgate_aws"}


def test_the_gateway_imports_no_other_package_of_the_distribution() -> None:
    """Commands and pages arrive as entry points (`roundgate.extensions`)."""
    packages = ("roundgate_aws", "roundgate_console", "roundgate_testing")
    found = {
        (name, imported)
        for name, module in modules().items()
        for imported in imports(module)
        if imported.startswith(packages) and not name.startswith(packages)
    }
    assert found == set()


def test_every_package_says_what_it_is() -> None:
    assert [name for name, module in modules().items() if not ast.get_docstring(module.tree)] == []


def test_every_public_name_of_the_package_can_be_imported() -> None:
    import roundgate

    for package, name in exports():
        if package == "roundgate":
            assert getattr(roundgate, name).__name__ == name


def test_every_module_that_a_script_runs_exists() -> None:
    root = APP.parent
    scripts = [path for path in [*root.glob("scripts/*"), root / ".ci/run"] if path.is_file()]
    run = {
        name
        for path in scripts
        for name in re.findall(r" -m ((?:roundgate|tests|bench|infra)[\w.]*)", path.read_text())
    }
    assert len(run) > 5
    assert [name for name in sorted(run) if importlib.util.find_spec(name) is None] == []
