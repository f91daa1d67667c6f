"""What invokes the worker function: the event source mapping of its queue, and its schedule."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from infra.stack.functions import InvocationFailed

Invoke: TypeAlias = Callable[[Any], Awaitable[Any]]
"""An event to a function; what it returns. Raises InvocationFailed."""


@dataclass
class Poller:
    """The event source mapping: batches of the queue to the function; what it does not report as failed is deleted.

    What is not deleted is visible again after the queue's time-out, and goes to the dead-letter queue after
    `maxReceiveCount` of its redrive policy: both are SQS's own doing, also for the batch of a function that died.
    """

    sqs: Any
    url: str
    invoke: Invoke
    batch_size: int
    concurrency: int
    arn: str
    reports_failures: bool = True
    """Whether the mapping has ReportBatchItemFailures; without it an answer is not looked at."""
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
            answer = await self.invoke({"Records": [self._record(message) for message in messages]})
        except InvocationFailed:
            self.counts["failed invocations"] += 1
            return
        batch = {message["MessageId"] for message in messages}
        failed = failures(answer, batch) if self.reports_failures else set()
        self.counts["failed messages"] += len(failed)
        done = [message for message in messages if message["MessageId"] not in failed]
        if done:
            entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(done)]
            await asyncio.to_thread(self.sqs.delete_message_batch, QueueUrl=self.url, Entries=entries)

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


def failures(answer: Any, batch: Set[Any]) -> Set[Any]:
    """The ids of the messages that have failed, as a function with ReportBatchItemFailures says it.

    Nothing said means that none has; anything that is not a list of ids of this batch means that all have.
    """
    reported = answer.get("batchItemFailures") if isinstance(answer, dict) else None
    if answer is None or (isinstance(answer, dict) and reported is None):
        return set()
    if not isinstance(reported, list):
        return batch
    ids = [one.get("itemIdentifier") if isinstance(one, dict) else None for one in reported]
    return set(ids) if all(isinstance(one, str) and one in batch for one in ids) else batch


@dataclass
class Schedule:
    """A rule with a fixed rate and a constant input."""

    invoke: Invoke
    every_s: float
    event: Any

    async def run(self) -> None:
        """Invoke for ever; a failed invocation is followed by the next one."""
        while True:
            await asyncio.sleep(self.every_s)
            try:
                await self.invoke(self.event)
            except InvocationFailed:
                continue
