"""A cassette from a tape: what only chance or patience put there is left out, the rest is
named, secrets are taken out.

Left out are tries that were repeated with another outcome (a lost connection, a redirect, a
login), and what a task was asked while it worked or had nothing new to tell: how often a client
looks depends on the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roundgate.cassettes.model import (
    ENVELOPE,
    MESSAGE,
    META,
    RULES,
    Cassette,
    Course,
    Event,
    Interaction,
    Json,
    Request,
    Response,
    Rule,
    envelope_of,
    without_envelope,
)
from roundgate.cassettes.naming import Namer
from roundgate.cassettes.redacting import Redactor, said
from roundgate.cassettes.tape import Exchange, Tape, decoded_body

_TRIED_AGAIN: Final = frozenset({None, 301, 302, 303, 307, 308, 401, 403, 429, 502, 503, 504})


def cassette_of(
    tape: Tape,
    *,
    rules: Sequence[Rule] = RULES,
    ignore: Sequence[str] = (),
    redact: Sequence[str] = (),
) -> Cassette:
    """The cassette of what a tape has so far."""
    redactor = Redactor(tape, redact)
    namer = Namer(rules, {**_server(tape), **redactor.elsewhere()}, redactor.escaped())
    kept = _kept(tape.exchanges)
    writer = _Writer(redactor, namer, kept)
    return Cassette(
        tuple(writer.interaction(one) for one in kept),
        tuple(rules),
        tuple(ignore),
        tuple(redact),
        writer.client,
    )


def _server(tape: Tape) -> dict[str, str]:
    found: dict[str, str] = {}
    for origin in tape.origins:
        found[origin] = "${server}"
        authority = origin.partition("://")[2]
        if ":" in authority:
            found[authority] = "${host}"
    return found


def _kept(exchanges: Sequence[Exchange]) -> list[Exchange]:
    told: dict[str, Any] = {}
    later: list[Any] = []
    superseded: set[int] = set()
    for one in reversed(exchanges):
        failed = one.status in _TRIED_AGAIN or one.end == "cut"
        if failed and one.message is not None and _said(one) in later:
            superseded.add(one.number)
        later.append(_said(one))
        del later[:-64]
    return [one for one in exchanges if one.number not in superseded and _is_news(one, told)]


def _said(exchange: Exchange) -> Any:
    message = exchange.message
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if name != "id"}


def _is_news(exchange: Exchange, told: dict[str, Any]) -> bool:
    """Whether something would be missing without it; `told` is what each task has told."""
    if exchange.http == "GET":
        is_first = "(stream)" not in told
        told["(stream)"] = True
        return is_first or bool(exchange.events) or "last-event-id" in exchange.headers
    message = exchange.message
    if not isinstance(message, dict) or message.get("method") != "tasks/get":
        return True
    answer = decoded_body(exchange)[0]
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, dict):
        return True
    if result.get("status") == "working":
        return False
    task = str(result.get("taskId"))
    state = {name: value for name, value in result.items() if name != "lastUpdatedAt"}
    is_news = told.get(task) != state
    told[task] = state
    return is_news


class _Writer:
    def __init__(self, redactor: Redactor, namer: Namer, exchanges: Sequence[Exchange]) -> None:
        self._redactor = redactor
        self._namer = namer
        self._exchanges = exchanges
        self._course = Course()
        self._numbers = [one.number for one in exchanges]
        self._referred = {one for exchange in exchanges for one in _references(exchange)}
        self._envelope = next(
            (found for one in exchanges if len(found := envelope_of(one.message)) == len(ENVELOPE)),
            {},
        )
        self.client: Json = namer.value(redactor.hidden(self._envelope), is_sent=True)

    def interaction(self, exchange: Exchange) -> Interaction:
        self._course.begins(exchange.message)
        request = self._request(exchange)
        response = self._response(exchange)
        answers = [one for one in said(exchange) if isinstance(one, dict) and "result" in one]
        self._course.answered(
            exchange.message, answers[-1] if answers else None, exchange.response_headers
        )
        return Interaction(request, response)

    # -- what was sent -----------------------------------------------------------------------------

    def _request(self, exchange: Exchange) -> Request:
        message, own = exchange.message, False
        if isinstance(message, dict):
            message, own = self._stripped(message)
        headers = {
            name: self._namer.header(name, value, is_sent=True)
            for name, value in sorted(exchange.headers.items())
            if self._course.headers(exchange.message).get(name) != value
        }
        text = exchange.text
        return Request(
            exchange.http,
            self._sent(self._redactor.hidden(message)),
            headers,
            own,
            None if text is None else self._namer.text(text, is_sent=True),
        )

    def _stripped(self, message: Json) -> tuple[Json, bool]:
        """A request without what goes without saying, and whether it has an envelope of its own."""
        is_asked = "method" in message and not str(message["method"]).startswith("notifications/")
        if self._course.is_older or not self._envelope or not is_asked:
            return message, bool(envelope_of(message))
        if envelope_of(message) == self._envelope:
            return without_envelope(message), False
        return message, True

    def _sent(self, message: Any) -> Any:
        if not isinstance(message, dict) or not _is_plain(message):
            return self._whole(message, is_sent=True)
        short = {name: value for name, value in message.items() if name != "jsonrpc"}
        request_id = short.pop("id", None)
        found: Json = {}
        if "method" not in message:
            found["id"] = self._namer.known("request", _key(request_id)) or request_id
        elif _key(request_id) in self._referred and "id" in message:
            found["id"] = self._namer.name("id", _key(request_id))
        return found | self._namer.value(short, is_sent=True)

    def _whole(self, message: Any, *, is_sent: bool) -> Any:
        if isinstance(message, dict):
            message = {"jsonrpc": None, **message}
        return self._namer.value(message, is_sent=is_sent)

    # -- what came back ----------------------------------------------------------------------------

    def _response(self, exchange: Exchange) -> Response | None:
        if exchange.status is None:
            return None
        message, text = decoded_body(exchange) if exchange.events is None else (None, None)
        headers = {
            name: self._namer.header(name, value, is_sent=False)
            for name, value in exchange.response_headers.items()
        }
        events = exchange.events
        return Response(
            exchange.status,
            headers,
            None if message is None else self._heard(message, exchange),
            None if events is None else tuple(self._event(one, exchange) for one in events),
            None if text is None else self._namer.text(text, is_sent=False),
            self._end(exchange),
            self._after(exchange, exchange.after) if events is None else None,
        )

    def _end(self, exchange: Exchange) -> str:
        own_id = exchange.message.get("id") if isinstance(exchange.message, dict) else None
        for one in said(exchange):
            if isinstance(one, dict) and "method" not in one and one.get("id") == own_id:
                return "server"  # whoever hangs up after that has heard all
        if exchange.events is None and not exchange.body and exchange.end == "client":
            return "server"  # there was nothing to read
        return exchange.end or "client"

    def _event(self, event: Any, exchange: Exchange) -> Event:
        event_id = event.event_id
        return Event(
            None if event.message is None else self._heard(event.message, exchange),
            None if event_id is None else self._event_id(event_id),
            event.retry_ms,
            self._after(exchange, event.after),
        )

    def _event_id(self, event_id: str) -> str:
        if event_id == "":
            return ""
        return self._namer.header("last-event-id", event_id, is_sent=False)

    def _heard(self, message: Any, exchange: Exchange) -> Any:
        message = self._redactor.hidden(message)
        if not isinstance(message, dict) or not _is_plain(message):
            return self._whole(message, is_sent=False)
        short = {name: value for name, value in message.items() if name != "jsonrpc"}
        found: Json = {}
        if "id" in short:
            found = self._id_of_heard(short.pop("id"), "method" in short, exchange)
        return found | self._namer.value(short, is_sent=False)

    def _id_of_heard(self, value: Any, is_request: bool, exchange: Exchange) -> Json:
        if is_request:
            return {"id": self._namer.name("request", _key(value))}
        own = exchange.message.get("id") if isinstance(exchange.message, dict) else None
        if value == own and exchange.http == "POST":
            return {}
        return {
            "id": self._namer.known("id", _key(value)) or self._namer.value(value, is_sent=True)
        }

    def _after(self, exchange: Exchange, number: int) -> int | None:
        """After which interaction it came, where that is no chance: on a stream that
        waits, or behind an answer."""
        between = [
            (index, one)
            for index, one in enumerate(self._exchanges, 1)
            if exchange.number < one.number <= number
        ]
        if not _waits(exchange):
            between = [(index, one) for index, one in between if _is_answer(one.message)]
        return between[-1][0] if between else None


def _waits(exchange: Exchange) -> bool:
    message = exchange.message
    return exchange.http == "GET" or (
        isinstance(message, dict) and message.get("method") == "subscriptions/listen"
    )


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and (
        "method" not in message or message["method"] == "notifications/cancelled"
    )


def _is_plain(message: Mapping[str, Any]) -> bool:
    return message.get("jsonrpc") == "2.0" and not message.keys() - {"jsonrpc", *MESSAGE}


def _key(value: Any) -> Any:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else repr(value)


def _references(exchange: Exchange) -> list[Any]:
    """Ids of requests that are mentioned elsewhere than in their own exchange's messages."""
    own = exchange.message.get("id") if isinstance(exchange.message, dict) else None
    found: list[Any] = []
    for message in (exchange.message, *said(exchange)):
        if not isinstance(message, dict):
            continue
        if "method" not in message and message is not exchange.message and message.get("id") != own:
            found.append(_key(message.get("id")))
        found += _mentioned(message)
    return found


def _mentioned(message: Any) -> list[Any]:
    found: list[Any] = []
    stack = [message]
    while stack:
        match stack.pop():
            case dict() as members:
                for name, value in members.items():
                    if name in ("requestId", META + "subscriptionId"):
                        found.append(_key(value))
                    elif isinstance(value, (dict, list)):
                        stack.append(value)
            case list() as items:
                stack.extend(items)
    return found
