"""Metrics, recorded if the process has loaded the metrics of an OpenTelemetry SDK.

`Instruments` are the instruments of a process. Their values leave it as OTLP or for Prometheus
(`observability.exposition`). Without an SDK nothing is imported and nothing is recorded.

`Metrics` counts tasks when they are created, claimed and ended, because counting open tasks would
read all of them. The log lines "task" and "tasks" have the same facts. On AWS Lambda, lines in the
embedded metric format make CloudWatch's metrics.

Names and values are those of OpenTelemetry's semantic conventions for MCP (semantic-conventions-genai,
`docs/gen-ai/mcp.md`). Clients choose methods and codes, and servers choose codes. A value outside the
known ones is recorded as `_OTHER`, so a stranger cannot make a metric grow.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from roundgate import json
from roundgate.clock import Clock

NAMESPACE: Final = "roundgate"
"""The namespace of CloudWatch's metrics."""
FLOW: Final = ("created", "claimed", "ended")
FORWARDED: Final = ("claimed", "entered", "ended", "turn", "taken_over", "called", "refused")
"""The methods of `Metrics` that the process of a suspect has its parent call."""
CallOutcome: TypeAlias = Literal[
    "ok", "tool_error", "refused", "draining", "timeout", "unavailable", "fault"
]
"""How a tool's call ended: `tool_error` is the tool's own failure, `refused` a refusal by its schema
or a rule, `draining` the stop of the process, `unavailable` a back end that failed or did not
answer, `fault` an unexpected exception."""
FAILURES: Final = frozenset({"timeout", "unavailable", "fault"})
"""The outcomes that an operator has to look into."""
COUNTED_MS: Final = 60_000
"""The period in milliseconds after which a function of AWS Lambda logs the number of its calls,
unless one fails."""
STORE_S: Final = (0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5)
"""The bucket boundaries of the durations of store calls in seconds: a call of SQLite takes less
than a millisecond."""
TASKS_S: Final = (0.5, 1, 10, 60, 300, 900, 3_600, 14_400, 86_400)
"""The bucket boundaries of the durations of tasks in seconds: a task may wait for a person."""

log = logging.getLogger("roundgate.metrics")
# at any log level: CloudWatch makes its metrics of these lines
log.setLevel("INFO")


class Instruments:
    """The instruments of a process, made with its meter provider."""

    def __init__(self) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("roundgate")

        def seconds(
            name: str, about: str, boundaries: Sequence[float] = DURATIONS_S
        ) -> metrics.Histogram:
            return meter.create_histogram(
                name, "s", about, explicit_bucket_boundaries_advisory=boundaries
            )

        def count(name: str, about: str) -> metrics.Counter:
            return meter.create_counter(name, description=about)

        def gauge(name: str, about: str, unit: str = "") -> Any:
            return meter.create_gauge(name, unit, about)

        # by OpenTelemetry's conventions
        self.server_operations = seconds(
            "mcp.server.operation.duration", "Duration of MCP requests and notifications"
        )
        self.client_operations = seconds(
            "mcp.client.operation.duration", "Duration of MCP requests and notifications to servers"
        )
        self.server_sessions = seconds(
            "mcp.server.session.duration", "Duration of sessions that their clients have ended"
        )
        self.client_sessions = seconds(
            "mcp.client.session.duration", "Duration of sessions at servers"
        )
        self.http_requests = seconds(
            "http.client.request.duration",
            "Duration of requests to HTTP back ends",
            HTTP_DURATIONS_S,
        )
        # calls
        self.rounds = count(
            "roundgate.rounds", "Requests of tools, prompts and resources, by outcome"
        )
        self.calls = count("roundgate.tools.calls", "Calls of tools that ended, by outcome")
        self.refused = count(
            "roundgate.calls.refused", "Calls beyond a limit, or refused by a rule"
        )
        self.auth_refused = count(
            "roundgate.auth.refused", "Requests whose caller was not authenticated or not allowed"
        )
        self.seals_refused = count(
            "roundgate.seals.refused", "Sealed values that could not be opened, by key"
        )
        self.audit_unwritable = gauge(
            "roundgate.audit.unwritable", "1 while the audit log cannot be written, else 0"
        )
        self.dropped = count(
            "roundgate.answers.dropped", "Answers dropped because nobody reads them"
        )
        self.repaired = count(
            "roundgate.arguments.repaired", "Repairs of arguments that models wrote"
        )
        self.steps = seconds("roundgate.steps.duration", "Duration of attempts of steps")
        # tasks
        self.created = count("roundgate.tasks.created", "New tasks")
        self.claimed = count("roundgate.tasks.claimed", "Claims of workers")
        self.takeovers = count("roundgate.tasks.takeovers", "Tasks whose worker died or stalled")
        self.states = count("roundgate.tasks.states", "Tasks that have entered a state")
        self.ended = count("roundgate.tasks.ended", "Tasks that have ended")
        self.durations = seconds(
            "roundgate.tasks.duration",
            "Duration of tasks from their creation to their end",
            TASKS_S,
        )
        self.turns = seconds("roundgate.tasks.turn.duration", "Duration of a worker's turns")
        self.overdue = gauge("roundgate.tasks.overdue", "Delay of the most overdue task", "s")
        # store, queue and back ends
        self.queued = gauge("roundgate.queue.messages", "Messages that wait in the queue")
        self.store = seconds(
            "roundgate.store.duration", "Duration of calls of the store and the queue", STORE_S
        )
        self.missing = gauge("roundgate.backends.missing", "Back ends that are not served")
        self.limited = count(
            "roundgate.backends.limited", "Calls that waited at the limits of a back end, or failed"
        )
        self.circuit = gauge(
            "roundgate.backends.circuit", "1 while requests to a host are paused, else 0"
        )


_made: tuple[Any, Instruments] | None = None


def instruments() -> Instruments | None:
    """Return the instruments of the process's meter provider, or `None` without an SDK."""
    if "opentelemetry.sdk.metrics" not in sys.modules:
        return None
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    global _made
    provider = metrics.get_meter_provider()
    if _made is None or _made[0] is not provider:
        if not isinstance(provider, MeterProvider):
            return None
        _made = provider, Instruments()
    return _made[1]


def count_auth_refused(reason: str) -> None:
    """Record that a request was refused because of its caller."""
    if made := instruments():
        made.auth_refused.add(1, {"reason": reason})


def count_seal_refused(key: str) -> None:
    """Record that a sealed value could not be opened. `key` is the id of a key of the ring, or
    "unknown"."""
    if made := instruments():
        made.seals_refused.add(1, {"key": key})


def set_audit_unwritable(is_unwritable: bool) -> None:
    """Record that the audit log can no longer be written, or can again."""
    if made := instruments():
        made.audit_unwritable.set(int(is_unwritable))


class Metrics:
    """The metrics of tasks and back ends: lines of the log, and instruments if there is an SDK."""

    def __init__(self, function: str = "", clock: Clock | None = None) -> None:
        """Make the metrics. `function` is the name of the process's function of AWS Lambda."""
        self._function = function
        self._clock = clock or Clock()
        self._flow: Counter[str] = Counter()
        self._calls = 0
        self._counted_ms = self._clock.now_ms()

    @property
    def are_recorded(self) -> bool:
        """Return whether this process sends, exposes or logs metrics."""
        return bool(self._function) or instruments() is not None

    def called(self, tool: str, backend: str, outcome: CallOutcome) -> None:
        if self._function:
            self._count_call(backend, failed=outcome in FAILURES)
        if made := instruments():
            made.calls.add(1, {"gen_ai.tool.name": tool, "backend": backend, "outcome": outcome})

    def _count_call(self, backend: str, *, failed: bool) -> None:
        """Log a failure at once, and the number of calls then or once a minute: a line for each call
        would cost as much as the call's own line, and each metric of a back end $0.30 a month."""
        self._calls += 1
        now_ms = self._clock.now_ms()
        if failed:
            self.embed("tool calls", {"tool_failures": 1}, {"backend": backend})
        elif now_ms - self._counted_ms < COUNTED_MS:
            return
        calls, self._calls, self._counted_ms = self._calls, 0, now_ms
        self.embed("tool calls", {"tool_calls": calls})

    def created(self, tool: str) -> None:
        self._flow["created"] += 1
        self.embed("task created", {"created": 1})
        if made := instruments():
            made.created.add(1, {"gen_ai.tool.name": tool})

    def claimed(self, tool: str) -> None:
        self._flow["claimed"] += 1
        self.embed("task claimed", {"claimed": 1})
        if made := instruments():
            made.claimed.add(1, {"gen_ai.tool.name": tool})

    def entered(self, tool: str, state: str) -> None:
        """Record that a task has entered a state, the value of its `Status`."""
        if made := instruments():
            made.states.add(1, {"gen_ai.tool.name": tool, "state": state})

    def ended(self, tool: str, outcome: str, took_ms: float | None = None) -> None:
        """Record the end of a task, `took_ms` milliseconds after its creation. `outcome` is a value
        of `storage.Ending`."""
        self._flow["ended"] += 1
        failed = {"failed_steps": 1} if outcome == "step_failed" else {}
        self.embed("task ended", {"ended": 1, **failed})
        if made := instruments():
            facts = {"gen_ai.tool.name": tool, "outcome": outcome}
            made.ended.add(1, facts)
            if took_ms is not None:
                made.durations.record(took_ms / 1000, facts)

    def turn(self, tool: str, outcome: str, took_ms: float) -> None:
        """Record a worker's turn at a task, and its duration in milliseconds."""
        if made := instruments():
            facts = {"gen_ai.tool.name": tool, "outcome": outcome}
            made.turns.record(took_ms / 1000, facts)

    def taken_over(self, tool: str) -> None:
        """Record that a task's worker died or stalled."""
        if made := instruments():
            made.takeovers.add(1, {"gen_ai.tool.name": tool})

    def record_forwarded(self, lines: bytes) -> None:
        """Record the metrics that the process of a suspect has written; skip a line that its death
        has cut off."""
        for line in lines.splitlines():
            with suppress(ValueError):
                name, *facts = json.decode(line)
                if name in FORWARDED:
                    getattr(self, name)(*facts)

    def take_flow(self) -> dict[str, int]:
        """Return the numbers of tasks that this process has created, claimed and ended since the
        last call."""
        taken, self._flow = self._flow, Counter()
        return {name: taken[name] for name in FLOW}

    def embed(
        self, message: str, fields: Mapping[str, float], by: Mapping[str, str] | None = None
    ) -> None:
        """Log fields as metrics of CloudWatch, if the process is a function of AWS Lambda; with
        `by`, also by these dimensions."""
        if self._function:
            cloudwatch_members = embedded(fields, self._function, self._clock.now_ms(), by or {})
            log.info(message, extra={"fields": {**fields, **cloudwatch_members}})

    def overdue(self, seconds: float, queued: int | None = None) -> None:
        """Record the delay of the most overdue task in seconds, 0 if none is overdue, and the
        number of messages in the queue, if it is known."""
        if made := instruments():
            made.overdue.set(seconds)
            if queued is not None:
                made.queued.set(queued)

    def refused(self, row: str) -> None:
        """Record that a call was beyond a limit, or refused by a rule. `row` names the row of `rate`,
        or the rule of `policy`."""
        self.embed("call refused", {"refused": 1})
        if made := instruments():
            made.refused.add(1, {"limit": row})

    def repaired(self, tool: str, kind: str, count: int) -> None:
        """Record repairs of a call's arguments. `kind` is text, null or name."""
        if made := instruments():
            made.repaired.add(count, {"gen_ai.tool.name": tool, "repair": kind})

    def missing(self, count: int) -> None:
        if made := instruments():
            made.missing.set(count)

    def limited(self, name: str, outcome: str) -> None:
        """Record that a call at the limits of a back end or tool has waited for its place, or failed.
        `outcome` is waited or refused."""
        if made := instruments():
            made.limited.add(1, {"backend": name, "outcome": outcome})

    def circuit(self, backend: str, host: str, *, is_open: bool) -> None:
        if made := instruments():
            made.circuit.set(int(is_open), {"backend": backend, "host": host})


class ForwardedMetrics(Metrics):
    """The metrics of a process that runs one suspect. It writes them to a pipe for its parent, which
    records them (`Metrics.record_forwarded`)."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        for name in FORWARDED:
            setattr(self, name, partial(self._forward, pipe, name))

    def _forward(self, pipe: int, name: str, *facts: str | float | None) -> None:
        os.write(pipe, json.encode([name, *facts]) + b"\n")


def embedded(
    fields: Mapping[str, float], function: str, now_ms: int, by: Mapping[str, str]
) -> dict[str, Any]:
    """Return the members that make CloudWatch read a log line as metrics (embedded metric format),
    by function, and by function and the dimensions `by`."""
    metrics = [
        {"Name": name, "Unit": "Seconds" if name.endswith("_s") else "Count"} for name in fields
    ]
    dimensions = [["function"], *([["function", *by]] if by else ())]
    directive = {"Namespace": NAMESPACE, "Dimensions": dimensions, "Metrics": metrics}
    return {
        "function": function,
        **by,
        "_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [directive]},
    }


T = TypeVar("T")

_WAITING: Final = frozenset({"receive", "aclose"})
"""The methods that wait for other processes or connections. Their duration does not measure the
store."""


def timed(port: T, store: str) -> T:
    """Return an object that records the duration of each call of a store or queue; without an SDK,
    return the same object.

    Args:
        port: the store or queue.
        store: its name in the metric: "tasks", "sessions" or "queue".
    """
    return port if instruments() is None else cast("T", _Timed(port, store))


class _Timed:
    """A store or queue whose asynchronous methods are timed."""

    def __init__(self, port: Any, store: str) -> None:
        self._port = port
        self._store = store

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if name in _WAITING or not inspect.iscoroutinefunction(value):
            return value
        facts = {"store": self._store, "operation": name}

        @functools.wraps(value)
        async def call(*args: Any, **kwargs: Any) -> Any:
            began, error = time.perf_counter(), {}
            try:
                return await value(*args, **kwargs)
            except BaseException as raised:
                error = {"error.type": type(raised).__name__}
                raise
            finally:
                if made := instruments():
                    made.store.record(time.perf_counter() - began, {**facts, **error})

        setattr(self, name, call)  # found without `__getattr__` from now on
        return call


OTHER: Final = "_OTHER"
"""The value for everything that the conventions and this gateway do not know."""

DURATIONS_S: Final = (0.01, 0.05, 0.2, 0.5, 1, 5, 30, 60, 300)
"""The bucket boundaries of the durations of MCP operations and sessions, in seconds: nine of the
fourteen of the conventions, because each is a series of Prometheus for each tool."""
HTTP_DURATIONS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The bucket boundaries of the durations of HTTP requests, in seconds."""

METHODS: Final = frozenset(
    {
        *("completion/complete", "elicitation/create", "initialize", "logging/setLevel"),
        *("notifications/cancelled", "notifications/initialized", "notifications/message"),
        *("notifications/progress", "notifications/prompts/list_changed"),
        *("notifications/resources/list_changed", "notifications/resources/updated"),
        *("notifications/roots/list_changed", "notifications/tools/list_changed"),
        *("ping", "prompts/get", "prompts/list", "resources/list", "resources/read"),
        *("resources/subscribe", "resources/templates/list", "resources/unsubscribe"),
        *("roots/list", "sampling/createMessage", "tools/call", "tools/list"),
        # of 2026-07-28 and its extensions, which the conventions do not list yet
        *("server/discover", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel"),
        *("skills/list", "skills/get", "resources/directory/read"),
    }
)
"""The methods that are recorded by name."""

INTERNAL: Final = -32603
_CALLERS_FAULTS: Final = frozenset({-32700, -32600, -32601, -32602, -32002})
"""Codes of requests that the server could not serve, which are not errors of the server."""
_CODES: Final = frozenset({*_CALLERS_FAULTS, INTERNAL, *range(-32029, -32019), -32000, -32001})
"""The codes that are recorded as they are: of JSON-RPC, of MCP, and of the official SDKs."""

_NAMED_BY: Final[Mapping[str, tuple[str, str]]] = {
    "tools/call": ("name", "gen_ai.tool.name"),
    "prompts/get": ("name", "gen_ai.prompt.name"),
    "resources/read": ("uri", "mcp.resource.uri"),
    "resources/subscribe": ("uri", "mcp.resource.uri"),
    "resources/unsubscribe": ("uri", "mcp.resource.uri"),
}
"""The member of the params, and the attribute, with the target of a method."""


def known_method(method: str) -> str:
    """Return a method, or `_OTHER`."""
    return method if method in METHODS else OTHER


def known_code(code: int) -> str:
    """Return a JSON-RPC error code as text, or `_OTHER`."""
    return str(code) if code in _CODES else OTHER


def is_servers_error(code: int) -> bool:
    """Return whether a JSON-RPC error code in a response is an error of the server."""
    return code not in _CALLERS_FAULTS


def target_attribute(method: str) -> str | None:
    """Return the attribute that has the target of a method; `None` without one."""
    named_by = _NAMED_BY.get(method)
    return None if named_by is None else named_by[1]


def target_in(method: str, params: Mapping[str, Any]) -> str | None:
    """Return the tool, prompt or URI that a request names; `None` without one."""
    named_by = _NAMED_BY.get(method)
    value = None if named_by is None else params.get(named_by[0])
    return value if isinstance(value, str) else None
