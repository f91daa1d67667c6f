"""What is counted of tasks reaches the meter that a process has, and nothing is
imported where it has none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from roundgate.backends import Returned
from roundgate.errors import (
    ArgumentsRefused,
    BackendError,
    CallTimeout,
    Draining,
    NoAnswer,
    ServerRefused,
    ToolError,
    Unavailable,
)
from roundgate.observability.metrics import CallOutcome, Metrics, timed
from roundgate.protocol import ToolResult
from roundgate.replay import Completed, Failed
from roundgate.tasks import call_outcome
from tests.support.clocks import FixedClock
from tests.support.telemetry import Telemetry, recorded


@pytest.fixture
def seen() -> Iterator[Telemetry]:
    with recorded() as made:
        yield made


def test_tasks_turns_and_delays_are_measured(seen: Telemetry) -> None:
    using, tool = Metrics(), "report"
    using.created(tool)
    using.entered(tool, "working")
    using.claimed(tool)
    using.taken_over(tool)
    using.turn(tool, "finished", 12.5)
    using.turn(tool, "finished", 7.5)
    using.ended(tool, "tool_error", 30_000)
    using.overdue(2.5, 7)
    using.missing(2)
    using.circuit(tool, "h:80", is_open=True)
    using.limited(tool, "waited")
    for name in ("created", "claimed", "takeovers"):
        (point,) = seen.points(f"roundgate.tasks.{name}", gen_ai__tool__name=tool)
        assert point.value == 1
    (turns,) = seen.points(
        "roundgate.tasks.turn.duration", gen_ai__tool__name=tool, outcome="finished"
    )
    assert (turns.count, turns.sum) == (2, 0.02)
    (ended,) = seen.points("roundgate.tasks.duration", gen_ai__tool__name=tool)
    assert (ended.sum, dict(ended.attributes)["outcome"]) == (30, "tool_error")
    (state,) = seen.points("roundgate.tasks.states", gen_ai__tool__name=tool)
    assert dict(state.attributes)["state"] == "working"
    (circuit,) = seen.points("roundgate.backends.circuit", backend=tool)
    assert circuit.value == 1
    (limited,) = seen.points("roundgate.backends.limited", backend=tool)
    assert (limited.attributes["outcome"], limited.value) == ("waited", 1)
    gauges = {
        "roundgate.tasks.overdue": 2.5,
        "roundgate.queue.messages": 7,
        "roundgate.backends.missing": 2,
    }
    for name, value in gauges.items():
        assert [point.value for point in seen.points(name)] == [value]


async def test_store_calls_are_timed_by_operation_with_their_errors(seen: Telemetry) -> None:
    class Store:
        shards = 3

        async def read(self, key: str) -> str:
            if key == "lost":
                raise Unavailable("away")
            return key

        async def receive(self) -> None:
            """Waits for others."""

    store = timed(Store(), "tasks")
    assert await store.read("a") == "a"
    with pytest.raises(Unavailable):
        await store.read("lost")
    await store.receive()
    assert store.shards == 3
    points = seen.points("roundgate.store.duration", store="tasks")
    assert {point.attributes.get("error.type"): point.count for point in points} == {
        None: 1,
        "Unavailable": 1,
    }
    assert {point.attributes["operation"] for point in points} == {"read"}


def test_the_flow_is_what_happened_since_it_was_last_taken() -> None:
    using = Metrics()
    for _ in range(3):
        using.created("report")
    using.claimed("report")
    using.ended("report", "ok")
    assert using.take_flow() == {"created": 3, "claimed": 1, "ended": 1}
    assert using.take_flow() == {"created": 0, "claimed": 0, "ended": 0}


def test_only_a_function_of_aws_lambda_writes_metrics_into_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for function in ("", "worker"):
        Metrics(function, FixedClock()).ended("report", "step_failed")
    (record,) = caplog.records
    fields = record.__dict__["fields"]
    assert (fields["ended"], fields["failed_steps"], fields["function"]) == (1, 1, "worker")
    (directive,) = fields["_aws"]["CloudWatchMetrics"]
    assert [one["Name"] for one in directive["Metrics"]] == ["ended", "failed_steps"]


def test_a_function_logs_each_failed_call_and_the_others_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FixedClock()
    using = Metrics("gateway", clock)

    def call(backend: str, outcome: CallOutcome) -> list[dict[str, Any]]:
        caplog.clear()
        using.called("pay", backend, outcome)
        fields = [record.__dict__["fields"] for record in caplog.records]
        names = ("tool_calls", "tool_failures", "backend")
        return [{name: one[name] for name in names if name in one} for one in fields]

    for outcome in ("ok", "tool_error", "refused", "draining"):
        assert call("bank", outcome) == []
    failed = {"tool_failures": 1, "backend": "shop"}
    assert call("shop", "unavailable") == [failed, {"tool_calls": 5}]
    assert call("shop", "fault") == [failed, {"tool_calls": 1}]
    (directive,) = caplog.records[0].__dict__["fields"]["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["function"], ["function", "backend"]]
    clock.set(60)
    assert call("bank", "ok") == [{"tool_calls": 1}]


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Completed(ToolResult()), "ok"),
        (Completed(ToolResult.error("no")), "tool_error"),
        (Failed(ToolError("no")), "tool_error"),
        (Failed(BackendError("no such order", reason="upstream 404")), "tool_error"),
        (Failed(ServerRefused("no", -32602)), "tool_error"),
        (Failed(ArgumentsRefused("policy[0]")), "refused"),
        (Failed(CallTimeout("late")), "timeout"),
        (Failed(BackendError("away", reason="upstream 503")), "unavailable"),
        (Failed(BackendError("our key", reason="upstream 401")), "unavailable"),
        (Failed(BackendError("busy", reason="upstream 429")), "unavailable"),
        (Failed(NoAnswer("away", "ConnectError")), "unavailable"),
        (Failed(Unavailable("the store is away")), "unavailable"),
        (Failed(Draining()), "draining"),
        (Failed(ZeroDivisionError()), "fault"),
    ],
)
def test_a_failure_of_the_back_end_is_no_failure_of_the_caller(
    outcome: Completed[Returned] | Failed, word: str
) -> None:
    assert call_outcome(outcome) == word


def test_without_an_sdk_nothing_is_imported_or_measured() -> None:
    code = (
        "import sys; from roundgate.observability import metrics, tracing; "
        "metrics.Metrics().turn('report', 'finished', 1); store = object(); "
        "print(metrics.instruments(), type(tracing.set_up()).__name__, "
        "metrics.timed(store, 'tasks') is store, 'opentelemetry' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["None", "Tracing", "True", "False"]
