"""`${…}` in the strings of a configuration: environment variables, files,
and what is kept at AWS."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from roundgate.errors import Problem, UnresolvedReference
from roundgate.settings.base import Origin
from roundgate.settings.secret import Deferred, FromFiles, Kept, Reference, of_file

_REFERENCE: Final = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<kept>secret|ssm):(?P<place>[^}\s#$]+)(?:#(?P<key>[^}]+))?\}"
    r"|\$\{(?P<source>file:)?(?P<name>[^}:]+)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|\$\{"
)

_Part: TypeAlias = tuple[str, Reference | None, Problem | None]
"""What a reference is now; where that is kept, if it may change; what keeps it from being read. The
text is empty where it is not read here."""


def fill_in(
    value: Any,
    origin: Origin,
    environ: Mapping[str, str],
    problems: list[Problem],
    files: set[Path],
    placeholder: str | None = None,
) -> Any:
    """The value with the references in its strings filled in; `$${` stands for `${`.

    `${NAME}`, `${NAME:-default}` and `${file:path}` are read here. A string with `${secret:NAME}`
    or `${ssm:NAME}` in it, or with a file that cannot be read, becomes a `Deferred`, which only
    settings take that are secrets.

    Args:
        value: the file, or a part of it.
        origin: where that stands, for problems.
        environ: the variables.
        problems: what is not there is added to these.
        files: the files that are referred to are added to these.
        placeholder: stands for what is not there, which is no problem then,
            and for what is kept at AWS.
    """

    def resolved(found: re.Match[str], place: Origin) -> _Part:
        try:
            part = _resolve(found, place, environ, files)
        except UnresolvedReference as error:
            if placeholder is not None and not error.is_syntax:
                return placeholder, None, None
            problem = place.problem(str(error), error.remedy)
            if found["source"] and not error.is_syntax:
                return "", of_file(origin.base_dir / found["name"]), problem
            problems.append(problem)
            return "", None, None
        return (placeholder, None, None) if placeholder is not None and found["kept"] else part

    def filled(value: Any, place: Origin) -> Any:
        match value:
            case dict():
                return {key: filled(item, place.at(key)) for key, item in value.items()}
            case list():
                return [filled(item, place.at(index)) for index, item in enumerate(value)]
            case str() if "${" in value:
                return _joined(value, lambda found: resolved(found, place))
            case _:
                return value

    return filled(value, origin)


def _joined(value: str, resolved: Callable[[re.Match[str]], _Part]) -> str | Deferred:
    texts: list[str] = []
    parts: list[str | Reference] = []
    unread: Problem | None = None
    end = 0
    for found in _REFERENCE.finditer(value):
        text, reference, problem = resolved(found)
        unread = unread or problem
        texts += [value[end : found.start()], text]
        parts += [value[end : found.start()], text if reference is None else reference]
        end = found.end()
    texts.append(value[end:])
    parts.append(value[end:])
    kept = {part.kept for part in parts if isinstance(part, Reference)}
    if kept - {"file"} or unread is not None:
        return Deferred(tuple(part for part in parts if part), unread)
    text = "".join(texts)
    return FromFiles.of(text, tuple(part for part in parts if part)) if kept else text


def _resolve(
    found: re.Match[str], origin: Origin, environ: Mapping[str, str], files: set[Path]
) -> _Part:
    name, default = found["name"], found["default"]
    if found["escape"]:
        return "${", None, None
    if found["kept"]:
        return "", Reference(cast("Kept", found["kept"]), found["place"], found["key"]), None
    if name is None:
        remedy = (
            "write ${NAME}, ${NAME:-default}, ${file:path}, ${secret:NAME} or ${ssm:NAME}, or $${"
            " for a plain ${"
        )
        raise UnresolvedReference(
            "${ begins something that is not a reference", remedy, is_syntax=True
        )
    if found["source"]:
        file = origin.base_dir / name
        files.add(file)
        return read_file(file, name), of_file(file), None
    value = environ.get(name) or default
    if value is None:
        remedy = f"set it, or write ${{{name}:-default}}"
        raise UnresolvedReference(f"the environment variable {name} is not set", remedy)
    return value, None, None


def kept_at_aws(value: Any) -> Iterator[Reference]:
    """What the strings of a file refer to that is kept at AWS."""
    match value:
        case dict():
            for item in value.values():
                yield from kept_at_aws(item)
        case list():
            for item in value:
                yield from kept_at_aws(item)
        case str():
            for found in _REFERENCE.finditer(value):
                if found["kept"]:
                    yield Reference(cast("Kept", found["kept"]), found["place"], found["key"])


def read_file(file: Path, name: str) -> str:
    """The text of a file, without the ends of line after it.

    Raises:
        UnresolvedReference: it cannot be read; `name` is what it is called in the message.
    """
    try:
        return file.read_text("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise UnresolvedReference(
            f"{name}: {reason}", "mount the file, or correct the path"
        ) from None
