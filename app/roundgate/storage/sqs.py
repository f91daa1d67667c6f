"""The task queue on Amazon SQS: a standard queue, whose own settings have the visibility timeout.

The body of a message is the reference of a task as text; other messages are logged and deleted. The
group of a message is the owner of the task. A standard queue keeps no order within a group, but
lets groups take turns when one has many messages ("fair queues",
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-fair-queues.html).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from roundgate.aws import PROMPT, Aws, MakeClient
from roundgate.errors import Unavailable
from roundgate.storage.ports import Message
from roundgate.storage.tasks import TaskRef

logger = logging.getLogger(__name__)

MOST_DELAY_S: Final = 900
MOST_WAIT_S: Final = 20
BATCH: Final = 10
_BATCH_TRIES: Final = 3

CONFIG: Final = PROMPT
"""The options of `botocore.config.Config` for the client that sends and deletes: short timeouts,
because a caller waits."""
RECEIVING: Final[Mapping[str, Any]] = MappingProxyType({**PROMPT, "read_timeout": MOST_WAIT_S + 5})
"""The options for the client that receives: its read timeout is longer than a long poll."""


class SqsQueue:
    """A `TaskQueue` on Amazon SQS."""

    def __init__(
        self, url: str, make_client: MakeClient, make_receiver: MakeClient | None = None
    ) -> None:
        self._url = url
        self._aws = Aws(make_client, "The queue")
        self._receiver = Aws(make_receiver or make_client, "The queue")
        self.prepare = self._aws.prepare
        self._closing = asyncio.Event()

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Send a message, as `TaskQueue.send` does. Delays are rounded up to seconds, and capped at
        15 minutes."""
        delay_s = min(_seconds(delay_ms), MOST_DELAY_S)
        await self._aws.call(
            "send_message", QueueUrl=self._url, **_message(ref), DelaySeconds=delay_s
        )

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        """Send messages, as `TaskQueue.send_many` does: ten per call, in concurrent calls. Retry
        refused messages.

        Raises:
            Unavailable: SQS cannot be reached, or refused a message three times. All other messages
                were sent.
        """
        batches = (refs[start : start + BATCH] for start in range(0, len(refs), BATCH))
        outcomes = await asyncio.gather(*map(self._send_some, batches), return_exceptions=True)
        for error in filter(None, outcomes):
            raise error

    async def _send_some(self, refs: Sequence[TaskRef]) -> None:
        entries = [{"Id": f"{n}", **_message(ref)} for n, ref in enumerate(refs)]
        for _ in range(_BATCH_TRIES):
            entries = await self._send_batch(entries)
        if entries:
            raise Unavailable("The queue cannot take all messages just now")

    async def _send_batch(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send a batch and return the entries that SQS refused."""
        if not entries:
            return []
        answer = await self._aws.call("send_message_batch", QueueUrl=self._url, Entries=entries)
        refused = {failure["Id"] for failure in answer.get("Failed", [])}
        return [entry for entry in entries if entry["Id"] in refused]

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        """Return at most 10 messages, as `TaskQueue.receive` does. `skip` is ignored: SQS decides
        which owner is next."""
        left_s = _seconds(wait_ms)
        while not self._closing.is_set():
            wait_s = min(left_s, MOST_WAIT_S)
            left_s -= wait_s
            messages = await self._known(await self._poll(min(limit, BATCH), wait_s))
            if messages or left_s == 0:
                return messages
        return []

    async def _poll(self, limit: int, wait_s: int) -> list[Any]:
        """Return the messages of one long poll, or none if the queue is closed first."""
        given_up = threading.Event()
        work = partial(self._receive, limit=limit, wait_s=wait_s, given_up=given_up)
        poll = asyncio.ensure_future(self._receiver.do(work, abandon=True))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([poll, closing], return_when=asyncio.FIRST_COMPLETED)
            return await poll if poll.done() else []
        finally:
            given_up.set()
            poll.cancel()
            closing.cancel()

    def _receive(
        self, client: Any, limit: int, wait_s: int, given_up: threading.Event
    ) -> list[Any]:
        answer = client.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=limit, WaitTimeSeconds=wait_s
        )
        messages: list[Any] = answer.get("Messages", [])
        # `_poll` has ended without these messages: make them visible to other workers at once
        if messages and given_up.is_set():
            visible = [
                _entry(n, message["ReceiptHandle"]) | {"VisibilityTimeout": 0}
                for n, message in enumerate(messages)
            ]
            client.change_message_visibility_batch(QueueUrl=self._url, Entries=visible)
        return messages

    async def _known(self, received: Sequence[Any]) -> list[Message]:
        """Return the messages that are task references; log and delete all other messages."""
        messages, unknown = [], []
        for item in received:
            try:
                messages.append(Message(TaskRef.parse(item["Body"]), item["ReceiptHandle"]))
            except ValueError:
                logger.warning(
                    "deleted a message that is not a task reference from the queue: %.100r",
                    item["Body"],
                )
                unknown.append(item["ReceiptHandle"])
        await self._delete(unknown)
        return messages

    async def delete(self, messages: Sequence[Message]) -> None:
        await self._delete([message.receipt for message in messages])

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        """Return messages to the queue, as `TaskQueue.put_back` does. Delays are rounded up to
        seconds."""
        hidden = {"VisibilityTimeout": _seconds(delay_ms)}
        for start in range(0, len(messages), BATCH):
            some = messages[start : start + BATCH]
            entries = [_entry(n, message.receipt) | hidden for n, message in enumerate(some)]
            await self._aws.call(
                "change_message_visibility_batch", QueueUrl=self._url, Entries=entries
            )

    async def depth(self) -> int | None:
        """Return the approximate depth, as `TaskQueue.depth` does. Eventually consistent; excludes
        delayed messages."""
        name = "ApproximateNumberOfMessages"
        answer = await self._aws.call(
            "get_queue_attributes", QueueUrl=self._url, AttributeNames=[name]
        )
        return int(answer["Attributes"][name])

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        """Return `None`, because SQS cannot list its messages."""
        return None

    async def _delete(self, receipts: Sequence[str]) -> None:
        """Delete messages. Outdated receipts are ignored, because their messages were delivered
        again or deleted."""
        for start in range(0, len(receipts), BATCH):
            entries = [
                _entry(n, receipt) for n, receipt in enumerate(receipts[start : start + BATCH])
            ]
            await self._aws.call("delete_message_batch", QueueUrl=self._url, Entries=entries)

    async def aclose(self) -> None:
        """Close the clients, as `TaskQueue.aclose` does. A running long poll continues in its
        thread until SQS answers."""
        self._closing.set()
        await self._aws.aclose()
        await self._receiver.aclose()


def _message(ref: TaskRef) -> dict[str, str]:
    return {"MessageBody": str(ref), "MessageGroupId": ref.owner}


def _seconds(ms: int) -> int:
    return -(-ms // 1000)


def _entry(n: int, receipt: str) -> dict[str, Any]:
    return {"Id": f"{n}", "ReceiptHandle": receipt}
