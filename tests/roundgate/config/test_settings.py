"""The environment as settings: defaults, each variable, every problem at once."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from pydantic.fields import FieldInfo

from roundgate import config
from roundgate.backends.aws_lambda.config import (
    DurableConfig,
    HttpEventConfig,
    LambdaBackendConfig,
    LambdaCallConfig,
    LambdaJobConfig,
    LambdaToolConfig,
    PayloadConfig,
)
from roundgate.backends.config import (
    ArgumentOverride,
    BackendConfig,
    BackendLimits,
    CallConfig,
    DeclaredToolConfig,
    JobConfig,
    NamesConfig,
    SearchConfig,
    Selector,
    ToolOverride,
    ViewConfig,
    ViewSelector,
)
from roundgate.backends.http.config import (
    BreakerConfig,
    HttpArgument,
    HttpBackendConfig,
    HttpCancelConfig,
    HttpJobConfig,
    HttpToolConfig,
    RemoteConfig,
    RetryConfig,
    ServiceConfig,
    TimeoutsConfig,
)
from roundgate.backends.http.credential_config import CREDENTIALS, CredentialConfig
from roundgate.backends.http.tls import TlsConfig
from roundgate.backends.mcp.config import (
    JobToolConfig,
    McpBackendConfig,
    McpJobConfig,
    PartConfig,
)
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.python.backend import PythonBackendConfig
from roundgate.backends.registry import KINDS
from roundgate.backends.skills.config import SkillsBackendConfig
from roundgate.errors import ConfigError
from roundgate.policy import config as policy
from roundgate.settings import Model, sections
from roundgate.settings import process as settings
from roundgate.settings.process import Settings, from_environment
from tests.support.documents import ROOT, blocks


def problems(**environ: str) -> list[str]:
    """The variables that are wrong."""
    with pytest.raises(ConfigError) as refused:
        from_environment(environ)
    assert all(
        problem.file == "environment" and problem.remedy for problem in refused.value.problems
    )
    return [problem.path for problem in refused.value.problems]


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({}) == Settings()


def test_an_empty_variable_counts_as_unset() -> None:
    names = ["CONFIG", "PUBLIC_URL", "LISTEN", "LOG_LEVEL"]
    empty = {f"GATEWAY_{name}": "" for name in names} | {"AWS_LAMBDA_FUNCTION_NAME": ""}
    assert from_environment(empty) == Settings()


def test_each_variable_sets_its_field() -> None:
    environ = {
        "GATEWAY_CONFIG": "/etc/gateway.yaml",
        "GATEWAY_PUBLIC_URL": "https://mcp.example.com",
        "GATEWAY_LISTEN": "off",
        "GATEWAY_LOG_LEVEL": "warning",
        "AWS_LAMBDA_FUNCTION_NAME": "gateway",
    }
    expected = Settings(
        Path("/etc/gateway.yaml"), "https://mcp.example.com", "off", "warning", on_lambda=True
    )
    assert from_environment(environ) == structs.replace(
        expected, on_function="gateway", on_demand=True
    )


@pytest.mark.parametrize(
    ("store", "file"),
    [
        ("", ".roundgate/gateway.sqlite3"),
        ("sqlite:///data/tasks.sqlite3", "data/tasks.sqlite3"),
        ("sqlite:///../tasks.sqlite3", "../tasks.sqlite3"),
        ("sqlite:////var/lib/tasks.sqlite3", "/var/lib/tasks.sqlite3"),
        ("dynamodb://tasks", ".roundgate/tasks.sqlite3"),
    ],
)
def test_the_file_of_the_store_is_found_from_gateway_yaml_wherever_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, file: str
) -> None:
    (tmp_path / "below").mkdir()
    for here, given in (("", "gateway.yaml"), ("below", "../gateway.yaml")):
        monkeypatch.chdir(tmp_path / here)
        using = from_environment({"GATEWAY_CONFIG": given, "GATEWAY_STORE": store})
        assert using.store_file == tmp_path / file


@pytest.mark.parametrize(
    ("function", "kind", "on_demand"),
    [
        ("f", None, True),
        ("f", "on-demand", True),
        ("f", "provisioned-concurrency", False),
        ("f", "snap-start", False),
        ("", None, False),
    ],
    ids=["by default", "on demand", "provisioned", "snapshot", "a server"],
)
def test_somebody_waits_for_a_function_that_starts_on_demand(
    function: str, kind: str | None, on_demand: bool
) -> None:
    environ = {"AWS_LAMBDA_FUNCTION_NAME": function, "AWS_LAMBDA_INITIALIZATION_TYPE": kind or ""}
    assert from_environment(environ).on_demand is on_demand


@pytest.mark.parametrize(
    ("listen", "on_lambda", "streams"),
    [("auto", False, True), ("auto", True, False), ("on", True, True), ("off", False, False)],
)
def test_streams_are_served_unless_switched_off_or_on_lambda(
    listen: str, on_lambda: bool, streams: bool
) -> None:
    environ = {"GATEWAY_LISTEN": listen, "AWS_LAMBDA_FUNCTION_NAME": "f" if on_lambda else ""}
    assert from_environment(environ).streams is streams


@pytest.mark.parametrize(
    "url",
    [
        "mcp.example.com",
        "ftp://mcp.example.com",
        "https://",
        "http:///mcp",
        "https://[::1",
        "//host",
        "x",
        "https://mcp.example.com:8000@evil.test",
        "https://user@mcp.example.com",
        "https://[::1]evil.test",
        "https://mcp.example.com:port",
        "https://mcp.example.com:0",
    ],
)
def test_a_public_url_needs_a_scheme_and_a_host(url: str) -> None:
    assert problems(GATEWAY_PUBLIC_URL=url) == ["GATEWAY_PUBLIC_URL"]


def test_every_problem_is_told_at_once() -> None:
    wrong = {"GATEWAY_LISTEN": "yes", "GATEWAY_LOG_LEVEL": "loud", "GATEWAY_PUBLIC_URL": "x"}
    assert sorted(problems(**wrong)) == sorted(wrong)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GATEWAY_STORE", "postgres://x", "is not a supported store"),
        ("GATEWAY_STORE", "postgresql://user:pass/word@host/db", "is not a supported store"),
        ("GATEWAY_STORE", "postgresql://user:pass@word@host/db", "is not a supported store"),
        ("GATEWAY_STORE", "postgresql://user:word@host:port/db", "is not a supported store"),
        ("GATEWAY_STORE", "postgresql://user:word@host", "is not a supported store"),
        ("GATEWAY_STORE_CONNECTIONS", "0", "is not a number of connections"),
        ("GATEWAY_STORE_CONNECTIONS", "ten", "is not a number of connections"),
        ("GATEWAY_DRAIN_S", "-1", "is not a number of seconds"),
        ("GATEWAY_DRAIN_S", "1000", "is not a number of seconds"),
        (
            "GATEWAY_STORE_FILE",
            "/nowhere",
            "names a file that cannot be read: No such file or directory",
        ),
        (
            "GATEWAY_STATE_KEYS_FILE",
            "/dev/zero",
            "names a file that cannot be read: it is not a regular file",
        ),
        ("GATEWAY_STORE", "sqlite:///", "is not a supported store"),
        ("GATEWAY_STORE", "dynamodb://a", "is not a supported store"),
        ("GATEWAY_QUEUE", "sqs://", "is not a supported queue"),
        ("GATEWAY_QUEUE", "rabbit", "is not a supported queue"),
        ("GATEWAY_RELOAD", "yes", "does not accept 'yes'"),
        ("GATEWAY_ALLOW_ANONYMOUS", "TRUE", "does not accept 'TRUE'"),
        ("GATEWAY_WORKER", "maybe", "does not accept 'maybe'"),
    ],
)
def test_a_value_that_cannot_be_says_what_can(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({name: value})
    (problem,) = caught.value.problems
    assert (problem.path, problem.message, bool(problem.remedy)) == (name, said, True)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://gateway:p%40ss@db.internal:5432/gateway?sslmode=verify-full",
        "postgres://a,b:5433/gateway?target_session_attrs=read-write",
        "postgresql://[2001:db8::1]:5432/gateway",
        "postgresql:///gateway?host=/run/postgresql",
        "postgresql://gateway@/gateway?host=/tmp/x",
    ],
)
def test_a_postgresql_url_is_taken_as_libpq_takes_it(url: str) -> None:
    using = from_environment({"GATEWAY_STORE": url, "GATEWAY_STORE_CONNECTIONS": "7"})
    assert (using.store, using.store_connections) == (url, 7)
    assert using.store_kind.module == "roundgate.storage.postgres"


def test_the_password_of_a_store_is_shown_by_no_problem_and_no_repr() -> None:
    url = "postgresql://gateway:s3cr3t@db/gateway"
    assert "s3cr3t" not in repr(from_environment({"GATEWAY_STORE": url}))
    for wrong in (f"{url} ", f"{url}#x", url.replace("@", "/x@"), f"x{url}"):
        with pytest.raises(ConfigError) as refused:
            from_environment({"GATEWAY_STORE": wrong})
        assert "s3cr3t" not in str(refused.value)


def test_a_remedy_lists_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"use one of auto, on, off"):
        from_environment({"GATEWAY_LISTEN": "ON"})


def test_every_variable_that_is_read_is_described_at_its_field() -> None:
    described = re.findall(
        r"^    (\w+): .*\n    \"\"\"(GATEWAY_[A-Z_]+): ", inspect.getsource(settings), re.MULTILINE
    )
    assert [name for name, _ in described] == [
        name for name in Settings.__struct_fields__ if not name.startswith("on_")
    ]
    assert all(variable == f"GATEWAY_{name.upper()}" for name, variable in described)


DOCUMENT = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
PLACES: dict[type[Model], str] = {
    sections.ServerConfig: "## `server`",
    sections.HttpConfig: "## `http`",
    sections.LimitsConfig: "## `limits`",
    sections.CallLimits: "## `rate`",
    sections.RateConfig: "## `rate`",
    sections.CallersConfig: "## `auth`",
    sections.JwtAuthConfig: "## `auth`",
    sections.AuthorizerConfig: "| setting of an authorizer",
    policy.RuleConfig: "## `policy`",
    policy.CallMatch: "| setting of a rule's call",
    sections.StateConfig: "## `state`",
    sections.PackageConfig: "## `package`",
    sections.SessionsConfig: "## `sessions`",
    sections.FallbackConfig: "## `fallback`",
    sections.ArgumentsConfig: "## `arguments`",
    sections.TasksConfig: "## `tasks`",
    sections.CachingConfig: "## `caching`",
    sections.CacheSection: "## `caching`",
    sections.AuditConfig: "## `audit`",
    sections.ConsoleConfig: "## `console`",
    BackendConfig: "## `backends`",
    NamesConfig: "## `backends`",
    Selector: "| setting of a selector",
    SearchConfig: "## `search`",
    ViewConfig: "| setting of a view |",
    ViewSelector: "| setting of a view |",
    ToolOverride: "| setting of an override |",
    ArgumentOverride: "| setting of an override of an argument",
    PythonBackendConfig: "### `kind: python`",
    HttpBackendConfig: "### `kind: http`",
    RemoteConfig: "### `kind: http`",
    ServiceConfig: "### `kind: http`",
    OpenApiBackendConfig: "### `kind: openapi`",
    McpBackendConfig: "### `kind: mcp`",
    McpJobConfig: "| setting of a server's job",
    JobToolConfig: "| setting of a server's job",
    PartConfig: "| setting of `prompts` and `resources`",
    SkillsBackendConfig: "### `kind: skills`",
    LambdaBackendConfig: "### `kind: lambda`",
    LambdaToolConfig: "| setting of a function's tool",
    LambdaCallConfig: "| setting of a function's tool",
    CallConfig: "| setting of a function's tool",
    DeclaredToolConfig: "| setting of a function's tool",
    PayloadConfig: "| setting of a function's payload",
    HttpEventConfig: "| setting of a function's HTTP event",
    LambdaJobConfig: "| setting of a function's job",
    DurableConfig: "| setting of a durable execution",
    TlsConfig: "### `kind: http`",
    RetryConfig: "| setting of `retry`",
    BackendLimits: "| setting of `limits` |",
    BreakerConfig: "| setting of `breaker`",
    TimeoutsConfig: "### `kind: http`",
    CredentialConfig: "### `kind: http`",
    **dict.fromkeys(CREDENTIALS.values(), "### `kind: http`"),
    HttpToolConfig: "| setting of a tool",
    HttpArgument: "| setting of an argument",
    JobConfig: "| setting of a job",
    HttpJobConfig: "| setting of a job",
    HttpCancelConfig: "| setting of a cancel",
}
"""Where docs/configuration.md describes the settings of a model: from here to the next heading or
table of its own."""


@pytest.mark.parametrize("example", blocks(DOCUMENT, "yaml"), ids=lambda text: text.split()[0])
def test_each_example_of_the_document_is_valid(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.startswith("#"):
        return
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    others = {
        "backends": "[{kind: python, name: a, path: a.py}]",
        "auth": "{issuer: https://login.example, jwks_url: https://login.example/keys, "
        "operator_scope: operate}",
    }
    missing = [f"{name}: {value}\n" for name, value in others.items() if f"{name}:" not in example]
    (tmp_path / "gateway.yaml").write_text("".join([f"{example}\n", *missing]))
    config.load(tmp_path / "gateway.yaml", {"SHOP_KEY": "k", "SHOP_PIN": "p"})


def part(start: str) -> str:
    """A part of the document."""
    assert DOCUMENT.count(f"\n{start}") == 1, start
    return re.split(r"\n##|\n\| setting of ", DOCUMENT.partition(f"\n{start}")[2])[0]


def own_settings(model: type[Model]) -> dict[str, FieldInfo]:
    """The settings of a model under their names in the file, without `kind` and those of its
    base."""
    base = BackendConfig.model_fields.keys() if model is not BackendConfig else set()
    inherited = base | {"kind"} if issubclass(model, BackendConfig) else set()
    inherited |= Selector.model_fields.keys() if model is ViewSelector else set()
    return {
        field.alias or name: field
        for name, field in model.model_fields.items()
        if name not in inherited
    }


def rows(text: str) -> dict[str, str]:
    """The second cell of each row of a table that describes one name."""
    found = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE)
    return {name: cell.strip().strip("`").replace(",", "") for name, cell in found}


def test_every_field_of_the_settings_is_in_the_documentation() -> None:
    assert re.findall(r"^\| `[A-Z_]+` \(`(\w+)`\) \|", part("## Environment"), re.MULTILINE) == [
        *Settings.__struct_fields__
    ]


def test_every_section_of_the_file_is_in_the_documentation() -> None:
    assert re.findall(r"^## `(\w+)`", DOCUMENT, re.MULTILINE) == list(
        config.GatewayConfig.model_fields
    )


def test_every_model_of_the_file_has_its_place_in_the_documentation() -> None:
    for kind in KINDS.values():
        kind.model()  # imports its models
    assert set(subclasses(Model)) - {config.GatewayConfig} == PLACES.keys()


def subclasses(model: type[Model]) -> Iterator[type[Model]]:
    for one in model.__subclasses__():
        if one.__module__.startswith(
            ("roundgate.config.", "roundgate.settings.", "roundgate.policy.", "roundgate.backends.")
        ):
            yield one
            yield from subclasses(one)


@pytest.mark.parametrize("model", PLACES, ids=lambda model: model.__name__)
def test_every_setting_of_the_file_is_in_the_documentation(model: type[Model]) -> None:
    text = part(PLACES[model])
    assert [name for name in own_settings(model) if not re.search(rf"`{name}[`:]", text)] == []


@pytest.mark.parametrize("model", PLACES, ids=lambda model: model.__name__)
def test_a_default_in_the_documentation_is_the_one_in_the_code(model: type[Model]) -> None:
    told = rows(part(PLACES[model]))
    plain = {
        name: field.default
        for name, field in own_settings(model).items()
        if type(field.default) in (int, float, str) and field.default
    }
    if model is not sections.CacheSection:  # its default depends on the list
        assert {name: told[name] for name in plain.keys() & told.keys()} == {
            name: str(default) for name, default in plain.items() if name in told
        }


def test_every_kind_is_in_the_row_of_kinds_and_on_the_page_of_credentials() -> None:
    credentials = (ROOT / "docs/credentials.md").read_text().partition("|")[0]
    kinds = next(row for row in DOCUMENT.splitlines() if row.startswith("| `kind` |"))
    assert [name for name in KINDS if f"`{name}`" not in kinds] == []
    remote = [name for name, kind in KINDS.items() if issubclass(kind.model(), RemoteConfig)]
    assert [name for name in remote if not re.search(rf"\b{name}`", credentials)] == []


def test_every_store_is_in_the_row_of_its_variable() -> None:
    row = next(
        row for row in DOCUMENT.splitlines() if row.startswith("| `GATEWAY_STORE` (`store`)")
    )
    schemes = [kind.example.partition(":")[0] for kind in settings.STORES]
    assert [scheme for scheme in schemes if f"{scheme}://" not in row] == []


def test_secrets_may_be_in_files_which_come_first(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("abc,def\n")
    (tmp_path / "store").write_text("postgresql://user:s3cr3t@host/db\n")
    files = {
        "GATEWAY_STATE_KEYS_FILE": str(tmp_path / "keys"),
        "GATEWAY_STORE_FILE": str(tmp_path / "store"),
    }
    using = from_environment(files)
    assert using.state_keys == "abc,def"
    assert using.store == "postgresql://user:s3cr3t@host/db"
    assert from_environment(files | {"GATEWAY_STORE": "sqlite:////a/b"}) == using
    assert "s3cr3t" not in repr(using)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_a_file_without_a_secret_is_a_problem_that_does_not_show_it(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "keys").write_bytes(content)
    assert problems(GATEWAY_STATE_KEYS_FILE=str(tmp_path / "keys")) == ["GATEWAY_STATE_KEYS_FILE"]


@pytest.mark.parametrize("kind", ["a FIFO", "a directory"])
def test_a_file_of_another_kind_is_a_problem(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "keys"
    if kind == "a FIFO":
        os.mkfifo(path)  # which would wait for a writer
    else:
        path.mkdir()
    assert problems(GATEWAY_STATE_KEYS_FILE=str(path)) == ["GATEWAY_STATE_KEYS_FILE"]


def test_a_problem_with_the_text_of_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_text("postgresql://user:s3cr3t@host")
    assert problems(GATEWAY_STORE_FILE=str(file)) == [f"GATEWAY_STORE_FILE={file}"]
