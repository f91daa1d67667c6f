"""The first page: tasks and troubles that need a person, the work of the last hour and day, back ends,
replicas and endpoints; and the limits on calls with their present use in this process.

Tasks and replicas are those of the store. The work is that of this process alone.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate.clock import iso
from roundgate.http import Health
from roundgate.operators.facts import Need
from roundgate.operators.finding import survey
from roundgate.settings import CallLimits
from roundgate.version import VERSION
from roundgate_console.activity import DAY, HOUR, Cell, Span, total
from roundgate_console.charts import Column, columns, took
from roundgate_console.frame import Console, ConsolePage
from roundgate_console.replicas import ReplicaReport, Replicas
from roundgate_console.tasks import NEEDS, TaskRow

MAX_CALLERS: Final = 100
"""The limit on the callers that are shown for each limit, the latest first."""
MAX_LATEST: Final = 8
"""The limit on the tasks that the overview lists."""


class NeedCount(BaseModel):
    """The number of tasks that need a person for one reason."""

    need: Need
    tasks: int


class WorkSummary(BaseModel):
    """The rounds and turns of this process in a span of time, of all back ends or of one."""

    runs: int = 0
    failed: int = Field(0, description="Those with a tool error, an error or a failed step.")
    median_ms: float | None = Field(None, description="The median of their durations.")
    p95_ms: float | None = Field(None, description="The duration of 95 % of them, at most.")

    @classmethod
    def of(cls, cell: Cell) -> WorkSummary:
        """Return the numbers of a cell."""
        half, most = cell.quantile_ms(0.5), cell.quantile_ms(0.95)
        return cls(runs=cell.runs, failed=cell.failed, median_ms=half, p95_ms=most)


class SpanSummary(WorkSummary):
    """The rounds and turns of a span of time."""

    span: Literal["hour", "day"]
    slots: list[tuple[int, int]] = Field(
        description="The runs, and the failed ones, of each minute or half hour, the oldest first."
    )


class EndpointSummary(BaseModel):
    """An MCP endpoint."""

    path: str
    view: str = Field(description="The name of its view; empty for all tools.")
    tools: int
    prompts: int
    resources: int


class BackendSummary(BaseModel):
    """A back end."""

    name: str
    is_served: bool
    state: Literal["served", "failing", "missing"] = Field(
        description="`failing`: its server does not answer, requests are paused, or calls fail."
    )
    tools: int = Field(description="Its tools at the endpoint of all tools.")
    problems: list[str] = Field([], description="The reasons why it is not served or fails.")
    hour: WorkSummary = Field(description="Its rounds and turns in the last hour.")


class ReplicaSummary(ReplicaReport):
    """A replica that serves a console."""

    name: str
    differs: bool = Field(
        description="Whether its versions or keys are not those of most replicas."
    )


class Overview(BaseModel):
    """The tasks that need a person, and the state of this process of the gateway."""

    needs: list[NeedCount]
    counts_all: bool = Field(
        description="Whether all tasks were counted; otherwise at least these."
    )
    latest: list[TaskRow] = Field(description="Tasks that need a person, the last changed first.")
    work: list[SpanSummary] = Field(description="The work of this process, since it started.")
    replicas: list[ReplicaSummary] = Field(description="Those that serve a console.")
    process: str
    health: Health
    software: str = Field(description="The version of roundgate.")
    python: str
    auth: str = Field(description="The issuer of the callers' tokens; `none` without auth.")
    store: str = Field(description="The kind of the store.")
    queue: str
    started_at: str
    in_flight: int = Field(description="The requests and turns that use the back ends now.")
    call_timeout_s: float
    threads: int
    audit: str = Field(description="The destination of the audit log, or `off`.")
    endpoints: list[EndpointSummary]
    backends: list[BackendSummary]
    left_out: list[str] = Field(description="Parts of back ends, and pages, that are not served.")


def make_router(console: Console) -> APIRouter:
    """Return the page and its path operation."""
    started_ms = console.clock.now_ms()

    def report() -> ReplicaReport:
        now_ms = console.clock.now_ms()
        hour = total(chain.from_iterable(map(dict.values, console.recent.activity(HOUR, now_ms))))
        return ReplicaReport(
            version=console.config.server.version,
            software=VERSION,
            keys=console.health().keys,
            python=platform.python_version(),
            started_ms=started_ms,
            seen_ms=now_ms,
            runs=hour.runs,
            failed=hour.failed,
            p95_ms=hour.quantile_ms(0.95),
        )

    store = console.core.stores.sessions
    replicas = Replicas(store, console.clock, console.process, report)
    router = console.router(replicas.reporting)

    @router.get("/api/overview", summary="Overview")
    async def read_overview() -> Overview:
        """Report what needs a person, the work of this process, its back ends and endpoints."""
        now_ms = console.clock.now_ms()
        found = await survey(console.core.stores.tasks, now_ms)
        return Overview(
            needs=[NeedCount(need=need, tasks=found.counts[need]) for need in Need],
            counts_all=found.is_whole,
            latest=[TaskRow.of(record, now_ms) for record in found.latest[:MAX_LATEST]],
            work=[_work(span, console.recent.activity(span, now_ms)) for span in (HOUR, DAY)],
            replicas=_summaries(await replicas.read()),
            process=console.process,
            started_at=iso(started_ms),
            **_state(console, now_ms),
        )

    @router.get("", include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        overview = await read_overview()
        return console.page(
            request,
            "overview.html",
            overview=overview,
            needs=NEEDS,
            charts={
                work.span: _columns(span, work.slots)
                for span, work in zip((HOUR, DAY), overview.work, strict=True)
            },
        )

    return router


def _state(console: Console, now_ms: int) -> dict[str, Any]:
    """Return the members of the overview that tell the state of this process."""
    config, catalog, using = console.config, console.core.serving.catalog, console.using
    views = [(path, view, catalog.of_view(view)) for path, view in config.endpoints.items()]
    health = console.health()
    return {
        "health": health,
        "software": VERSION,
        "python": platform.python_version(),
        "auth": "none" if config.auth == "none" else config.auth.issuer,
        "store": using.store.partition(":")[0],
        "queue": "sqs" if using.sqs_url is not None else "in the store",
        "in_flight": console.core.serving.catalog.users.count,
        "call_timeout_s": config.limits.call_timeout_s,
        "threads": config.limits.threads,
        "audit": "off" if config.audit is None else config.audit.to,
        "endpoints": [
            EndpointSummary(
                path=path,
                view=view,
                tools=len(part.tools),
                prompts=len(part.prompts),
                resources=len(part.resources) + len(part.templates),
            )
            for path, view, part in views
        ],
        "backends": _backends(console, health, now_ms),
        "left_out": console.left_out
        + [f"{each.path}: {each.message}" for each in catalog.left_out],
    }


def _work(span: Span, slots: Sequence[Mapping[str, Cell]]) -> SpanSummary:
    sums = [total(cells.values()) for cells in slots]
    numbers = [(each.runs, each.failed) for each in sums]
    name: Literal["hour", "day"] = "hour" if span is HOUR else "day"
    return SpanSummary(span=name, slots=numbers, **WorkSummary.of(total(sums)).model_dump())


def _columns(span: Span, slots: Sequence[tuple[int, int]]) -> list[Column]:
    """Return the columns of a chart of runs and failed runs, with their ages as labels."""
    return columns(
        [
            (
                f"{took((span.slots - place) * span.slot_ms)} ago: {runs} runs, {failed} failed",
                *(runs, failed),
            )
            for place, (runs, failed) in enumerate(slots)
        ]
    )


def _summaries(reports: Mapping[str, ReplicaReport]) -> list[ReplicaSummary]:
    (usual, _), *_ = Counter(report.agreed for report in reports.values()).most_common(1)
    return [
        ReplicaSummary(name=name, differs=report.agreed != usual, **report.model_dump())
        for name, report in reports.items()
    ]


FAILING_SHARE: Final = 0.5
"""The part of the calls of the last five minutes with calls whose failure makes a back end `failing`."""
FAILING_RUNS: Final = 3
"""The least number of these calls."""


def _backends(console: Console, health: Health, now_ms: int) -> list[BackendSummary]:
    serving = console.core.serving
    missing = serving.catalog.missing
    problems = {
        name: [f"{problem.path}: {problem.message}" for problem in error.problems]
        for name, error in missing.items()
    }
    down = {server.name for server in health.upstreams or () if server.status == "down"}
    tools = Counter(served.backend for served in serving.catalog.tools.values())
    slots, paused = console.recent.activity(HOUR, now_ms), serving.now.pause_reasons()

    def summary(name: str) -> BackendSummary:
        called = [slot for slot in slots if name in slot]
        hour, lately = _of(name, called), _of(name, called[-5:])
        fails = lately.runs >= FAILING_RUNS and lately.failed >= FAILING_SHARE * lately.runs
        reasons = [*problems.get(name, []), *paused.get(name, [])]
        if name in down:
            reasons.append("its server does not answer")
        if fails:
            reasons.append(f"{lately.failed} of its last {lately.runs} calls failed")
        return BackendSummary(
            name=name,
            is_served=name not in missing,
            state="missing" if name in missing else "failing" if reasons else "served",
            tools=tools[name],
            problems=reasons,
            hour=WorkSummary.of(hour),
        )

    return [
        summary(name)
        for name in dict.fromkeys([*(each.name for each in serving.now.backends), *missing])
    ]


def _of(backend: str, slots: Iterable[Mapping[str, Cell]]) -> Cell:
    return total(cells[backend] for cells in slots if backend in cells)


class LimitRow(BaseModel):
    """A limit on the calls of each caller."""

    name: str = Field(description="`callers`, `tools PATTERN` or `scopes SCOPE`.")
    calls_per_minute: int | None = None
    burst: int | None = None
    concurrent: int | None = None


class LimitUse(BaseModel):
    """The present use of a limit by a caller, in this process."""

    name: str
    issuer: str
    subject: str = Field(description="The subject; without auth, the address of the client.")
    client: str
    running: int
    left: int | None = Field(
        None, description="Calls that may be made at once; unset if the store counts them."
    )


class BackendUse(BaseModel):
    """The calls at the limits of a back end or tool, in this process."""

    name: str
    running: int
    waiting: int


class LimitList(BaseModel):
    """The limits of gateway.yaml."""

    shared: bool = Field(description="Whether replicas count together, in the store.")
    limits: list[LimitRow]
    uses: list[LimitUse]
    backends: list[BackendUse] = Field(description="Back ends and tools with `limits`.")


def make_limits_router(console: Console) -> APIRouter:
    """Return the page of limits and its path operation."""
    router = console.router()

    @router.get("/api/limits", summary="Limits on calls")
    async def read_limits() -> LimitList:
        """Report the limits on calls, and their present use in this process."""
        rate = console.config.rate
        rows: dict[str, CallLimits] = {
            "callers": rate,
            **{f"tools {pattern}": row for pattern, row in rate.tools.items()},
            **{f"scopes {scope}": row for scope, row in rate.scopes.items()},
        }
        return LimitList(
            shared=rate.shared,
            limits=[
                LimitRow(
                    name=name,
                    calls_per_minute=row.calls_per_minute,
                    burst=row.burst or row.calls_per_minute,
                    concurrent=row.concurrent,
                )
                for name, row in rows.items()
                if row.calls_per_minute is not None or row.concurrent is not None
            ],
            uses=[
                LimitUse(
                    name=use.row,
                    issuer=use.caller[0],
                    subject=use.caller[1],
                    client=use.caller[2],
                    running=use.running,
                    left=use.left,
                )
                for use in console.replica.rates.uses(MAX_CALLERS)
            ],
            backends=[
                BackendUse(name=name, running=running, waiting=waiting)
                for name, (running, waiting) in console.core.serving.now.limit_uses().items()
            ],
        )

    @router.get("/limits", include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        return console.page(request, "limits.html", found=await read_limits())

    return router


OVERVIEW: Final = ConsolePage("", "Overview", make_router, 0)
LIMITS: Final = ConsolePage("/limits", "Limits", make_limits_router, 4)
