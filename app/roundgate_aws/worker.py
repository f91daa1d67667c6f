"""The worker as an AWS Lambda function: batches of the task queue, and the schedule of the sweep.

    SQS event source mapping   {"Records": [{"messageId": …, "body": "owner.id", "eventSource":
    "aws:sqs"}, …]} EventBridge                {"source": "aws.events", …}, or {"task": "sweep"}
    from a schedule's input

The response lists the ids of failed messages. SQS delivers these again, or moves them to the
dead-letter queue. This module never imports FastAPI.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

from roundgate.starting import kept

with kept():  # collecting garbage among all modules takes 4 % of a cold start
    import asyncio
    import logging
    import os
    from collections.abc import Mapping

    from roundgate import aws
    from roundgate.clock import Clock, Deadline, seed_after_restore
    from roundgate.observability.metrics import Metrics
    from roundgate.observability.tracing import environment
    from roundgate.runtime import startup
    from roundgate.storage import TaskRef
    from roundgate.tasks.sweep import Sweep
    from roundgate.tasks.turn import TurnResult
    from roundgate.tasks.worker import Worker

Event: TypeAlias = dict[str, Any]

MARGIN_MS: Final = 3_000
"""The milliseconds between the end of a turn and the end of the invocation, reserved to write the
state and the log."""
AWS_MARGIN_MS: Final = 500
"""The milliseconds between the deadline of AWS calls and the end of the invocation."""
SWEEP_MS: Final = 50_000
"""The limit on a sweep in milliseconds. The next sweep starts a minute after the start of this
sweep, and continues it."""

ALONE_MS: Final = 10_000
"""The milliseconds that a suspect needs after the others of its batch; with less, its message is
delivered again."""
LAST_MS: Final = 1_000
"""The milliseconds before the end of a sweep in which no further part begins."""

log = logging.getLogger("roundgate.tasks")


class LambdaContext(Protocol):
    """The part of AWS Lambda's context object that the worker uses."""

    aws_request_id: str
    """The id of the invocation."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the function is stopped."""


def make_handler(environ: Mapping[str, str]) -> WorkerFunction:
    """Return the handler that an environment describes.

    Raises:
        ConfigError: lists every problem in the environment or in gateway.yaml. Lambda logs it.
    """
    with kept(), startup.reported_in_ascii():
        using, file = startup.read_configuration(environ)
        clock = Clock()
        parts = startup.build_core(file, using, clock, role="worker")
        parts.stores.prepare()  # every event needs them
    trust = parts.trust(file.config, clock)
    worker = parts.worker(file.config, clock, trust)
    sweep = parts.sweep(file.config, clock, trust)
    return WorkerFunction(worker, sweep, clock, parts.stores.metrics)


class WorkerFunction:
    """The handler that the Lambda runtime calls with each event. The event loop is created at the
    first event, because a snapshot must not hold sockets."""

    def __init__(self, worker: Worker, sweep: Sweep, clock: Clock, metrics: Metrics) -> None:
        self._worker = worker
        self._sweep = sweep
        self._clock = clock
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, event: Event, context: LambdaContext) -> Any:
        """Handle an event; see `handle`."""
        if self._loop is None:
            seed_after_restore()
            self._loop = asyncio.new_event_loop()
        with environment({"lambda_request": context.aws_request_id}):
            return self._loop.run_until_complete(
                self.handle(event, context.get_remaining_time_in_millis())
            )

    def close(self) -> None:
        """Close the event loop. AWS Lambda never calls this; tests do."""
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def handle(self, event: Any, remaining_ms: int) -> Any:
        """Return the response to an event. `remaining_ms` is the time until Lambda stops the
        function.

        Raises:
            ValueError: the event is of an unknown kind.
        """
        match event:
            case {"Records": [{"eventSource": "aws:sqs"}, *_] as records}:
                with aws.bounded(self._clock.deadline(max(1, remaining_ms - AWS_MARGIN_MS))):
                    return {"batchItemFailures": await self._batch(records, remaining_ms)}
            case {"source": "aws.events" | "aws.scheduler"} | {"task": "sweep"}:
                within_ms = max(1, min(SWEEP_MS, remaining_ms - MARGIN_MS))
                with aws.bounded(self._clock.deadline(within_ms)):
                    return await self._swept(within_ms)
        kind = (
            f"an object with {sorted(event)[:8]}"
            if isinstance(event, dict)
            else type(event).__name__
        )
        raise ValueError(
            f"This function serves the task queue and the schedule of the sweep, not {kind}"
        )

    async def _batch(self, records: list[Event], remaining_ms: int) -> list[dict[str, str]]:
        """Run the turns of a batch; return the failed messages, which SQS delivers again. Suspects
        run after all others, one after another."""
        deadline = self._clock.deadline(max(1, remaining_ms - MARGIN_MS))
        turns = await asyncio.gather(*(self._message(record, deadline) for record in records))
        for place, record in enumerate(records):
            if turns[place] is TurnResult.SUSPECT:
                turns[place] = await self._alone(record, deadline)
        return [
            {"itemIdentifier": record["messageId"]}
            for record, turn in zip(records, turns, strict=True)
            if turn is None
        ]

    async def _alone(self, record: Event, deadline: Deadline) -> TurnResult | None:
        if (deadline.remaining_ms() or 0) < ALONE_MS:
            return None
        return await self._message(record, deadline, alone=True)

    async def _message(
        self, record: Event, deadline: Deadline, *, alone: bool = False
    ) -> TurnResult | None:
        """Run the turn of a message; return its outcome, or `None` if the message failed."""
        try:
            ref = TaskRef.parse(record.get("body", ""))
            turn = await self._worker.work(ref, deadline, alone=alone)
            if turn is TurnResult.SUSPECT:
                # if this process dies first, the message stays hidden until its visibility timeout
                await self._worker.remind(ref)
            return turn
        except Exception as error:
            log.error(
                "a message failed",
                exc_info=error,
                extra={"fields": {"message": record.get("messageId")}},
            )
            return None

    async def _swept(self, within_ms: int) -> dict[str, float]:
        """Return the delay of the most overdue task in seconds and, if the sweep finished, the
        number of late tasks."""
        # before the sweep, which hides late tasks by queueing them again
        fields = {"overdue_s": await self._sweep.overdue_s()}
        self._metrics.overdue(fields["overdue_s"])
        try:
            async with asyncio.timeout(within_ms / 1000):
                fields["late"] = await self._sweep.sweep(self._clock.deadline(within_ms - LAST_MS))
        except TimeoutError:
            log.warning("the sweep did not finish; the next one continues")
        finally:
            self._metrics.embed("tasks", fields)
        return fields


def __getattr__(name: str) -> WorkerFunction:
    """Make `handler` when the runtime asks for it in the init phase, not at import. Raise
    AttributeError for any other name."""
    if name != "handler":
        raise AttributeError(name)
    made = globals()["handler"] = make_handler(os.environ)
    return made
