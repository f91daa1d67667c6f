"""A cassette as a server: each request is answered as it was when it was recorded, with
ids of the client that asks.

A request is found by its method, name, arguments, answers and state, so by its round; in the order
of the cassette or in any. When all of it was played, it begins again where a request says. What was
never recorded is one clear error.

    client ─ tools/call ──▶ 2 matched, its question goes out, event 3 waits (after: 3)
    client ─ the answer ──▶ 3 matched ─────────────────────────▶ the result follows on the stream of 2
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.cassettes.faults import NO_FAULTS, Faults
from roundgate.cassettes.matching import Bindings, Difference, compare, fill, slots
from roundgate.cassettes.model import (
    Cassette,
    Event,
    Interaction,
    Json,
    Response,
    named,
    without_envelope,
)
from roundgate.cassettes.paths import Slot
from roundgate.clock import Clock, iso
from roundgate.errors import ParseError, UnboundPlaceholder
from roundgate.json import decode, encode

_INVALID: Final = -32602
_NOT_FOUND: Final = -32601
_PARSE: Final = -32700
_OF_CLIENTS: Final = frozenset({"id", "token"})
_BEGINNINGS: Final = frozenset(
    {"initialize", "tools/call", "prompts/get", "resources/read", "subscriptions/listen"}
)
"""What may be asked a second time, and then goes the same way again."""
_ANY_PARAMS: Final = frozenset({"initialize", "server/discover"})


@dataclass(slots=True)
class Reply:
    """What goes back over HTTP. `content` is a stream if it is one; `None` as a
    reply is no answer at all."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: AsyncGenerator[bytes, None] | None = None
    is_cut: bool = False


@dataclass(slots=True)
class _Played:
    """How far one interaction is."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    is_used: bool = False
    failure: str | None = None


class StandIn:
    """Answers requests from a cassette. Nothing it says depends on a clock but
    what stands for a moment."""

    def __init__(
        self,
        cassette: Cassette,
        *,
        in_order: bool = False,
        origin: str = "http://cassette.invalid",
        faults: Faults = NO_FAULTS,
        clock: Clock | None = None,
    ) -> None:
        self._all = cassette.interactions
        self._ignore = tuple(cassette.ignore)
        self._in_order = in_order
        self._clock = clock or Clock()
        self._faults = faults.begun()
        self._bindings = Bindings(
            {Slot("server"): origin, Slot("host"): origin.partition("://")[2]}
        )
        self._played = [_Played() for _ in self._all]
        self._methods = {_method(one.request.message) for one in self._all}

    async def answer(self, http: str, headers: Mapping[str, str], body: bytes) -> Reply | None:
        """The reply to one request; `None` if it is to be lost."""
        try:
            message = decode(body) if http == "POST" else None
        except ParseError as error:
            return refusal(None, _PARSE, str(error), 400)
        found = self._find(http, headers, message)
        if found is None:
            return self._state_of_task(message) or self._never_recorded(http, message)
        self._play(found)
        number = found + 1
        if (delay := self._faults.delay_s(number)) > 0:
            await asyncio.sleep(delay)
        if self._faults.takes("lost", number):
            return None
        response = self._all[found].response
        if response is None:
            return None
        return await self._reply(response, found, message)

    # -- which interaction it is
    # ------------------------------------------------------------------------------------

    def _find(self, http: str, headers: Mapping[str, str], message: Any) -> int | None:
        for index in self._candidates(message):
            bindings = Bindings(self._bindings.values)
            if next(self._differences(index, http, headers, message, bindings), None) is None:
                self._bindings = bindings
                return index
        return None

    def _candidates(self, message: Any) -> Iterator[int]:
        """Unplayed ones first, then those that were; looking at a task does not go
        past what is done to it."""
        unused = [index for index, one in enumerate(self._played) if not one.is_used]
        used = [index for index, one in enumerate(self._played) if one.is_used]
        if self._in_order:
            yield from unused[:1] or used[:1]
            yield from reversed([one for one in used if _is_look(self._all[one])])
            return
        if _method(message) == "tasks/get":
            yield from self._looks(message, unused)
            yield from reversed(used)
            return
        yield from unused
        yield from used

    def _looks(self, message: Any, unused: Sequence[int]) -> Iterator[int]:
        task = named(message)
        for index in unused:
            request = self._all[index].request.message
            if self._value(named(request) if isinstance(request, dict) else "") != task:
                continue
            if _method(request) != "tasks/get":
                return
            yield index

    def _value(self, text: str) -> Any:
        try:
            return fill(text, self._minted)
        except (UnboundPlaceholder, ValueError):
            return None

    def _differences(
        self,
        index: int,
        http: str,
        headers: Mapping[str, str],
        message: Any,
        bindings: Bindings,
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
            self._learn_of_client(request.message, message, bindings)
            if "id" not in recorded or "method" in recorded:
                recorded, now = _without_id(recorded), _without_id(now)
        yield from compare(recorded, now, bindings, (), self._ignore)

    def _learn_of_client(self, recorded: Any, message: Any, bindings: Bindings) -> None:
        for one, value in (
            (recorded.get("id"), message.get("id")),
            (_token(recorded), _token(message)),
        ):
            if isinstance(one, str) and value is not None and "method" in recorded:
                bindings.values |= dict.fromkeys(slots(one), value)

    def _play(self, index: int) -> None:
        """It is played now: one that was before begins again, and all that came behind it."""
        if self._played[index].is_used and _begins(self._all[index]):
            for later in self._played[index:]:
                later.is_used, later.failure = False, None
                later.begun.clear()
        self._played[index].is_used = True
        self._played[index].begun.set()

    def _never_recorded(self, http: str, message: Any) -> Reply:
        if http != "POST":
            return Reply(405 if http == "GET" else 200, {})
        request_id = message.get("id") if isinstance(message, dict) else None
        method = _method(message)
        if method is None:
            self._fail_waiting(message)
        elif method.startswith("notifications/"):
            return Reply(202, {})
        elif method not in self._methods:
            return refusal(request_id, _NOT_FOUND, f"Method not found: no {method} was recorded")
        nearest = self._nearest(message)
        text = f"Nothing like this was recorded: {_title(message)}"
        return refusal(request_id, _INVALID, f"{text}{nearest}", 200 if method else 400)

    def _nearest(self, message: Any) -> str:
        best: tuple[int, int, list[Difference]] | None = None
        for index, one in enumerate(self._all):
            if _method(one.request.message) != _method(message) or one.request.http != "POST":
                continue
            bindings = Bindings(self._bindings.values)
            found = list(self._differences(index, "POST", {}, message, bindings))[:20]
            is_other = named(one.request.message) != named(message) if _method(message) else False
            if best is None or (len(found) + 20 * is_other) < best[0]:
                best = (len(found) + 20 * is_other, index, found)
        if best is None:
            return ""
        _, index, found = best
        if not found:
            return f"; interaction {index + 1} is like it, and it is not its turn"
        first = found[0]
        what = f"{first.path} is {first.expected} there, and {first.got} here"
        return f"; the nearest is interaction {index + 1} ({self._all[index].title}): {what}"

    def _fail_waiting(self, message: Any) -> None:
        """An answer that was not recorded: the call that waits for the recorded one
        must not wait for ever."""
        for index, one in enumerate(self._all):
            sent = one.request.message
            if isinstance(sent, dict) and "method" not in sent and not self._played[index].is_used:
                self._played[
                    index
                ].failure = (
                    f"Nothing like this was recorded: {_title(message)}{self._nearest(message)}"
                )
                self._played[index].begun.set()
                return

    # -- what it answers
    # --------------------------------------------------------------------------------------------

    def _state_of_task(self, message: Any) -> Reply | None:
        """A task that was created and has told nothing since is as it was created."""
        if _method(message) != "tasks/get":
            return None
        for one, played in zip(self._all, self._played, strict=True):
            answer = one.response.message if played.is_used and one.response else None
            result = answer.get("result") if isinstance(answer, dict) else None
            if isinstance(result, dict) and result.get("resultType") == "task":
                now = fill(result, self._minted)
                if now.get("taskId") == named(message):
                    state = {"result": {**now, "resultType": "complete"}}
                    body = encode(wire(state, message.get("id")))
                    return Reply(200, {"content-type": "application/json"}, body)
        return None

    def _minted(self, slot: Slot) -> Any:
        """What a placeholder stands for in this conversation: learnt from the
        client, or made up, once."""
        if slot.kind == "time":
            return iso(self._clock.now_ms())
        if slot.kind == "secret" or (slot.key is None and slot not in self._bindings.values):
            return f"({slot.kind} {slot.key or ''})".replace(" )", ")")
        if slot not in self._bindings.values:
            if slot.kind in _OF_CLIENTS:
                raise UnboundPlaceholder(str(slot))
            self._bindings.values[slot] = _made_up(slot)
        return self._bindings.values[slot]

    async def _reply(self, response: Response, index: int, message: Any) -> Reply:
        headers = {name: str(self._value(text)) for name, text in response.headers.items()}
        request_id = message.get("id") if isinstance(message, dict) else None
        is_cut = self._faults.takes("cut", index + 1) or response.end == "cut"
        if response.events is not None:
            stream = self._stream(response, index, request_id, dict(self._bindings.values), is_cut)
            headers = {**headers, "content-type": "text/event-stream", "cache-control": "no-store"}
            return Reply(response.status, headers, b"", stream, is_cut)
        failure = await self._wait(response.after)
        if failure is not None:
            return refusal(request_id, _INVALID, failure)
        if response.message is None:
            text = str(self._value(response.text or ""))
            kind = {"content-type": "text/plain; charset=utf-8"} if text else {}
            return Reply(response.status, {**headers, **kind}, text.encode(), None, is_cut)
        body = encode(self._wire(response.message, request_id))
        kind = {"content-type": "application/json"}
        return Reply(response.status, {**headers, **kind}, body, None, is_cut)

    def _wire(self, message: Any, request_id: Any) -> Any:
        return wire(fill(message, self._minted), request_id)

    async def _wait(self, after: int | None) -> str | None:
        if after is None or after > len(self._played):
            return None
        played = self._played[after - 1]
        await played.begun.wait()
        return played.failure

    async def _stream(
        self,
        response: Response,
        index: int,
        request_id: Any,
        values: dict[Slot, Any],
        is_cut: bool,
    ) -> AsyncGenerator[bytes, None]:
        own = {slot: value for slot, value in values.items() if slot.kind in _OF_CLIENTS}
        last = self._faults.events_before_cut(index + 1) if is_cut else None
        for number, event in enumerate(response.events or ()):
            if (failure := await self._wait(event.after)) is not None:
                refused = {"code": _INVALID, "message": failure}
                yield _event_bytes({"jsonrpc": "2.0", "id": request_id, "error": refused})
                return
            self._bindings.values |= own
            try:
                data = self._event(event, request_id)
            except UnboundPlaceholder:
                continue  # the progress of a client that wants none
            if last is not None and number == last:
                yield data[: len(data) // 2]
                return
            yield data
        if response.end == "client":
            await asyncio.Event().wait()  # it was the client who ended it

    def _event(self, event: Event, request_id: Any) -> bytes:
        message = None if event.message is None else self._wire(event.message, request_id)
        event_id = None if event.event_id is None else str(self._value(event.event_id))
        return _event_bytes(message, event_id, event.retry_ms)


def wire(message: Any, request_id: Any) -> Any:
    """A message of a cassette, its placeholders filled, as it goes over the wire."""
    if not isinstance(message, dict):
        return message
    if "jsonrpc" in message:
        return {key: value for key, value in message.items() if (key, value) != ("jsonrpc", None)}
    is_answer = "method" not in message and "id" not in message
    return {"jsonrpc": "2.0", **({"id": request_id} if is_answer else {}), **message}


def _event_bytes(message: Any, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    lines = [] if event_id is None else [f"id: {event_id}".encode()]
    lines += [] if retry_ms is None else [f"retry: {retry_ms}".encode()]
    if isinstance(message, str):  # it was no JSON
        lines += [f"data: {line}".encode() for line in message.split("\n")]
    else:
        lines.append(b"data: " + (b"" if message is None else encode(message)))
    return b"\n".join(lines) + b"\n\n"


def refusal(request_id: Any, code: int, message: str, status: int = 200) -> Reply:
    """A JSON-RPC error, as a reply."""
    error = {"code": code, "message": message}
    body = encode({"jsonrpc": "2.0", "id": request_id, "error": error})
    return Reply(status, {"content-type": "application/json"}, body)


def _made_up(slot: Slot) -> str:
    if slot.kind == "uuid":
        return f"00000000-0000-4000-8000-{int(slot.key or 0):012d}"
    return f"{slot.kind}-{slot.key}"


def _method(message: Any) -> str | None:
    method = message.get("method") if isinstance(message, dict) else None
    return method if isinstance(method, str) else None


def _begins(one: Interaction) -> bool:
    return _method(one.request.message) in _BEGINNINGS


def _is_look(one: Interaction) -> bool:
    return _method(one.request.message) == "tasks/get"


def _comparable(message: Any) -> Any:
    """What of a message says which request it is: not who sends it, and not what it
    wants to hear meanwhile."""
    if not isinstance(message, dict):
        return message
    short: Json = {name: value for name, value in message.items() if name != "jsonrpc"}
    if _method(short) in _ANY_PARAMS:
        return {"method": short["method"], "id": None}
    params = short.get("params")
    if isinstance(params, dict) and isinstance(params.get("_meta"), dict):
        params = without_envelope(short)["params"]
        params = {name: value for name, value in params.items() if name != "_meta"}
        short["params"] = params
    if short.get("params") == {}:
        del short["params"]
    return short


def _without_id(message: Json) -> Json:
    return {name: value for name, value in message.items() if name != "id"}


def _token(message: Any) -> Any:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get("progressToken") if isinstance(meta, dict) else None


def _title(message: Any) -> str:
    method = _method(message)
    if method is None:
        return "an answer to a question" if isinstance(message, dict) else "a batch"
    text = f"{method} {named(message)}".strip()
    params = message.get("params")
    arguments = params.get("arguments") if isinstance(params, dict) else None
    return f"{text} {encode(arguments).decode()[:200]}" if arguments else text
