"""The actions of an operator on tasks: one table, for `roundgate tasks` and the console.

The audit log records an action with its operator before it happens, and then its result
(`recorded`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from roundgate.audit.records import answer_facts
from roundgate.auth import Principal, task_owner
from roundgate.backends.approvals import is_approval
from roundgate.clock import Clock
from roundgate.errors import NotRetryable, TaskNotFound
from roundgate.json import decode, encode
from roundgate.operators.continuing import Repeated, continue_from, repeated, retry
from roundgate.operators.facts import short_event
from roundgate.operators.finding import pages
from roundgate.protocol import OPEN, TERMINAL, Status
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRecord, TaskRef, Wanted
from roundgate.tasks import Tasks
from roundgate.tasks.events import AnswersTaken, Cancel, Cancelled, Delivered, Requeue, TakeAnswers
from roundgate.tasks.external import Deliveries
from roundgate.tasks.machine import is_parked
from roundgate.tasks.stored import StoredTasks

T = TypeVar("T")
log: Final = logging.getLogger("roundgate.console")

CANCELLED_BY_OPERATOR: Final = "The operator cancelled the task"

ActionName = Literal["retry", "requeue", "answer", "event", "cancel", "purge"]


class Action(Struct, frozen=True):
    """An action on a task."""

    effect: str
    """Its effect, which the operator confirms."""
    statuses: frozenset[Status]
    """The statuses of tasks that allow it."""
    applies: Callable[[TaskRecord, int], bool]
    """Whether a task with such a status allows it at a time in milliseconds."""


def _is_alive(record: TaskRecord, now_ms: int) -> bool:
    return record.expires_ms > now_ms


def _is_served(record: TaskRecord, now_ms: int) -> bool:
    return _is_alive(record, now_ms) and not record.ref.is_hidden


ACTIONS: Final[Mapping[ActionName, Action]] = MappingProxyType(
    {
        "retry": Action(
            "The task continues: steps before the chosen one keep their results, it and later ones run again.",
            frozenset({Status.WORKING, Status.FAILED}),
            lambda record, now_ms: (
                _is_served(record, now_ms) and (is_parked(record) or record.may_be_retried)
            ),
        ),
        "requeue": Action(
            "A worker claims the task again. A worker that runs it now can no longer write.",
            frozenset({Status.WORKING}),
            _is_served,
        ),
        "answer": Action(
            "The task continues with this answer, as if its caller had given it.",
            OPEN,
            lambda record, now_ms: _is_served(record, now_ms) and bool(record.requests),
        ),
        "event": Action(
            "The task gets the payload, as if its service had delivered the event.",
            frozenset(Status),
            lambda record, now_ms: (
                _is_alive(record, now_ms) and any(mark.is_open(now_ms) for mark in record.events)
            ),
        ),
        "cancel": Action(
            "The task ends as cancelled. A worker that runs it stops at its next write.",
            OPEN,
            _is_alive,
        ),
        "purge": Action(
            "The task is deleted, and its caller can no longer read its result.",
            TERMINAL,
            lambda record, now_ms: True,
        ),
    }
)


def possible_actions(record: TaskRecord, now_ms: int) -> list[ActionName]:
    """Return the actions that a task's state allows."""
    return [
        name
        for name, action in ACTIONS.items()
        if record.shown_status in action.statuses and action.applies(record, now_ms)
    ]


_DELIVERED: Final[Mapping[Delivered, str]] = MappingProxyType(
    {
        Delivered.KEPT: "has the event; its handler reads the event when it waits for it",
        Delivered.WAKES: "has the event and continues",
        Delivered.AGAIN: "already had this event with the same payload",
        Delivered.OTHER: "already had this event with another payload, which is kept",
        Delivered.CLOSED: "no longer accepts this event: its time is over, or the task has ended",
        Delivered.UNKNOWN_TASK: "does not exist any more",
    }
)
_ACCEPTED: Final = frozenset({Delivered.KEPT, Delivered.WAKES, Delivered.AGAIN})
_ANSWERED: Final[Mapping[AnswersTaken, str]] = MappingProxyType(
    {
        AnswersTaken.UNKNOWN_TASK: "does not exist, or has expired",
        AnswersTaken.NOT_NEEDED: "no longer asks this question",
        AnswersTaken.LATER: "runs at the moment, and may ask this question again; answer it then",
        AnswersTaken.PARTLY: "has the answer, and waits for answers to its other questions",
        AnswersTaken.FULLY: "has the answer and continues",
    }
)


class Act(BaseModel):
    """An action on a task, with its values."""

    model_config = ConfigDict(extra="forbid")

    action: ActionName
    step: str | None = Field(
        None, description="Of `retry`: the step from which the task continues."
    )
    event: str | None = Field(None, description="Of `event`: the name of the external event.")
    payload: Any = Field(None, description="Of `event`: its payload, any JSON value.")
    answers: dict[str, Any] | None = Field(
        None, description="Of `answer`: an `InputResponse` by the key of each question."
    )


class Acted(BaseModel):
    """The result of an action."""

    task: str
    done: bool
    text: str = Field(description="The result in words that follow the name of the task.")


@dataclass(frozen=True, slots=True)
class TaskControl:
    """Acts on tasks for one operator."""

    store: StoredTasks
    clock: Clock
    config: TasksConfig
    principal: Principal | None = None
    """The operator; by default the user that runs this process."""
    views: Sequence[str] = ()
    """The views of the MCP endpoints."""

    async def select(self, name: ActionName, wanted: Wanted) -> dict[TaskRef, int]:
        """Return the tasks of a search to which an action applies, with their fences. `requeue`
        leaves tasks alone that a worker runs, and those that sleep.

        Raises:
            Unavailable: the store cannot be reached.
        """
        action, now_ms = ACTIONS[name], self.clock.now_ms()
        statuses = (wanted.statuses or action.statuses) & action.statuses
        if not statuses:
            return {}
        return {
            record.ref: record.fence
            async for page in pages(self.store, replace(wanted, statuses=statuses))
            for record in page
            if action.applies(record, now_ms)
            and (name != "requeue" or max(record.lease_until_ms, record.wake_ms) <= now_ms)
        }

    async def act(self, ref: TaskRef, act: Act, fence: int | None = None) -> Acted:
        """Act on a task. `fence` is its fence in a search, so that a task that a worker has claimed
        since then is left alone; a named task is taken even from a worker.

        Raises:
            Unavailable: the store cannot be reached, or the audit log cannot be written.
        """
        try:
            acted = Acted(task=str(ref), done=True, text=await self._act(ref, act, fence))
        except NotRetryable as refusal:
            acted = Acted(task=str(ref), done=False, text=str(refusal))
        operator = {} if self.principal is None else self.principal.names
        outcome = "done" if acted.done else "nothing done"
        ids = {"task": str(ref), "action": act.action, **operator, "outcome": outcome}
        log.info("an operator acts on a task", extra={"fields": ids})
        return acted

    async def repeats(self, ref: TaskRef, step: str) -> Repeated:
        """Return the actions that a task repeats if it continues from a step.

        Raises:
            NotRetryable: the task cannot continue, or has no such step.
            Unavailable: the store cannot be reached.
        """
        record, work = await self.store.read_work(ref)
        if record is None or work is None:
            raise NotRetryable("does not exist, or is no longer stored completely")
        if not (is_parked(record) or record.is_unfinished):
            raise NotRetryable("is not parked, and neither failed at a step nor was given up")
        return repeated(work, step)

    async def _act(self, ref: TaskRef, act: Act, fence: int | None) -> str:
        """Return the result in words. Raise NotRetryable if nothing was done."""
        match act:
            case Act(action="event"):
                return await self._deliver(ref, act.event or "", act.payload)
            case Act(action="answer"):
                return await self._answer(ref, act.answers or {})
            case Act(action="retry", step=str(step)):
                record, now_ms = await self._read(ref), self.clock.now_ms()
                return await self._recorded(
                    "retry", ref, lambda: continue_from(self.store, record, now_ms, step), step=step
                )
        change = {
            "cancel": self._cancel,
            "requeue": self._requeue,
            "retry": self._retry,
            "purge": self._purge,
        }[act.action]
        return await self._recorded(act.action, ref, lambda: change(ref, fence))

    async def _read(self, ref: TaskRef) -> TaskRecord:
        record = await self.store.read(ref, self.clock.now_ms())
        if record is None:
            raise NotRetryable("does not exist, or has expired")
        return record

    async def _cancel(self, ref: TaskRef, fence: int | None) -> str:
        now_ms = self.clock.now_ms()
        event = Cancel(CANCELLED_BY_OPERATOR, now_ms)
        cancelled = (await self.store.apply(ref, event, now_ms)).result
        if cancelled is Cancelled.UNKNOWN_TASK:
            raise NotRetryable("does not exist")
        if cancelled is Cancelled.CLEAN_UP:
            return "is cancelled; a worker cancels its job"
        record = await self.store.read(ref, now_ms)
        return f"is {record.status.value if record else 'deleted'}"

    async def _requeue(
        self,
        ref: TaskRef,
        fence: int | None,
        refusal: str = "is not working, or a worker has claimed it meanwhile:"
        " only a task that waits for a worker can be queued again",
    ) -> str:
        if ref.is_hidden:
            raise NotRetryable(
                "is a call of an older client or server, which no worker runs; cancel it instead"
            )
        now_ms = self.clock.now_ms()
        if not (await self.store.apply(ref, Requeue(now_ms, fence), now_ms)).happened:
            raise NotRetryable(refusal)
        return "is queued; a worker that ran it can no longer write to it"

    async def _retry(self, ref: TaskRef, fence: int | None) -> str:
        now_ms = self.clock.now_ms()
        record = await self.store.read(ref, now_ms)
        if record is None or not record.is_unfinished:
            refusal = (
                "is not parked, and neither failed at a step nor was given up, or a worker has claimed"
                " it meanwhile: there is nothing to retry"
            )
            return await self._requeue(ref, fence, refusal)
        successor = await retry(self.store, ref, now_ms)
        step = "the failed step" if record.failed_steps else "a step that had begun"
        return f"continues as {successor}: finished steps are kept, {step} runs again"

    async def _purge(self, ref: TaskRef, fence: int | None) -> str:
        if not await self.store.purge(ref, self.clock.now_ms()):
            raise NotRetryable("does not exist, or is open: cancel it first")
        return "is purged"

    async def _deliver(self, ref: TaskRef, event: str, payload: Any) -> str:
        names = [mark.name for mark in (await self._read(ref)).events]
        name = next((name for name in names if event in (name, short_event(name))), None)
        if name is None:
            known = ", ".join(map(short_event, names)) or "none"
            raise NotRetryable(f"has no event {event[:100]!r}; its events are: {known}")
        deliveries = Deliveries(self.store, self.clock, self.config)
        delivered = await self._recorded(
            "event", ref, lambda: deliveries.deliver(ref, name, payload), event=name
        )
        if delivered not in _ACCEPTED:
            raise NotRetryable(_DELIVERED[delivered])
        return _DELIVERED[delivered]

    async def _answer(self, ref: TaskRef, answers: Mapping[str, Any]) -> str:
        record = await self._read(ref)
        if ref.is_hidden:
            raise NotRetryable("is a call whose client answers on its own stream")
        # the task may ask another question meanwhile, also for an approval
        answers = {key: answers[key] for key in record.requests if key in answers}
        if not answers:
            raise NotRetryable(_ANSWERED[AnswersTaken.NOT_NEEDED])
        trail = self.store.trail
        facts = {} if trail is None else {"answers": answer_facts(answers, trail.digest)}
        now_ms = self.clock.now_ms()
        due_ms = now_ms + int(self.config.requeue_after_s * 1000)
        encoded = {key: encode(answer) for key, answer in answers.items()}

        async def give_to_task() -> AnswersTaken:
            decision = await self.store.apply(ref, TakeAnswers(encoded, due_ms), now_ms)
            return AnswersTaken(str(decision.result))

        give: Callable[[], Awaitable[AnswersTaken]] = give_to_task
        if any(is_approval(decode(record.requests[key])) for key in answers):
            give = self._approval(ref, answers)
        answered = await self._recorded("answer", ref, give, **facts)
        if answered not in (AnswersTaken.PARTLY, AnswersTaken.FULLY):
            raise NotRetryable(_ANSWERED[answered])
        return _ANSWERED[answered]

    def _approval(
        self, ref: TaskRef, answers: Mapping[str, Any]
    ) -> Callable[[], Awaitable[AnswersTaken]]:
        operator = self.principal
        if operator is None or not (
            views := [view for view in self.views if task_owner(operator, view) == ref.owner]
        ):
            raise NotRetryable("asks its caller for an approval, which only the caller can give")
        owned = Tasks(self.store, self.clock, self.config, views[0], self.store.trail)

        async def update() -> AnswersTaken:
            try:
                await owned.update(operator, ref.id, answers)
            except TaskNotFound:
                return AnswersTaken.UNKNOWN_TASK
            return AnswersTaken.FULLY

        return update

    async def _recorded(
        self, action: str, ref: TaskRef, act: Callable[[], Awaitable[T]], **facts: Any
    ) -> T:
        return await recorded(self.store, action, ref, act, self.principal, **facts)


async def recorded(
    store: StoredTasks,
    action: str,
    ref: TaskRef | None,
    act: Callable[[], Awaitable[T]],
    principal: Principal | None = None,
    **facts: Any,
) -> T:
    """Return the result of an operator's act. Record the act in the audit log before it happens, and
    then its result.

    Args:
        store: the tasks, with the audit log.
        action: the name of the act.
        ref: the task on which the operator acts, if any.
        act: acts, and returns the result.
        principal: the operator; by default the user that runs this process.
        facts: further members of the first record.

    Raises:
        Unavailable: the audit log cannot be written, and nothing was done.
    """
    trail = store.trail
    if trail is None:
        return await act()
    about = {} if ref is None else {"task": str(ref)}
    trail.operator(action, principal, **about, **facts)
    outcome = "failed"
    try:
        value = await act()
        outcome = str(value)
        return value
    except NotRetryable:
        outcome = "nothing done"
        raise
    finally:
        trail.record("operator_ended", {"action": action, **about, "outcome": outcome})
