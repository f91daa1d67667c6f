"""`${…}` in the strings of a configuration: environment variables and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from roundgate.config.base import Origin
from roundgate.errors import Problem

_REFERENCE: Final = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<source>file:)?(?P<name>[^}:]+)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}|\$\{"
)


def fill_in(value: Any, origin: Origin, environ: Mapping[str, str], problems: list[Problem], files: set[Path]) -> Any:
    """`${NAME}`, `${NAME:-default}` and `${file:path}` in every string; `$${` stands for `${`."""
    match value:
        case dict():
            return {key: fill_in(item, origin.at(key), environ, problems, files) for key, item in value.items()}
        case list():
            return [fill_in(item, origin.at(index), environ, problems, files) for index, item in enumerate(value)]
        case str() if "${" in value:
            return _REFERENCE.sub(lambda found: _resolve(found, origin, environ, problems, files), value)
        case _:
            return value


def _resolve(
    found: re.Match[str], origin: Origin, environ: Mapping[str, str], problems: list[Problem], files: set[Path]
) -> str:
    name, default = found["name"], found["default"]
    if found["escape"]:
        return "${"
    if name is None:
        remedy = "write ${NAME}, ${NAME:-default} or ${file:path}, or $${ for a plain ${"
        problems.append(origin.problem("${ begins something that is not a reference", remedy))
        return ""
    if found["source"]:
        file = origin.base_dir / name
        files.add(file)
        try:
            return file.read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            problems.append(origin.problem(f"{name}: {reason}", "mount the file, or correct the path"))
            return ""
    value = environ.get(name) or default
    if value is None:
        remedy = f"set it, or write ${{{name}:-default}}"
        problems.append(origin.problem(f"the environment variable {name} is not set", remedy))
    return value or ""
