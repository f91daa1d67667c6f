"""Replay of a cassette as a server: each request gets its recorded response, with the client's ids.

A request is matched by its method, name, arguments, answers and state (and thus by its round), in
any order. A repeated call is replayed once no unplayed interaction matches it. A request that was
not recorded gets an error that names the nearest recorded request.

    client ─ tools/call ──▶ 2 matched: its question goes out, its result waits (after: 3)
    client ─ the answer ──▶ 3 matched: the result follows on the stream of 2
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from roundgate.client import HttpRequest
from roundgate.clock import Clock, iso
from roundgate.errors import ConnectionLost, ParseError
from roundgate.json import decode, encode
from roundgate_testing.cassettes import model
from roundgate_testing.cassettes.files import read
from roundgate_testing.cassettes.matching import (
    Bindings,
    Difference,
    UnboundPlaceholder,
    ValueSlot,
    compare,
    fill,
    slots,
)
from roundgate_testing.cassettes.web import WebReply, refusal

_INVALID: Final = -32602
_NOT_FOUND: Final = -32601
_PARSE: Final = -32700
_OF_CLIENTS: Final = frozenset({"id", "token"})
"""The kinds of placeholders whose values only the client determines."""
_BEGINNINGS: Final = frozenset(
    {"initialize", "tools/call", "prompts/get", "resources/read", "subscriptions/listen"}
)
"""The methods whose repetition replays an interaction and all later ones again."""
_ANY_PARAMS: Final = frozenset({"initialize", "server/discover"})
"""The methods that are matched whatever their params."""

# -- the server ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Played:
    """The state of one interaction in a replay."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    is_used: bool = False
    failure: str | None = None
    """The reason for the failure of a call that waits for this interaction."""


class StandIn:
    """A server that answers requests from a cassette."""

    def __init__(
        self,
        cassette: model.Cassette,
        *,
        origin: str = "http://cassette.invalid",
    ) -> None:
        self._all = cassette.interactions
        self._ignore = cassette.ignore
        self._clock = Clock()
        self._bindings = Bindings(
            {ValueSlot("server"): origin, ValueSlot("host"): origin.partition("://")[2]}
        )
        self._played = [_Played() for _ in self._all]
        self._methods = {
            model.read_method(interaction.request.message) for interaction in self._all
        }

    async def answer(self, http: str, headers: Mapping[str, str], body: bytes) -> WebReply | None:
        """Return the reply to a request, or `None` if the response was lost."""
        try:
            message = decode(body) if http == "POST" else None
        except ParseError as error:
            return refusal(None, _PARSE, str(error), 400)
        index = self._find(http, headers, message)
        if index is None:
            return self._created_task(message) or self._never_recorded(http, message)
        self._play(index)
        response = self._all[index].response
        return None if response is None else await self._reply(response, message)

    # -- the interaction ---------------------------------------------------------------------------

    def _find(self, http: str, headers: Mapping[str, str], message: Any) -> int | None:
        for index in self._candidates(message):
            bindings = Bindings(self._bindings.values)
            if not any(self._differences(index, http, headers, message, bindings)):
                self._bindings = bindings
                return index
        return None

    def _candidates(self, message: Any) -> Iterator[int]:
        """Yield the interactions to match, unplayed ones first. A poll of a task does not skip
        other requests about the task."""
        unused = [index for index, played in enumerate(self._played) if not played.is_used]
        used = [index for index, played in enumerate(self._played) if played.is_used]
        if model.read_method(message) == "tasks/get":
            yield from self._polls(message, unused)
            yield from reversed(used)
        else:
            yield from unused
            yield from used

    def _polls(self, message: Any, unused: Sequence[int]) -> Iterator[int]:
        for index in unused:
            request = self._all[index].request.message
            if self._filled(model.read_subject(request)) == model.read_subject(message):
                if not is_poll(self._all[index]):
                    return
                yield index

    def _filled(self, text: str) -> Any:
        try:
            return fill(text, self._resolve_slot)
        except (UnboundPlaceholder, ValueError):
            return None

    def _differences(
        self, index: int, http: str, headers: Mapping[str, str], message: Any, bindings: Bindings
    ) -> Iterator[Difference]:
        request = self._all[index].request
        if request.http != http:
            yield Difference("http", request.http, http)
        last = request.headers.get("last-event-id")
        if last is not None or "last-event-id" in headers:
            yield from compare(last, headers.get("last-event-id"), bindings, ("last-event-id",))
        if message is None and request.message is None:
            return
        recorded, now = _comparable(request.message), _comparable(message)
        for slot in slots(recorded):
            if slot.kind not in _OF_CLIENTS | {"any", "secret"} and slot.key is not None:
                bindings.values.setdefault(slot, _made_up(slot))
        if isinstance(now, dict) and isinstance(recorded, dict):
            if "method" in recorded:
                _learn_of_client(request.message, message, bindings)
            if "id" not in recorded or "method" in recorded:
                recorded, now = model.without(recorded, "id"), model.without(now, "id")
        yield from compare(recorded, now, bindings, (), self._ignore)

    def _play(self, index: int) -> None:
        """Mark an interaction as played. If a call is repeated, mark all later interactions as not
        played."""
        request = self._all[index].request.message
        if self._played[index].is_used and model.read_method(request) in _BEGINNINGS:
            for later in self._played[index:]:
                later.is_used, later.failure = False, None
                later.begun.clear()
        self._played[index].is_used = True
        self._played[index].begun.set()

    def _never_recorded(self, http: str, message: Any) -> WebReply:
        if http != "POST":
            return WebReply(405 if http == "GET" else 200, {})
        request_id = message.get("id") if isinstance(message, dict) else None
        method = model.read_method(message)
        text = f"This request was not recorded: {_title(message)}{self._nearest(message)}"
        if method is None:
            self._fail_waiting(text)
        elif method.startswith("notifications/"):
            return WebReply(202, {})
        elif method not in self._methods:
            return refusal(request_id, _NOT_FOUND, f"Method not found: no {method} was recorded")
        return refusal(request_id, _INVALID, text, 200 if method else 400)

    def _nearest(self, message: Any) -> str:
        method = model.read_method(message)
        nearest: tuple[int, int, list[Difference]] | None = None
        for index, interaction in enumerate(self._all):
            if (
                model.read_method(interaction.request.message) != method
                or interaction.request.http != "POST"
            ):
                continue
            bindings = Bindings(self._bindings.values)
            differences = list(self._differences(index, "POST", {}, message, bindings))[:20]
            is_other = method and model.read_subject(
                interaction.request.message
            ) != model.read_subject(message)
            distance = len(differences) + (20 if is_other else 0)
            if nearest is None or distance < nearest[0]:
                nearest = distance, index, differences
        if nearest is None:
            return ""
        _, index, differences = nearest
        if not differences:
            return f"; interaction {index + 1} matches, but earlier interactions are still due"
        difference = differences[0]
        what = f"{difference.path} was recorded as {difference.expected} and is now {difference.actual}"
        return f"; the nearest is interaction {index + 1} ({self._all[index].title}): {what}"

    def _fail_waiting(self, failure: str) -> None:
        """Fail the call that waits for the next recorded answer, because the client sent
        another."""
        for index, interaction in enumerate(self._all):
            sent, played = interaction.request.message, self._played[index]
            if isinstance(sent, dict) and "method" not in sent and not played.is_used:
                played.failure = failure
                played.begun.set()
                return

    # -- the reply ---------------------------------------------------------------------------------

    def _created_task(self, message: Any) -> WebReply | None:
        """Return the state of the polled task at its creation. Return `None` if the request is not
        a poll, or if no played response created the task."""
        if model.read_method(message) != "tasks/get":
            return None
        for interaction, played in zip(self._all, self._played, strict=True):
            result = (
                model.result_of(interaction.response.message)
                if played.is_used and interaction.response
                else None
            )
            if result is not None and result.get("resultType") == "task":
                state = fill(result, self._resolve_slot)
                if state.get("taskId") == model.read_subject(message):
                    answer = {"result": {**state, "resultType": "complete"}}
                    body = encode(wire(answer, message.get("id")))
                    return WebReply(200, {"content-type": "application/json"}, body)
        return None

    def _resolve_slot(self, slot: ValueSlot) -> Any:
        """Return the value of a placeholder: bound by the client, or generated once.

        Raises:
            UnboundPlaceholder: only the client determines the value.
        """
        values = self._bindings.values
        if slot.kind == "time":
            return iso(self._clock.now_ms())
        if slot.kind == "secret" or (slot.key is None and slot not in values):
            return f"({slot.kind} {slot.key})" if slot.key else f"({slot.kind})"
        if slot not in values:
            if slot.kind in _OF_CLIENTS:
                raise UnboundPlaceholder(str(slot))
            values[slot] = _made_up(slot)
        return values[slot]

    def _value_or_own(self, slot: ValueSlot) -> Any:
        """Return the value of a placeholder; generate it even if only the client determines it."""
        try:
            return self._resolve_slot(slot)
        except UnboundPlaceholder:
            return _made_up(slot)

    async def _reply(self, response: model.RecordedResponse, message: Any) -> WebReply:
        headers = {name: str(self._filled(text)) for name, text in response.headers.items()}
        request_id = message.get("id") if isinstance(message, dict) else None
        is_cut = response.end == "cut"
        if response.events is not None:
            stream = self._stream(response, request_id, dict(self._bindings.values))
            headers |= {"content-type": "text/event-stream", "cache-control": "no-store"}
            return WebReply(response.status, headers, b"", stream, is_cut)
        if (failure := await self._failure_before(response.after)) is not None:
            return refusal(request_id, _INVALID, failure)
        if response.message is None:
            body = str(self._filled(response.text or "")).encode()
            headers |= {"content-type": "text/plain; charset=utf-8"} if body else {}
        else:
            body = encode(wire(fill(response.message, self._value_or_own), request_id))
            headers["content-type"] = "application/json"
        return WebReply(response.status, headers, body, None, is_cut)

    async def _failure_before(self, after: int | None) -> str | None:
        """Wait until a later interaction begins. Return the reason for the call's failure, or
        `None`."""
        if after is None or after > len(self._played):
            return None
        played = self._played[after - 1]
        await played.begun.wait()
        return played.failure

    async def _stream(
        self, response: model.RecordedResponse, request_id: Any, values: Mapping[ValueSlot, Any]
    ) -> AsyncGenerator[bytes, None]:
        own = {slot: value for slot, value in values.items() if slot.kind in _OF_CLIENTS}
        for event in response.events or ():
            if (failure := await self._failure_before(event.after)) is not None:
                error = {"code": _INVALID, "message": failure}
                yield _event_bytes({"jsonrpc": "2.0", "id": request_id, "error": error})
                return
            self._bindings.values |= own
            with suppress(UnboundPlaceholder):  # progress that this client did not request
                yield self._event(event, request_id)
        if response.end == "client":
            await asyncio.Event().wait()  # until the client hangs up

    def _event(self, event: model.CassetteEvent, request_id: Any) -> bytes:
        message = wire(fill(event.message, self._resolve_slot), request_id)
        event_id = None if event.event_id is None else str(self._filled(event.event_id))
        return _event_bytes(message, event_id, event.retry_ms)


def wire(message: Any, request_id: Any) -> Any:
    """Return a filled message of a cassette in the form in which it is sent: with `jsonrpc` and, in
    a response, the id of its request."""
    if not isinstance(message, dict):
        return message
    if "jsonrpc" in message:
        return {key: value for key, value in message.items() if (key, value) != ("jsonrpc", None)}
    is_answer = "method" not in message and "id" not in message
    return {"jsonrpc": "2.0", **({"id": request_id} if is_answer else {}), **message}


def is_poll(interaction: model.Interaction) -> bool:
    """Return whether an interaction polls a task."""
    return model.read_method(interaction.request.message) == "tasks/get"


def _event_bytes(message: Any, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    lines = [] if event_id is None else [f"id: {event_id}".encode()]
    lines += [] if retry_ms is None else [f"retry: {retry_ms}".encode()]
    if isinstance(message, str):  # recorded data that is not JSON
        lines += [f"data: {line}".encode() for line in message.split("\n")]
    else:
        lines.append(b"data: " + (b"" if message is None else encode(message)))
    return b"\n".join(lines) + b"\n\n"


def _made_up(slot: ValueSlot) -> str:
    if slot.kind == "uuid":
        return f"00000000-0000-4000-8000-{int(slot.key or 0):012d}"
    return f"{slot.kind}-{slot.key}"


def _learn_of_client(recorded: Any, message: Any, bindings: Bindings) -> None:
    """Bind the placeholders of a request's id and progress token to the client's values."""
    for placeholder, value in (
        (recorded.get("id"), message.get("id")),
        (_progress_token(recorded), _progress_token(message)),
    ):
        if isinstance(placeholder, str) and value is not None:
            bindings.values |= dict.fromkeys(slots(placeholder), value)


def _progress_token(message: Any) -> Any:
    meta = model.params_of(message).get("_meta")
    return meta.get("progressToken") if isinstance(meta, dict) else None


def _comparable(message: Any) -> Any:
    """Return the parts of a message that identify a request, without `jsonrpc` and `_meta`."""
    if not isinstance(message, dict):
        return message
    short = model.without(message, "jsonrpc")
    if model.read_method(short) in _ANY_PARAMS:
        return {"method": short["method"], "id": None}
    if isinstance(model.params_of(short).get("_meta"), dict):
        short["params"] = model.without(model.without_envelope(short)["params"], "_meta")
    return model.without(short, "params") if short.get("params") == {} else short


def _title(message: Any) -> str:
    method = model.read_method(message)
    if method is None:
        return "an answer to a question" if isinstance(message, dict) else "a batch"
    text = f"{method} {model.read_subject(message)}".strip()
    arguments = model.params_of(message).get("arguments")
    return f"{text} {encode(arguments).decode()[:200]}" if arguments else text


# -- a transport -----------------------------------------------------------------------------------


class Player:
    """A transport that answers a client's requests from a cassette or a cassette file, without a
    socket: `Client(url, transport=Player(cassette))`.

    Raises:
        ConfigError: the file cannot be read, or is not a cassette.
    """

    def __init__(self, cassette: model.Cassette | Path | str) -> None:
        self._cassette = cassette if isinstance(cassette, model.Cassette) else read(Path(cassette))
        self._stand_in: StandIn | None = None

    async def send(self, request: HttpRequest) -> PlayedResponse:
        """Return the recorded response, or a JSON-RPC error for a request that was not recorded.

        Raises:
            ConnectionLost: the response was lost in the recording.
        """
        if self._stand_in is None:
            self._stand_in = StandIn(self._cassette, origin=request.url.root)
        headers = {name.lower(): value for name, value in request.headers}
        reply = await self._stand_in.answer(request.method, headers, request.body or b"")
        if reply is None:
            raise ConnectionLost(
                "The response was lost, as recorded in the cassette", was_sent=True
            )
        return PlayedResponse(reply)

    async def close(self) -> None:
        """Do nothing: no connection is open."""


class PlayedResponse:
    """A response from a cassette."""

    def __init__(self, reply: WebReply) -> None:
        self._reply = reply
        self.status = reply.status
        self.headers = reply.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        stream = self._reply.stream
        if stream is None:
            yield self._reply.body
        else:
            try:
                async for data in stream:
                    yield data
            finally:
                await stream.aclose()
        if self._reply.is_cut:
            raise ConnectionLost(
                "The response was cut off, as recorded in the cassette", was_sent=True
            )

    async def close(self) -> None:
        if self._reply.stream is not None:
            with suppress(RuntimeError):  # the stream is being read; its reader closes it
                await self._reply.stream.aclose()
