"""Every alarm of the template fires when it should and keeps quiet when it should: on metrics as
AWS publishes them."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.deployment.template import Template
from roundgate.observability.metrics import NAMESPACE, Metrics
from tests.support.cloudwatch import Alarm, Minutes, alarms
from tests.support.dynamodb import ROOT

QUIET_HOUR: Minutes = [0.0] * 60
NOTHING: Minutes = [None] * 60

NAMES = {name: name for name in ("GatewayFunction", "WorkerFunction", "RotationFunction", "Api")}
NAMES |= {"Queue.QueueName": "tasks", "DeadLetters.QueueName": "dead-letters"}


@pytest.fixture(scope="module")
def known() -> dict[str, Alarm]:
    return alarms(Template(ROOT / "template.yaml", {}, NAMES))


FUNCTIONS = ("Gateway", "Worker", "Rotation")
FIRES: dict[str, list[tuple[str, Minutes]]] = {
    "DeadLettersAlarm": [("a dead letter", [0, 0, 1])],
    "BacklogAlarm": [
        ("workers that do not keep up", [3] * 20),
        ("one message that nobody takes", [1] * 20),
    ],
    "OverdueTasksAlarm": [
        ("a task that no worker takes", [60.0 * n for n in range(1, 12)]),
        ("a sweep that does not run any more", [0.0, 0.0, None, None, None, None, None]),
        ("a sweep that has never run", NOTHING),
    ],
    "TaskGrowthAlarm": [
        ("a hundred a minute that do not end", [100.0] * 60),
        ("bursts that do not end", [*([0.0] * 14), 1_000.0] * 4),
    ],
    "FailedStepsAlarm": [
        ("a step that failed for good", [None, None, 1.0]),
        ("two in a minute", [2.0]),
    ],
    **{
        f"{name}ErrorsAlarm": [("a function that failed", [0, 0, 1])]
        for name in (*FUNCTIONS, "Api")
    },
    **{
        f"{name}ThrottlesAlarm": [("a function that was throttled", [0, 0, 1])]
        for name in FUNCTIONS[:2]
    },
    "ApiThrottlesAlarm": [("a request that was answered 429", [None, None, 1])],
}
"""What each is for."""

QUIET: dict[str, list[tuple[str, Minutes]]] = {
    "DeadLettersAlarm": [("a dead letter that was seen to", [0, 1, 1, 0])],
    "BacklogAlarm": [
        ("a turn of 15 minutes, which is in flight and not visible", [0] * 20),
        ("bursts that are worked off", [40, 12, 3, 0, 0] * 4),
        ("a burst that takes ten minutes", [0] * 10 + [100 - 10 * n for n in range(10)] + [0] * 5),
        ("a queue that nobody uses, of which SQS tells nothing", NOTHING),
    ],
    "OverdueTasksAlarm": [
        ("sweeps that find nothing", QUIET_HOUR),
        ("a turn of 15 minutes, whose lease is renewed", QUIET_HOUR),
        (
            "workers that died: others have their tasks within minutes",
            [0.0, 30.0, 90.0, 0.0, 0.0] * 4,
        ),
        ("a sweep that is missed now and then", [0.0, None, 0.0, None, None, None, 0.0]),
    ],
    "TaskGrowthAlarm": [
        ("no task, of which nothing is told", NOTHING),
        ("as many that end as are created", QUIET_HOUR),
        ("a burst that is worked off", [*([500.0] * 15), *([-250.0] * 30), *([0.0] * 15)]),
        ("some that wait for an answer", [10.0] * 60),
    ],
    "FailedStepsAlarm": [
        ("no failed step, of which nothing is told", NOTHING),
        ("one that was seen to", [1.0, None]),
    ],
    **{
        f"{name}{kind}Alarm": [("nothing wrong", QUIET_HOUR), ("nobody calls", NOTHING)]
        for name, kind in [(name, "Errors") for name in (*FUNCTIONS, "Api")]
        + [(name, "Throttles") for name in (*FUNCTIONS[:2], "Api")]
    },
}
"""What each must not be woken by."""


def cases(table: dict[str, list[tuple[str, Minutes]]]) -> list[object]:
    return [
        pytest.param(name, told, id=f"{name}: {what}")
        for name, several in table.items()
        for what, told in several
    ]


@pytest.mark.parametrize(("name", "told"), cases(FIRES))
def test_it_fires_on(known: dict[str, Alarm], name: str, told: Minutes) -> None:
    assert known[name].fires(told)


@pytest.mark.parametrize(("name", "told"), cases(QUIET))
def test_it_keeps_quiet_on(known: dict[str, Alarm], name: str, told: Minutes) -> None:
    assert not known[name].fires(told)


def test_each_alarm_has_something_to_fire_on_and_something_to_keep_quiet_on(
    known: dict[str, Alarm],
) -> None:
    assert known.keys() == FIRES.keys() == QUIET.keys()


def test_errors_of_a_rest_api_are_counted_under_the_names_that_it_has() -> None:
    of_rest = alarms(Template(ROOT / "template.yaml", {"ApiType": "rest"}, NAMES))
    (metric,) = of_rest["ApiErrorsAlarm"].metrics
    assert (metric.name, dict(metric.dimensions)) == ("5XXError", {"ApiName": "roundgate"})


def test_the_age_of_the_oldest_message_alarms_nobody(known: dict[str, Alarm]) -> None:
    """It counts messages that a worker has, and so every long turn; and those of dead workers for
    90 minutes."""
    names = {metric.name for alarm in known.values() for metric in alarm.metrics}
    assert "ApproximateAgeOfOldestMessage" not in names


OF_AWS = {
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName"),
    ("AWS/Lambda", "Errors", "FunctionName"),
    ("AWS/Lambda", "Throttles", "FunctionName"),
    ("AWS/ApiGateway", "5xx", "ApiId"),
}
"""Metrics that AWS publishes, as its documentation spells them: a name that is none would never
fire."""


def published(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The directives in the lines of functions that create, claim and end tasks, and sweep."""
    metrics = Metrics("worker")
    with caplog.at_level("INFO", "roundgate.metrics"):
        metrics.created("tool")
        metrics.claimed("tool")
        metrics.ended("tool", "step_failed")
        metrics.embed("tasks", SWEPT)
    lines = [record.__dict__["fields"] for record in caplog.records]
    return [one for line in lines for one in line["_aws"]["CloudWatchMetrics"]]


SWEPT = {"overdue_s": 1.0, "late": 0}
"""What a sweep tells (`tests/functions/test_worker_function.py`)."""


def test_each_looks_at_a_metric_that_is_published(
    known: dict[str, Alarm], caplog: pytest.LogCaptureFixture
) -> None:
    directives = published(caplog)
    ours = {
        (directive["Namespace"], one["Name"], directive["Dimensions"][0][0])
        for directive in directives
        for one in directive["Metrics"]
    }
    assert {directive["Namespace"] for directive in directives} == {NAMESPACE}
    template = Template(ROOT / "template.yaml", {}, NAMES)
    (counted,) = template.properties("ThrottledRequests")["MetricTransformations"]
    ours.add((counted["MetricNamespace"], counted["MetricName"], counted["Dimensions"][0]["Key"]))
    for metric in (metric for alarm in known.values() for metric in alarm.metrics):
        (dimension,) = metric.dimensions
        assert (metric.namespace, metric.name, dimension) in OF_AWS | ours
        assert metric.dimensions[dimension] in NAMES.values()
