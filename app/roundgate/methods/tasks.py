"""tasks/get, tasks/update and tasks/cancel (tasks extension, SEP-2663)."""

from __future__ import annotations

from roundgate.methods.request import RequestContext
from roundgate.methods.results import Reply, Results
from roundgate.methods.scopes import Scopes
from roundgate.protocol import TaskParams, UpdateTaskParams
from roundgate.tasks import NamedTask, NamedTasks


class TaskMethods:
    """The tasks of a caller, ours and those of services behind us."""

    def __init__(self, tasks: NamedTasks, scopes: Scopes, results: Results) -> None:
        self._tasks = tasks
        self._scopes = scopes
        self._acknowledged = results.acknowledged
        self._rest = results.rest()

    async def get(self, context: RequestContext, asked: TaskParams) -> Reply:
        """tasks/get"""
        task = await self._find(context, asked.task_id)
        return Reply(b"%b%b" % (self._tasks.detailed(await task.look())[:-1], self._rest))

    async def update(self, context: RequestContext, asked: UpdateTaskParams) -> Reply:
        """tasks/update"""
        task = await self._find(context, asked.task_id)
        await task.update(asked.input_responses)
        return self._acknowledged

    async def cancel(self, context: RequestContext, asked: TaskParams) -> Reply:
        """tasks/cancel"""
        task = await self._find(context, asked.task_id)
        await task.cancel()
        return self._acknowledged

    async def _find(self, context: RequestContext, task_id: str) -> NamedTask:
        """A task that is the caller's, and of a tool that it may call.

        Where no task's tool asks for scopes, nobody reads a row to find out which tool it is.

        Raises:
            TaskNotFound: it is unknown, has expired, or is somebody else's.
            InsufficientScope
            Unavailable: what its tool needs is not known just now.
        """
        principal = context.principal
        task = self._tasks.find(principal, task_id)
        context.correlation.task = self._tasks.name_in_log(principal, task_id)
        if self._scopes.any_task:
            self._scopes.check(await task.tool(), principal)
        return task
