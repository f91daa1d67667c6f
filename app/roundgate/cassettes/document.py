"""A cassette as the plain values that its file holds, and back; every member in its place,
what is usual left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from roundgate.cassettes.matching import Bindings, compare
from roundgate.cassettes.model import (
    MESSAGE,
    RULES,
    VERSION,
    Cassette,
    Event,
    Interaction,
    Json,
    Request,
    Response,
    Rule,
)
from roundgate.cassettes.paths import Path, parse, steps

ENDS: Final = ("server", "client", "cut")
_ABSENT: Final = object()
Found = tuple[Path, str, str]
"""A problem: where, what, and the remedy."""


def to_document(cassette: Cassette) -> Json:
    """What `of_document` reads again."""
    found: Json = {"cassette": VERSION, "rules": [_rule(one) for one in cassette.rules]}
    for name in ("ignore", "redact"):
        if getattr(cassette, name):
            found[name] = list(getattr(cassette, name))
    if cassette.client:
        found["client"] = dict(cassette.client)
    found["interactions"] = [interaction_document(one) for one in cassette.interactions]
    return found


def interaction_document(one: Interaction) -> Json:
    """One interaction."""
    return {
        "request": _request(one.request),
        **({} if one.response is None else {"response": _response(one.response)}),
    }


def _rule(rule: Rule) -> Json:
    found: Json = {"name": rule.name}
    for name in ("members", "headers"):
        if getattr(rule, name):
            found[name] = list(getattr(rule, name))
    if rule.pattern is not None:
        found["pattern"] = rule.pattern
    return found if rule.numbered else {**found, "numbered": False}


def _request(request: Request) -> Json:
    found: Json = {} if request.http == "POST" else {"http": request.http}
    found |= {"headers": dict(request.headers)} if request.headers else {}
    found |= {"own_envelope": True} if request.own_envelope else {}
    return found | _message(request.message) | _optional("text", request.text)


def _response(response: Response) -> Json:
    found: Json = {} if response.status == 200 else {"status": response.status}
    found |= {"headers": dict(response.headers)} if response.headers else {}
    found |= _optional("after", response.after) | _message(response.message)
    found |= _optional("text", response.text)
    if response.events is not None:
        found["events"] = [_event(one) for one in response.events]
    return found if response.end == "server" else {**found, "end": response.end}


def _event(event: Event) -> Json:
    found = _optional("after", event.after) | _optional("event_id", event.event_id)
    return found | _optional("retry_ms", event.retry_ms) | _message(event.message)


def _optional(name: str, value: Any) -> Json:
    return {} if value is None else {name: value}


def _message(message: Any) -> Json:
    """The members of a message beside those of the exchange; what is no plain message
    stands under `message`."""
    if message is None:
        return {}
    if isinstance(message, dict) and message and not message.keys() - set(MESSAGE):
        return {name: message[name] for name in MESSAGE if name in message}
    return {"message": message}


def of_document(document: Any) -> tuple[Cassette, list[Found]]:
    """A cassette from what its file holds, and everything that is wrong with it."""
    reader = _Reader()
    return reader.cassette(document), reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: list[Found] = []

    def cassette(self, document: Any) -> Cassette:
        if not isinstance(document, dict) or "cassette" not in document:
            self._wrong((), "is no cassette", f"a cassette begins with 'cassette: {VERSION}'")
            return Cassette(())
        version = document["cassette"]
        if version != VERSION or isinstance(version, bool):
            remedy = (
                f"this release reads version {VERSION}: record it again, or use the release "
                "that wrote it"
            )
            self._wrong(("cassette",), f"has the unknown version {version!r}", remedy)
            return Cassette(())
        names = ("cassette", "rules", "ignore", "redact", "client", "interactions")
        self._only(document, (), names)
        rules = self._list(document, (), "rules", self._rule) if "rules" in document else RULES
        return Cassette(
            tuple(self._list(document, (), "interactions", self._interaction)),
            tuple(rules),
            tuple(self._list(document, (), "ignore", self._path)),
            tuple(self._list(document, (), "redact", self._path)),
            self._take(document, (), "client", dict, {}),
        )

    def _rule(self, value: Any, at: Path) -> Rule:
        given = self._mapping(value, at, ("name", "members", "headers", "pattern", "numbered"))
        pattern = self._take(given, at, "pattern", str, None)
        if pattern is not None:
            self._pattern(pattern, (*at, "pattern"))
        rule = Rule(
            self._take(given, at, "name", str, ""),
            tuple(self._list(given, at, "members", self._text)),
            tuple(self._list(given, at, "headers", self._text)),
            pattern,
            self._take(given, at, "numbered", bool, True),
        )
        if not rule.name.replace("_", "").replace("-", "").isalnum() or not rule.name.isascii():
            self._wrong((*at, "name"), "is no name", "give the rule a name of letters and digits")
        return rule

    def _pattern(self, pattern: str, at: Path) -> None:
        import re

        try:
            if len(pattern) > 200 or re.compile(pattern).match(""):
                self._wrong(
                    at, "is too long, or matches nothing at all", "write a narrower pattern"
                )
        except re.error as error:
            self._wrong(at, f"is no regular expression: {error}", "mend it")

    def _interaction(self, value: Any, at: Path) -> Interaction:
        given = self._mapping(value, at, ("request", "response"))
        if "request" not in given:
            self._wrong(at, "has no request", "each interaction has 'request:' and 'response:'")
        request = self._request(given.get("request", {}), (*at, "request"))
        if "response" not in given:
            return Interaction(request, None)
        return Interaction(request, self._response(given["response"], (*at, "response")))

    def _request(self, value: Any, at: Path) -> Request:
        names = ("http", "headers", "own_envelope", "text", "message", *MESSAGE)
        given = self._mapping(value, at, names)
        http = self._take(given, at, "http", str, "POST")
        if http not in ("POST", "GET", "DELETE"):
            self._wrong((*at, "http"), f"is {http!r}", "use POST, GET or DELETE")
        message, text = self._message(given, at), self._take(given, at, "text", str, None)
        if http == "POST" and message is None and text is None:
            self._wrong(at, "sends nothing", "give it a method, with params")
        return Request(
            http,
            message,
            self._headers(given, at),
            self._take(given, at, "own_envelope", bool, False),
            text,
        )

    def _response(self, value: Any, at: Path) -> Response:
        names = ("status", "headers", "after", "text", "events", "end", "message", *MESSAGE)
        given = self._mapping(value, at, names)
        end = self._take(given, at, "end", str, "server")
        if end not in ENDS:
            self._wrong((*at, "end"), f"is {end!r}", f"use one of {', '.join(ENDS)}")
        status = self._take(given, at, "status", int, 200)
        if not 200 <= status <= 599:
            self._wrong((*at, "status"), f"is {status}", "use an HTTP status from 200 to 599")
        return Response(
            status,
            self._headers(given, at),
            self._message(given, at),
            tuple(self._list(given, at, "events", self._event)) if "events" in given else None,
            self._take(given, at, "text", str, None),
            end,
            self._after(given, at),
        )

    def _event(self, value: Any, at: Path) -> Event:
        given = self._mapping(value, at, ("after", "event_id", "retry_ms", "message", *MESSAGE))
        return Event(
            self._message(given, at),
            self._placeholders(self._take(given, at, "event_id", str, None), (*at, "event_id")),
            self._take(given, at, "retry_ms", int, None),
            self._after(given, at),
        )

    def _after(self, given: Json, at: Path) -> int | None:
        after: int | None = self._take(given, at, "after", int, None)
        if after is not None and not int(at[1]) + 1 < after:
            remedy = "name a later interaction by its number, or leave it out"
            self._wrong((*at, "after"), f"is {after}, and this is {int(at[1]) + 1}", remedy)
        return after

    def _message(self, given: Json, at: Path) -> Any:
        members = {name: given[name] for name in MESSAGE if name in given}
        if "message" in given:
            if members:
                self._wrong((*at, "message"), "is there beside a message", "keep one of them")
            return self._placeholders(given["message"], (*at, "message"))
        return self._placeholders(members, at) if members else None

    def _headers(self, given: Json, at: Path) -> Mapping[str, str]:
        headers = self._take(given, at, "headers", dict, {})
        for name, value in headers.items():
            self._text(value, (*at, "headers", str(name)))
        found: Json = self._placeholders(headers, (*at, "headers"))
        return found

    def _placeholders(self, value: Any, at: Path) -> Any:
        """The value itself: JSON with placeholders that can be read."""
        stack: list[tuple[Path, Any]] = [(at, value)]
        while stack:
            path, one = stack.pop()
            match one:
                case None | bool() | int() | float():
                    pass
                case str():
                    try:
                        parse(one)
                    except ValueError as error:
                        self._wrong(path, str(error), "write ${kind:1}, or $${ for a text's own")
                case dict():
                    for key, item in one.items():
                        if not isinstance(key, str):
                            self._wrong(path, f"has the key {key!r}", "put it in quotes")
                        stack.append(((*path, str(key)), item))
                case list():
                    stack.extend(((*path, index), item) for index, item in enumerate(one))
                case _:
                    self._wrong(path, f"is a {type(one).__name__}", "put it in quotes")
        return value

    def _mapping(self, value: Any, at: Path, names: Sequence[str]) -> Json:
        if not isinstance(value, dict):
            self._wrong(at, "is no mapping", f"it has members of {', '.join(names)}")
            return {}
        self._only(value, at, names)
        return value

    def _only(self, given: Json, at: Path, names: Sequence[str]) -> None:
        from difflib import get_close_matches

        for name in given:
            if name not in names:
                near = get_close_matches(str(name), names, 1)
                remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                self._wrong((*at, str(name)), "is not known here", remedy)

    def _take(self, given: Json, at: Path, name: str, kind: type, default: Any) -> Any:
        value = given.get(name, _ABSENT)
        if value is _ABSENT:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self._wrong((*at, name), f"is {value!r:.60}", f"it has to be {_KINDS[kind]}")
            return default
        return value

    def _list(self, given: Json, at: Path, name: str, read: Callable[[Any, Path], Any]) -> Any:
        values = self._take(given, at, name, list, [])
        return [read(value, (*at, name, index)) for index, value in enumerate(values)]

    def _text(self, value: Any, at: Path) -> str:
        if not isinstance(value, str):
            self._wrong(at, f"is {value!r:.60}", "it has to be text: put it in quotes")
        return str(value)

    def _path(self, value: Any, at: Path) -> str:
        text = self._text(value, at)
        try:
            steps(text)
        except ValueError as error:
            self._wrong(at, str(error), "mend it")
            return "-"
        return text

    def _wrong(self, at: Path, what: str, remedy: str) -> None:
        if len(self.found) < 50:
            self.found.append((at, what, remedy))


_KINDS: Final = {
    str: "text: put it in quotes",
    int: "a whole number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}


def differences(recorded: Cassette, now: Cassette) -> list[str]:
    """What to tell, a line each; empty if both say the same, whatever their
    placeholders stand for."""
    return list(_differences(recorded, now))


def _differences(recorded: Cassette, now: Cassette) -> Iterator[str]:
    bindings = Bindings()
    pairs = zip_longest(recorded.interactions, now.interactions)
    for number, (before, after) in enumerate(pairs, 1):
        if before is None or after is None:
            there = before or after
            title = "" if there is None else there.title
            yield f"{number}: {title} {'is new' if before is None else 'does not come any more'}"
            continue
        told = compare(
            interaction_document(before),
            _as_said(interaction_document(after)),
            bindings,
            (),
            recorded.ignore,
        )
        for count, one in enumerate(told):
            if count == 0:
                yield f"{number}: {before.title}"
            yield from (f"  {line}" for line in str(one).splitlines())


def _as_said(value: Any) -> Any:
    """A value of a cassette with its placeholders as if they were what was said."""
    match value:
        case str():
            return "".join(map(str, parse(value)))
        case dict():
            return {key: _as_said(item) for key, item in value.items()}
        case list():
            return [_as_said(item) for item in value]
    return value
