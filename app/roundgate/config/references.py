"""`${…}` in the strings of a configuration: environment variables and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from roundgate.config.base import Origin
from roundgate.errors import Problem, UnresolvedReference

_REFERENCE: Final = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<source>file:)?(?P<name>[^}:]+)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}|\$\{"
)


def fill_in(
    value: Any,
    origin: Origin,
    environ: Mapping[str, str],
    problems: list[Problem],
    files: set[Path],
    placeholder: str | None = None,
) -> Any:
    """The value with `${NAME}`, `${NAME:-default}` and `${file:path}` in its strings filled in; `$${` stands for `${`.

    Args:
        value: the file, or a part of it.
        origin: where that stands, for problems.
        environ: the variables.
        problems: what is not there is added to these.
        files: the files that are referred to are added to these.
        placeholder: stands for what is not there, which is no problem then.
    """

    def resolved(found: re.Match[str], place: Origin) -> str:
        try:
            return _resolve(found, place, environ, files)
        except UnresolvedReference as error:
            if placeholder is not None and not error.is_syntax:
                return placeholder
            problems.append(place.problem(str(error), error.remedy))
            return ""

    def filled(value: Any, place: Origin) -> Any:
        match value:
            case dict():
                return {key: filled(item, place.at(key)) for key, item in value.items()}
            case list():
                return [filled(item, place.at(index)) for index, item in enumerate(value)]
            case str() if "${" in value:
                return _REFERENCE.sub(lambda found: resolved(found, place), value)
            case _:
                return value

    return filled(value, origin)


def _resolve(
    found: re.Match[str], origin: Origin, environ: Mapping[str, str], files: set[Path]
) -> str:
    name, default = found["name"], found["default"]
    if found["escape"]:
        return "${"
    if name is None:
        remedy = "write ${NAME}, ${NAME:-default} or ${file:path}, or $${ for a plain ${"
        raise UnresolvedReference(
            "${ begins something that is not a reference", remedy, is_syntax=True
        )
    if found["source"]:
        file = origin.base_dir / name
        files.add(file)
        try:
            return file.read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise UnresolvedReference(
                f"{name}: {reason}", "mount the file, or correct the path"
            ) from None
    value = environ.get(name) or default
    if value is None:
        remedy = f"set it, or write ${{{name}:-default}}"
        raise UnresolvedReference(f"the environment variable {name} is not set", remedy)
    return value
