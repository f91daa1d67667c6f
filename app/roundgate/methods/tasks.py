"""tasks/get, tasks/update and tasks/cancel (tasks extension, SEP-2663)."""

from __future__ import annotations

from roundgate.auth import Principal
from roundgate.errors import TaskNotFound
from roundgate.methods.request import RequestContext
from roundgate.methods.results import Reply, Results
from roundgate.methods.scopes import Scopes
from roundgate.protocol import TaskParams, UpdateTaskParams
from roundgate.storage import TaskRecord
from roundgate.tasks import Tasks


class TaskMethods:
    """The tasks of a caller."""

    def __init__(self, tasks: Tasks, scopes: Scopes, results: Results) -> None:
        self._tasks = tasks
        self._scopes = scopes
        self._acknowledged = results.acknowledged
        self._rest = results.rest()

    async def get(self, context: RequestContext, asked: TaskParams) -> Reply:
        """tasks/get"""
        record = await self._record(context.principal, asked.task_id)
        return Reply(b"%b%b" % (self._tasks.shown(record)[:-1], self._rest))

    async def update(self, context: RequestContext, asked: UpdateTaskParams) -> Reply:
        """tasks/update"""
        await self._check_scopes(context.principal, asked.task_id)
        await self._tasks.update(context.principal, asked.task_id, asked.input_responses)
        return self._acknowledged

    async def cancel(self, context: RequestContext, asked: TaskParams) -> Reply:
        """tasks/cancel"""
        await self._check_scopes(context.principal, asked.task_id)
        await self._tasks.cancel(context.principal, asked.task_id)
        return self._acknowledged

    async def _record(self, principal: Principal, task_id: str) -> TaskRecord:
        """The row of a task that is the caller's, and of a tool that it may call.

        Raises:
            TaskNotFound: it is unknown, has expired, or is somebody else's.
            InsufficientScope
        """
        record = await self._tasks.record(principal, task_id)
        if record is None:
            raise TaskNotFound
        self._scopes.check(record.tool, principal)
        return record

    async def _check_scopes(self, principal: Principal, task_id: str) -> None:
        """As `_record`, for requests that need the row for nothing else: it is read only where scopes are asked for."""
        if self._scopes.any_task:
            await self._record(principal, task_id)
