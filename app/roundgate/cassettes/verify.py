"""Replay of a cassette as a client: the recorded requests are sent again in order, and each
response is compared with the recorded one.

Values that the server generates (states, tasks, sessions) are replaced by the new values. A request
is sent once all messages that preceded it have arrived again. A task is polled until it reaches its
recorded state or ends.

    2 sent ──▶ stream of 2: its question, bound ──▶ 3, the answer, sent ──▶ stream of 2: the result,
    compared
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from roundgate.cassettes.matching import (
    Bindings,
    Difference,
    Slot,
    UnboundPlaceholder,
    compare,
    fill,
    shown,
    slots,
)
from roundgate.cassettes.model import (
    Cassette,
    Course,
    Event,
    Interaction,
    Json,
    Response,
    params_of,
    read_method,
    result_of,
    with_envelope,
    without,
)
from roundgate.cassettes.recording import decoded
from roundgate.cassettes.standin import Faults, is_poll, wire
from roundgate.client import (
    Auth,
    Client,
    EventReader,
    HttpRequest,
    HttpResponse,
    HttpxTransport,
    Limits,
    Question,
    Transport,
    Url,
    of_request,
)
from roundgate.errors import ClientError, RpcError, UsageError
from roundgate.json import encode

_ACCEPT: Final = "application/json, text/event-stream"
_MAX_MESSAGE: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one interaction; without differences, the server answers as recorded."""

    number: int
    title: str
    differences: Sequence[Difference]


@dataclass(slots=True)
class _Live:
    """A request that was sent, and the part of its response that has arrived."""

    number: int
    recorded: Interaction
    received: list[tuple[Any, str | None]] = field(default_factory=list)
    """The messages that have arrived, each with the id of its event."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    failure: str | None = None
    is_over: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None
    compared: int = 0
    """The number of messages that have been compared."""
    has_head: bool = False
    """Whether the status and headers have been compared."""
    request_id: Any = None
    differences: list[Difference] = field(default_factory=list)

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    def expected_before(self, number: int) -> int:
        """Return the number of messages that must arrive before another interaction begins."""
        pieces = self.recorded.response.pieces if self.recorded.response else ()
        return sum((piece.after or self.number) < number for piece in pieces)

    def has_received(self, needed: int) -> bool:
        """Return whether `needed` messages have arrived. Return False for a poll and for a response
        without messages, whose end is awaited instead."""
        response = self.recorded.response
        if response is None:
            return True
        if is_poll(self.recorded) or (response.events is None and not response.pieces):
            return False
        return self.status is not None and len(self.received) >= needed

    def short(self, message: Any) -> Any:
        """Return a message in the form of a cassette: without `jsonrpc`, and without the id of this
        request."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return message
        is_own = "method" not in message and message.get("id") == self.request_id
        return without(message, "jsonrpc", "id") if is_own else without(message, "jsonrpc")


class Verifier:
    """A replay of a cassette against one server, or against its replicas in turn."""

    def __init__(
        self,
        cassette: Cassette,
        urls: Sequence[str],
        *,
        transport: Transport | None = None,
        auth: Auth | None = None,
        headers: Sequence[tuple[str, str]] = (),
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        faults: Faults | None = None,
    ) -> None:
        self._cassette = cassette
        self._ignore = cassette.ignore
        self._urls = [Url.parse(url) for url in urls]
        self._transport = transport or HttpxTransport(Limits())
        self._auth = auth
        self._headers = tuple(headers)
        self._environment = os.environ if environment is None else environment
        self._timeout_s = timeout_s
        self._faults = Faults(faults.all if faults else ())
        first = self._urls[0]
        self._bindings = Bindings({Slot("server"): first.root, Slot("host"): first.authority})
        self._course = Course()
        self._ids = count(1)
        self._live: list[_Live] = []

    async def run(self) -> AsyncIterator[Outcome]:
        """Send all requests again, then yield the outcomes in the order of the cassette.

        Raises:
            UsageError: the environment variable of a secret is not set.
        """
        try:
            for number, interaction in enumerate(self._cassette.interactions, 1):
                await self._begin(number, interaction)
            for live in self._live:
                await self._receive(live, live.expected_before(len(self._live) + 1))
                await self._finish(live)
                yield Outcome(live.number, live.recorded.title, tuple(live.differences))
        finally:
            for live in self._live:
                await live.stop()
            await self._transport.close()

    async def _begin(self, number: int, interaction: Interaction) -> None:
        for live in self._live:
            await self._receive(live, live.expected_before(number))
        live = _Live(number, interaction)
        self._live.append(live)
        await asyncio.sleep(self._faults.amount("delay", number))
        try:
            request = await self._request(live)
        except UnboundPlaceholder as error:
            live.failure = f"it cannot be sent: the server has not yet sent a value for {error}"
            live.is_over = True
            return
        if self._faults.take("twice", number):
            await self._send_before(live, request)
        for fault in ("lost", "cut"):
            if self._faults.take(fault, number):
                await self._lose(request, is_read=fault == "cut")
        live.task = asyncio.create_task(self._converse(live, request))

    async def _send_before(self, live: _Live, request: HttpRequest) -> None:
        """Send a request once more before it is sent as recorded, and compare both responses."""
        values = dict(self._bindings.values)
        first = _Live(live.number, live.recorded, request_id=live.request_id)
        first.task = asyncio.create_task(self._converse(first, request))
        await self._receive(first, first.expected_before(live.number + 1))
        await first.stop()
        self._bindings.values = values  # the second response may have different values
        again = "when it was sent the first time: "
        live.differences += [
            Difference(again + difference.path, difference.expected, difference.actual)
            for difference in first.differences
        ]

    async def _lose(self, request: HttpRequest, *, is_read: bool) -> None:
        """Send a request and hang up once the response begins; with `is_read`, after the first
        chunk of its body."""
        with suppress(ClientError):
            response = await self._transport.send(request)
            if is_read:
                async for _ in response.chunks():
                    break
            await response.close()

    # -- requests ----------------------------------------------------------------------------------

    async def _request(self, live: _Live) -> HttpRequest:
        recorded = live.recorded.request
        message = fill(recorded.message, self._resolve_slot)
        if isinstance(message, dict):
            if "jsonrpc" not in message:
                message = self._addressed(message, live)
            message = wire(message, None)
        self._course.begin(message)
        url = self._urls[(live.number - 1) % len(self._urls)]
        headers = self._course.headers(message) | _metadata(message, self._course.is_older)
        headers |= fill(recorded.headers, self._resolve_slot)
        sent = [("accept", "text/event-stream" if recorded.http == "GET" else _ACCEPT)]
        sent += [("accept-encoding", "identity"), *headers.items(), *self._headers]
        if self._auth is not None:
            sent += await self._auth.headers(recorded.http, url)
        if recorded.http != "POST":
            return HttpRequest(recorded.http, url, sent)
        sent.append(("content-type", "application/json"))
        text = recorded.text
        body = encode(message) if text is None else str(fill(text, self._resolve_slot)).encode()
        return HttpRequest(recorded.http, url, sent, body)

    def _addressed(self, message: Json, live: _Live) -> Json:
        """Return a recorded message with an id and, in the modern era, the cassette's envelope."""
        method = read_method(message) or ""
        if not method or method.startswith("notifications/"):
            return message
        message.setdefault("id", next(self._ids))
        live.request_id = message["id"]
        is_older = self._course.is_older or method == "initialize"
        if is_older or live.recorded.request.own_envelope or not self._cassette.client:
            return message
        return with_envelope(message, fill(self._cassette.client, self._resolve_slot))

    def _resolve_slot(self, slot: Slot) -> Any:
        values = self._bindings.values
        if slot.kind == "secret":
            return _secret(slot, self._environment)
        if slot not in values:
            if slot.kind == "id":
                values[slot] = next(self._ids)
            elif slot.kind == "token":
                values[slot] = f"token-{slot.key}"
            else:
                raise UnboundPlaceholder(str(slot))
        return values[slot]

    # -- responses ---------------------------------------------------------------------------------

    async def _converse(self, live: _Live, request: HttpRequest) -> None:
        try:
            while True:
                response = await self._transport.send(request)
                try:
                    await self._listen(live, response)
                finally:
                    await response.close()
                if (wait_s := self._poll_again_s(live)) is None:
                    break
                live.received.clear()
                await asyncio.sleep(wait_s)
        except ClientError as error:
            live.failure = str(error)
        finally:
            live.is_over = True
            await live.notify()

    async def _listen(self, live: _Live, response: HttpResponse) -> None:
        live.status, live.headers = response.status, response.headers
        await live.notify()
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "text/event-stream":
            body = b"".join([part async for part in response.chunks()])[:_MAX_MESSAGE]
            message, live.text = decoded(body) if body.strip() else (None, None)
            if message is not None:
                await self._take(live, message, None)
            return
        reader, last_id = EventReader(_MAX_MESSAGE), None
        async for data in response.chunks():
            for event in reader.feed(data):
                message, text = decoded(event.data) if event.data.strip() else (None, None)
                event_id = event.id if event.id != last_id else None
                last_id = event.id
                await self._take(live, message if text is None else text, event_id)

    async def _take(self, live: _Live, message: Any, event_id: str | None) -> None:
        live.received.append((message, event_id))
        if not is_poll(live.recorded):
            await live.notify()

    def _poll_again_s(self, live: _Live) -> float | None:
        """Return the seconds until the next poll of a task, or `None` once it has ended, reached
        its recorded state, or failed to answer."""
        response = live.recorded.response
        if not is_poll(live.recorded) or response is None or not live.received:
            return None
        message = live.received[0][0]
        result, recorded = result_of(message), result_of(response.message) or {}
        if result is None:
            return None
        trial = Bindings(self._bindings.values)
        status = result.get("status")
        if (
            status in ("completed", "failed", "cancelled")
            or status == recorded.get("status") != "input_required"
            or not any(compare(response.message, live.short(message), trial, (), self._ignore))
        ):
            return None
        interval_ms = result.get("pollIntervalMs")
        interval_ms = interval_ms if isinstance(interval_ms, (int, float)) else 500
        return min(max(interval_ms, 20), 5_000) / 1_000

    async def _receive(self, live: _Live, needed: int) -> None:
        """Wait for `needed` messages or the timeout, and compare the messages."""
        try:
            async with asyncio.timeout(self._timeout_s), live.changed:
                await live.changed.wait_for(
                    lambda: live.is_over or live.task is None or live.has_received(needed)
                )
        except TimeoutError:
            if live.failure is None:
                live.failure = f"no answer within {self._timeout_s:g} s"
                await live.stop()
        self._compare(live, needed)

    def _compare(self, live: _Live, needed: int) -> None:
        """Compare the first `needed` messages unless they were compared before; bind
        placeholders."""
        response = live.recorded.response
        if response is None:
            return
        if not live.has_head and live.status is not None:
            live.has_head = True
            live.differences += self._compare_head(live, response)
        arrived = min(needed, len(live.received))
        for index in range(live.compared, min(arrived, len(response.pieces))):
            live.differences += self._compare_piece(live, response, index)
        live.compared = max(live.compared, arrived)
        if live.received:
            self._course.end(live.recorded.request.message, live.received[-1][0], live.headers)

    def _compare_head(self, live: _Live, response: Response) -> Iterator[Difference]:
        if live.status != response.status:
            yield Difference("HTTP status", str(response.status), str(live.status))
        for name, value in response.headers.items():
            now = live.headers.get(name)
            yield from compare(value, now, self._bindings, ("headers", name), self._ignore)

    def _compare_piece(self, live: _Live, response: Response, index: int) -> Iterator[Difference]:
        piece: Event = response.pieces[index]
        message, event_id = live.received[index]
        path = () if response.events is None else ("events", index)
        if piece.event_id is not None:
            yield from compare(piece.event_id, event_id, self._bindings, (*path, "event_id"))
        now = live.short(message)
        yield from compare(piece.message, now, self._bindings, path, self._ignore)

    async def _finish(self, live: _Live) -> None:
        """Compare the rest of a response. If the server ended the recorded response, wait for the
        end and report additional messages."""
        response = live.recorded.response
        if response is None:
            await live.stop()
            return
        self._compare(live, len(live.received))
        if response.end == "server" and live.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s), live.changed:
                    await live.changed.wait_for(lambda: live.is_over)
        if live.failure is not None and response.end != "cut":
            live.differences.append(Difference("(the answer)", "an answer", live.failure))
            return
        count_now, count_before = len(live.received), len(response.pieces)
        for index in range(count_now, count_before):
            expected = shown(response.pieces[index].message)
            live.differences.append(Difference(f"events[{index}]", expected, "(nothing)"))
        if response.end == "server":
            for index in range(count_before, count_now):
                now = shown(live.short(live.received[index][0]))
                live.differences.append(Difference(f"events[{index}]", "(nothing)", now))
        if response.text is not None or live.text is not None:
            live.differences += compare(response.text, live.text, self._bindings, ("text",))


def _secret(slot: Slot, environment: Mapping[str, str]) -> str:
    value = environment.get(slot.key or "")
    if not value:
        raise UsageError(
            f"The cassette needs a secret: set the environment variable {slot.key} to it"
        )
    return value


def secret_names(cassette: Cassette) -> list[str]:
    """Return the names of the environment variables from which a replay reads secrets."""
    needed = [
        slot for interaction in cassette.interactions for slot in slots(interaction.request.message)
    ]
    return sorted({str(slot.key) for slot in needed if slot.kind == "secret"})


def _metadata(message: Any, is_older: bool) -> dict[str, str]:
    """Return the headers that repeat parts of the body of a request of the modern era."""
    method = read_method(message)
    if is_older or method is None:
        return {}
    headers = of_request(method, params_of(message), "")
    return {name: value for name, value in headers if name != "MCP-Protocol-Version"}


# -- another revision ------------------------------------------------------------------------------

_COMPARED: Final = ("content", "structuredContent", "isError")


@dataclass(slots=True)
class _Call:
    """A call with all its rounds."""

    number: int
    """The number of the interaction that ended the call."""
    name: str
    arguments: Json
    answers: Json = field(default_factory=dict)
    """The answers, by the texts of their questions."""
    end: Json = field(default_factory=dict)
    """The result or error that ended the call."""


async def in_another_era(
    cassette: Cassette, client: Client, environment: Mapping[str, str]
) -> AsyncIterator[Outcome]:
    """Yield the outcomes of calls repeated by a client that speaks another revision. Questions with
    the same texts get the recorded answers; calls that became tasks are omitted.

    Raises:
        UsageError: the environment variable of a secret is not set.
    """
    bindings = Bindings({Slot("server"): client.url.rpartition("/")[0]})

    def value_of(slot: Slot) -> Any:
        if slot.kind == "secret":
            return _secret(slot, environment)
        return bindings.values.get(slot, str(slot))

    for call in _calls(cassette):
        answers = fill(call.answers, value_of)

        def answer(question: Question, answers: Json = answers) -> Any:
            response: Any = answers.get(question.message)
            is_roots = isinstance(response, dict) and "roots" in response
            return response["roots"] if is_roots else response

        try:
            arguments = fill(call.arguments, value_of)
            done = await client.call(call.name, arguments, answers=answer, timeout_s=60)
        except RpcError as error:
            now: Json = {"error": {"code": error.code, "message": error.message}}
        except ClientError as error:
            now = {"error": str(error)}
        else:
            now = {"result": _compared(done.raw)}
        differences = compare(call.end, now, bindings, (), cassette.ignore)
        yield Outcome(call.number, f"tools/call {call.name}", tuple(differences))


def _compared(result: Json) -> Json:
    return {name: result[name] for name in _COMPARED if name in result}


def _calls(cassette: Cassette) -> list[_Call]:
    """Return the calls that ended without a task, because other revisions have no such tasks."""
    calls: list[_Call] = []
    latest: dict[str, _Call] = {}
    texts: dict[str, str] = {}
    for number, interaction in enumerate(cassette.interactions, 1):
        message = interaction.request.message
        if not isinstance(message, dict):
            continue
        if "method" not in message:  # an answer to a question on a stream
            text = texts.get(str(message.get("id")))
            for call in calls:
                call.answers |= {} if text is None else {text: message.get("result")}
        if read_method(message) != "tools/call":
            continue
        params = params_of(message)
        key = repr((params.get("name"), params.get("arguments")))
        if key not in latest or (latest[key].end and "requestState" not in params):
            arguments = params.get("arguments")
            latest[key] = _Call(
                number,
                str(params.get("name")),
                arguments if isinstance(arguments, dict) else {},
            )
            calls.append(latest[key])
        call = latest[key]
        responses = params.get("inputResponses")
        for name, answer in responses.items() if isinstance(responses, dict) else ():
            question = texts.get(str(name), str(name))
            call.answers[question] = answer
        for piece in interaction.response.pieces if interaction.response else ():
            texts |= _question_texts(piece.message)
            if (end := _end(piece.message)) is not None:
                call.number, call.end = number, end
    return [call for call in calls if call.end]


def _question_texts(message: Any) -> dict[str, str]:
    """Return the text of each question in a message, by the key or id of the question."""
    requests = (result_of(message) or {}).get("inputRequests")
    questions = dict(requests) if isinstance(requests, dict) else {}
    if isinstance(message, dict) and "method" in message and "id" in message:
        questions[str(message["id"])] = message
    return {key: str(params_of(question).get("message", "")) for key, question in questions.items()}


def _end(message: Any) -> Json | None:
    """Return the compared parts of a result or error that ends a call, or `None` for other
    messages."""
    error = message.get("error") if isinstance(message, dict) else None
    if isinstance(error, dict):
        return {"error": {"code": error.get("code"), "message": error.get("message")}}
    result = result_of(message)
    if result is None or result.get("resultType", "complete") != "complete":
        return None
    return {"result": _compared(result)}
