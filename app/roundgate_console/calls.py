"""The pages of calls: the recent calls of this process, and the line of time of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate.clock import iso
from roundgate.observability import observe
from roundgate.operators.continuing import steps_done
from roundgate.storage import TaskRef
from roundgate_console.charts import (
    CALLS_S,
    MomentView,
    histogram,
    moment_views,
    picture,
    updates_left,
)
from roundgate_console.frame import Console, ConsolePage, PageError
from roundgate_console.recent import RecentCall, recent_calls
from roundgate_console.timeline import TimelineItem, make_timeline, tone_of

MAX_CALLS: Final = 200
"""The limit on listed calls; older ones are found by their tool, subject or id."""
MAX_TEXT: Final = 200
"""The limit on the text of a search, in characters."""


class CallRow(BaseModel):
    """A call that this process served lately."""

    call: str = Field(description="Its id in the log.")
    tool: str = Field(description="The tool, prompt or resource.")
    began: str
    ms: int = Field(description="From its first event to its last, in milliseconds.")
    rounds: int = Field(description="The rounds that this process served.")
    outcome: str
    tone: str = Field(description="good, bad, waits or plain.")
    subject: str
    task: str | None = Field(description="Its task as `OWNER.ID`.")


class CallList(BaseModel):
    """Recent calls of one process, the newest first."""

    calls: list[CallRow]
    dropped: int = Field(description="The number of older events that are no longer in memory.")


class CallDetails(BaseModel):
    """A call with its line of time."""

    call: str
    task: str | None
    moments: list[MomentView]


def _row(call: RecentCall) -> CallRow:
    return CallRow(
        call=call.id,
        tool=call.tool,
        began=iso(int(call.began_ms)),
        ms=round(call.changed_ms - call.began_ms),
        rounds=call.rounds,
        outcome=call.outcome,
        tone=tone_of(call.outcome).value,
        subject=call.subject,
        task=call.task,
    )


def make_router(console: Console) -> APIRouter:
    """Return the pages of calls and their path operations."""

    @asynccontextmanager
    async def observed(app: FastAPI) -> AsyncIterator[None]:
        end = observe(console.recent)
        try:
            yield
        finally:
            end()

    router = console.router(observed)

    @router.get("/api/calls", summary="Recent calls of this process")
    async def list_calls(text: str = "") -> CallList:
        """List the recent calls whose id, tool, subject or outcome has a text."""
        sought = text.strip().casefold()[:MAX_TEXT]
        events = console.recent.all()
        calls = [
            call
            for call in await asyncio.to_thread(recent_calls, events)  # some 30 ms of work
            if any(
                sought in part.casefold()
                for part in (call.id, call.tool, call.subject, call.outcome)
            )
        ]
        rows = [_row(call) for call in calls[:MAX_CALLS]]
        return CallList(calls=rows, dropped=console.recent.dropped)

    @router.get("/api/calls/{call}", summary="A call")
    async def show_call(call: str) -> CallDetails:
        """Return the line of time of a call, from the events of this process and its task."""
        moments, task = await _timeline(console, call)
        if not moments:
            raise PageError(404, f"This process has no events of the call {call[:MAX_TEXT]}")
        return CallDetails(call=call, task=task, moments=moment_views(moments))

    @router.get("/calls", include_in_schema=False)
    async def list_page(request: Request, text: str = "") -> HTMLResponse:
        calls, left = await list_calls(text), updates_left(request.query_params) - 1
        return console.page(
            request,
            "calls.html",
            calls=calls.calls,
            dropped=calls.dropped,
            text=text,
            left=left,
            query=urlencode({"text": text, "left": left}),
            durations=histogram([call.ms / 1000 for call in calls.calls], CALLS_S),
            process=console.process,
        )

    @router.get("/calls/{call}", include_in_schema=False)
    async def call_page(request: Request, call: str) -> HTMLResponse:
        moments, task = await _timeline(console, call)
        return console.page(
            request,
            "call.html",
            status=200 if moments else 404,
            call=call[:MAX_TEXT],
            task=task,
            left=updates_left(request.query_params) - 1 if moments else -1,
            moments=moment_views(moments),
            picture=picture(moments, console.clock.now_ms()),
            process=console.process,
        )

    return router


async def _timeline(console: Console, call: str) -> tuple[list[TimelineItem], str | None]:
    """Return the line of time of a call, and the last of its tasks."""
    events = console.recent.of_call(call)
    tasks = [event.task for event in events if event.task is not None]
    task = tasks[-1] if tasks else None
    record, steps = None, None
    with suppress(ValueError):  # another program's log line may name anything
        if task is not None:
            record, work = await console.core.stores.tasks.read_work(TaskRef.parse(task))
            steps = None if record is None or work is None else steps_done(record, work)
    return make_timeline(events, record, steps, console.clock.now_ms()), task


PAGE: Final = ConsolePage("/calls", "Calls", make_router, 1)
