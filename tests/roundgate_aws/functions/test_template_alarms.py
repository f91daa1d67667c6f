"""Every alarm of the template fires when it should and keeps quiet when it should: on metrics as
AWS publishes them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from roundgate.observability.metrics import NAMESPACE, Metrics
from roundgate_aws import worker as lambda_worker
from roundgate_aws.template import StackTemplate
from tests.support.cloudwatch import Alarm, Minutes, Told, alarms
from tests.support.dynamodb import ROOT

QUIET_HOUR: Minutes = [0.0] * 60
NOTHING: Minutes = [None] * 60
HIDDEN_S = 6 * 900
"""The visibility timeout of the queue, for the default WorkerTimeout."""

NAMES = {name: name for name in ("GatewayFunction", "WorkerFunction", "RotationFunction", "Api")}
NAMES |= {
    "Table": "tasks-table",
    "Queue.QueueName": "tasks",
    "DeadLetters.QueueName": "dead-letters",
    "GatewayVersion.Version": "7",
}


@pytest.fixture(scope="module")
def known() -> dict[str, Alarm]:
    parameters = {"AlarmTopicArn": TOPIC, "Rollout": "Canary10Percent5Minutes"}
    return alarms(StackTemplate(parameters, NAMES))


TOPIC = "arn:aws:sns:eu-central-1:123456789012:alarms"
FUNCTIONS = ("GatewayErrorsAlarm", "WorkerErrorsAlarm")
THROTTLED = ("GatewayThrottlesAlarm", "WorkerThrottlesAlarm")


def failed(errors: Minutes, calls: Minutes) -> dict[str, Minutes]:
    return {"errors": errors, "calls": calls}


def throttled(throttles: Minutes, calls: Minutes) -> dict[str, Minutes]:
    return {"throttles": throttles, "calls": calls}


def took(seconds: float, calls: float, minutes: int = 15) -> dict[str, Minutes]:
    """A hundredth of the calls took as long, or longer."""
    return {"duration": [seconds * 1000] * minutes, "calls": [calls] * minutes}


def called(
    failures: Minutes,
    calls: Minutes,
    failures_in_tasks: Minutes = NOTHING,
    calls_in_tasks: Minutes = NOTHING,
) -> dict[str, Minutes]:
    in_tasks = {"failures_in_tasks": failures_in_tasks, "calls_in_tasks": calls_in_tasks}
    return {"failures": failures, "calls": calls, **in_tasks}


def tasks(created: Minutes, ended: Minutes, cancelled: Minutes = NOTHING) -> dict[str, Minutes]:
    return {"created": created, "ended": ended, "cancelled": cancelled}


def reads_and_writes(**minutes: Minutes) -> dict[str, Minutes]:
    names = (f"{of}_{kind}s" for of in ("table", *INDEXES) for kind in ("read", "write"))
    return {name: minutes.get(name, NOTHING) for name in names}


INDEXES = ("due", "owned", "ended")
FIRES: dict[str, list[tuple[str, Told]]] = {
    "DeadLettersAlarm": [("a dead letter", [0, 0, 1])],
    "BacklogAlarm": [
        ("workers that do not keep up", [3] * 20),
        ("one message that nobody takes", [1] * 20),
    ],
    "QueueAgeAlarm": [
        ("a message with which every worker fails", [HIDDEN_S + 60.0 * n for n in range(20)]),
    ],
    "OverdueTasksAlarm": [
        ("a task that no worker takes", [60.0 * n for n in range(1, 12)]),
        ("a sweep that does not run any more", [0.0, 0.0, None, None, None, None, None]),
    ],
    "TaskGrowthAlarm": [
        ("a hundred a minute that do not end", tasks([100.0] * 60, NOTHING)),
        ("bursts that do not end", tasks([*([0.0] * 14), 1_200.0] * 4, [5.0] * 60, [5.0] * 60)),
    ],
    "ToolFailuresAlarm": [
        ("20 of 20 calls in five minutes, and no other", called([4] * 5, [4] * 5)),
        ("20 of 20 tasks, polled by hundreds of requests", called(NOTHING, NOTHING, [20], [20])),
        ("a back end that a tenth of the calls need", called([20] * 5, [200] * 5)),
    ],
    "FailedStepsAlarm": [
        ("a step that failed for good", [None, None, 1.0]),
        ("two in a minute", [2.0]),
    ],
    "RotationErrorsAlarm": [("a rotation that failed", [0, 0, 1])],
    **{
        name: [
            ("a tenth that fails", failed([1] * 5, [10] * 5)),
            ("a function that cannot start", failed([30], [30])),
            ("three failures of 25", failed([0, 3], [5, 20])),
        ]
        for name in (*FUNCTIONS, "ApiErrorsAlarm")
    },
    **{
        name: [
            ("a tenth that is refused", throttled([2] * 5, [18] * 5)),
            ("all refused", throttled([30], NOTHING)),
        ]
        for name in THROTTLED
    },
    "RolloutErrorsAlarm": [
        ("a new version that cannot start", failed([5], [5])),
        ("one that fails for a tenth", failed([2], [20])),
    ],
    "ApiThrottlesAlarm": [("many requests that were answered 429", [None, None, 25])],
    "GatewayNearTimeoutAlarm": [("calls that wait for a slow service", took(27, 20))],
    "WorkerNearTimeoutAlarm": [("a tool that ignores its deadline", took(899, 5))],
    "TableThrottlesAlarm": [
        ("one index that is hot", reads_and_writes(due_writes=[10, 15])),
        ("a burst on a new table", reads_and_writes(table_writes=[20], owned_writes=[20])),
        ("sweeps of many late tasks", reads_and_writes(due_reads=[25])),
        ("lists of ended tasks", reads_and_writes(ended_reads=[25])),
    ],
}
"""What each is for."""

QUIET: dict[str, list[tuple[str, Told]]] = {
    "DeadLettersAlarm": [("a dead letter that was seen to", [0, 1, 1, 0])],
    "BacklogAlarm": [
        ("a turn of 15 minutes, which is in flight and not visible", [0] * 20),
        ("bursts that are worked off", [40, 12, 3, 0, 0] * 4),
        ("a burst that takes ten minutes", [0] * 10 + [100 - 10 * n for n in range(10)] + [0] * 5),
        ("a queue that nobody uses, of which SQS tells nothing", NOTHING),
    ],
    "QueueAgeAlarm": [
        ("turns of 15 minutes", [60.0 * n for n in range(15)] * 2),
        (
            "a worker that died: the message is hidden, then a turn of 15 minutes takes it",
            [HIDDEN_S + 60.0 * n for n in range(-45, 16)] + [0.0] * 5,
        ),
        ("a queue that nobody uses, of which SQS tells nothing", NOTHING),
    ],
    "OverdueTasksAlarm": [
        ("a stack that has just been made, before its first sweep", NOTHING),
        ("its first sweep", [None, None, 0.0]),
        ("sweeps that find nothing", QUIET_HOUR),
        ("a turn of 15 minutes, whose lease is renewed", QUIET_HOUR),
        (
            "workers that died: others have their tasks within minutes",
            [0.0, 30.0, 90.0, 0.0, 0.0] * 4,
        ),
        ("a sweep that is missed now and then", [0.0, None, 0.0, None, None, None, 0.0]),
    ],
    "TaskGrowthAlarm": [
        ("no task, of which nothing is told", tasks(NOTHING, NOTHING)),
        ("as many that end as are created", tasks([70.0] * 60, [60.0] * 60, [10.0] * 60)),
        (
            "a burst that is worked off",
            tasks([500.0] * 15 + [0.0] * 45, [0.0] * 15 + [250.0] * 30 + [0.0] * 15),
        ),
        ("some that wait for an answer", tasks([10.0] * 60, NOTHING)),
    ],
    "ToolFailuresAlarm": [
        ("nothing wrong", called(QUIET_HOUR, [10] * 60)),
        ("nobody calls", called(NOTHING, NOTHING)),
        ("a few failures of few calls", called([1, 0, 2], [1, 0, 3])),
        ("a percent of many", called([2] * 5, [200] * 5)),
    ],
    "FailedStepsAlarm": [
        ("no failed step, of which nothing is told", NOTHING),
        ("one that was seen to", [1.0, None]),
    ],
    "RotationErrorsAlarm": [("nothing wrong", QUIET_HOUR), ("no rotation", NOTHING)],
    **{
        name: [
            ("nothing wrong", failed(QUIET_HOUR, [100] * 60)),
            ("nobody calls", failed(NOTHING, NOTHING)),
            ("a single error", failed([1], [1])),
            ("two of the five sweeps, with no other invocation", failed([1, 1, 0, 0, 0], [1] * 5)),
            ("a percent of many", failed([10] * 5, [1_000] * 5)),
        ]
        for name in (*FUNCTIONS, "ApiErrorsAlarm")
    },
    **{
        name: [
            ("nothing wrong", throttled(QUIET_HOUR, [100] * 60)),
            ("nobody calls", throttled(NOTHING, NOTHING)),
            ("a single refusal", throttled([1], [1])),
        ]
        for name in THROTTLED
    },
    "RolloutErrorsAlarm": [
        ("nobody calls the new version", failed(NOTHING, NOTHING)),
        ("nothing wrong", failed([0] * 5, [10] * 5)),
        ("a single error", failed([1], [5])),
        ("a percent of many", failed([3], [300])),
    ],
    "ApiThrottlesAlarm": [
        ("nothing wrong", QUIET_HOUR),
        ("nobody calls", NOTHING),
        ("a client that is too fast for a moment", [None, 10, None]),
    ],
    "GatewayNearTimeoutAlarm": [
        ("fast calls", took(2, 100)),
        ("one slow call", took(29, 1)),
        ("a slow minute", {"duration": [100] * 14 + [28_000], "calls": [100] * 15}),
        ("nobody calls", {"duration": NOTHING, "calls": NOTHING}),
    ],
    "WorkerNearTimeoutAlarm": [
        ("turns that use their whole time", took(897.5, 5)),
        ("one turn that is too long, among the sweeps", took(900, 2)),
        ("only sweeps", took(1, 1)),
    ],
    "TableThrottlesAlarm": [
        ("nothing wrong, of which DynamoDB tells nothing", reads_and_writes()),
        ("a few, which the SDK retries", reads_and_writes(due_writes=[5], table_writes=[3])),
    ],
}
"""What each must not be woken by."""


def cases(table: dict[str, list[tuple[str, Told]]]) -> list[object]:
    return [
        pytest.param(name, told, id=f"{name}: {what}")
        for name, several in table.items()
        for what, told in several
    ]


@pytest.mark.parametrize(("name", "told"), cases(FIRES))
def test_it_fires_on(known: dict[str, Alarm], name: str, told: Told) -> None:
    assert known[name].fires(told)


@pytest.mark.parametrize(("name", "told"), cases(QUIET))
def test_it_keeps_quiet_on(known: dict[str, Alarm], name: str, told: Told) -> None:
    assert not known[name].fires(told)


def test_each_alarm_has_something_to_fire_on_and_something_to_keep_quiet_on(
    known: dict[str, Alarm],
) -> None:
    assert known.keys() == FIRES.keys() == QUIET.keys()


OF_AWS = {
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName"),
    ("AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName"),
    ("AWS/Lambda", "Errors", "FunctionName"),
    ("AWS/Lambda", "Throttles", "FunctionName"),
    ("AWS/Lambda", "Invocations", "FunctionName"),
    ("AWS/Lambda", "Duration", "FunctionName"),
    ("AWS/ApiGateway", "5xx", "ApiId"),
    ("AWS/ApiGateway", "Count", "ApiId"),
    ("AWS/DynamoDB", "ReadThrottleEvents", "TableName"),
    ("AWS/DynamoDB", "WriteThrottleEvents", "TableName"),
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
        metrics.called("tool", "shop", "unavailable")
        metrics.embed("tasks", SWEPT)
    lines = [record.__dict__["fields"] for record in caplog.records]
    return [one for line in lines for one in line["_aws"]["CloudWatchMetrics"]]


SWEPT = {"overdue_s": 1.0, "late": 0}
"""What a sweep tells (`tests/roundgate_aws/functions/test_worker_function.py`)."""


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
    template = StackTemplate({}, NAMES)
    (counted,) = template.properties("ThrottledRequests")["MetricTransformations"]
    ours.add((counted["MetricNamespace"], counted["MetricName"], counted["Dimensions"][0]["Key"]))
    for metric in (metric for alarm in known.values() for metric in alarm.metrics):
        dimension, *others = metric.dimensions
        assert set(others) <= {"GlobalSecondaryIndexName", "Resource", "ExecutedVersion"}
        assert (metric.namespace, metric.name, dimension) in OF_AWS | ours
        assert metric.dimensions[dimension] in NAMES.values()


def test_every_index_of_the_table_is_looked_at(known: dict[str, Alarm]) -> None:
    template = StackTemplate({}, NAMES)
    indexes = {one["IndexName"] for one in template.properties("Table")["GlobalSecondaryIndexes"]}
    looked_at = {
        (metric.name, metric.dimensions.get("GlobalSecondaryIndexName"))
        for metric in known["TableThrottlesAlarm"].metrics
    }
    kinds = ("ReadThrottleEvents", "WriteThrottleEvents")
    assert looked_at == {(kind, index) for kind in kinds for index in (*indexes, None)}
    assert indexes == set(INDEXES)


@pytest.mark.parametrize("restored", ["", "restored"])
def test_alarms_look_at_the_table_that_the_functions_use(restored: str) -> None:
    template = StackTemplate({"TableName": restored}, NAMES)
    metrics = alarms(template)["TableThrottlesAlarm"].metrics
    assert {metric.dimensions["TableName"] for metric in metrics} == {restored or "tasks-table"}


def test_a_rollout_is_judged_by_the_new_version_alone(known: dict[str, Alarm]) -> None:
    for metric in known["RolloutErrorsAlarm"].metrics:
        assert metric.dimensions == {
            "FunctionName": "GatewayFunction",
            "Resource": "GatewayFunction:live",
            "ExecutedVersion": "7",
        }


@pytest.mark.parametrize("api", ["http", "rest"])
def test_a_stack_that_nobody_has_called_yet_pages_nobody(api: str) -> None:
    """Not even that there is no data: an alarm is made in that state, and no action runs."""
    parameters = {"ApiType": api, "AlarmTopicArn": TOPIC, "Rollout": "Canary10Percent5Minutes"}
    made = alarms(StackTemplate(parameters, NAMES))
    for name, alarm in made.items():
        assert not alarm.fires(dict.fromkeys(alarm.terms, NOTHING)), name
        assert alarm.missing_breaches in (False, None)


TICKETS = ["arn:aws:sns:eu-central-1:123456789012:tickets"]
PAGES = {
    *("ApiErrorsAlarm", "GatewayErrorsAlarm", "GatewayThrottlesAlarm", "OverdueTasksAlarm"),
    *("QueueAgeAlarm", "TableThrottlesAlarm", "ToolFailuresAlarm", "WorkerErrorsAlarm"),
}


@pytest.mark.parametrize(
    ("parameters", "pages", "tickets"),
    [
        ({}, None, None),
        ({"AlarmTopicArn": TOPIC}, [TOPIC], [TOPIC]),
        ({"AlarmTopicArn": TOPIC, "TicketTopicArn": TICKETS[0]}, [TOPIC], TICKETS),
        ({"TicketTopicArn": TICKETS[0]}, None, TICKETS),
    ],
)
def test_an_alarm_tells_its_topic_that_it_begins_and_that_it_ends(
    parameters: dict[str, str], pages: list[str] | None, tickets: list[str] | None
) -> None:
    template = StackTemplate(parameters, NAMES)
    names = template.named("AWS::CloudWatch::Alarm")
    assert set(names) > PAGES
    for name in names:
        properties, wanted = template.properties(name), pages if name in PAGES else tickets
        assert properties.get("AlarmActions") == properties.get("OKActions") == wanted, name
        if "InsufficientDataActions" in properties:
            assert properties["InsufficientDataActions"] == wanted


def test_every_threshold_that_depends_on_the_load_is_a_parameter() -> None:
    limits = {
        "DeadLettersAlarm": "AlarmDeadLetters",
        "BacklogAlarm": "AlarmBacklog",
        "FailedStepsAlarm": "AlarmFailedSteps",
        "GatewayNearTimeoutAlarm": "AlarmTimeoutPercent",
        "ToolFailuresAlarm": "AlarmPercent",
    }
    template = StackTemplate(dict.fromkeys(limits.values(), 77), NAMES)
    for name in limits:
        assert template.properties(name)["Threshold"] == 77


def test_each_alarm_is_in_the_runbook(known: dict[str, Alarm]) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    told = re.findall(r"`(\w+Alarm)`", page.partition("| alarm |")[2].partition("\n\n")[0])
    assert set(told) == known.keys()


@pytest.mark.parametrize(
    ("parameters", "fires"),
    [({}, False), ({"AlarmCalls": 1}, True), ({"AlarmCalls": 1, "AlarmPercent": 60}, False)],
)
def test_a_stack_that_few_call_has_alarms_of_its_own(
    parameters: dict[str, int], fires: bool
) -> None:
    known = alarms(StackTemplate(parameters, NAMES))
    assert known["GatewayErrorsAlarm"].fires(failed([1], [2])) is fires


def test_the_deadline_of_a_turn_is_the_one_that_the_alarm_knows(known: dict[str, Alarm]) -> None:
    after_s = known["WorkerNearTimeoutAlarm"].expression.partition("- 900 + ")[2]
    assert after_s == f"{lambda_worker.MARGIN_MS // 1000}, 0)"


def test_the_alarms_of_a_rest_api_look_at_its_metrics(known: dict[str, Alarm]) -> None:
    rest = StackTemplate({"ApiType": "rest", "StageName": "live"}, NAMES)
    looked_at = alarms(rest)["ApiErrorsAlarm"].metrics
    assert [metric.name for metric in looked_at] == ["5XXError", "Count"]
    assert all(metric.dimensions == {"ApiName": "roundgate"} for metric in looked_at)
    assert "GatewayNearTimeoutAlarm" not in alarms(rest), "streams take all the time that there is"
