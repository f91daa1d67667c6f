"""Reading and writing of cassette files: YAML, or JSON if the name ends in `.json`. Members with
their default values are omitted."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any, Final

import yaml
from pydantic import TypeAdapter, ValidationError

from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.observability import escaped
from roundgate.settings import settings_of, yaml_file
from roundgate_testing.cassettes.matching import Path, parse
from roundgate_testing.cassettes.model import (
    MESSAGE,
    VERSION,
    Cassette,
    CassetteEvent,
    Interaction,
    Json,
    RecordedRequest,
    RecordedResponse,
    Rule,
)

_ADAPTER: Final = TypeAdapter(Cassette)
_MAX_PROBLEMS: Final = 50
Found = tuple[Path, str, str]
"""A problem: the location in the file, the fact, and the remedy."""


def _schema() -> Json:
    schema = _ADAPTER.json_schema()
    version = {"const": VERSION, "description": "The version of this format."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Roundgate cassette",
        "properties": {"cassette": version, **schema["properties"]},
        "required": ["cassette", *schema["required"]],
    }


SCHEMA: Final = _schema()
"""The JSON Schema of cassette files, for completion and validation in editors."""


# -- reading ---------------------------------------------------------------------------------------


def read(path: FilePath) -> Cassette:
    """Read a cassette.

    Raises:
        ConfigError: the file cannot be read or is not a cassette; the error lists up to
            `_MAX_PROBLEMS` problems.
    """
    located = yaml_file.read(path, has_aliases=False, remedy="give the path of a cassette")
    cassette, problems = parse_document(located.value)
    if cassette is None or problems:
        raise ConfigError(
            [
                Problem(
                    str(located.file),
                    escaped(yaml_file.dotted(at)) or "(file)",
                    escaped(fact),
                    escaped(remedy),
                    located.line(at),
                )
                for at, fact, remedy in problems[:_MAX_PROBLEMS]
            ]
        )
    return cassette


def parse_document(document: Any) -> tuple[Cassette | None, list[Found]]:
    """Return the cassette in a document, and its problems. Without a cassette there is at least one
    problem."""
    if not isinstance(document, dict) or "cassette" not in document:
        return None, [((), "is not a cassette", f"begin the file with 'cassette: {VERSION}'")]
    version = document["cassette"]
    if version != VERSION or isinstance(version, bool):
        remedy = (
            f"this release reads version {VERSION}: record it again, or use the release that "
            "wrote it"
        )
        return None, [(("cassette",), f"has the unknown version {version!r}", remedy)]
    content = {name: value for name, value in document.items() if name != "cassette"}
    if problems := list(_broken_values(content.get("interactions"), ("interactions",))):
        return None, problems
    try:
        cassette = _ADAPTER.validate_python(content)
    except ValidationError as error:
        return None, [_found(detail) for detail in error.errors(include_url=False)]
    return cassette, list(_contradictions(content, cassette))


_REMEDIES: Final = {
    "string_type": "write text: put it in quotes",
    "int_type": "write a whole number",
    "bool_type": "write true or false",
    "dict_type": "write a mapping",
    "tuple_type": "write a list",
    "dataclass_type": "write a mapping",
    "string_pattern_mismatch": "give the rule a name of letters, digits, _ and -",
}
_NAMES: Final = {
    *MESSAGE,
    *(
        item.name
        for part in (Cassette, Rule, Interaction, RecordedRequest, RecordedResponse, CassetteEvent)
        for item in fields(part)
    ),
}


def _found(detail: Any) -> Found:
    at: Path = detail["loc"]
    name = str(at[-1]) if at else ""
    match detail["type"]:
        case "unexpected_keyword_argument":
            near = get_close_matches(name, _NAMES, 1)
            remedy = f"did you mean {near[0]}?" if near else "remove it"
            return at, "is unknown", remedy
        case "missing":
            return at[:-1], f"has no {name}", f"add '{name}:'"
        case "value_error":
            return at, str(detail["ctx"]["error"]), "correct the value"
    return at, f"is {detail['input']!r:.60}", _REMEDIES.get(detail["type"], detail["msg"])


def _broken_values(value: Any, at: Path) -> Iterator[Found]:
    """Yield keys and values that are not valid in JSON, and malformed placeholders."""
    for path, fact in yaml_file.not_json(value, at):
        yield path, fact, "put it in quotes"
    for path, text in settings_of(value, at):
        if isinstance(text, str):
            try:
                parse(text)
            except ValueError as error:
                yield path, str(error), "write ${kind:1}, or $${ for a literal ${"


def _contradictions(content: Json, cassette: Cassette) -> Iterator[Found]:
    for index, interaction in enumerate(cassette.interactions):
        at: Path = ("interactions", index)
        document, request = content["interactions"][index], interaction.request
        if request.http == "POST" and request.message is None and request.text is None:
            yield (*at, "request"), "sends nothing", "add a method, with params"
        yield from _two_messages(document["request"], (*at, "request"))
        response = interaction.response
        if response is None:
            continue
        at = (*at, "response")
        yield from _two_messages(document["response"], at)
        yield from _after(response.after, index + 1, at)
        for number, event in enumerate(response.events or ()):
            place: Path = (*at, "events", number)
            yield from _two_messages(document["response"]["events"][number], place)
            yield from _after(event.after, index + 1, place)


def _two_messages(document: Json, at: Path) -> Iterator[Found]:
    if "message" in document and not MESSAGE.keys().isdisjoint(document):
        yield (*at, "message"), "stands beside other members of a message", "keep one of them"


def _after(after: int | None, number: int, at: Path) -> Iterator[Found]:
    if after is not None and after <= number:
        remedy = "write the number of a later interaction, or remove it"
        yield (*at, "after"), f"is {after}, but this is interaction {number}", remedy


# -- writing ---------------------------------------------------------------------------------------


def write(cassette: Cassette, path: FilePath) -> None:
    """Write a cassette atomically, as a file that only its owner can read. A symbolic link at the
    path is replaced, not followed.

    Raises:
        UsageError: the file cannot be written, or the cassette is too large.
    """
    text = as_text(cassette, is_json=path.suffix == ".json").encode()
    if len(text) > yaml_file.MAX_BYTES:
        raise UsageError(
            f"{path}: the conversation has {len(text)} bytes, and the limit of a cassette is "
            f"{yaml_file.MAX_BYTES}; record a shorter conversation"
        )
    beside: FilePath | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        beside = FilePath(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        if beside is not None:
            beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def to_document(cassette: Cassette) -> Json:
    """Return a cassette as a document that `parse_document` reads."""
    document: Json = {"cassette": VERSION, "rules": [_entry(rule) for rule in cassette.rules]}
    document |= {key: value for key, value in _entry(cassette).items() if key != "rules"}
    return document | {"interactions": document.pop("interactions", [])}


def _entry(part: Any) -> Any:
    """Return a part of a cassette for a document: the fields in order, without default values."""
    match part:
        case tuple():
            return [_entry(item) for item in part]
        case (
            Cassette()
            | Rule()
            | Interaction()
            | RecordedRequest()
            | RecordedResponse()
            | CassetteEvent()
        ):
            entry: Json = {}
            for item in fields(part):
                value = getattr(part, item.name)
                is_usual = value == item.default or (item.default is MISSING and value == {})
                if item.name == "message":
                    entry |= _message(value)
                elif not is_usual:
                    entry[item.name] = _entry(value)
            return entry
    return part


def _message(message: Any) -> Json:
    """Return a message for a document: the members of a plain JSON-RPC message, any other value as
    the member `message`, or nothing for `None`."""
    if message is None:
        return {}
    if isinstance(message, dict) and message and not message.keys() - MESSAGE.keys():
        return {name: message[name] for name in MESSAGE if name in message}
    return {"message": message}


def as_text(cassette: Cassette, *, is_json: bool = False) -> str:
    """Return the text of a cassette file."""
    if is_json:
        text = json.dumps(to_document(cassette), indent=2, ensure_ascii=False)
        return "".join(f"{escaped(line)}\n" for line in text.split("\n"))
    document = to_document(cassette)
    entries = document.pop("interactions")
    titles = (escaped(interaction.title[:80]) for interaction in cassette.interactions)
    numbered = enumerate(zip(titles, entries, strict=True), 1)
    blocks = [f"\n# {number}: {title}\n{dump([entry])}" for number, (title, entry) in numbered]
    return (
        dump(document) + ("interactions:\n" if blocks else "interactions: []\n") + "".join(blocks)
    )


_WIDTH: Final = 96
_HIDDEN: Final = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff\\U000e0000-\\U000e007f]"
)
"""The pattern of control characters, except line feeds, and of characters that hide or reorder
text. PyYAML writes some of them as they are."""


class _Dumper(yaml.SafeDumper):
    """A writer of readable YAML: texts of several lines as blocks, hidden characters escaped."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _HIDDEN.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(value: Any) -> str:
    """Return a value as YAML. Hidden characters occur in quoted texts only, so they can be
    escaped in the result."""
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=_WIDTH,
    )
    return _HIDDEN.sub(lambda match: f"\\U{ord(match[0]):08x}", text)
