"""What invokes the worker function: the event source mapping of its queue, and its schedule."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.stack.functions import InvocationFailed, Pool


@dataclass
class Poller:
    """The event source mapping: batches of the queue to the function; what it does not report as failed is deleted.

    What is not deleted is visible again after the queue's time-out, and goes to the dead-letter queue after
    `maxReceiveCount` of its redrive policy: both are SQS's own doing.
    """

    sqs: Any
    url: str
    pool: Pool
    batch_size: int
    concurrency: int
    arn: str
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Poll for ever."""
        await asyncio.gather(*(self._poll() for _ in range(self.concurrency)))

    async def _poll(self) -> None:
        while True:
            answer = await asyncio.to_thread(
                self.sqs.receive_message,
                QueueUrl=self.url,
                MaxNumberOfMessages=self.batch_size,
                WaitTimeSeconds=1,
                AttributeNames=["All"],
            )
            if messages := answer.get("Messages", []):
                await self._deliver(messages)

    async def _deliver(self, messages: list[Any]) -> None:
        self.counts["messages"] += len(messages)
        try:
            answer = await self.pool.invoke({"Records": [self._record(message) for message in messages]})
        except InvocationFailed:
            self.counts["failed invocations"] += 1
            await self._show_again(messages)
            return
        failed = {one["itemIdentifier"] for one in (answer or {}).get("batchItemFailures", [])}
        self.counts["failed messages"] += len(failed)
        done = [message for message in messages if message["MessageId"] not in failed]
        if done:
            entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(done)]
            await asyncio.to_thread(self.sqs.delete_message_batch, QueueUrl=self.url, Entries=entries)

    async def _show_again(self, messages: list[Any]) -> None:
        """AWS leaves a failed batch hidden until its time-out; ours is an hour and a half, so nobody would wait for it.
        The sweep does not need it either: this only keeps the redrive policy at work."""
        entries = [
            {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 30}
            for n, one in enumerate(messages)
        ]
        await asyncio.to_thread(self.sqs.change_message_visibility_batch, QueueUrl=self.url, Entries=entries)

    def _record(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {},
            "md5OfBody": hashlib.md5(message["Body"].encode(), usedforsecurity=False).hexdigest(),
            "eventSource": "aws:sqs",
            "eventSourceARN": self.arn,
            "awsRegion": "eu-central-1",
        }


@dataclass
class Schedule:
    """A rule with a fixed rate and a constant input."""

    pool: Pool
    every_s: float
    event: Any

    async def run(self) -> None:
        """Invoke for ever; a failed invocation is followed by the next one."""
        while True:
            await asyncio.sleep(self.every_s)
            try:
                await self.pool.invoke(self.event)
            except InvocationFailed:
                continue
