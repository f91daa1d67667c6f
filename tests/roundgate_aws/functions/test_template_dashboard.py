"""The dashboard of the template: each metric is one that AWS publishes, or that the functions write
into their log; each query finds its lines there."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from roundgate import observability as logs
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker
from roundgate_aws.template import StackTemplate
from tests.roundgate_aws.functions.conftest import (
    Functions,
    LambdaContext,
    environment,
    recorded,
)
from tests.support import root_logger
from tests.support.rounds import accept

NAMES = {name: name for name in ("GatewayFunction", "WorkerFunction", "GatewayLog", "WorkerLog")}
NAMES |= {"Api": "api", "Queue.QueueName": "tasks", "DeadLetters.QueueName": "dead", "Table": "t"}
OF_AWS = {
    "AWS/ApiGateway": ("ApiId", {"Count", "4xx", "5xx", "Latency"}),
    "AWS/Lambda": ("FunctionName", {"Errors", "Throttles", "Duration", "ConcurrentExecutions"}),
    "AWS/SQS": (
        "QueueName",
        {
            "ApproximateAgeOfOldestMessage",
            "ApproximateNumberOfMessagesVisible",
            "ApproximateNumberOfMessagesNotVisible",
        },
    ),
    "AWS/DynamoDB": (
        "TableName",
        {
            "ConsumedReadCapacityUnits",
            "ConsumedWriteCapacityUnits",
            "ReadThrottleEvents",
            "WriteThrottleEvents",
        },
    ),
}
"""The metrics that AWS publishes, as its documentation spells them, with their dimension."""
LOGS = {"GatewayLog": "GatewayFunction", "WorkerLog": "WorkerFunction"}


@pytest.fixture(scope="module")
def widgets() -> list[dict[str, Any]]:
    body = StackTemplate({}, NAMES).properties("Dashboard")["DashboardBody"]
    found: list[dict[str, Any]] = json.loads(body)["widgets"]
    return found


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The lines of both functions, which have created, run, answered and cancelled tasks, refused a
    call and swept."""
    rate = {"tools": {"large": {"calls_per_minute": 1}}}
    environ = environment(tmp_path_factory.mktemp("lines"), rate=rate)
    environ["GATEWAY_LOG_LEVEL"] = "info"
    written: dict[str, io.StringIO] = {name: io.StringIO() for name in LOGS.values()}
    with (
        root_logger.lent(),
        closing(_made(lambda_http, "GatewayFunction", environ)) as http,
        closing(_made(lambda_worker, "WorkerFunction", environ)) as worker,
    ):
        _use(Functions(_into(http, written), _into(worker, written)))
    return {
        name: [json.loads(line) for line in text.getvalue().splitlines()]
        for name, text in written.items()
    }


def _made(module: Any, name: str, environ: dict[str, str]) -> Any:
    made = module.make_handler({**environ, "AWS_LAMBDA_FUNCTION_NAME": name})
    made.name = name
    return made


def _into(function: Any, written: dict[str, io.StringIO]) -> Any:
    """A function whose lines are kept."""

    def call(event: Any, context: Any) -> Any:
        handler = logging.StreamHandler(written[function.name])
        handler.setFormatter(logs.JsonFormatter())
        logging.getLogger().addHandler(handler)
        try:
            return function(event, context)
        finally:
            logging.getLogger().removeHandler(handler)

    return call


def _use(functions: Functions) -> None:
    (record,) = recorded("sqs")["Records"]

    def begin(tool: str) -> str:
        answer = functions.ask("http_api_v2", "tools/call", {"name": tool, "arguments": {}})
        return str(answer["result"]["taskId"])

    def work(task_id: str) -> None:
        event = {"Records": [{**record, "body": f"{task_owner(LOCAL)}.{task_id}"}]}
        functions.worker(event, LambdaContext())

    asking, failing, unwanted = begin("later"), begin("fail"), begin("later")
    for task_id in (asking, failing):
        work(task_id)
    answers = {"taskId": asking, "inputResponses": {"who": accept(name="Ada")}}
    functions.ask("http_api_v2", "tasks/update", answers)
    work(asking)
    functions.ask("http_api_v2", "tasks/cancel", {"taskId": unwanted})
    too_large = {"name": "large", "arguments": {"megabytes": 10**18}}
    for _ in range(2):  # the first one fails, the second one is beyond the limit
        functions.ask("http_api_v2", "tools/call", too_large)
    functions.worker(recorded("schedule"), LambdaContext())


def metrics(widgets: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Namespace, name, and first dimension with its value, of each metric."""
    for widget in widgets:
        for metric in widget["properties"].get("metrics", ()):
            if isinstance(metric[0], dict):
                continue
            namespace, name, *dimensions = (part for part in metric if isinstance(part, str))
            assert dimensions[2:] in ([], *(["GlobalSecondaryIndexName", name] for name in INDEXES))
            yield namespace, name, dimensions[0], dimensions[1]


INDEXES = ("due", "owned", "ended")


def test_every_metric_of_ours_is_in_the_log_of_its_function(
    widgets: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]
) -> None:
    emitted = {
        (directive["Namespace"], metric["Name"], dimension, line[dimension])
        for of_function in lines.values()
        for line in of_function
        if "_aws" in line
        for directive in line["_aws"]["CloudWatchMetrics"]
        for dimension in directive["Dimensions"][0]
        for metric in directive["Metrics"]
        if isinstance(line[metric["Name"]], int | float)
    }
    template = StackTemplate({}, NAMES)
    (filtered,) = template.properties("ThrottledRequests")["MetricTransformations"]
    emitted.add((filtered["MetricNamespace"], filtered["MetricName"], "ApiId", NAMES["Api"]))
    ours = {metric for metric in metrics(widgets) if metric[0] not in OF_AWS}
    assert ours == emitted, "all of them are shown"


def test_a_search_finds_the_metrics_of_each_back_end(
    widgets: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]
) -> None:
    searches = [
        metric[0]["expression"]
        for widget in widgets
        for metric in widget["properties"].get("metrics", ())
        if isinstance(metric[0], dict)
    ]
    ours = [one for one in searches if "{roundgate," in one]
    assert len(searches) == len(ours) + 2
    (search,) = ours
    schema = search.partition("{")[2].partition("}")[0].split(",")
    counted = [line for of_function in lines.values() for line in of_function if "backend" in line]
    for line in counted:
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        assert [directive["Namespace"], *directive["Dimensions"][1]] == schema
        assert line["function"] in search
    assert 'MetricName="tool_failures"' in search


def test_every_metric_of_aws_is_one_that_it_publishes(widgets: list[dict[str, Any]]) -> None:
    for namespace, name, dimension, value in metrics(widgets):
        if namespace in OF_AWS:
            assert dimension == OF_AWS[namespace][0]
            assert name in OF_AWS[namespace][1]
            assert value in NAMES.values()


def test_every_query_finds_lines_with_its_fields(
    widgets: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]
) -> None:
    queries = [widget["properties"]["query"] for widget in widgets if widget["type"] == "log"]
    assert len(queries) == 4
    for query in queries:
        source, wanted, stats, order = query.split(" | ")
        of_function = lines[LOGS[source.removeprefix("SOURCE ").strip("'")]]
        found = [line for line in of_function if matches(wanted.removeprefix("filter "), line)]
        assert found, query
        fields = [*re.findall(r"pct\((\w+), \d+\)", stats), *stats.partition(" by ")[2].split(", ")]
        assert all(field in line for field in fields for line in found), query
        assert order.split()[1] in re.findall(r" as (\w+)", stats)


def matches(wanted: str, line: dict[str, Any]) -> bool:
    """Whether a line passes a filter of CloudWatch Logs Insights, in the forms used here."""
    for condition in wanted.split(" and "):
        name, operator, value = condition.split(" ", 2)
        assert operator in ("=", "in")
        values = json.loads(value) if operator == "in" else [json.loads(value)]
        if line.get(name) not in values:
            return False
    return True


def test_widgets_cover_each_other_nowhere(widgets: list[dict[str, Any]]) -> None:
    places = [
        (widget["x"] + across, widget["y"] + down)
        for widget in widgets
        for across in range(widget["width"])
        for down in range(widget["height"])
    ]
    assert len(places) == len(set(places))
    assert max(across for across, _ in places) < 24, "CloudWatch has 24 columns"


@pytest.mark.parametrize("restored", ["", "restored"])
def test_the_dashboard_shows_the_table_that_the_functions_use(restored: str) -> None:
    template = StackTemplate({"TableName": restored}, NAMES)
    shown = json.loads(template.properties("Dashboard")["DashboardBody"])["widgets"]
    tables = {value for _, _, dimension, value in metrics(shown) if dimension == "TableName"}
    assert tables == {restored or NAMES["Table"]}


def test_the_dashboard_of_a_rest_api_shows_its_metrics() -> None:
    template = StackTemplate({"ApiType": "rest"}, NAMES)
    shown = json.loads(template.properties("Dashboard")["DashboardBody"])["widgets"]
    of_api = {metric[1:] for metric in metrics(shown) if metric[0] == "AWS/ApiGateway"}
    names = ("Count", "4XXError", "5XXError", "Latency")
    assert of_api == {(name, "ApiName", "roundgate") for name in names}
