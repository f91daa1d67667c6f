"""Tasks through API Gateway, the queue and the functions as they are deployed, with
functions that die meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pytest

from tests.roundgate_aws.stack.conftest import TIMES, Deployed, begun, until
from tests.support.asgi import Client
from tests.support.cloudwatch import Alarm, alarms
from tests.support.rounds import Conversation, accept, tool
from tests.support.task_client import TaskClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

WITHIN_S = 90


def workers_log(stack: Deployed) -> str:
    """The log of all workers; one that has not started yet has none."""
    logs = [one.log for one in stack.stack.workers.environments]
    return "".join(log.read_text() for log in logs if log.exists())


def kill_all(stack: Deployed) -> None:
    """Every function of both kinds."""
    for one in stack.stack.environments:
        one.kill()


async def test_a_task_with_two_questions_survives_workers_that_die_in_its_steps(
    stack: Deployed, tasks: TaskClient
) -> None:
    task_id = await tasks.begin("deliver", order="killed")
    receipts = []
    for step, key, name in (("pack", "to", "Ada"), ("send", "by", "Bob")):
        await begun(stack, "killed", step)
        kill_all(stack)  # in the middle of the step: done, and not noted
        asked = (await until(tasks, task_id, "input_required", WITHIN_S))["inputRequests"]
        receipts.append(asked[key]["params"]["message"].split("(")[1].rstrip(")"))
        kill_all(stack)
        await tasks.answer(task_id, {key: accept(name=name)})
    ended = await until(tasks, task_id, "completed", WITHIN_S)
    packed, sent = receipts
    assert json.loads(ended["result"]["content"][0]["text"]) == [packed, "Ada", sent, "Bob"]
    happened = stack.done("killed")
    assert [line.split()[0] for line in happened] == ["pack", "pack", "send", "send"]
    assert happened[1::2] == [f"pack {packed}", f"send {sent}"]


async def test_a_call_of_three_limits_ends_as_a_task_and_by_shedding_for_a_polling_client(
    stack: Deployed, mcp: Client, tasks: TaskClient
) -> None:
    seconds = 3 * (TIMES.gateway_s or 0)

    async def as_task() -> str:
        ended = await until(
            tasks, await tasks.begin("dig", seconds=seconds, order="task"), "completed", WITHIN_S
        )
        text: str = ended["result"]["content"][0]["text"]
        return text

    conversation = Conversation({})
    repeated = conversation.have(repeat(mcp), *tool("dig", seconds=seconds, order="shed"))
    task, shed = await asyncio.gather(as_task(), repeated)
    assert stack.done("task") == [f"dug {task}"]
    assert stack.done("shed") == [f"dug {shed['content'][0]['text']}"]
    assert len(conversation.asked) >= 3
    assert not any(conversation.asked), "nothing but state"


async def test_a_task_under_way_goes_on_in_the_version_that_a_deployment_brings(
    stack: Deployed, tasks: TaskClient
) -> None:
    task_id = await tasks.begin("release")
    await until(tasks, task_id, "input_required", WITHIN_S)
    for function in ("GatewayFunction", "WorkerFunction"):
        (stack.stack.deployment.directory / function / "version.txt").write_text("2")
    kill_all(stack)  # functions that are replaced end
    await tasks.answer(task_id, {"go": accept(name="Ada")})
    ended = await until(tasks, task_id, "completed", WITHIN_S)
    assert ended["result"]["content"][0]["text"] == "begun by 1, ended by 2"


async def test_the_sweep_tells_what_the_alarms_look_at_and_they_keep_quiet(
    stack: Deployed, tasks: TaskClient
) -> None:
    known = alarms(stack.stack.deployment.template)
    told: dict[str, list[float | None]] = {"OverdueTasksAlarm": []}
    end = time.monotonic() + WITHIN_S
    while min(map(len, told.values())) < known["OverdueTasksAlarm"].periods:
        assert time.monotonic() < end, told
        await asyncio.sleep(0.5)
        lines = workers_log(stack).splitlines()
        swept = [json.loads(line) for line in lines if '"_aws"' in line]
        for name, values in told.items():
            (metric,) = known[name].metrics
            values[:] = [
                line[metric.name]
                for line in swept
                if metric.name in line and metric.dimensions.items() <= line.items()
            ]
    for name, values in told.items():
        assert not known[name].fires(values), name
        assert known[name].fires([alarm_at(known[name])] * 10)


def alarm_at(alarm: Alarm) -> float:
    """A value that it fires at."""
    return alarm.threshold


async def test_a_task_that_sleeps_often_ends(stack: Deployed, tasks: TaskClient) -> None:
    ended = await until(tasks, await tasks.begin("nap", times=5), "completed", 3 * WITHIN_S)
    assert ended["result"]["content"][0]["text"] == "5"


async def test_a_message_that_is_no_task_fails_alone_and_ends_in_the_dead_letter_queue(
    stack: Deployed, tasks: TaskClient
) -> None:
    failed = stack.stack.poller.counts["failed messages"]
    with hidden_for_a_second(stack):
        await asyncio.sleep(1.5)  # polls under way hide for as long as when they began
        send(stack, "not a task")
        task_id = await tasks.begin("deliver", order="beside")
        asked = await until(tasks, task_id, "input_required", WITHIN_S)
        letter = await dead_letter(stack)
    assert asked["inputRequests"].keys() == {"to"}
    assert letter["Body"] == "not a task"
    assert stack.stack.poller.counts["failed messages"] == failed + 5, (
        "as often as the template has it"
    )
    log = workers_log(stack)
    assert "a message failed" in log
    assert letter["MessageId"] in log


async def test_a_worker_reports_the_bad_message_of_a_batch_and_no_other(stack: Deployed) -> None:
    bodies = {"1": "nobody.nothing", "2": "not a task", "3": "nobody.nothing"}
    records = [
        {"messageId": n, "body": body, "eventSource": "aws:sqs"} for n, body in bodies.items()
    ]
    answer = await stack.stack.workers.invoke({"Records": records})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "2"}]}


@contextmanager
def hidden_for_a_second(stack: Deployed) -> Iterator[None]:
    """The queue shows a message again after a second; the template's time-out is an hour and a half."""
    sqs, url = stack.stack.aws.client("sqs"), stack.stack.resources["Queue"]
    before = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])[
        "Attributes"
    ]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "1"})
    yield
    sqs.set_queue_attributes(QueueUrl=url, Attributes=before)


def send(stack: Deployed, body: str) -> None:
    stack.stack.aws.client("sqs").send_message(
        QueueUrl=stack.stack.resources["Queue"], MessageBody=body
    )


async def dead_letter(stack: Deployed) -> dict[str, Any]:
    """The one that there is, once it is there."""
    sqs, url = stack.stack.aws.client("sqs"), stack.stack.resources["DeadLetters"]
    found: list[dict[str, Any]] = []
    end = time.monotonic() + WITHIN_S
    while not found:
        assert time.monotonic() < end, "nothing in the dead-letter queue"
        answer = await asyncio.to_thread(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=1)
        found = answer.get("Messages", [])
    (letter,) = found
    return letter
