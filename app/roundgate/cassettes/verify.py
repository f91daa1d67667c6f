"""A cassette as a client: every request is sent again, in its order, and each answer
compared with the recorded one.

What the server made up before (states, tasks, sessions) is what it makes up now; a request
is sent once all that was heard before it has been heard again. A task is looked at until
it has come where it was.

    2 sent ──▶ stream of 2: its question, learnt ──▶ 3, the answer, sent ──▶ stream of 2: the result, compared
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from roundgate.cassettes.faults import NO_FAULTS, Faults
from roundgate.cassettes.matching import Bindings, Difference, compare, fill, shown, slots
from roundgate.cassettes.model import Cassette, Course, Event, Interaction, Response, with_envelope
from roundgate.cassettes.paths import Slot
from roundgate.cassettes.standin import wire
from roundgate.client import (
    Auth,
    EventReader,
    HttpRequest,
    HttpResponse,
    HttpxTransport,
    Limits,
    Transport,
    Url,
    of_request,
)
from roundgate.errors import ClientError, ParseError, UnboundPlaceholder, UsageError
from roundgate.json import decode, encode

_ACCEPT: Final = "application/json, text/event-stream"
_MAX_MESSAGE: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one interaction went; `differences` is empty if the server still answers so."""

    number: int
    title: str
    differences: Sequence[Difference]


@dataclass(slots=True)
class _Live:
    """A request that was sent, and what has come of it so far."""

    number: int
    recorded: Interaction
    heard: list[Any] = field(default_factory=list)
    """Messages, each as the cassette compares it; ids of events beside them."""
    event_ids: list[str | None] = field(default_factory=list)
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    failure: str | None = None
    is_over: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None
    compared: int = 0
    has_head: bool = False
    request_id: Any = None
    differences: list[Difference] = field(default_factory=list)


class Verifier:
    """Replays a cassette against one server, or against replicas in turn."""

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
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._cassette = cassette
        self._urls = [Url.parse(url) for url in urls]
        self._transport = transport or HttpxTransport(Limits())
        self._auth = auth
        self._headers = tuple(headers)
        self._environment = os.environ if environment is None else environment
        self._timeout_s = timeout_s
        self._faults = faults.begun()
        origin = f"{self._urls[0].scheme}://{self._urls[0].authority}"
        known = {Slot("server"): origin, Slot("host"): self._urls[0].authority}
        self._bindings = Bindings(known)
        self._course = Course()
        self._ids = count(1)
        self._live: list[_Live] = []

    async def run(self) -> AsyncIterator[Outcome]:
        """Send everything again; each outcome, in the order of the cassette.

        Raises:
            UsageError: a secret is needed whose environment variable is not set.
        """
        try:
            for number, one in enumerate(self._cassette.interactions, 1):
                await self._begin(number, one)
            for live in self._live:
                await self._heard(live, _expected(live, len(self._cassette.interactions) + 1))
                await self._finish(live)
                yield Outcome(live.number, live.recorded.title, tuple(live.differences))
        finally:
            for live in self._live:
                await _stop(live)
            await self._transport.close()

    async def _begin(self, number: int, one: Interaction) -> None:
        for live in self._live:
            await self._heard(live, _expected(live, number))
        live = _Live(number, one)
        self._live.append(live)
        await asyncio.sleep(self._faults.delay_s(number))
        try:
            request = await self._request(live)
        except UnboundPlaceholder as error:
            live.failure = f"it cannot be sent: the server has not said {error} yet"
            live.is_over = True
            return
        if self._faults.takes("twice", number):
            await self._once(live, request)
        if self._faults.takes("lost", number):
            await self._lose(request)
        if self._faults.takes("cut", number):
            await self._lose(request, reads=True)
        live.task = asyncio.create_task(self._converse(live, request))

    async def _once(self, live: _Live, request: HttpRequest) -> None:
        """Send a request an additional time, and compare what comes of it just as well."""
        before = dict(self._bindings.values)
        first = _Live(live.number, live.recorded, request_id=live.request_id)
        first.task = asyncio.create_task(self._converse(first, request))
        await self._heard(first, _expected(first, live.number + 1))
        await _stop(first)
        self._bindings.values = before  # the second one may have a state of its own
        again = "when it was sent the first time: "
        live.differences += [
            Difference(again + one.path, one.expected, one.got) for one in first.differences
        ]

    async def _lose(self, request: HttpRequest, *, reads: bool = False) -> None:
        """Send a request and hang up before its answer is read, or in the middle of it."""
        with suppress(ClientError):
            response = await self._transport.send(request)
            if reads:
                async for _ in response.chunks():
                    break
            await response.close()

    # -- what is sent
    # -----------------------------------------------------------------------------------------------

    async def _request(self, live: _Live) -> HttpRequest:
        recorded = live.recorded.request
        message = fill(recorded.message, self._value_of)
        if isinstance(message, dict) and "jsonrpc" not in message:
            message = self._addressed(message, live)
        message = wire(message, None) if isinstance(message, dict) else message
        self._course.begins(message)
        headers = {**self._course.headers(message), **_metadata(message, self._course.is_older)}
        headers |= fill(dict(recorded.headers), self._value_of)
        url = self._urls[(live.number - 1) % len(self._urls)]
        sent = [("accept", "text/event-stream" if recorded.http == "GET" else _ACCEPT)]
        sent += [("accept-encoding", "identity"), *headers.items(), *self._headers]
        if self._auth is not None:
            sent += await self._auth.headers(recorded.http, url)
        body = None
        if recorded.http == "POST":
            sent.append(("content-type", "application/json"))
            body = (
                encode(message)
                if recorded.text is None
                else str(fill(recorded.text, self._value_of)).encode()
            )
        return HttpRequest(recorded.http, url, sent, body)

    def _addressed(self, message: dict[str, Any], live: _Live) -> dict[str, Any]:
        """A message with its id, and with what its client says of itself."""
        method = str(message.get("method", ""))
        if not method or method.startswith("notifications/"):
            return message
        message.setdefault("id", next(self._ids))
        live.request_id = message["id"]
        is_older = self._course.is_older or method == "initialize"
        if is_older or live.recorded.request.own_envelope or not self._cassette.client:
            return message
        return with_envelope(message, fill(self._cassette.client, self._value_of))

    def _value_of(self, slot: Slot) -> Any:
        if slot.kind == "secret":
            return _secret(slot, self._environment)
        if slot not in self._bindings.values:
            if slot.kind == "id":
                self._bindings.values[slot] = next(self._ids)
            elif slot.kind == "token":
                self._bindings.values[slot] = f"token-{slot.key}"
            else:
                raise UnboundPlaceholder(str(slot))
        return self._bindings.values[slot]

    # -- what comes back
    # --------------------------------------------------------------------------------------------

    async def _converse(self, live: _Live, request: HttpRequest) -> None:
        try:
            while True:
                response = await self._transport.send(request)
                try:
                    await self._listen(live, response)
                finally:
                    await response.close()
                if (wait_s := self._patience_s(live)) is None:
                    break
                live.heard.clear()
                live.event_ids.clear()
                await asyncio.sleep(wait_s)
        except ClientError as error:
            live.failure = str(error)
        finally:
            live.is_over = True
            async with live.changed:
                live.changed.notify_all()

    async def _listen(self, live: _Live, response: HttpResponse) -> None:
        live.status, live.headers = response.status, response.headers
        async with live.changed:
            live.changed.notify_all()
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "text/event-stream":
            body = b"".join([part async for part in response.chunks()])[:_MAX_MESSAGE]
            live.text = None
            if body.strip():
                try:
                    await self._take(live, decode(body), None)
                except ParseError:
                    live.text = body.decode("utf-8", "replace")
            return
        reader, last_id = EventReader(_MAX_MESSAGE), None
        async for data in response.chunks():
            for event in reader.feed(data):
                own_id = event.id if event.id != last_id else None
                last_id = event.id
                message = _message_of(event.data)
                await self._take(live, message, own_id)

    async def _take(self, live: _Live, message: Any, event_id: str | None) -> None:
        live.heard.append(message)
        live.event_ids.append(event_id)
        if not _is_look(live.recorded):
            async with live.changed:
                live.changed.notify_all()

    def _patience_s(self, live: _Live) -> float | None:
        """How long to wait before a task is looked at again, `None` if it has come where it was."""
        response = live.recorded.response
        if not _is_look(live.recorded) or response is None or not live.heard:
            return None
        message = live.heard[0]
        result = message.get("result") if isinstance(message, dict) else None
        if not isinstance(result, dict):
            return None
        trial = Bindings(self._bindings.values)
        is_there = not any(
            compare(response.message, _short(message, live.request_id), trial, (), self._ignored)
        )
        ended = result.get("status") in ("completed", "failed", "cancelled")
        recorded = response.message.get("result") if isinstance(response.message, dict) else None
        waits_for = recorded.get("status") if isinstance(recorded, dict) else None
        if is_there or ended or (result.get("status") == waits_for != "input_required"):
            return None
        interval = result.get("pollIntervalMs")
        interval_ms = interval if isinstance(interval, (int, float)) else 500
        return min(max(interval_ms, 20), 5_000) / 1_000

    @property
    def _ignored(self) -> Sequence[str]:
        return self._cassette.ignore

    async def _heard(self, live: _Live, wanted: int) -> None:
        """Wait until that much has been heard, and compare it."""
        try:
            async with asyncio.timeout(self._timeout_s), live.changed:
                await live.changed.wait_for(
                    lambda: live.is_over or live.task is None or _has_come(live, wanted)
                )
        except TimeoutError:
            if live.failure is None:
                live.failure = f"no answer within {self._timeout_s:g} s"
                await _stop(live)
        self._compare(live, wanted)

    def _compare(self, live: _Live, wanted: int) -> None:
        """Compare what was heard and not compared before; placeholders learn their values."""
        response = live.recorded.response
        if response is None:
            live.compared = wanted
            return
        if not live.has_head and live.status is not None:
            live.has_head = True
            live.differences += self._compare_head(live, response)
        events = _events(response)
        for index in range(live.compared, min(wanted, len(live.heard), len(events))):
            live.differences += self._compare_event(live, events[index], index)
        live.compared = max(live.compared, min(wanted, len(live.heard)))
        message = live.recorded.request.message
        if live.heard and isinstance(message, dict):
            self._course.answered(message, live.heard[-1], live.headers)

    def _compare_head(self, live: _Live, response: Response) -> Iterator[Difference]:
        if live.status != response.status:
            yield Difference("HTTP status", str(response.status), str(live.status))
        for name, value in response.headers.items():
            yield from compare(
                value, live.headers.get(name), self._bindings, ("headers", name), self._ignored
            )

    def _compare_event(self, live: _Live, event: Event, index: int) -> Iterator[Difference]:
        is_stream = live.recorded.response is not None and live.recorded.response.events is not None
        path = ("events", index) if is_stream else ()
        if event.event_id is not None:
            now = live.event_ids[index]
            yield from compare(event.event_id, now, self._bindings, (*path, "event_id"))
        now = _short(live.heard[index], live.request_id)
        yield from compare(event.message, now, self._bindings, path, self._ignored)

    async def _finish(self, live: _Live) -> None:
        """What is left to say once everything that was recorded has been heard."""
        response = live.recorded.response
        if response is None:
            await _stop(live)
            return
        self._compare(live, len(live.heard))
        if response.end == "server" and live.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s), live.changed:
                    await live.changed.wait_for(lambda: live.is_over)
        if live.failure is not None and response.end != "cut":
            live.differences.append(Difference("(the answer)", "an answer", live.failure))
            return
        events = _events(response)
        for index in range(len(live.heard), len(events)):
            expected = shown(events[index].message)
            live.differences.append(Difference(f"events[{index}]", expected, "(nothing)"))
        if response.end == "server":
            for index in range(len(events), len(live.heard)):
                now = shown(_short(live.heard[index], live.request_id))
                live.differences.append(Difference(f"events[{index}]", "(nothing)", now))
        if response.text is not None or live.text is not None:
            live.differences += compare(response.text, live.text, self._bindings, ("text",))


def _secret(slot: Slot, environment: Mapping[str, str]) -> str:
    value = environment.get(slot.key or "")
    if not value:
        raise UsageError(
            f"The cassette needs a secret: give it in the environment variable {slot.key}"
        )
    return value


def filled(value: Any, bindings: Bindings, environment: Mapping[str, str]) -> Any:
    """A recorded value with its secrets, and with what is known; other
    placeholders stay what they are.

    Raises:
        UsageError: a secret is needed whose environment variable is not set.
    """

    def value_of(slot: Slot) -> Any:
        if slot.kind == "secret":
            return _secret(slot, environment)
        return bindings.values.get(slot, str(slot))

    return fill(value, value_of)


def secret_names(cassette: Cassette) -> list[str]:
    """The environment variables that a replay of a cassette takes secrets from."""
    found = [slot for one in cassette.interactions for slot in slots(one.request.message)]
    return sorted({str(slot.key) for slot in found if slot.kind == "secret"})


async def _stop(live: _Live) -> None:
    if live.task is not None:
        live.task.cancel()
        await asyncio.gather(live.task, return_exceptions=True)
        live.task = None


def _events(response: Response) -> Sequence[Event]:
    """What was heard, in pieces: the events of a stream, or the one message of an answer."""
    if response.events is not None:
        return response.events
    return () if response.message is None else (Event(response.message, after=response.after),)


def _has_come(live: _Live, wanted: int) -> bool:
    """Whether that much of an answer has been heard; one without content is
    heard when it is over."""
    response = live.recorded.response
    if response is None:
        return True
    if _is_look(live.recorded) or (response.events is None and not _events(response)):
        return False
    return live.status is not None and len(live.heard) >= wanted


def _expected(live: _Live, number: int) -> int:
    """How much has to be heard of an interaction before another one begins."""
    response = live.recorded.response
    if response is None:
        return 0
    return sum((one.after or live.number) < number for one in _events(response))


def _metadata(message: Any, is_older: bool) -> dict[str, str]:
    """The headers in which a request of the modern revision repeats its body."""
    if is_older or not isinstance(message, dict) or "method" not in message:
        return {}
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    found = of_request(str(message["method"]), params, "")
    return {name: value for name, value in found if name != "MCP-Protocol-Version"}


def _message_of(data: bytes) -> Any:
    if not data.strip():
        return None
    try:
        return decode(data)
    except ParseError:
        return data.decode("utf-8", "replace")


def _short(message: Any, request_id: Any) -> Any:
    """A message as a cassette has it: without what goes without saying."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return message
    short = {name: value for name, value in message.items() if name != "jsonrpc"}
    if "method" not in short and "id" in short and short["id"] == request_id:
        del short["id"]
    return short


def _is_look(one: Interaction) -> bool:
    message = one.request.message
    return isinstance(message, dict) and message.get("method") == "tasks/get"
