"""Reading and writing of cassette files: YAML, or JSON if the name ends in `.json`. Members with
their default values are omitted."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from roundgate.cassettes.matching import Bindings, Path, compare, parse
from roundgate.cassettes.model import (
    MESSAGE,
    VERSION,
    Cassette,
    Event,
    Interaction,
    Json,
    Request,
    Response,
    Rule,
)
from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.observability import escaped
from roundgate.settings import yaml_file

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
        for part in (Cassette, Rule, Interaction, Request, Response, Event)
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
    stack: list[tuple[Path, Any]] = [(at, value)]
    while stack:
        path, item = stack.pop()
        match item:
            case str():
                try:
                    parse(item)
                except ValueError as error:
                    yield path, str(error), "write ${kind:1}, or $${ for a literal ${"
            case dict():
                for key in item:
                    if not isinstance(key, str):
                        yield (*path, str(key)), f"has the key {key!r}", "put it in quotes"
                stack.extend(((*path, str(key)), child) for key, child in item.items())
            case list():
                stack.extend(((*path, index), child) for index, child in enumerate(item))
            case None | bool() | int() | float():
                pass
            case _:
                yield path, f"is a {type(item).__name__}", "put it in quotes"


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
        case Cassette() | Rule() | Interaction() | Request() | Response() | Event():
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
    return "\n".join(_lines(cassette)) + "\n"


def _lines(cassette: Cassette) -> Iterator[str]:
    document = to_document(cassette)
    interactions = document.pop("interactions")
    yield from dump(document)
    yield "interactions:" if interactions else "interactions: []"
    for number, (interaction, entry) in enumerate(
        zip(cassette.interactions, interactions, strict=True), 1
    ):
        yield ""
        yield f"  # {number}: {visible(interaction.title[:80])}"
        yield from dump([entry], 2)


# PyYAML is not used for writing, because it does not escape characters that reorder text, and a
# cassette must have the same bytes on every version of Python.

_WIDTH: Final = 96
_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,98}")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NAMED: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BLOCK: Final = re.compile(r"[^\s](?:[\s\S]*[^\s])?\n?")
_HIDDEN: Final = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff\\U000e0000-\\U000e007f]"
)
"""The pattern of control characters, and of characters that hide or reorder text.
`str.isprintable` differs between versions of Python."""


def dump(value: Any, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping or sequence, without line ends."""
    space = " " * indent
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _dump_entry(f"{space}{_key(key)}:", item, indent + 2)
        return
    for item in value:
        if isinstance(item, str) or _inline(item, _WIDTH - indent) is not None:
            yield from _dump_entry(f"{space}-", item, indent + 2)
        else:
            lines = dump(item, indent + 2)
            yield f"{space}- {next(lines)[indent + 2 :]}"
            yield from lines


def _dump_entry(head: str, value: Any, indent: int) -> Iterator[str]:
    if (short := _inline(value, _WIDTH - len(head))) is not None:
        yield f"{head} {short}"
    elif isinstance(value, str):
        yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
        for line in value.removesuffix("\n").split("\n"):
            yield f"{' ' * indent}{line}" if line else ""
    else:
        yield head
        yield from dump(value, indent)


def _inline(value: Any, room: int) -> str | None:
    """Return a value in the form that fits on the line of its key, or `None` if it needs lines of
    its own."""
    if isinstance(value, str):
        return None if "\n" in value and _is_block(value) else _scalar(value)
    if not isinstance(value, (Mapping, list)):
        return _scalar(value)
    is_mapping = isinstance(value, Mapping)
    items = list(value.values()) if isinstance(value, Mapping) else value
    if len(items) > (8 if is_mapping else 12) or any(
        isinstance(item, (dict, list)) for item in items
    ):
        return None
    texts = list(map(_scalar, items))
    if isinstance(value, Mapping):
        texts = [f"{_key(key)}: {text}" for key, text in zip(value, texts, strict=True)]
    text = f"{{{', '.join(texts)}}}" if is_mapping else f"[{', '.join(texts)}]"
    return text if len(text) < room or not items else None


def _is_block(text: str) -> bool:
    return (
        _BLOCK.fullmatch(text) is not None
        and all(not line or not line.isspace() for line in text.split("\n"))
        and _HIDDEN.search(text.replace("\n", "")) is None
        and not text.removesuffix("\n").endswith("\n")
    )


def _key(text: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else f'"{visible(text)}"'


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML 1.1 requires a decimal point, and a sign in the exponent
        digits, exponent, power = repr(value).partition("e")
        digits = digits if "." in digits else f"{digits}.0"
        sign = "" if power.startswith(("-", "+")) or not exponent else "+"
        return f"{digits}{exponent}{sign}{power}"
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS
    return value if is_plain else f'"{visible(value)}"'


def visible(text: str) -> str:
    """Return a text with hidden characters, quotes and line ends escaped."""
    return "".join(map(_char, text))


def _char(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if _HIDDEN.match(char) is None:
        return char
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


# -- differences -----------------------------------------------------------------------------------


def differences(recorded: Cassette, now: Cassette) -> list[str]:
    """Return the differences of a new recording as lines of a report, ignoring the numbers of
    placeholders."""
    return list(_differences(recorded, now))


def _differences(recorded: Cassette, now: Cassette) -> Iterator[str]:
    bindings = Bindings()
    pairs = zip_longest(recorded.interactions, now.interactions)
    for number, (before, after) in enumerate(pairs, 1):
        if before is None or after is None:
            other = before or after
            title = "" if other is None else other.title
            yield f"{number}: {title} {'is new' if before is None else 'is missing now'}"
            continue
        differing = compare(_entry(before), _literal(_entry(after)), bindings, (), recorded.ignore)
        for count, difference in enumerate(differing):
            if count == 0:
                yield f"{number}: {before.title}"
            yield from (f"  {line}" for line in str(difference).splitlines())


def _literal(value: Any) -> Any:
    """Return a recorded value in which placeholders are literal texts."""
    match value:
        case str():
            return "".join(map(str, parse(value)))
        case dict():
            return {key: _literal(item) for key, item in value.items()}
        case list():
            return [_literal(item) for item in value]
    return value
