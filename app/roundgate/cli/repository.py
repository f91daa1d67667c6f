"""`roundgate new`, `schema`, `keys` and `docs`: a new repository of tools, JSON Schemas for
editors, keys for requestState, and the documents of this version."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roundgate.cli.arguments import Commands, command, flag
from roundgate.cli.output import say, show_table
from roundgate.config import json_schema
from roundgate.errors import UsageError
from roundgate.extensions import load_extension
from roundgate.settings.process import from_environment
from roundgate.tokens import keys

if TYPE_CHECKING:
    from roundgate.cli.new_service import NewService


def declare(commands: Commands) -> None:
    """Add the commands of this module."""
    new = command(
        commands, "new", "create a repository for your tools", "roundgate new weather",
        "roundgate new shop --from openapi.json", "roundgate new shop --aws", run=_new,
    )  # fmt: skip
    new.add_argument(
        "directory", type=Path, help="directory to create; the repository has its name"
    )
    about = "OpenAPI document to copy and serve as well"
    new.add_argument("--from", dest="openapi", type=Path, metavar="FILE", help=about)
    flag(new, "--aws", "add samconfig.toml, and a workflow that deploys the stack")

    about = "print a page of this version's documentation, or list the pages"
    docs = command(
        commands, "docs", about, "roundgate docs", "roundgate docs configuration", run=_print_page
    )
    docs.add_argument(
        "page",
        nargs="?",
        metavar="PAGE",
        help="name of a page, such as configuration (default: list the pages)",
    )

    keys = command(
        commands, "keys", "make and rotate the keys that seal requestState",
        "roundgate keys new", "roundgate keys rotate --stage 1", run=_print_keys,
    )  # fmt: skip
    actions = keys.add_subparsers(dest="action", required=True)
    actions.add_parser("new", help="print a new key for GATEWAY_STATE_KEYS")
    about = "print GATEWAY_STATE_KEYS for the next stage of a rotation"
    rotate = actions.add_parser("rotate", help=about)
    about = "1: add a key, 2: seal with the new key, 3: drop the old keys"
    rotate.add_argument("--stage", type=int, choices=(1, 2, 3), required=True, help=about)
    about = "id of the new key, which stage 1 prints on standard error (stages 2 and 3)"
    rotate.add_argument("--key", metavar="ID", help=about)

    schema = command(
        commands, "schema", "print a JSON Schema for editors",
        "roundgate schema > gateway.schema.json", "roundgate schema --suite", run=_print_schema,
    )  # fmt: skip
    flag(schema, "--suite", "print the schema of suites (default: of gateway.yaml)")


def _print_schema(arguments: argparse.Namespace) -> int:
    if arguments.suite:
        print(json.dumps(load_extension("suite-schema")(), indent=2))
    else:
        print(gateway_schema())
    return 0


def _print_keys(arguments: argparse.Namespace) -> int:
    """Print a new key, or the keys of a rotation. Raise UsageError if the keys of the environment cannot
    be rotated."""
    print(keys.new_key() if arguments.action == "new" else _rotated(arguments.stage, arguments.key))
    return 0


_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_FILES: Final = {
    "gateway.yaml": "gateway.yaml",
    "tools.py": "tools.py",
    "test_tools.py": "tests/test_tools.py",
    "pyproject.toml": "pyproject.toml",
    "gitignore": ".gitignore",
    "env.example": ".env.example",
    "README.md": "README.md",
    "ci.yml": ".github/workflows/ci.yml",
}
"""The templates in `new_files` (without `.txt`), and their paths in the new repository."""
_FILES_FOR_AWS: Final = {
    "samconfig.toml": "samconfig.toml",
    "deploy.yml": ".github/workflows/deploy.yml",
}


def _new(arguments: argparse.Namespace) -> int:
    for file in write_repository(arguments.directory, arguments.openapi, aws=arguments.aws):
        print(f"  {file}")
    extras = "dev,aws" if arguments.aws else "dev"
    print(
        f"Next: cd {arguments.directory} && pip install -e '.[{extras}]' && pytest && roundgate serve --reload"
    )
    return 0


def write_repository(directory: Path, openapi: Path | None, *, aws: bool = False) -> list[Path]:
    """Write a new repository and return the paths of its files, relative to the directory.

    Args:
        directory: a new or empty directory; its name becomes the name of the project.
        openapi: an OpenAPI document to copy and to serve.
        aws: whether to add the parameters of a stack and a workflow that deploys the stack.

    Raises:
        UsageError: the name is invalid, the directory is not empty, or the document cannot be read
            or has the name of a file of the repository.
    """
    name = _project_name(directory)
    package = name.replace("-", "_")
    service = None if openapi is None else new_service(openapi, package)
    values = {  # in this order, because "aws" contains placeholders of later values
        "aws": _template("README.aws.md") if aws else "",
        "name": name,
        "package": package,
        "backends": "" if service is None else service.entry + service.sections,
        "variables": "" if service is None else service.variables,
        "aws_extra": '\naws = ["roundgate[aws]"]' if aws else "",
        "parameters": load_extension("aws-parameters")() if aws else "",
    }
    templates = _FILES | _FILES_FOR_AWS if aws else _FILES
    contents = {place: _filled(file, values).encode() for file, place in templates.items()}
    contents["gateway.schema.json"] = gateway_schema().encode() + b"\n"
    if service is not None:
        if service.file in {place.partition("/")[0] for place in contents}:
            raise UsageError(f"the repository has its own {service.file}: rename {openapi}")
        contents[service.file] = service.raw
    for place, content in contents.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    files_written = {Path(place) for place in contents}
    if service is not None:
        files_written.add(service.compile(directory))
    return sorted(files_written)


def _project_name(directory: Path) -> str:
    name = directory.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a project: use lower-case letters, digits and hyphens"
        )
    if name == "roundgate":
        raise UsageError(
            f"{name!r} is the name of a package that the project requires: use another name"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty: choose a new directory")
    return name


def new_service(openapi: Path, taken: str) -> NewService:
    """Return the lines for an OpenAPI document; see `NewService.of`."""
    from roundgate.cli.new_service import NewService  # imports the compiler

    return NewService.of(openapi, taken)


def _filled(file: str, values: Mapping[str, str]) -> str:
    text = _template(file)
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", value)
    return text.rstrip("\n") + "\n"


def _template(file: str) -> str:
    source = files("roundgate.cli").joinpath("new_files", f"{file}.txt")
    return source.read_text(encoding="utf-8")


_REFERENCE: Final = {
    "type": "string",
    "pattern": r"\$\{",
    "description": "A reference: ${NAME}, ${file:path}.",
}
_ANNOTATIONS: Final[tuple[str, ...]] = ("description", "default", "title")


def gateway_schema() -> str:
    """Return the JSON Schema of gateway.yaml, which also allows references such as `${NAME}`."""
    schema = json_schema()
    for model in (schema, *schema["$defs"].values()):
        model["properties"] = {
            name: _or_reference(setting) for name, setting in model["properties"].items()
        }
    return json.dumps(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2
    )


def _or_reference(setting: dict[str, Any]) -> dict[str, Any]:
    """Return a setting's schema, extended to allow references if it would reject them."""
    options = setting.get("anyOf", [setting])
    is_strict = any(
        option.get("type") in ("integer", "number", "boolean")
        or option.keys() & {"pattern", "enum"}
        for option in options
    )
    if not is_strict:
        return setting
    outside: dict[str, Any] = {key: setting[key] for key in _ANNOTATIONS if key in setting}
    inside = [
        {key: value for key, value in option.items() if key not in _ANNOTATIONS}
        for option in options
    ]
    return {**outside, "anyOf": [*inside, _REFERENCE]}


def _rotated(stage: int, key: str | None) -> str:
    """Return GATEWAY_STATE_KEYS for a stage of a rotation (`roundgate docs runbooks/rotate-keys`).
    Raise UsageError if the keys of the environment are not those of the stage."""
    current = from_environment(os.environ).state_keys
    if current is None:
        raise UsageError("set GATEWAY_STATE_KEYS or GATEWAY_STATE_KEYS_FILE to the current keys")
    ring = keys.rotate([part.strip() for part in current.split(",")], stage, key)
    if stage == 1:
        new = keys.parse(ring[-1], "the new key")[0].id
        say(f"the new key is {new}: pass --key={new} to stages 2 and 3", to=sys.stderr)
    return ",".join(ring)


_PACKAGE: Final = Path(__file__).parents[1]
_IN_WHEEL: Final = _PACKAGE / "docs"
DOCS: Final = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parents[1] / "docs"
"""The folder of the documents, in the installed package or in a checkout."""


def _print_page(arguments: argparse.Namespace) -> int:
    page, all_pages = arguments.page, pages()
    if page is None:
        titles = {
            name: path.read_text("utf-8").partition("\n")[0] for name, path in all_pages.items()
        }
        show_table([(name, title.removeprefix("# ")) for name, title in titles.items()])
        return 0
    page_name = page.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if page_name not in all_pages:
        near = get_close_matches(page_name, all_pages, 3)
        meant = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "run `roundgate docs` to list the pages"
        )
        raise UsageError(f"there is no page {page_name!r}: {meant}")
    print(all_pages[page_name].read_text("utf-8"), end="")
    return 0


def pages() -> dict[str, Path]:
    """Return the paths of pages by name, such as `configuration` or `runbooks/rotate-keys`."""
    paths = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "site"]
    named = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in paths}
    return dict(sorted(named.items(), key=lambda item: ("/" in item[0], item[0])))
