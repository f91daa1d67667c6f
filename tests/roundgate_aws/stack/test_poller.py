"""The event source mapping against moto's SQS: what it makes of each thing that
a function may answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from roundgate_aws.stack.events import Poller, failures
from roundgate_aws.stack.runtime_api import InvocationFailed
from tests.support import moto_server

boto3 = pytest.importorskip("boto3")

BATCH = {"1", "2"}


@dataclass
class Function:
    """Answers each batch with the next of its answers; what it is to raise is raised."""

    answers: list[Any]
    batches: list[list[str]] = field(default_factory=list)

    async def __call__(self, event: Any) -> Any:
        self.batches.append(sorted(record["body"] for record in event["Records"]))
        answer = self.answers[min(len(self.batches), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer(event["Records"]) if callable(answer) else answer


@dataclass
class Queue:
    """A queue that hides messages for a second, and gives up on them after two deliveries."""

    sqs: Any
    url: str
    dead: str

    def send(self, *bodies: str) -> None:
        entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)]
        self.sqs.send_message_batch(QueueUrl=self.url, Entries=entries)

    def letters(self) -> list[str]:
        """The bodies in the dead-letter queue."""
        answer = self.sqs.receive_message(QueueUrl=self.dead, MaxNumberOfMessages=10)
        return sorted(one["Body"] for one in answer.get("Messages", []))

    async def poll(self, function: Function, deliveries: int) -> None:
        """Deliver until the function has had so many batches, and then for a little longer."""
        arn = "arn:aws:sqs:eu-central-1:1:q"
        poller = Poller(self.sqs, self.url, function, batch_size=10, concurrency=1, arn=arn)
        polling = asyncio.create_task(poller.run())
        async with asyncio.timeout(60):
            while len(function.batches) < deliveries:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(2.5)
        polling.cancel()
        with suppress(asyncio.CancelledError):
            await polling


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server.running() as url:
        yield url


@pytest.fixture
def queue(endpoint: str) -> Iterator[Queue]:
    sqs = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name="eu-central-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    name = str(uuid.uuid4())
    dead = sqs.create_queue(QueueName=f"dead-{name}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    redrive = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": "2"}}'
    attributes = {"VisibilityTimeout": "1", "RedrivePolicy": redrive}
    yield Queue(sqs, sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"], dead)
    sqs.close()


def failing(body: str) -> Any:
    """Reports the messages of a body."""

    def answer(records: list[Any]) -> Any:
        ids = [record["messageId"] for record in records if record["body"] == body]
        return {"batchItemFailures": [{"itemIdentifier": one} for one in ids]}

    return answer


async def test_the_reported_message_alone_comes_again_and_ends_in_the_dead_letter_queue(
    queue: Queue,
) -> None:
    function = Function([failing("bad")])
    queue.send("good", "bad", "fine")
    await queue.poll(function, deliveries=2)
    assert function.batches == [["bad", "fine", "good"], ["bad"]]
    assert queue.letters() == ["bad"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(InvocationFailed("died"), id="a death"),
        pytest.param("done", id="a report that is none"),
    ],
)
async def test_the_whole_batch_comes_again_after(queue: Queue, answer: Any) -> None:
    function = Function([answer, None])
    queue.send("one", "two")
    await queue.poll(function, deliveries=2)
    assert function.batches == [["one", "two"], ["one", "two"]]
    assert queue.letters() == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="nothing"),
        pytest.param({}, id="an empty object"),
        pytest.param({"batchItemFailures": None}, id="null"),
        pytest.param({"batchItemFailures": []}, id="an empty list"),
    ],
)
def test_a_function_that_reports_nothing_has_done_all(answer: Any) -> None:
    assert failures(answer, BATCH) == set()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("done", id="no object"),
        pytest.param({"batchItemFailures": "1"}, id="no list"),
        pytest.param({"batchItemFailures": [{"itemIdentifier": ""}]}, id="an empty id"),
        pytest.param({"batchItemFailures": [{"itemIdentifier": None}]}, id="a null id"),
        pytest.param({"batchItemFailures": [{"id": "1"}]}, id="another key"),
        pytest.param({"batchItemFailures": ["1"]}, id="a bare id"),
        pytest.param({"batchItemFailures": [{"itemIdentifier": "unknown"}]}, id="an unknown id"),
        pytest.param(
            {"batchItemFailures": [{"itemIdentifier": ["1"]}]}, id="an id that is no text"
        ),
    ],
)
def test_a_report_that_cannot_be_read_fails_the_whole_batch(answer: Any) -> None:
    assert failures(answer, BATCH) == BATCH
