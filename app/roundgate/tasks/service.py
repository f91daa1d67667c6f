"""The operations of a task's owner: create, read, answer questions, cancel (`Tasks`); and one
interface for these tasks, which have a row, and for the tasks of services behind back ends
(`NamedTasks`).

A task is durable before its client learns its id:

    row written ──▶ message sent ──▶ client told
         │               │ lost, or the queue is down: the sweep finds the row when it is due
         └ failed: the row may or may not exist; a repeated call under the same id returns the same task

    id                                   owner          requests go to
    1 to 64 of A-Z a-z 0-9 _ -           the gateway    the store
    sealed (`tokens.TaskIds`)            a service      the source that the back end of this name offers now

The gateway stores no part of a service's task, so any replica can serve requests about it. A source
has `SOURCE_S` for an answer. The gateway checks each answer before it forwards it. A slow, failing
or wrong source affects only the callers of its tasks.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal, task_owner
from roundgate.backends import (
    MAX_ID_CHARS,
    CatalogSource,
    ServedTool,
    TaskSource,
    decision_in,
    is_approval,
    log_decision,
)
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    GatewayError,
    InternalError,
    TaskNotFound,
    ToolError,
    Unavailable,
)
from roundgate.json import encode
from roundgate.protocol import NEWEST, Status, TaskView, ToolResult, detailed, to_wire
from roundgate.replay import JOURNAL_VERSION, Journal, plain, row
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks import machine
from roundgate.tasks.call import Life, TaskCall
from roundgate.tasks.events import AnswersTaken, Cancel, Cancelled, NewTask, TakeAnswers
from roundgate.tasks.outcome import Ended, log_failure
from roundgate.tasks.stored import StoredTasks
from roundgate.tokens import TaskIds, TaskPlace

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail


ANSWER_WAIT_S: Final = 5.0
"""The time in seconds for which an answer waits while the task continues without it."""
ANSWER_PAUSE_S: Final = 0.1
CANCELLED_BY_CLIENT: Final = "The client cancelled the task"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(eq=False)
class Tasks:
    """The tasks of all owners of one view. Every method acts for one owner."""

    _store: StoredTasks
    clock: Clock
    _config: TasksConfig
    view: str = ""
    _trail: Trail | None = None

    def __post_init__(self) -> None:
        self._life = Life.from_config(self._config)

    async def create(
        self,
        task_call: TaskCall,
        journal: Journal,
        *,
        task_id: str | None = None,
        message: str | None = None,
        ended: Ended | None = None,
        cleans_up: bool = False,
        call_id: str | None = None,
    ) -> dict[str, Any]:
        """Create a task for a call that continues or has ended. Return the schema's
        `CreateTaskResult`.

        Args:
            task_call, journal: the call that becomes the task, with the results of earlier rounds.
            task_id: the id of the task, or `None` for a new one. If the caller already has a task
                of this id, the method returns that one unchanged.
            message: the handler's last status message.
            ended: the outcome of the call, if it has ended.
            cleans_up: whether the call starts external work that must end with it
                (`Tool.cleans_up`).

        Raises:
            Unavailable: the task may or may not have been written; repeat the call with the same
                id.
            ToolError: the caller has too many open tasks, or the call is too large.
            NotJson: `ctx.state` has no JSON form.
        """
        task = self._new(task_call, task_id or self.clock.new_id(), journal, message, ended)
        task = replace(task, cleans_up=cleans_up and ended is None, call_id=call_id)
        if ended is None:
            await self._check_room(task.ref)
        try:
            is_new = await self._store.create(task)
        except Unavailable:
            is_new = False
            if await self._store.read(task.ref, task.created_ms) is None:
                raise
        if not is_new:
            return await self._created_before(task.ref)
        return self._told(machine.create(task).record.view(task.created_ms))

    async def created(self, principal: Principal, task_id: str) -> dict[str, Any] | None:
        """Return the `CreateTaskResult` of a task that the principal already has, or `None`.

        Raises:
            Unavailable: the store cannot be reached.
        """
        record = await self.record(principal, task_id)
        return None if record is None else await self._created_before(record.ref, record)

    def check_size(self, task_call: TaskCall) -> bytes:
        """Return the call as bytes.

        Raises:
            ToolError: the call is larger than `tasks.max_call_bytes`.
        """
        data, most = task_call.to_bytes(), self._config.max_call_bytes
        if len(data) > most:
            raise ToolError(
                "The arguments are too large for a task: with the client's own information they have "
                f"{len(data):,} bytes; the maximum is {most:,} (tasks.max_call_bytes). Send less data, "
                "or a reference to it"
            )
        return data

    async def _check_room(self, ref: TaskRef) -> None:
        """Check that the owner may have another open task, unless this task exists already.

        Raises:
            ToolError: the owner has the maximum number of open tasks.
        """
        most = self._config.max_open_per_owner
        if await self._store.count_open(ref.owner, most) < most:
            return
        if await self._store.read(ref, self.clock.now_ms()) is None:
            raise ToolError(
                f"You have {most:,} unfinished tasks, the maximum (tasks.max_open_per_owner). Wait "
                "until some have ended, or cancel some (tasks/cancel), and call again"
            )

    async def _created_before(
        self, ref: TaskRef, record: TaskRecord | None = None
    ) -> dict[str, Any]:
        record = record or await self._store.read(ref, self.clock.now_ms())
        if record is None:
            raise TaskNotFound
        sweep_after_ms = int(self._config.requeue_after_s * 1000)
        if machine.may_lack_message(record, self.clock.now_ms(), sweep_after_ms):
            await self._store.send(ref)
        return self._told(record.view(self.clock.now_ms()))

    def _told(self, view: TaskView) -> dict[str, Any]:
        return {"resultType": "task", **to_wire(view, self._config.poll_interval_ms)}

    def _new(
        self,
        task_call: TaskCall,
        task_id: str,
        journal: Journal,
        message: str | None,
        ended: Ended | None,
    ) -> NewTask:
        now_ms = self.clock.now_ms()
        return NewTask(
            ref=TaskRef(task_owner(task_call.principal, self.view), task_id),
            tool=task_call.tool,
            call=self.check_size(task_call),
            journal=[encode(row(entry)) for entry in journal.entries()],
            state=encode(plain(journal.state, "ctx.state")),
            created_ms=now_ms,
            expires_ms=self._life.expires_ms(now_ms, now_ms),
            due_ms=self._due_ms(now_ms),
            status=Status.WORKING if ended is None else ended.status,
            status_message=message if ended is None else ended.status_message,
            outcome=None if ended is None else ended.outcome,
            journal_version=JOURNAL_VERSION,
            ending=None if ended is None else ended.ending,
        )

    def listen(
        self, principal: Principal, task_id: str, changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `changed` when this process changes a task, until the returned function is
        called."""
        return self._store.listen(self.ref(principal, task_id), changed)

    async def record(self, principal: Principal, task_id: str) -> TaskRecord | None:
        """Return the record of a task of the principal, or `None`."""
        ref = self._ref(principal, task_id)
        return None if ref is None else await self._store.read(ref, self.clock.now_ms())

    async def update(
        self, principal: Principal, task_id: str, responses: Mapping[str, Any]
    ) -> None:
        """Store answers to outstanding questions; drop other answers.

        If the task continues because a time limit passed during a question, the method waits until
        the question is asked again.

        Raises:
            TaskNotFound: the caller has no such task.
            Unavailable: the task has continued for `ANSWER_WAIT_S`; no answer was stored.
        """
        ref = self._ref(principal, task_id)
        if ref is None:
            raise TaskNotFound
        answers = {key: encode(response) for key, response in responses.items()}
        decided = await self._decided(ref, responses, self.clock.now_ms())
        until_ms = self.clock.monotonic_ms() + ANSWER_WAIT_S * 1000
        while True:
            now_ms = self.clock.now_ms()
            event = TakeAnswers(answers, self._due_ms(now_ms))
            answered = (await self._store.apply(ref, event, now_ms)).result
            if answered is not AnswersTaken.LATER:
                break
            if self.clock.monotonic_ms() >= until_ms:
                raise Unavailable(
                    "The task is running now, and may ask this question again; send the answer again later"
                )
            await self.clock.sleep(ANSWER_PAUSE_S)
        if decided is not None and answered in (AnswersTaken.FULLY, AnswersTaken.PARTLY):
            record, is_approved = decided
            ids = {"call": record.call_id, "task": str(ref), "tool": record.tool}
            log_decision(principal, is_approved, **ids)
            if self._trail is not None:
                self._trail.decided(principal, is_approved, **ids)
        if answered is AnswersTaken.UNKNOWN_TASK:
            raise TaskNotFound

    async def _decided(
        self, ref: TaskRef, responses: Mapping[str, Any], now_ms: int
    ) -> tuple[TaskRecord, bool] | None:
        """Return the task and the decision if a response approves or declines its call, otherwise
        `None`. The row is read only if a response looks like a decision."""
        decisions = {key: decision_in(response) for key, response in responses.items()}
        if all(decision is None for decision in decisions.values()):
            return None
        record = await self._store.read(ref, now_ms)
        if record is None:
            return None
        approvals = [
            key for key, request in record.requests.items() if is_approval(json.decode(request))
        ]
        decision = decisions.get(approvals[0]) if approvals else None
        return None if decision is None else (record, decision)

    async def cancel(self, principal: Principal, task_id: str) -> None:
        """Cancel the task, unless it has ended. Its worker notices this at the next write.

        If a service works for the task, a worker cancels that work later; this method does not
        wait.

        Raises:
            TaskNotFound: the caller has no such task.
            Unavailable: the store cannot be reached.
        """
        ref = self._ref(principal, task_id)
        if ref is None:
            raise TaskNotFound
        now_ms = self.clock.now_ms()
        event = Cancel(CANCELLED_BY_CLIENT, self._due_ms(now_ms))
        cancelled = await self._store.apply(ref, event, now_ms)
        if cancelled.result is Cancelled.UNKNOWN_TASK:
            raise TaskNotFound

    def ref(self, principal: Principal, task_id: str) -> TaskRef:
        """Return the reference of the caller's task, as the log and the commands show it."""
        return TaskRef(task_owner(principal, self.view), task_id)

    def _ref(self, principal: Principal, task_id: str) -> TaskRef | None:
        """Return the reference of the task, or `None` if the gateway never issued such an id."""
        owner = task_owner(principal, self.view)
        return TaskRef(owner, task_id) if _ID.fullmatch(task_id) else None

    def _due_ms(self, now_ms: int) -> int:
        """Return when a sweep may assume that a message sent now was lost, in milliseconds since
        the epoch."""
        return now_ms + int(self._config.requeue_after_s * 1000)


T = TypeVar("T")

SOURCE_S: Final = 10.0
"""The time in seconds that a source has for one answer."""


class NamedTask(ABC):
    """One task of a caller, by the id that the caller has.

    Every request raises `TaskNotFound` if the task does not exist, or no longer exists;
    `Unavailable` if the store or the service cannot be reached now; and `InternalError` if the
    service's answer is invalid. The audit log, if there is one, records answers and cancellations
    before they happen.
    """

    ref: TaskRef | None = None
    """The reference of a task of the gateway; `None` for a service's task."""
    backend = ""
    """The name of the back end that has the task; empty for a task of the gateway."""

    def __init__(self, principal: Principal, task_id: str, trail: Trail | None) -> None:
        self.id = task_id
        """The id that the caller has."""
        self.log_id = task_id[:64]
        """The id for the log; for a task of the gateway, the argument of `roundgate tasks show`."""
        self.key: Hashable = (principal.identity, task_id)
        """A key that identifies the task and its caller."""
        self._principal = principal
        self._trail = trail

    @abstractmethod
    async def tool(self) -> str:
        """Return the name of the tool that the task runs."""

    @abstractmethod
    async def look(self) -> TaskView:
        """Return the current state of the task."""

    async def update(self, responses: Mapping[str, Any]) -> None:
        """Send answers to the task; answers to other than outstanding questions are dropped."""
        if self._trail is not None:
            self._trail.answered(self._principal, self._name_in(self._trail), responses)
        await self._update(responses)

    async def cancel(self) -> None:
        """Cancel the task, unless it has ended."""
        if self._trail is not None:
            self._trail.cancelled(self._principal, self._name_in(self._trail))
        await self._cancel()

    @abstractmethod
    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the owner reports that the task may have changed, until the returned
        function is called."""

    @abstractmethod
    async def _update(self, responses: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def _cancel(self) -> None: ...

    def _name_in(self, trail: Trail) -> str:
        return self.log_id if self.ref is not None else trail.name_of_service_task(self.id)


@dataclass(eq=False)
class NamedTasks:
    """All tasks, by the ids that callers have."""

    own: Tasks
    """The tasks of the gateway, which have a row."""
    ids: TaskIds
    catalogs: CatalogSource
    clock: Clock
    config: TasksConfig
    trail: Trail | None = None

    def __post_init__(self) -> None:
        self._sources = _Sources(self.catalogs, self.clock)

    def find(self, principal: Principal, task_id: str) -> NamedTask:
        """Return the task with an id. Only a later request shows whether it exists.

        Raises:
            TaskNotFound: this caller never received the id.
            Unavailable: the keys of sealed ids cannot be read now.
        """
        if "." not in task_id:
            return _OwnTask(self.own, principal, task_id, self.trail)
        place = self.ids.open(task_id, principal)
        if place is None:
            raise TaskNotFound
        most = self.config.max_result_bytes
        return _SourceTask(self._sources, principal, task_id, place, most, self.trail)

    def name_in_log(self, principal: Principal, task_id: str) -> str | None:
        """Return the name of a task of the gateway in the log and in commands; `None` for a
        service's task."""
        return None if "." in task_id else str(self.own.ref(principal, task_id[:64]))

    def hand_over(self, served: ServedTool, view: TaskView, principal: Principal) -> dict[str, Any]:
        """Return the schema's `CreateTaskResult` for a call that a tool's service has turned into a
        task.

        Raises:
            BackendError: clients could not follow the task: its id is too long, or its back end
                offers no source.
        """
        with self._sources.catalogs.use() as catalog:
            is_known = served.backend in catalog.task_sources
        if not is_known or not 0 < len(view.task_id) <= MAX_ID_CHARS:
            raise BackendError(
                "The service turned the call into a task that the gateway cannot follow"
            )
        task_id = self.ids.seal(TaskPlace(served.backend, served.name, view.task_id), principal)
        if self.trail is not None:
            self.trail.handed_over(task_id, served.backend)
        return {
            "resultType": "task",
            **to_wire(replace(view, task_id=task_id), self.config.poll_interval_ms),
        }

    def detailed(self, view: TaskView) -> bytes:
        """Return the schema's `DetailedTask`, serialised."""
        return detailed(view, self.config.poll_interval_ms)


class _OwnTask(NamedTask):
    """A task of the gateway."""

    def __init__(
        self, tasks: Tasks, principal: Principal, task_id: str, trail: Trail | None
    ) -> None:
        super().__init__(principal, task_id, trail)
        self.ref = tasks.ref(principal, task_id)
        self.log_id = str(self.ref)
        self._tasks = tasks
        self._read: TaskRecord | None = None

    async def tool(self) -> str:
        self._read = await self._record()  # serves the look that follows
        return self._read.tool

    async def look(self) -> TaskView:
        record, self._read = self._read or await self._record(), None
        return record.view(self._tasks.clock.now_ms())

    async def _update(self, responses: Mapping[str, Any]) -> None:
        self._read = None
        await self._tasks.update(self._principal, self.id, responses)

    async def _cancel(self) -> None:
        self._read = None
        await self._tasks.cancel(self._principal, self.id)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._tasks.listen(self._principal, self.id, changed)

    async def _record(self) -> TaskRecord:
        record = await self._tasks.record(self._principal, self.id)
        if record is None:
            raise TaskNotFound
        return record


class _SourceTask(NamedTask):
    """A task of a service."""

    def __init__(
        self,
        sources: _Sources,
        principal: Principal,
        task_id: str,
        place: TaskPlace,
        max_bytes: int,
        trail: Trail | None,
    ) -> None:
        super().__init__(principal, task_id, trail)
        self.backend = place.backend
        self._sources = sources
        self._place = place
        self._max_bytes = max_bytes

    async def tool(self) -> str:
        return self._place.tool

    async def look(self) -> TaskView:
        view = await self._ask(
            "tasks/get", lambda source: source.get(self._place.id, self._principal)
        )
        return _bounded(replace(view, task_id=self.id), self._max_bytes)

    async def _update(self, responses: Mapping[str, Any]) -> None:
        await self._ask(
            "tasks/update", lambda source: source.update(self._place.id, responses, self._principal)
        )

    async def _cancel(self) -> None:
        await self._ask(
            "tasks/cancel", lambda source: source.cancel(self._place.id, self._principal)
        )

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        with suppress(GatewayError), self._sources.use(self.backend) as source:
            return source.watch(self._place.id, self._principal, changed) or _nothing
        return _nothing

    async def _ask(self, what: str, ask: Callable[[TaskSource], Awaitable[T]]) -> T:
        return await self._sources.ask(self.backend, what, ask)


class _Sources:
    """The sources of the back ends that the catalog has now."""

    def __init__(self, catalogs: CatalogSource, clock: Clock) -> None:
        self.catalogs = catalogs
        self._clock = clock

    @contextmanager
    def use(self, backend: str) -> Iterator[TaskSource]:
        """Return the source of a back end, which stays open until the block ends.

        Raises:
            Unavailable: the back end has no source now; this process may not serve it yet.
        """
        with self.catalogs.use() as catalog:
            source = catalog.task_sources.get(backend)
            if source is None:
                raise Unavailable(
                    "The service that has this task is not served now; ask again later"
                )
            yield source

    async def ask(self, backend: str, what: str, ask: Callable[[TaskSource], Awaitable[T]]) -> T:
        """Return the answer of a source.

        Raises:
            TaskNotFound: the task does not exist.
            Unavailable: the source does not exist now, or does not answer in time.
            InternalError: the answer is invalid.
        """
        with self.use(backend) as source:
            try:
                async with asyncio.timeout(SOURCE_S):
                    return await ask(source)
            except TimeoutError:
                raise Unavailable(
                    "The service that has this task does not answer; ask again later"
                ) from None
            except (TaskNotFound, Unavailable):
                raise
            except Exception as error:
                reference = log_failure(f"{what} at back end {backend}", error, self._clock)
                raise InternalError(reference) from error


def _bounded(view: TaskView, max_bytes: int) -> TaskView:
    """Return a view without parts that are larger than the maximum result of a tool."""
    asked_bytes = sum(len(request) for request in view.requests.values())
    if asked_bytes > max_bytes:
        text = (
            f"The questions of this task are too large: {asked_bytes} bytes; the maximum is "
            f"{max_bytes} (tasks.max_result_bytes)"
        )
        return replace(view, requests={}, status=Status.WORKING, status_message=text)
    if view.outcome is None or len(view.outcome) <= max_bytes:
        return view
    text = (
        f"The result is too large: {len(view.outcome)} bytes; the maximum is {max_bytes} "
        "(tasks.max_result_bytes)"
    )
    return replace(
        view, status=Status.COMPLETED, outcome=NEWEST.kept_result(ToolResult.error(text).to_wire())
    )


def _nothing() -> None:
    """Do nothing, for tasks without a watch."""
