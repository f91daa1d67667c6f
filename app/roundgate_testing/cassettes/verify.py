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

from roundgate import client
from roundgate.errors import ClientError, UsageError
from roundgate.json import encode
from roundgate_testing.cassettes import model
from roundgate_testing.cassettes.matching import (
    Bindings,
    Difference,
    UnboundPlaceholder,
    ValueSlot,
    compare,
    fill,
    shown,
    slots,
)
from roundgate_testing.cassettes.recording import decoded
from roundgate_testing.cassettes.standin import is_poll, wire

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
    recorded: model.Interaction
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
        return (
            model.without(message, "jsonrpc", "id") if is_own else model.without(message, "jsonrpc")
        )


class CassetteVerifier:
    """A replay of a cassette against one server, or against its replicas in turn."""

    def __init__(
        self,
        cassette: model.Cassette,
        urls: Sequence[str],
        *,
        transport: client.Transport | None = None,
        auth: client.Auth | None = None,
        headers: Sequence[tuple[str, str]] = (),
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._cassette = cassette
        self._ignore = cassette.ignore
        self._urls = [client.Url.parse(url) for url in urls]
        self._transport = transport or client.HttpxTransport(client.Limits())
        self._auth = auth
        self._headers = tuple(headers)
        self._environment = os.environ if environment is None else environment
        self._timeout_s = timeout_s
        first = self._urls[0]
        self._bindings = Bindings(
            {ValueSlot("server"): first.root, ValueSlot("host"): first.authority}
        )
        self._course = model.Course()
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

    async def _begin(self, number: int, interaction: model.Interaction) -> None:
        for live in self._live:
            await self._receive(live, live.expected_before(number))
        live = _Live(number, interaction)
        self._live.append(live)
        try:
            request = await self._request(live)
        except UnboundPlaceholder as error:
            live.failure = f"it cannot be sent: the server has not yet sent a value for {error}"
            live.is_over = True
            return
        live.task = asyncio.create_task(self._converse(live, request))

    # -- requests ----------------------------------------------------------------------------------

    async def _request(self, live: _Live) -> client.HttpRequest:
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
            return client.HttpRequest(recorded.http, url, sent)
        sent.append(("content-type", "application/json"))
        text = recorded.text
        body = encode(message) if text is None else str(fill(text, self._resolve_slot)).encode()
        return client.HttpRequest(recorded.http, url, sent, body)

    def _addressed(self, message: model.Json, live: _Live) -> model.Json:
        """Return a recorded message with an id and, in the modern era, the cassette's envelope."""
        method = model.read_method(message) or ""
        if not method or method.startswith("notifications/"):
            return message
        message.setdefault("id", next(self._ids))
        live.request_id = message["id"]
        is_older = self._course.is_older or method == "initialize"
        if is_older or live.recorded.request.own_envelope or not self._cassette.client:
            return message
        return model.with_envelope(message, fill(self._cassette.client, self._resolve_slot))

    def _resolve_slot(self, slot: ValueSlot) -> Any:
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

    async def _converse(self, live: _Live, request: client.HttpRequest) -> None:
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

    async def _listen(self, live: _Live, response: client.HttpResponse) -> None:
        live.status, live.headers = response.status, response.headers
        await live.notify()
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "text/event-stream":
            body = b"".join([part async for part in response.chunks()])[:_MAX_MESSAGE]
            message, live.text = decoded(body) if body.strip() else (None, None)
            if message is not None:
                await self._take(live, message, None)
            return
        reader, last_id = client.EventReader(_MAX_MESSAGE), None
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
        result, recorded = model.result_of(message), model.result_of(response.message) or {}
        if result is None:
            return None
        trial = Bindings(self._bindings.values)
        status = result.get("status")
        if (
            status in ("completed", "failed", "cancelled")
            or status == recorded.get("status") != "input_required"
            or (status == "input_required" and _keys_asked(result) == _keys_asked(recorded))
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

    def _compare_head(self, live: _Live, response: model.RecordedResponse) -> Iterator[Difference]:
        if live.status != response.status:
            yield Difference("HTTP status", str(response.status), str(live.status))
        for name, value in response.headers.items():
            now = live.headers.get(name)
            yield from compare(value, now, self._bindings, ("headers", name), self._ignore)

    def _compare_piece(
        self, live: _Live, response: model.RecordedResponse, index: int
    ) -> Iterator[Difference]:
        piece: model.CassetteEvent = response.pieces[index]
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


def _secret(slot: ValueSlot, environment: Mapping[str, str]) -> str:
    value = environment.get(slot.key or "")
    if not value:
        raise UsageError(
            f"The cassette needs a secret: set the environment variable {slot.key} to it"
        )
    return value


def secret_names(cassette: model.Cassette) -> list[str]:
    """Return the names of the environment variables from which a replay reads secrets."""
    needed = [
        slot for interaction in cassette.interactions for slot in slots(interaction.request.message)
    ]
    return sorted({str(slot.key) for slot in needed if slot.kind == "secret"})


def _metadata(message: Any, is_older: bool) -> dict[str, str]:
    """Return the headers that repeat parts of the body of a request of the modern era."""
    method = model.read_method(message)
    if is_older or method is None:
        return {}
    headers = client.of_request(method, model.params_of(message), "")
    return {name: value for name, value in headers if name != "MCP-Protocol-Version"}


def _keys_asked(task: model.Json) -> set[str]:
    """Return the keys of a task's open questions: another text of a question is a difference, not a
    reason to wait."""
    return set(task.get("inputRequests") or ())
