"""The pages of calls: the recent calls of this process, and the line of time of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate.clock import iso
from roundgate.observability import observe
from roundgate.operators.continuing import steps_done
from roundgate.storage import TaskRef
from roundgate_console.charts import CALLS_S, MomentView, histogram, moment_views, picture
from roundgate_console.frame import Console, ConsolePage, Page, PageError
from roundgate_console.recent import RecentCall, equal_calls, recent_calls
from roundgate_console.timeline import TimelineItem, make_timeline, tone_of

PER_PAGE: Final = 50
"""The number of rows of a page of calls."""
MAX_TEXT: Final = 200
"""The limit on the text of a search, in characters."""


TONES: Final[Mapping[str, str]] = MappingProxyType(
    {"bad": "failed", "waits": "waiting", "active": "running", "good": "succeeded"}
)
"""The outcomes by which calls are filtered, by their tone."""


class CallFilters(BaseModel):
    """The filters of the list of calls. Empty texts match any call."""

    text: str = Field("", description="A part of an id, tool, subject, outcome or reason.")
    tone: str = Field("", description="good, bad, waits, active or plain.")
    backend: str = Field("", description="The name of a back end.")
    order: str = Field("", description="`slowest` for the slowest calls first.")
    each: bool = Field(False, description="List each of equal calls.")
    page: Page = 1

    def query(self, **more: Any) -> str:
        """Return the query of an address with these filters and further members."""
        members = self.model_dump() | {"page": 1} | more
        defaults = CallFilters().model_dump()
        return urlencode({name: v for name, v in members.items() if v != defaults.get(name, "")})

    def matches(self, call: RecentCall) -> bool:
        """Return whether a call matches."""
        texts = (call.id, call.tool, call.subject, call.outcome, call.reason)
        sought = self.text.strip().casefold()[:MAX_TEXT]
        return (
            any(sought in text.casefold() for text in texts)
            and self.tone in ("", tone_of(call.outcome).value)
            and self.backend in ("", call.backend)
        )


class CallRow(BaseModel):
    """A call that this process served lately, or equal calls."""

    call: str = Field(description="Its id in the log; of equal calls, the id of the last one.")
    tool: str = Field(description="The tool, prompt or resource.")
    backend: str = Field(description="Its back end; empty if it is unknown.")
    began: str
    ms: float = Field(description="From its first event to its last; of equal calls, the longest.")
    rounds: int = Field(description="The rounds that this process served.")
    outcome: str
    reason: str = Field(description="The reason of a failure, as the log has it.")
    tone: str = Field(description="good, bad, waits, active or plain.")
    subject: str
    task: str | None = Field(description="Its task as `OWNER.ID`.")
    equal: int = Field(description="The number of calls in this row.")


class CallList(BaseModel):
    """A page of recent calls of one process."""

    calls: list[CallRow]
    total: int = Field(description="The number of rows of all pages.")
    dropped: int = Field(description="The number of older events that are no longer in memory.")


class CallDetails(BaseModel):
    """A call with its line of time."""

    call: str
    task: str | None
    moments: list[MomentView]


def _row(calls: Sequence[RecentCall]) -> CallRow:
    call = calls[0]
    return CallRow(
        call=call.id,
        tool=call.tool,
        backend=call.backend,
        began=iso(int(call.began_ms)),
        ms=round(max(each.took_ms for each in calls), 2),
        rounds=call.rounds,
        outcome=call.outcome,
        reason=call.reason,
        tone=tone_of(call.outcome).value,
        subject=call.subject,
        task=call.task,
        equal=len(calls),
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
    async def list_calls(filters: Annotated[CallFilters, Query()]) -> CallList:
        """List the recent calls that match, the newest first, and equal neighbours as one."""
        return _page(console, await _find(console, filters), filters.page)

    @router.get("/api/calls/{call}", summary="A call")
    async def show_call(call: str) -> CallDetails:
        """Return the line of time of a call, from the events of this process and its task."""
        moments, task = await _timeline(console, call)
        if not moments:
            raise PageError(404, f"This process has no events of the call {call[:MAX_TEXT]}")
        return CallDetails(call=call, task=task, moments=moment_views(moments))

    @router.get("/calls", include_in_schema=False)
    async def list_page(request: Request, filters: Annotated[CallFilters, Query()]) -> HTMLResponse:
        groups = await _find(console, filters)
        return console.page(
            request,
            "calls.html",
            found=_page(console, groups, filters.page),
            pages=ceil(len(groups) / PER_PAGE),
            filters=filters,
            tones=TONES,
            query=filters.query(page=filters.page),
            durations=histogram([call.took_ms / 1000 for each in groups for call in each], CALLS_S),
            process=console.process,
        )

    @router.get("/calls/{call}", include_in_schema=False)
    async def call_page(request: Request, call: str) -> HTMLResponse:
        moments, task = await _timeline(console, call)
        events = console.recent.of_call(call)
        summaries = [each for each in recent_calls(events) if each.id == call]
        return console.page(
            request,
            "call.html",
            status=200 if moments else 404,
            call=call[:MAX_TEXT],
            row=_row(summaries) if summaries else None,
            task=task,
            moments=moment_views(moments),
            picture=picture(moments, console.clock.now_ms()),
            process=console.process,
        )

    return router


async def _find(console: Console, filters: CallFilters) -> list[list[RecentCall]]:
    """Return the calls that match, each group of equal neighbours as one."""
    recent = await asyncio.to_thread(recent_calls, console.recent.all())  # some 30 ms of work
    calls = [call for call in recent if filters.matches(call)]
    if filters.order == "slowest":
        calls.sort(key=lambda call: call.took_ms, reverse=True)
    is_grouped = not (filters.each or filters.order)
    return equal_calls(calls) if is_grouped else [[call] for call in calls]


def _page(console: Console, groups: Sequence[Sequence[RecentCall]], page: int) -> CallList:
    shown = groups[(page - 1) * PER_PAGE : page * PER_PAGE]
    return CallList(
        calls=[_row(group) for group in shown], total=len(groups), dropped=console.recent.dropped
    )


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
