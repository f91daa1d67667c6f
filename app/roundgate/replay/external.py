"""External events: a handler opens an event, passes its URL to a service, and waits until the
service posts a payload.

    open       the event is recorded before the handler gets the token, so every delivery finds the event
    wait       the run is suspended and releases its worker
    delivered  the next turn finds the payload beside the journal, like an answer

Only the record of the task decides, at the beginning of a turn, whether an event was delivered in
time (`roundgate.tasks.machine`). If a run decided by its own clock, a payload accepted a moment
before could be lost.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from roundgate.errors import NeedsTask, ToolError
from roundgate.json import fresh
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch
from roundgate.replay.journal import MISSED, Opened, Slept
from roundgate.replay.recording import recording_cut, repeat_cut, take_event, write
from roundgate.replay.run import ExternalEvents, Run
from roundgate.replay.waiting import check_wait, refuse_timeout, within_scopes


class ExternalEvent:
    """An external event that can be delivered once."""

    __slots__ = ("_opened", "_run", "name")

    def __init__(self, run: Run, name: str, opened: Opened) -> None:
        self._run = run
        self._opened = opened
        self.name = name
        """The name that the handler gave the event."""

    @property
    def token(self) -> str:
        """Return the token that allows one delivery of the event, for a service with a URL of its
        own. Keep the token out of logs, because any holder can deliver the event."""
        return self._opened.token

    @property
    def url(self) -> str:
        """Return the URL to which a service posts the payload. The URL contains the token: keep it
        out of logs.

        Raises:
            ToolError: the gateway has no public URL.
        """
        return event_url(self._opened)

    async def wait(self) -> Any:
        """Return the payload, a JSON value, once the event was delivered. A task releases its
        worker meanwhile.

        Raises:
            TimeoutError: the event was not delivered within its `timeout_s`.
        """
        return await receive(self._run, self.name, self._opened.key)


def event_url(opened: Opened) -> str:
    """Return the URL of an event.

    Raises:
        ToolError: the gateway has no public URL.
    """
    if opened.base is None:
        raise ToolError(
            "The URL of an event is unknown: GATEWAY_PUBLIC_URL is not set. Set it to the URL "
            "under which services reach this gateway, such as https://mcp.example.com"
        )
    return opened.base + opened.token


@engine_call
async def open_event(run: Run, name: str, timeout_s: float | None) -> Opened:
    """Return an event that can be delivered from now on.

    Raises:
        NeedsTask: the call is not a task and cannot become one.
        ToolError: the task has `tasks.max_open_events` open events, or cannot wait so long.
        ValueError: `timeout_s` is not positive.
    """
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be greater than 0")
    branch = await run.enter("event", name)
    key = run.come_to(branch, "event", name)
    await repeat_cut(run, key)
    opened = run.journal.steps.get(key)
    if isinstance(opened, Opened):
        return opened
    if timeout_s is not None:
        check_wait(run, run.clock.now_ms() + round(timeout_s * 1000))
    async with recording_cut(run, key):
        await within_scopes(run, branch)
        external = run.call.external
        if external is None:
            await _become_task(run, branch, name)
        else:
            opened = _new(run, external, key, timeout_s)
            await write(run, opened)
    assert isinstance(opened, Opened)
    return opened


async def _become_task(run: Run, branch: Branch, name: str) -> None:
    if not run.call.may_become_task:
        raise NeedsTask(name)
    run.wants_task = True
    await run.park(branch)


def _new(run: Run, external: ExternalEvents, key: str, timeout_s: float | None) -> Opened:
    if len(run.journal.opened()) - len(run.journal.missed) >= external.max_open:
        raise ToolError(
            f"The task already has {external.max_open} open events, the maximum "
            "(tasks.max_open_events)"
        )
    generation = run.journal.generation
    mark = None if generation == 1 else f"{key}@{generation}"
    token = external.token(key if mark is None else mark)
    seconds = external.default_s if timeout_s is None else timeout_s
    until_ms = run.clock.now_ms() + round(seconds * 1000)
    if run.call.last_ms is not None:
        until_ms = min(until_ms, run.call.last_ms)
    return Opened(key, until_ms, token, external.base, mark)


@engine_call
async def receive(run: Run, name: str, opened_key: str) -> Any:
    """Return the payload of an event once it was delivered.

    Raises:
        TimeoutError: the event was not delivered in time.
    """
    branch = await run.enter("event", name)
    key = run.come_to(branch, "wait", name)
    await repeat_cut(run, key)
    async with recording_cut(run, key):
        while (entry := _entry(run, opened_key)).outcome is None:
            await within_scopes(run, branch)
            if opened_key in run.journal.missed:
                _record_missed(run, entry)
            else:
                refuse_timeout(run, branch)
                await _suspend(run, branch, key, entry)
        await take_event(run, branch, key)
    if entry.outcome == MISSED:
        raise TimeoutError(f"event {name!r} was not delivered in time")
    return fresh(entry.payload)


def _entry(run: Run, key: str) -> Opened:
    entry = run.journal.steps[key]
    assert isinstance(entry, Opened), "the place of an event keeps its entry"
    return entry


def _record_missed(run: Run, entry: Opened) -> None:
    missed = replace(entry, outcome=MISSED)
    run.journal.add(missed)
    run.journal.missed.discard(entry.key)
    run.unwritten.append(missed)


async def _suspend(run: Run, branch: Branch, key: str, entry: Opened) -> None:
    if key not in run.journal.steps:
        run.journal.add(Slept(key, entry.until_ms))  # shows later runs how far this one came
    awaited = (entry.name, branch)
    run.awaits.append(awaited)
    try:
        await run.quiescence.park(branch, entry.until_ms)
    except asyncio.CancelledError:
        run.awaits.remove(awaited)
        raise
