"""Secrets of a conversation, taken out before anything is written: by path, by value, and
what a schema calls secret.

A secret stands in the cassette as `${secret:NAME}`; whoever replays it gives its value in
the environment variable NAME. A value that was taken out in one place is taken out
wherever it comes up again.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate.cassettes.paths import Path, any_matches
from roundgate.cassettes.tape import Exchange, Tape, decoded_body
from roundgate.json import at_reference
from roundgate.settings.spellings import in_base64, in_escapes, in_json, spellings

_SHORTEST_ELSEWHERE: Final = 4
_DEEPEST: Final = 8
_MOST_SCHEMAS: Final = 1_000
"""How deep, and into how many parts, a schema is looked at."""


class Hidden(str):
    """A placeholder that stands for a secret: no text of the conversation any more."""

    __slots__ = ()


class Redactor:
    """Finds the secrets of a whole conversation, and takes them out of its messages."""

    def __init__(self, tape: Tape, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._names: dict[str, str] = dict(tape.secrets)
        self._of_tools: dict[str, list[Path]] = {}
        self._of_questions: dict[str, list[Path]] = {}
        for exchange in tape.exchanges:  # what is said of a value may come behind it
            for message in said(exchange):
                self._learn_schemas(message)
        for exchange in tape.exchanges:
            self.hidden(exchange.message)
            for message in said(exchange):
                self.hidden(message)

    def _learn_schemas(self, message: Any) -> None:
        if isinstance(message, list):
            for one in message:
                self._learn_schemas(one)
        if not isinstance(message, dict):
            return
        result = message.get("result")
        result = result if isinstance(result, dict) else {}
        tools = result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and (found := _secret_fields(tool.get("inputSchema"))):
                self._of_tools[str(tool.get("name"))] = found
        for told in (result, message.get("params")):
            asked = told.get("inputRequests") if isinstance(told, dict) else None
            for key, question in asked.items() if isinstance(asked, dict) else ():
                self._learn_question(str(key), question)
        if message.get("method") == "elicitation/create":
            self._learn_question(f"#{message.get('id')}", message)

    def _learn_question(self, key: str, question: Any) -> None:
        params = question.get("params") if isinstance(question, dict) else None
        schema = params.get("requestedSchema") if isinstance(params, dict) else None
        if found := _secret_fields(schema):
            self._of_questions[key] = found

    def hidden(self, message: Any) -> Any:
        """A message without the values whose place says that they are secret."""
        if isinstance(message, list):
            return [self.hidden(one) for one in message]
        return self._hidden(message, (), self._places(message))

    def _places(self, message: Any) -> list[Path]:
        """Where in this very message secrets are."""
        if not isinstance(message, dict):
            return []
        params = message.get("params")
        if not isinstance(params, dict):
            fields = self._of_questions.get(f"#{message.get('id')}", [])
            return [("result", "content", *field) for field in fields]
        of_tool = self._of_tools.get(str(params.get("name")), [])
        found: list[Path] = [("params", "arguments", *field) for field in of_tool]
        given = params.get("inputResponses")
        for key in given if isinstance(given, dict) else ():
            fields = self._of_questions.get(str(key), [])
            found += [("params", "inputResponses", key, "content", *field) for field in fields]
        return found

    def _hidden(self, value: Any, path: Path, places: Sequence[Path]) -> Any:
        if path and (any(_is_at(one, path) for one in places) or any_matches(self._paths, path)):
            return self._named(value, path)
        if isinstance(value, dict):
            return {key: self._hidden(item, (*path, key), places) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item, (*path, at), places) for at, item in enumerate(value)]
        return value

    def _named(self, value: Any, path: Path) -> Any:
        if value is None or isinstance(value, bool):
            return value
        member = next((str(one) for one in reversed(path) if isinstance(one, str)), "VALUE")
        name = "CASSETTE_" + (re.sub(r"[^A-Za-z0-9]+", "_", member).strip("_").upper() or "VALUE")
        if isinstance(value, (dict, list)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._named(item, (*path, key))
            return Hidden(f"${{secret:{name}}}")
        text = str(value)
        if text not in self._names:
            taken = set(self._names.values())
            names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
            self._names[text] = next(one for one in names if one not in taken)
        return Hidden(f"${{secret:{self._names[text]}}}")

    def elsewhere(self) -> Mapping[str, str]:
        """Values that must not stand in any text, however they are written there, and the
        placeholders to put there."""
        return {
            form: f"${{secret:{name}}}"
            for value, name in self._names.items()
            if len(value) >= _SHORTEST_ELSEWHERE
            for form in _forms(value)
        }

    def escaped(self) -> Sequence[tuple[re.Pattern[str], str]]:
        """Return patterns that match the secrets with any characters escaped, with their
        placeholders."""
        longest_first = sorted(self._names.items(), key=lambda one: -len(one[0]))
        return [
            (re.compile(in_escapes(value)), f"${{secret:{name}}}")
            for value, name in longest_first
            if len(value) >= _SHORTEST_ELSEWHERE
        ]


def _forms(value: str) -> set[str]:
    """Return the spellings of a value, also in JSON within JSON, and its certain part in base64."""
    twice = {json.dumps(one, ensure_ascii=False)[1:-1] for one in in_json(value)}
    return {*spellings(value), *twice, *(core for core, _ in in_base64(value))}


def _is_at(place: Path, path: Path) -> bool:
    return len(place) == len(path) and all(
        one in ("*", step) for one, step in zip(place, path, strict=True)
    )


def said(exchange: Exchange) -> Iterator[Any]:
    """Each message that the server said in an exchange."""
    if exchange.events is not None:
        yield from (event.message for event in exchange.events)
    else:
        yield decoded_body(exchange)[0]


def _secret_fields(schema: Any) -> list[Path]:
    """The parts of a value that its schema calls secret: passwords, what is only ever
    written. `*` is any member."""
    found: list[Path] = []
    left: deque[tuple[Any, Path, int]] = deque([(schema, (), 0)])
    for _ in range(_MOST_SCHEMAS):
        if not left:
            break
        one, path, depth = left.popleft()  # what is near to the top comes first
        if not isinstance(one, dict) or depth > _DEEPEST:
            continue
        if path and (one.get("format") == "password" or one.get("writeOnly") is True):
            found.append(path)
            continue
        inner = _children(one, "properties") + [("*", one[name]) for name in _ANY if name in one]
        left += [(child, (*path, step), depth + 1) for step, child in inner]
        same = [child for name in _SAME for child in _listed(one.get(name))]
        left += [(child, path, depth + 1) for child in (*same, _referred(schema, one.get("$ref")))]
    return list(dict.fromkeys(found))


_ANY: Final = ("items", "additionalProperties")
_SAME: Final = ("anyOf", "oneOf", "allOf", "then", "else")


def _children(schema: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    members = schema.get(name)
    return list(members.items()) if isinstance(members, dict) else []


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _referred(schema: Any, ref: Any) -> Any:
    """Return the target of `#/$defs/Name` in a schema; nothing else is followed."""
    try:
        return at_reference(schema, ref) if isinstance(ref, str) else None
    except LookupError:
        return None
