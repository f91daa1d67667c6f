"""An operator's actions on a task from the console: those of `roundgate tasks`, and answers to its
questions. The audit log names the operator."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from roundgate.audit.records import answer_facts
from roundgate.auth import Principal, task_owner
from roundgate.backends.policy import is_approval
from roundgate.clock import Clock
from roundgate.errors import NotRetryable, TaskNotFound
from roundgate.json import decode, encode
from roundgate.protocol import Status
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks import Tasks
from roundgate.tasks.acts import (
    ACCEPTED,
    ACTIONS,
    DELIVERED,
    find_event,
    recorded,
    retry_from,
)
from roundgate.tasks.events import Answered, marks_from_record
from roundgate.tasks.external import Deliveries
from roundgate.tasks.facts import is_retryable
from roundgate.tasks.machine import is_parked
from roundgate.tasks.stored import StoredTasks

T = TypeVar("T")
log: Final = logging.getLogger("roundgate.console")

Action = Literal["cancel", "requeue", "retry", "purge", "event", "answer"]

EFFECTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cancel": "The task ends as cancelled. A worker that runs it stops at its next write.",
        "requeue": "A worker claims the task again. A worker that runs it now can no longer write.",
        "retry": "The task continues: finished steps keep their results, the failed step runs again.",
        "purge": "The task is deleted, and its caller can no longer read its result.",
        "event": "The task gets the payload, as if its service had delivered the event.",
        "answer": "The task continues with this answer, as if its caller had given it.",
    }
)
"""The effect of each action, which the operator confirms."""
_ANSWERED: Final[Mapping[Answered, str]] = MappingProxyType(
    {
        Answered.UNKNOWN_TASK: "does not exist, or has expired",
        Answered.NOT_NEEDED: "no longer asks this question",
        Answered.LATER: "runs at the moment, and may ask this question again; answer it then",
        Answered.PARTLY: "has the answer, and waits for answers to its other questions",
        Answered.FULLY: "has the answer and continues",
    }
)


class Act(BaseModel):
    """An action on a task."""

    model_config = ConfigDict(extra="forbid")

    action: Action
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


def possible_actions(record: TaskRecord, now_ms: int) -> list[Action]:
    """Return the actions that a task's state allows."""
    is_alive = record.expires_ms > now_ms
    is_stuck = is_parked(record) or is_retryable(record)
    is_visible = not record.ref.is_hidden
    allowed: dict[Action, bool] = {
        "retry": is_alive and is_stuck and is_visible,
        "requeue": is_alive and record.status is Status.WORKING and is_visible,
        "answer": is_alive and bool(record.requests) and is_visible,
        "event": is_alive and any(mark.is_open(now_ms) for mark in marks_from_record(record)),
        "cancel": is_alive and record.is_open,
        "purge": record.status.is_terminal,
    }
    return [action for action, is_allowed in allowed.items() if is_allowed]


@dataclass(frozen=True, slots=True)
class Acting:
    """Acts on tasks for one operator."""

    store: StoredTasks
    clock: Clock
    config: TasksConfig
    principal: Principal
    """The operator."""
    views: Sequence[str]
    """The views of the MCP endpoints."""

    async def act(self, ref: TaskRef, act: Act) -> Acted:
        """Act on a task, and record it in the audit log and the log.

        Raises:
            Unavailable: the store cannot be reached, or the audit log cannot be written.
        """
        try:
            acted = Acted(task=str(ref), done=True, text=await self._act(ref, act))
        except NotRetryable as refusal:
            acted = Acted(task=str(ref), done=False, text=str(refusal))
        outcome = "done" if acted.done else "nothing done"
        ids = {"task": str(ref), "action": act.action, **self.principal.names}
        log.info("an operator acts on a task", extra={"fields": {**ids, "outcome": outcome}})
        return acted

    async def _act(self, ref: TaskRef, act: Act) -> str:
        match act:
            case Act(action="retry", step=str(step)):
                return await self._retry_from(ref, step)
            case Act(action="event"):
                return await self._deliver(ref, act.event or "", act.payload)
            case Act(action="answer"):
                return await self._answer(ref, act.answers or {})
        action = ACTIONS[act.action]
        now_ms = self.clock.now_ms()
        text = await self._recorded(
            act.action, ref, lambda: action.act(self.store, (ref, None), now_ms)
        )
        if text is None:
            raise NotRetryable(action.refusal)
        return text

    async def _read(self, ref: TaskRef) -> TaskRecord:
        record = await self.store.read(ref, self.clock.now_ms())
        if record is None:
            raise NotRetryable("does not exist, or has expired")
        return record

    async def _retry_from(self, ref: TaskRef, step: str) -> str:
        record = await self._read(ref)
        now_ms = self.clock.now_ms()
        return await self._recorded(
            "retry", ref, lambda: retry_from(self.store, record, now_ms, step), step=step
        )

    async def _deliver(self, ref: TaskRef, event: str, payload: Any) -> str:
        name = find_event(await self._read(ref), event)
        if name is None:
            raise NotRetryable(f"has no event {event[:100]!r}")
        deliveries = Deliveries(self.store, self.clock, self.config)
        delivered = await self._recorded(
            "event", ref, lambda: deliveries.deliver(ref, name, payload), event=name
        )
        text = DELIVERED.get(delivered, "does not exist any more")
        if delivered not in ACCEPTED:
            raise NotRetryable(text)
        return text

    async def _answer(self, ref: TaskRef, answers: Mapping[str, Any]) -> str:
        record = await self._read(ref)
        if ref.is_hidden:
            raise NotRetryable("is a call whose client answers on its own stream")
        asked = [decode(request) for key, request in record.requests.items() if key in answers]
        if not asked:
            raise NotRetryable(_ANSWERED[Answered.NOT_NEEDED])
        if any(map(is_approval, asked)):
            return await self._approve(ref, answers)
        now_ms = self.clock.now_ms()
        due_ms = now_ms + int(self.config.requeue_after_s * 1000)
        # the task may ask another question meanwhile, also for an approval
        answers = {key: answers[key] for key in record.requests if key in answers}
        encoded = {key: encode(answer) for key, answer in answers.items()}
        answered = await self._answered(
            ref, answers, lambda: self.store.answer(ref, encoded, now_ms, due_ms)
        )
        if answered not in (Answered.PARTLY, Answered.FULLY):
            raise NotRetryable(_ANSWERED[answered])
        return _ANSWERED[answered]

    async def _answered(
        self, ref: TaskRef, answers: Mapping[str, Any], answer: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the result of answers to a task, recorded with the digest of each answer."""
        trail = self.store.trail
        facts = {} if trail is None else {"answers": answer_facts(answers, trail.digest)}
        return await self._recorded("answer", ref, answer, **facts)

    async def _recorded(
        self, action: str, ref: TaskRef, act: Callable[[], Awaitable[T]], **facts: Any
    ) -> T:
        return await recorded(self.store, action, ref, act, self.principal, **facts)

    async def _approve(self, ref: TaskRef, answers: Mapping[str, Any]) -> str:
        """Answer an approval, which only the caller of the tool may give."""
        views = (view for view in self.views if task_owner(self.principal, view) == ref.owner)
        view = next(views, None)
        if view is None:
            raise NotRetryable("asks its caller for an approval, which only the caller can give")
        owned = Tasks(self.store, self.clock, self.config, view, self.store.trail)

        async def update() -> str:
            try:
                await owned.update(self.principal, ref.id, answers)
            except TaskNotFound:
                raise NotRetryable(_ANSWERED[Answered.UNKNOWN_TASK]) from None
            return _ANSWERED[Answered.FULLY]

        return await self._answered(ref, answers, update)
