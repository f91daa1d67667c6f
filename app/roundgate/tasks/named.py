"""One interface for the tasks of the gateway, which have a row, and for tasks of services behind
back ends.

    id                                   owner          requests go to
    1 to 64 of A-Z a-z 0-9 _ -           the gateway    `tasks.service`: the store
    sealed (`tokens.task_ids`)           a service      the source that the back end of this name offers now

The gateway stores no part of a service's task, so any replica can serve requests about it. A source
has `SOURCE_S` for an answer. The gateway checks each answer before it forwards it. A slow, failing
or wrong source affects only the callers of its tasks.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from roundgate.auth import Principal
from roundgate.backends import MAX_ID_CHARS, CatalogSource, ServedTool, TaskSource
from roundgate.clock import Clock
from roundgate.errors import BackendError, GatewayError, InternalError, TaskNotFound, Unavailable
from roundgate.protocol import NEWEST, Status, TaskView, ToolResult, detailed, to_wire
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks.outcome import log_failure
from roundgate.tasks.service import Tasks
from roundgate.tokens import TaskIds, TaskPlace

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

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
