"""What invokes the worker function: the event source mapping of its queue, and its schedule."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from roundgate.deployment.stack import loops
from roundgate.errors import InvocationFailed, Throttled

Invoke: TypeAlias = Callable[..., Awaitable[Any]]
"""An event, and the trace header of what led to it, to a function; what it returns. Raises
InvocationFailed."""

THROTTLED_S = 1.0
"""How long until the event source tries again."""


@dataclass
class Poller:
    """The event source mapping: batches of the queue to the function; what it does not
    report as failed is deleted.

    What is not deleted is visible again after the queue's time-out, and goes to the dead-letter
    queue after `maxReceiveCount` of its redrive policy: both are SQS's own doing, also for the
    batch of a function that died.
    """

    sqs: Any
    url: str
    invoke: Invoke
    batch_size: int
    concurrency: int
    arn: str
    reports_failures: bool = True
    """Whether the mapping has ReportBatchItemFailures; without it an answer is not looked at."""
    dead_letters: str = ""
    """Where messages go that have invoked the function too often in one chain."""
    allows_loops: bool = False
    """Whether the function has `RecursiveLoop: Allow`, see `roundgate.deployment.stack.loops`."""
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
            if messages := await self._without_loops(answer.get("Messages", [])):
                await self._deliver(messages)

    async def _without_loops(self, messages: list[Any]) -> list[Any]:
        """Those that AWS Lambda would still invoke the function with; the others are dead letters
        now."""
        passed = []
        for message in messages:
            if self.allows_loops or _count(message) <= loops.MOST:
                passed.append(message)
                continue
            self.counts["loops stopped"] += 1
            body, receipt = message["Body"], message["ReceiptHandle"]
            await asyncio.to_thread(
                self.sqs.send_message, QueueUrl=self.dead_letters, MessageBody=body
            )
            await asyncio.to_thread(
                self.sqs.delete_message, QueueUrl=self.url, ReceiptHandle=receipt
            )
        return passed

    async def _invoked(self, messages: list[Any]) -> Any:
        """What the function answers; while it is throttled, nobody else gets the messages."""
        event = {"Records": [self._record(message) for message in messages]}
        number = max(map(_count, messages))
        self.counts["longest chain"] = max(self.counts["longest chain"], number)
        trace = loops.one_more(_trace(messages[0]), number)
        while True:
            try:
                return await self.invoke(event, trace)
            except Throttled:
                self.counts["throttled"] += 1
                await asyncio.sleep(THROTTLED_S)

    async def _deliver(self, messages: list[Any]) -> None:
        self.counts["messages"] += len(messages)
        try:
            answer = await self._invoked(messages)
        except InvocationFailed:
            self.counts["failed invocations"] += 1
            return
        batch = {message["MessageId"] for message in messages}
        failed = failures(answer, batch) if self.reports_failures else set()
        self.counts["failed messages"] += len(failed)
        done = [message for message in messages if message["MessageId"] not in failed]
        if done:
            entries = [
                {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(done)
            ]
            await asyncio.to_thread(
                self.sqs.delete_message_batch, QueueUrl=self.url, Entries=entries
            )

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


def _trace(message: Mapping[str, Any]) -> str | None:
    found: str | None = message.get("Attributes", {}).get("AWSTraceHeader")
    return found


def _count(message: Mapping[str, Any]) -> int:
    """The how-manieth invocation in its chain a message would be."""
    return loops.count(_trace(message)) + 1


def failures(answer: Any, batch: Set[Any]) -> Set[Any]:
    """The ids of the messages that have failed, as a function with ReportBatchItemFailures says it.

    Nothing said means that none has; anything that is not a list of ids of this
    batch means that all have.
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
