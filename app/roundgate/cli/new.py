"""`roundgate new NAME`: a repository of one's own: a tool that asks, one that is a
task, and tests that pass."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from roundgate.backends.openapi.servers import base_url_for
from roundgate.cli import schema
from roundgate.deployment import options
from roundgate.errors import UnreadableDocument, UsageError

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
"""What is in `new_files`, and where it goes."""
_SOMEWHERE: Final = "http://127.0.0.1:8080"
_FILES_FOR_AWS: Final = {
    "samconfig.toml": "samconfig.toml",
    "deploy.yml": ".github/workflows/deploy.yml",
}
"""What `--aws` adds."""


def run(arguments: argparse.Namespace) -> int:
    """Write the repository. Nothing that is there is overwritten."""
    try:
        written = write(arguments.directory, arguments.openapi, aws=arguments.aws)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    for file in written:
        print(f"  {file}")
    extras = "dev,aws" if arguments.aws else "dev"
    print(
        f"Go on: cd {arguments.directory} && pip install -e '.[{extras}]' && pytest && roundgate serve --reload"
    )
    return 0


def write(directory: Path, openapi: Path | None, *, aws: bool = False) -> list[Path]:
    """Write the files; returns which, relative to the directory.

    Args:
        directory: a new one, or an empty one; its name is that of the repository.
        openapi: an OpenAPI document whose operations are served, too; it is copied.
        aws: whether it is deployed to AWS Lambda: with parameters of the stack, and a
            workflow that deploys it.

    Raises:
        UsageError: the name cannot be a project's, the directory is not empty, or
            the document cannot be read.
    """
    name = _name_of(directory)
    document = {} if openapi is None else _document(openapi)
    values = {  # in this order: the first have others in them
        "aws": _text("README.aws.md") if aws else "",
        "name": name,
        "package": name.replace("-", "_"),
        "backends": "".join(_backend(name, raw) for name, raw in document.items()),
        "aws_extra": '\naws = ["roundgate[aws]"]' if aws else "",
        "parameters": options.commented() if aws else "",
    }
    wanted = _FILES | _FILES_FOR_AWS if aws else _FILES
    contents = {place: _filled(file, values).encode() for file, place in wanted.items()}
    contents["gateway.schema.json"] = schema.of_gateway().encode() + b"\n"
    for file in document.keys() & {place.partition("/")[0] for place in contents}:
        raise UsageError(f"the repository has a {file} of its own: rename {openapi}")
    contents |= document
    for place, content in contents.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return sorted(Path(place) for place in contents)


def _name_of(directory: Path) -> str:
    name = directory.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a project: use lower-case letters, digits and hyphens"
        )
    if name == "roundgate":
        raise UsageError(
            f"{name!r} is the package that the project needs, and pip would take the project for it: use another name"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is there and not empty: give the name of a new directory")
    return name


def _document(openapi: Path) -> dict[str, bytes]:
    """An OpenAPI document, by its name in the repository."""
    if re.match(r"https?:/", str(openapi)):
        raise UsageError(f"{openapi} is a URL: download the document, and give the file")
    try:
        return {openapi.name: openapi.read_bytes()}
    except OSError as error:
        raise UsageError(f"{openapi} cannot be read: {error.strerror}") from None


def _backend(file: str, raw: bytes) -> str:
    """What gateway.yaml says of the service with a document.

    Raises:
        UsageError: the file is no such document.
    """
    try:
        base_url = base_url_for(raw, file, _SOMEWHERE)
    except UnreadableDocument as error:
        raise UsageError(str(error)) from None
    entry = f"  - kind: openapi\n    name: service\n    document: {json.dumps(file)}\n"
    if base_url is not None:
        url, why = base_url
        entry += f"    base_url: {json.dumps(url)}  # {why}\n"
    return entry


def _filled(file: str, values: Mapping[str, str]) -> str:
    """One of our files, with the values in their places."""
    text = _text(file)
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", value)
    return text.rstrip("\n") + "\n"


def _text(file: str) -> str:
    source = files("roundgate.cli").joinpath("new_files", f"{file}.txt")
    return source.read_text(encoding="utf-8")
