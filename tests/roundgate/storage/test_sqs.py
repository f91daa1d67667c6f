"""The queue at Amazon SQS does what every queue must: boto3 over real HTTP, moto's
server at the other end."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from roundgate.errors import Unavailable
from roundgate.storage.ports import TaskQueue
from roundgate.storage.sqs import CONFIG, SqsQueue
from roundgate.storage.tasks import TaskRef
from tests.roundgate.storage import queue_contract
from tests.roundgate.storage.queue_contract import LetPass
from tests.support import moto_server
from tests.support.reopening import reopening

pytest.importorskip("boto3")

REF = TaskRef("owner", "id")


class Sqs:
    """moto's server, as boto3 is to be told of it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self, **config: Any) -> Any:
        from botocore.config import Config

        return moto_server.session().client(
            "sqs", endpoint_url=self.url, config=Config(**{**CONFIG, "proxies": {}, **config})
        )


def received_one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Of two requests at once moto may give a message to both: it looks first and hides later, without a lock."""
    from moto.sqs.models import SQSBackend

    look, lock = SQSBackend.receive_message, threading.Lock()

    def receive(self: Any, queue: str, count: int, wait_s: int, *rest: Any, **more: Any) -> Any:
        until = time.monotonic() + wait_s
        while True:
            with lock:
                found = look(self, queue, count, 0, *rest, **more)
            if found or time.monotonic() >= until:
                return found
            time.sleep(0.05)

    patch.setattr(SQSBackend, "receive_message", receive)


@pytest.fixture(scope="module")
def sqs() -> Iterator[Sqs]:
    with pytest.MonkeyPatch.context() as patch, moto_server.running() as url:
        received_one_at_a_time(patch)
        yield Sqs(url)


@pytest.fixture
def url(sqs: Sqs, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty queue; it hides messages for longer than the test takes, unless that lets time pass."""
    client = sqs.client()
    hidden = {"VisibilityTimeout": "2" if "let_pass" in request.fixturenames else "60"}
    made: str = client.create_queue(QueueName=f"tasks-{uuid.uuid4()}", Attributes=hidden)[
        "QueueUrl"
    ]
    yield made
    client.delete_queue(QueueUrl=made)
    client.close()


@pytest.fixture
async def reopen(sqs: Sqs, url: str) -> AsyncIterator[queue_contract.Reopen]:
    async with reopening(lambda: SqsQueue(url, sqs.client)) as open_one:
        yield open_one


@pytest.fixture
def let_pass() -> LetPass:
    return asyncio.sleep


class TestSqsQueue(queue_contract.TaskQueueContract):
    """The contract, on SQS."""

    hidden_s = 2.2

    @pytest.mark.xfail(
        strict=True, reason="moto takes any receipt it ever gave; SQS deletes by the last one alone"
    )
    async def test_an_old_receipt_does_not_delete_a_later_delivery(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await super().test_an_old_receipt_does_not_delete_a_later_delivery(queue, let_pass)


class Recorded:
    """A client that only writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def send_message(self, **told: Any) -> dict[str, Any]:
        self.told.append(told)
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("delay_ms", "delay_s"),
    [(0, 0), (1, 1), (1000, 1), (1001, 2), (900_000, 900), (900_001, 900), (10**12, 900)],
)
async def test_a_delay_is_rounded_up_to_seconds_and_capped(delay_ms: int, delay_s: int) -> None:
    client = Recorded()
    await SqsQueue("url", lambda: client).send(REF, delay_ms)
    message = {"MessageBody": "owner.id", "MessageGroupId": "owner"}
    assert client.told == [{"QueueUrl": "url", **message, "DelaySeconds": delay_s}]


class Refusing(Recorded):
    """Takes what is sent in batches, but some only when they come again."""

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        self.told += Entries
        return {
            "Failed": [
                {"Id": entry["Id"]}
                for entry in Entries
                if len(Entries) == 10 and entry["Id"] in "37"
            ]
        }


async def test_what_is_refused_of_a_batch_is_sent_again_under_the_group_of_its_owner() -> None:
    client = Refusing()
    refs = [TaskRef(f"owner{n % 2}", f"{n}") for n in range(12)]
    await SqsQueue("url", lambda: client).send_many(refs)
    assert sorted(entry["MessageBody"] for entry in client.told) == sorted(
        [*map(str, refs), "owner1.3", "owner1.7"]
    )
    for entry in client.told:
        assert entry["MessageGroupId"] == entry["MessageBody"].partition(".")[0]


class Partly(Recorded):
    """Takes no message of the second owner."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        refused = [entry for entry in Entries if entry["MessageGroupId"] == "owner1"]
        self.taken += [entry["MessageBody"] for entry in Entries if entry not in refused]
        return {"Failed": [{"Id": entry["Id"]} for entry in refused]}


async def test_a_batch_that_is_not_taken_keeps_no_other_from_being_sent() -> None:
    client = Partly()
    refs = [TaskRef(f"owner{n // 10}", f"{n}") for n in range(30)]
    with pytest.raises(Unavailable):
        await SqsQueue("url", lambda: client).send_many(refs)
    assert sorted(client.taken) == sorted(str(ref) for ref in refs if ref.owner != "owner1")


class Full(Recorded):
    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        return {"Failed": [{"Id": entry["Id"]} for entry in Entries]}


async def test_a_batch_that_is_never_taken_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await SqsQueue("url", Full).send_many([REF])


async def test_what_is_no_reference_is_deleted_and_logged_and_the_rest_is_delivered(
    sqs: Sqs, url: str, reopen: queue_contract.Reopen, caplog: pytest.LogCaptureFixture
) -> None:
    client, queue = sqs.client(), reopen()
    for body in ("no reference", "{}", "x" * 5000):
        client.send_message(QueueUrl=url, MessageBody=body)
    await queue.send(REF)
    assert [message.ref for message in await queue_contract.drain(queue, 1)] == [REF]
    await queue.receive(10, 0)
    said = [entry.getMessage() for entry in caplog.records if entry.name == "roundgate.storage.sqs"]
    assert len(said) == 3
    assert max(map(len, said)) < 300
    attributes = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = client.get_queue_attributes(QueueUrl=url, AttributeNames=attributes)["Attributes"]
    assert left == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "1",
    }


async def test_a_message_that_came_after_its_receive_was_cancelled_goes_to_somebody_else(
    reopen: queue_contract.Reopen,
) -> None:
    """The long poll cannot be called back: what it still gets it gives back, long
    before the minute is over."""
    given_up = asyncio.ensure_future(reopen().receive(10, 5000))
    await asyncio.sleep(0.3)
    given_up.cancel()
    await asyncio.wait([given_up])
    other = reopen()
    await other.send(REF)
    await asyncio.sleep(1)  # the poll has it by now
    assert [message.ref for message in await queue_contract.drain(other, 1)] == [REF]


def test_making_a_queue_makes_no_client() -> None:
    def make() -> Any:
        raise AssertionError("not yet")

    SqsQueue("url", make)


async def test_a_queue_that_cannot_be_reached_is_unavailable(sqs: Sqs) -> None:
    nowhere = Sqs("http://127.0.0.1:9")
    queue = SqsQueue(
        "http://127.0.0.1:9/1/tasks", lambda: nowhere.client(retries={"total_max_attempts": 1})
    )
    with pytest.raises(Unavailable):
        await queue.send(REF)
    with pytest.raises(Unavailable):
        await queue.receive(10, 0)
    await queue.aclose()


async def test_a_queue_that_does_not_exist_is_a_mistake_and_not_unavailable(sqs: Sqs) -> None:
    queue = SqsQueue(f"{sqs.url}/123456789012/unknown", sqs.client)
    with pytest.raises(Exception, match="NonExistentQueue"):
        await queue.send(REF)
    await queue.aclose()
