"""Normalization of a recording into a cassette that does not depend on timing.

Failed attempts that the client repeated (after a lost connection, a redirect, a login) are omitted.
Polls of a working or unchanged task are also omitted, because their number depends on the clock.

Values that differ from run to run become placeholders, numbered in the order of their first
appearance. A value that the client sends becomes a placeholder only if the server sent it before,
because a replay could not know it otherwise. Progress tokens and ids of requests are exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate_testing.cassettes import model
from roundgate_testing.cassettes.matching import escape
from roundgate_testing.cassettes.recording import (
    ConversationSecrets,
    Hidden,
    RecordedEvent,
    RecordedExchange,
    Recording,
)
from roundgate_testing.cassettes.secret_placeholders import SecretPlaceholders, split

# the statuses of failed attempts; None means that there was no response
_TRIED_AGAIN: Final = frozenset({None, 301, 302, 303, 307, 308, 401, 403, 429, 502, 503, 504})
_MADE_BY_CLIENTS: Final = frozenset({"token"})
_WHOLE_ONLY: Final = frozenset({"state", "cursor", "token", "id"})
"""The kinds of values that are not replaced within other texts."""
_SHORTEST_WITHIN: Final = 8
"""The minimum number of characters of a value to replace within other texts."""

# -- names -----------------------------------------------------------------------------------------


class Namer:
    """The placeholders of the values of one conversation."""

    def __init__(
        self,
        rules: Sequence[model.Rule],
        fixed: Mapping[str, str] | None = None,
        redactor: SecretPlaceholders | None = None,
    ) -> None:
        """Assign placeholders by `rules`.

        Args:
            rules: the rules, which select values.
            fixed: the placeholders of values that are known in advance.
            redactor: replaces secrets.
        """
        self._redactor = redactor or SecretPlaceholders()
        self._members = {name: rule for rule in rules for name in rule.members}
        self._headers = {name: rule for rule in rules for name in rule.headers}
        self._patterns = [(rule, re.compile(rule.pattern)) for rule in rules if rule.pattern]
        self._known: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}
        self._within: dict[str, str] = dict(fixed or {})
        self._regex: re.Pattern[str] | None = None
        self._sent: set[str] = set()
        """The values that match a rule's pattern but were first sent by the client; they are not
        replaced."""

    def name(self, kind: str, value: Any, *, is_numbered: bool = True) -> str:
        """Return the placeholder of a value; assign the next number to a new value."""
        if not is_numbered:
            return f"${{{kind}}}"
        key = (kind, value)
        if key not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[key] = f"${{{kind}:{self._counts[kind]}}}"
            is_searched = isinstance(value, str) and len(value) >= _SHORTEST_WITHIN
            if is_searched and kind not in _WHOLE_ONLY and value not in self._within:
                self._within[value] = self._known[key]
                self._regex = None
        return self._known[key]

    def known(self, kind: str, value: Any) -> str | None:
        """Return the placeholder of a value that already has a placeholder, or `None`."""
        return self._known.get((kind, value))

    def header(self, name: str, value: str, *, is_sent: bool) -> str:
        """Return the value of a header with placeholders inserted."""
        rule = self._headers.get(name)
        named = None if rule is None else self._by_rule(rule, value, is_sent=is_sent)
        return self.text(value, is_sent=is_sent) if named is None else named

    def value(self, value: Any, *, is_sent: bool) -> Any:
        """Return a JSON value of a message with placeholders inserted."""
        match value:
            case str():
                return self.text(value, is_sent=is_sent)
            case dict():
                return {
                    self._redactor.text(key): self._member(
                        self._members.get(key), item, is_sent=is_sent
                    )
                    for key, item in value.items()
                }
            case list():
                return [self.value(item, is_sent=is_sent) for item in value]
            case int() | float() if not isinstance(value, bool):
                pieces = [piece for piece in self._redactor.pieces(str(value)) if piece[0]]
                is_secret = len(pieces) == 1 and pieces[0][1]
                return pieces[0][0] if is_secret else value
        return value

    def _member(self, rule: model.Rule | None, item: Any, *, is_sent: bool) -> Any:
        named = None if rule is None else self._by_member_rule(rule, item, is_sent=is_sent)
        return self.value(item, is_sent=is_sent) if named is None else named

    def _by_member_rule(self, rule: model.Rule, item: Any, *, is_sent: bool) -> Any:
        if isinstance(item, list):
            named = [self._by_member_rule(rule, part, is_sent=is_sent) for part in item]
            return named if named and None not in named else None
        if not isinstance(item, (str, int)) or isinstance(item, (bool, Hidden)) or item == "":
            return None
        return self._by_rule(rule, item, is_sent=is_sent)

    def _by_rule(self, rule: model.Rule, value: Any, *, is_sent: bool) -> str | None:
        if is_sent and rule.name not in _MADE_BY_CLIENTS:
            return self.known(rule.name, value)
        if rule.name == "id" and (of_server := self.known("request", value)) is not None:
            return of_server
        return self.name(rule.name, value, is_numbered=rule.numbered)

    def text(self, text: str, *, is_sent: bool) -> str:
        """Return a text with placeholders inserted."""
        if isinstance(text, Hidden):
            return str(text)
        pieces = self._redactor.pieces(text)
        if self._within:
            pieces = split(pieces, self._mentions(), self._within.get)
        for rule, pattern in self._patterns:
            pieces = split(pieces, pattern, self._pattern_namer(rule, is_sent=is_sent))
        return "".join(
            piece if is_placeholder else escape(piece) for piece, is_placeholder in pieces
        )

    def _mentions(self) -> re.Pattern[str]:
        """Return a pattern of the known values as whole words, longest first."""
        if self._regex is None:
            longest_first = sorted(self._within, key=lambda value: (-len(value), value))
            self._regex = re.compile("|".join(map(_as_whole_word, longest_first)))
        return self._regex

    def _pattern_namer(self, rule: model.Rule, *, is_sent: bool) -> Callable[[str], str | None]:
        def named(value: str) -> str | None:
            if is_sent:
                if (name := self.known(rule.name, value)) is None:
                    self._sent.add(value)
                return name
            if value in self._sent:
                return None
            return self.name(rule.name, value, is_numbered=rule.numbered)

        return named


def _as_whole_word(value: str) -> str:
    before = r"(?<!\w)" if value[:1].isalnum() else ""
    after = r"(?!\w)" if value[-1:].isalnum() else ""
    return before + re.escape(value) + after


# -- exchanges -------------------------------------------------------------------------------------


def make_cassette(
    recording: Recording,
    rules: Sequence[model.Rule],
    ignore: Sequence[str] = (),
    redact: Sequence[str] = (),
) -> model.Cassette:
    """Return the cassette of the exchanges recorded so far. `redact` has the paths of secret
    values."""
    secrets = ConversationSecrets(recording, redact)
    namer = Namer(rules, dict(_server_names(recording)), secrets.elsewhere())
    exchanges = _without_chance(recording.exchanges)
    writer = _Writer(secrets, namer, exchanges)
    return model.Cassette(
        tuple(writer.interaction(exchange) for exchange in exchanges),
        tuple(rules),
        tuple(ignore),
        tuple(redact),
        writer.client,
    )


def _server_names(recording: Recording) -> Iterator[tuple[str, str]]:
    for origin in recording.origins:
        yield origin, "${server}"
        authority = origin.partition("://")[2]
        if ":" in authority:
            yield authority, "${host}"


def _without_chance(exchanges: Sequence[RecordedExchange]) -> list[RecordedExchange]:
    """Return the exchanges without repeated attempts and without polls that changed nothing."""
    later: list[Any] = []
    superseded: set[int] = set()
    for exchange in reversed(exchanges):
        message = exchange.message
        content = model.without(message, "id") if isinstance(message, dict) else message
        has_failed = exchange.status in _TRIED_AGAIN or exchange.end == "cut"
        if has_failed and message is not None and content in later:
            superseded.add(exchange.number)
        later.append(content)
        del later[:-64]  # a client repeats a request soon after it failed
    states: dict[str, Any] = {}
    return [
        exchange
        for exchange in exchanges
        if exchange.number not in superseded and _has_news(exchange, states)
    ]


def _has_news(exchange: RecordedExchange, states: dict[str, Any]) -> bool:
    """Return False for a poll of a working or unchanged task, and for a further GET stream without
    events. `states` holds the last state of each task, and is updated."""
    if exchange.http == "GET":
        is_first = "(stream)" not in states
        states["(stream)"] = True
        return is_first or bool(exchange.events) or "last-event-id" in exchange.headers
    if model.read_method(exchange.message) != "tasks/get":
        return True
    result = model.result_of(exchange.decoded_body()[0])
    if result is None:
        return True
    if result.get("status") == "working":
        return False
    task, state = str(result.get("taskId")), model.without(result, "lastUpdatedAt")
    has_changed = states.get(task) != state
    states[task] = state
    return has_changed


class _Writer:
    """The conversion of a conversation's exchanges into interactions, in order."""

    def __init__(
        self, secrets: ConversationSecrets, namer: Namer, exchanges: Sequence[RecordedExchange]
    ) -> None:
        self._secrets = secrets
        self._namer = namer
        self._exchanges = exchanges
        self._course = model.Course()
        self._mentioned_ids = {mention for exchange in exchanges for mention in _mentions(exchange)}
        envelopes = (model.read_envelope(exchange.message) for exchange in exchanges)
        self._envelope = next(
            (envelope for envelope in envelopes if len(envelope) == len(model.ENVELOPE)), {}
        )
        self.client: model.Json = namer.value(secrets.hidden(self._envelope), is_sent=True)

    def interaction(self, exchange: RecordedExchange) -> model.Interaction:
        self._course.begin(exchange.message)
        request = self._request(exchange)
        response = None if exchange.status is None else self._response(exchange, exchange.status)
        answers = [
            answer
            for answer in exchange.responses()
            if isinstance(answer, dict) and "result" in answer
        ]
        answer = answers[-1] if answers else None
        self._course.end(exchange.message, answer, exchange.response_headers)
        return model.Interaction(request, response)

    def _request(self, exchange: RecordedExchange) -> model.RecordedRequest:
        message, has_own = exchange.message, False
        if isinstance(message, dict):
            message, has_own = self._without_envelope(message)
        usual = self._course.headers(exchange.message)
        return model.RecordedRequest(
            http=exchange.http,  # type: ignore[arg-type]  # validated
            headers={
                name: self._namer.header(name, value, is_sent=True)
                for name, value in sorted(exchange.headers.items())
                if usual.get(name) != value
            },
            own_envelope=has_own,
            message=self._sent(self._secrets.hidden(message)),
            text=None if exchange.text is None else self._namer.text(exchange.text, is_sent=True),
        )

    def _without_envelope(self, message: model.Json) -> tuple[model.Json, bool]:
        """Return a request without the conversation's envelope, and whether the request keeps
        another envelope."""
        method, own = str(message.get("method", "notifications/")), model.read_envelope(message)
        if self._course.is_older or not self._envelope or method.startswith("notifications/"):
            return message, bool(own)
        if own == self._envelope:
            return model.without_envelope(message), False
        return message, True

    def _sent(self, message: Any) -> Any:
        if not isinstance(message, dict) or not _is_plain(message):
            return self._whole(message, is_sent=True)
        request_id = _key(message.get("id"))
        entry: model.Json = {}
        if "method" not in message:
            entry["id"] = self._namer.known("request", request_id) or message.get("id")
        elif request_id in self._mentioned_ids and "id" in message:
            entry["id"] = self._namer.name("id", request_id)
        return entry | self._namer.value(model.without(message, "jsonrpc", "id"), is_sent=True)

    def _whole(self, message: Any, *, is_sent: bool) -> Any:
        if isinstance(message, dict):
            message = {"jsonrpc": None, **message}
        return self._namer.value(message, is_sent=is_sent)

    def _response(self, exchange: RecordedExchange, status: int) -> model.RecordedResponse:
        events = exchange.events
        message, text = exchange.decoded_body() if events is None else (None, None)
        return model.RecordedResponse(
            status=status,
            headers={
                name: self._namer.header(name, value, is_sent=False)
                for name, value in exchange.response_headers.items()
            },
            after=self._after(exchange, exchange.after) if events is None else None,
            message=None if message is None else self._received(message, exchange),
            text=None if text is None else self._namer.text(text, is_sent=False),
            events=None
            if events is None
            else tuple(self._event(event, exchange) for event in events),
            end=_end(exchange),  # type: ignore[arg-type]  # validated
        )

    def _event(self, event: RecordedEvent, exchange: RecordedExchange) -> model.CassetteEvent:
        message = None if event.message is None else self._received(event.message, exchange)
        event_id = event.event_id
        if event_id:
            event_id = self._namer.header("last-event-id", event_id, is_sent=False)
        after = self._after(exchange, event.after)
        return model.CassetteEvent(after, event_id, event.retry_ms, message)

    def _received(self, message: Any, exchange: RecordedExchange) -> Any:
        message = self._secrets.hidden(message)
        if not isinstance(message, dict) or not _is_plain(message):
            return self._whole(message, is_sent=False)
        entry = self._id_of_received(message, exchange) if "id" in message else {}
        return entry | self._namer.value(model.without(message, "jsonrpc", "id"), is_sent=False)

    def _id_of_received(self, message: model.Json, exchange: RecordedExchange) -> model.Json:
        value = message["id"]
        if "method" in message:
            return {"id": self._namer.name("request", _key(value))}
        if value == exchange.own_id and exchange.http == "POST":
            return {}
        name = self._namer.known("id", _key(value))
        return {"id": name or self._namer.value(value, is_sent=True)}

    def _after(self, exchange: RecordedExchange, number: int) -> int | None:
        """Return the last interaction that had to begin before a message of an exchange, or `None`.

        Only an answer or a cancellation had to begin first, except that on a GET or
        `subscriptions/listen` stream every exchange counts. `number` exchanges had begun when the
        message arrived.
        """
        waits = (
            exchange.http == "GET" or model.read_method(exchange.message) == "subscriptions/listen"
        )
        between = [
            index
            for index, other in enumerate(self._exchanges, 1)
            if exchange.number < other.number <= number and (waits or _is_answer(other.message))
        ]
        return between[-1] if between else None


def _end(exchange: RecordedExchange) -> str:
    for message in exchange.responses():
        is_response = isinstance(message, dict) and "method" not in message
        if is_response and message.get("id") == exchange.own_id:
            return "server"  # the client has the response, so a later hang-up is irrelevant
    if exchange.events is None and not exchange.body and exchange.end == "client":
        return "server"  # there was nothing to read
    return exchange.end or "client"


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") in (
        None,
        "notifications/cancelled",
    )


def _is_plain(message: Mapping[str, Any]) -> bool:
    return message.get("jsonrpc") == "2.0" and not message.keys() - {"jsonrpc", *model.MESSAGE}


def _key(value: Any) -> Any:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else repr(value)


def _mentions(exchange: RecordedExchange) -> Iterator[Any]:
    """Yield the request ids that messages of an exchange mention, except the id in the response to
    the exchange's own request."""
    for message in (exchange.message, *exchange.responses()):
        if not isinstance(message, dict):
            continue
        is_own = message is exchange.message or message.get("id") == exchange.own_id
        if "method" not in message and not is_own:
            yield _key(message.get("id"))
        yield from _mentioned_in(message)


def _mentioned_in(message: Any) -> Iterator[Any]:
    stack = [message]
    while stack:
        match stack.pop():
            case dict() as members:
                for name, value in members.items():
                    if name in ("requestId", model.META + "subscriptionId"):
                        yield _key(value)
                    else:
                        stack.append(value)
            case list() as items:
                stack.extend(items)
