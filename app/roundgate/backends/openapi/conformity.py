"""What openapi-spec-validator finds in a document, for `roundgate check` alone.

It follows references with what is given to it here, which reads no more than a back end may; and
what it makes of a document that somebody else wrote can be anything, a crash too, so nothing
that is served depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from roundgate.backends.openapi.overlays import Location
from roundgate.backends.openapi.reading import Document
from roundgate.errors import Problem

MOST: Final = 50
"""Remarks on one document: what follows is mostly the same again."""
_NOT_INSTALLED: Final = (
    "the documents were not compared with the specification",
    "pip install 'roundgate[openapi]' where `roundgate check` runs",
)
_REMEDY: Final = (
    "mend the document, or correct it with an `overlay`; the operation is served all the same"
)


def found_in(document: Document, base_dir: Path) -> list[Problem]:
    """Remarks on a document, the first MOST of them: its name relative to a folder, a
    pointer, and what is wrong."""
    file = _shown(document.uri, base_dir)
    try:
        validator = _validator(document)
    except ImportError:
        return [Problem(file, "", *_NOT_INSTALLED)]
    try:
        return list(islice(_each_once(_remarks(file, document.value, validator)), MOST))
    except Exception as error:
        message = f"cannot be compared with the specification ({type(error).__name__})"
        return [
            Problem(file, "", message, "see whether its references and types are as they should be")
        ]


def _validator(document: Document) -> Any:
    import openapi_spec_validator as validators
    from jsonschema_path import SchemaPath

    read = document.references.sources.document
    handlers = dict.fromkeys(("", "file", "http", "https"), read)
    version = str(document.value.get("swagger", document.value.get("openapi", "")))[:3]
    named = {
        "2.0": "OpenAPIV2SpecValidator",
        "3.0": "OpenAPIV30SpecValidator",
        "3.1": "OpenAPIV31SpecValidator",
    }
    kind = getattr(validators, named.get(version, "OpenAPIV32SpecValidator"))
    return kind(SchemaPath.from_dict(document.value, base_uri=document.uri, handlers=handlers))


def _remarks(file: str, document: Mapping[str, Any], validator: Any) -> Iterator[Problem]:
    for error in validator.iter_errors():
        location = _location(document, tuple(error.absolute_path), error.instance)
        pointer = "".join(f"/{_step(one)}" for one in location)
        yield Problem(file, pointer, _message(error), _REMEDY)


def _each_once(found: Iterator[Problem]) -> Iterator[Problem]:
    """What two operations refer to is found by way of each."""
    told: set[tuple[str, str]] = set()
    for one in found:
        if (one.path, one.message) not in told:
            told.add((one.path, one.message))
            yield one


def _location(document: Mapping[str, Any], path: Location, instance: Any) -> Location:
    """The place of what an error is about. Errors in schemas have it from the schema on: then it is
    that of the first schema in which the same stands."""
    if path and path[0] in document:
        return path
    return next((one + path for one, node in _nodes(document) if _has(node, path, instance)), path)


def _nodes(document: Any) -> Iterator[tuple[Location, Any]]:
    waiting: deque[tuple[Location, Any]] = deque([((), document)])
    while waiting:
        location, node = waiting.popleft()
        yield location, node
        if isinstance(node, dict):
            waiting.extend(((*location, key), item) for key, item in node.items())
        elif isinstance(node, list):
            waiting.extend(((*location, index), item) for index, item in enumerate(node))


def _has(node: Any, path: Location, instance: Any) -> bool:
    try:
        for step in path:
            node = node[step]
    except (LookupError, TypeError):
        return False
    return node is instance or (isinstance(instance, (str, int, float)) and node == instance)


def _message(error: Any) -> str:
    """What it says, but for the middle of a value, which may be the whole document."""
    said = str(error.message).partition("\n")[0]
    return said if len(said) <= 200 else f"{said[:60]} … {said[-120:]}"


def _step(one: Any) -> str:
    return str(one).replace("~", "~0").replace("/", "~1")


def _shown(uri: str, base_dir: Path) -> str:
    return uri.removeprefix(f"{base_dir.as_uri()}/")
