"""Recorded events of SQS and EventBridge through the handler of the worker function."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roundgate import config
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock, Deadline
from roundgate.errors import ConfigError
from roundgate.runtime import startup
from roundgate.settings import TasksConfig
from roundgate.settings import process as settings
from roundgate.tasks.sweep import Sweep
from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker
from roundgate_aws.worker import WorkerFunction
from tests.roundgate_aws.functions.conftest import (
    Functions,
    LambdaContext,
    asking,
    environment,
    made,
    recorded,
)
from tests.support.log_lines import log_lines
from tests.support.rounds import accept


def batch(*bodies: str) -> dict[str, Any]:
    """An event of the queue with these messages, numbered."""
    (record,) = recorded("sqs")["Records"]
    return {
        "Records": [
            copy.deepcopy(record) | {"messageId": f"m{n}", "body": body}
            for n, body in enumerate(bodies)
        ]
    }


def begin(functions: Functions) -> str:
    created = functions.ask("http_api_v2", "tools/call", {"name": "later", "arguments": {}})[
        "result"
    ]
    assert created["resultType"] == "task"
    return str(created["taskId"])


def message(task_id: str) -> str:
    return f"{task_owner(LOCAL)}.{task_id}"


def shown(functions: Functions, task_id: str) -> dict[str, Any]:
    result: dict[str, Any] = functions.ask("rest_api_v1", "tasks/get", {"taskId": task_id})[
        "result"
    ]
    return result


def test_a_task_is_carried_to_its_question_and_to_its_end(functions: Functions) -> None:
    task_id = begin(functions)
    assert functions.worker(batch(message(task_id)), LambdaContext()) == {"batchItemFailures": []}
    assert list(shown(functions, task_id)["inputRequests"]) == ["who"]
    answer = {"taskId": task_id, "inputResponses": {"who": accept(name="Ada")}}
    functions.ask("function_url", "tasks/update", answer)
    functions.worker(batch(message(task_id)), LambdaContext())
    assert shown(functions, task_id)["result"]["content"][0]["text"] == "Hello, Ada!"


def test_every_line_of_a_turn_has_the_id_of_the_invocation(functions: Functions) -> None:
    task_id = begin(functions)
    with log_lines() as lines:
        functions.worker(batch(message(task_id)), LambdaContext(aws_request_id="invocation"))
    (claimed,), (turn,) = lines.of("task claimed"), lines.of("task")
    assert claimed["lambda_request"] == turn["lambda_request"] == "invocation"
    assert turn["task"] == message(task_id)


@pytest.mark.parametrize("kind", ["http_api_v2", "function_url"])
def test_the_largest_result_that_a_task_may_have_can_be_fetched(
    functions: Functions, kind: str
) -> None:
    quotes = (TasksConfig().max_result_bytes - 1_000) // 2  # each is two bytes of the result's JSON
    params = {"name": "much", "arguments": {"count": quotes}}
    task_id = str(functions.ask("http_api_v2", "tools/call", params)["result"]["taskId"])
    functions.worker(batch(message(task_id)), LambdaContext())
    answer = functions.http(asking(kind, "tasks/get", {"taskId": task_id}), LambdaContext())
    result = json.loads(base64.b64decode(answer["body"]))["result"]["result"]
    assert len(result["content"][0]["text"]) == quotes


def test_a_failed_step_that_ended_a_task_is_a_metric(
    functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    params = {"name": "fail", "arguments": {}}
    task_id = str(functions.ask("http_api_v2", "tools/call", params)["result"]["taskId"])
    functions.worker(batch(message(task_id)), LambdaContext())
    (line,) = [one for one in caplog.records if one.message == "task ended"]
    fields = line.__dict__["fields"]
    (directive,) = fields["_aws"]["CloudWatchMetrics"]
    assert (fields["ended"], fields["failed_steps"]) == (1, 1)
    assert [one["Name"] for one in directive["Metrics"]] == ["ended", "failed_steps"]


def test_a_bad_message_fails_itself_and_no_other(functions: Functions) -> None:
    task_id = begin(functions)
    failed = functions.worker(batch("no reference", message(task_id), ""), LambdaContext())
    assert failed == {"batchItemFailures": [{"itemIdentifier": "m0"}, {"itemIdentifier": "m2"}]}
    assert shown(functions, task_id)["status"] == "input_required"


def test_messages_for_tasks_that_are_not_to_be_had_are_done(functions: Functions) -> None:
    task_id = begin(functions)
    functions.worker(batch(message(task_id)), LambdaContext())
    again = batch(message(task_id), message("unknown"), message(task_id))
    assert functions.worker(again, LambdaContext()) == {"batchItemFailures": []}


def test_the_schedule_sweeps(functions: Functions) -> None:
    begin(functions)
    for event in (recorded("schedule"), {"task": "sweep"}, {"source": "aws.scheduler"}):
        swept = functions.worker(event, LambdaContext())
        assert swept == {"overdue_s": 0.0, "late": 0}, event


def test_tasks_are_counted_where_they_are_created_claimed_and_end(
    functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    begin(functions)
    functions.worker(batch(message(begin(functions))), LambdaContext())
    counted = Counter(
        one["Name"]
        for record in caplog.records
        if record.name == "roundgate.metrics"
        for directive in record.__dict__["fields"]["_aws"]["CloudWatchMetrics"]
        for one in directive["Metrics"]
    )
    assert counted == {"created": 2, "claimed": 1}


def test_a_task_that_no_worker_claims_is_reported_overdue_although_it_is_requeued(
    tmp_path: Path,
) -> None:
    with made(environment(tmp_path, tasks={"requeue_after_s": 1})) as functions:
        begin(functions)
        time.sleep(2.2)
        swept = functions.worker(recorded("schedule"), LambdaContext())
    assert swept["late"] == 1
    assert swept["overdue_s"] >= 1


class Endless(Sweep):
    """One that finds more and more."""

    async def sweep(self, deadline: Deadline | None = None) -> int:
        await asyncio.sleep(3600)
        return 0


def test_a_sweep_that_runs_too_long_stops_in_time_and_reports_its_counts(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = config.load(Path(environ["GATEWAY_CONFIG"])), Clock()
    parts = startup.build_core(file, settings.from_environment(environ), clock)
    stores = parts.stores
    sweep = Endless(stores.tasks, stores.queue, stores.sessions, clock, file.config.tasks)
    with closing(
        WorkerFunction(parts.worker(file.config, clock), sweep, clock, parts.stores.metrics)
    ) as worker:
        swept = worker(recorded("schedule"), LambdaContext(lambda_worker.MARGIN_MS + 300))
    assert swept == {"overdue_s": 0.0}
    assert "the next one continues" in caplog.text


def test_an_event_of_another_kind_is_an_error_that_names_what_is_served(
    functions: Functions,
) -> None:
    of_api = asking("http_api_v2", "server/discover")
    odd: list[Any] = [of_api, {"Records": []}, {}, [], None, {"Records": [{"s3": {}}]}]
    for event in odd:
        with pytest.raises(ValueError, match="the task queue and the schedule"):
            functions.worker(event, LambdaContext())


def test_it_imports_no_web_framework(environ: dict[str, str]) -> None:
    code = "import sys, roundgate_aws.worker as m; m.handler; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert not loaded & {
        "fastapi",
        "starlette",
        "mangum",
        "uvicorn",
        "yaml",
        "jwt",
        "cryptography",
        "httpx",
    }


def test_the_handler_is_a_name_of_the_module_and_nothing_else_is(environ: dict[str, str]) -> None:
    with pytest.raises(AttributeError):
        lambda_worker.other  # noqa: B018


@pytest.mark.parametrize("module", [lambda_http, lambda_worker])
def test_the_runtime_can_report_the_problems_of_a_start(module: Any, tmp_path: Path) -> None:
    """The runtime sends the text of an exception in latin-1."""
    file = tmp_path / "gateway.yaml"
    file.write_text("server: {nam: …}\nbackends: [{kind: python, name: a, path: größe→.py}]\n")
    environ = {"GATEWAY_CONFIG": str(file), "AWS_LAMBDA_FUNCTION_NAME": "gateway"}
    with pytest.raises(ConfigError) as refused:
        module.make_handler(environ)
    str(refused.value).encode("ascii")
    assert "-> remove it, or correct its spelling" in str(refused.value)
