"""`roundgate new NAME`: a repository of one's own: a tool that asks, one that is a task, and tests that pass."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

from roundgate.cli import schema
from roundgate.errors import UsageError

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


def run(arguments: argparse.Namespace) -> int:
    """Write the repository. Nothing that is there is overwritten."""
    try:
        written = write(arguments.directory, arguments.openapi)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    for file in written:
        print(f"  {file}")
    print(
        f"Go on: cd {arguments.directory} && pip install -e '.[dev]' && pytest && roundgate serve --reload"
    )
    return 0


def write(directory: Path, openapi: Path | None) -> list[Path]:
    """Write the files; returns which, relative to the directory.

    Args:
        directory: a new one, or an empty one; its name is that of the repository.
        openapi: an OpenAPI document whose operations are served, too; it is copied.

    Raises:
        UsageError: the name cannot be a project's, the directory is not empty, or the document cannot be read.
    """
    name = directory.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a project: use lower-case letters, digits and hyphens"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is there and not empty: give the name of a new directory")
    contents: dict[str, str | bytes] = {}
    backends = ""
    if openapi is not None:
        try:
            contents[openapi.name] = openapi.read_bytes()
        except OSError as error:
            raise UsageError(f"{openapi} cannot be read: {error.strerror}") from None
        backends = f"  - kind: openapi\n    name: service\n    document: {openapi.name}\n"
    values = {"name": name, "package": name.replace("-", "_"), "backends": backends}
    source = files("roundgate.cli").joinpath("new_files")
    for file, place in _FILES.items():
        text = source.joinpath(f"{file}.txt").read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace("{{" + key + "}}", value)
        contents[place] = text.rstrip("\n") + "\n"
    contents["gateway.schema.json"] = schema.of_gateway() + "\n"
    for place, content in contents.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return sorted(Path(place) for place in contents)
