"""The tasks extension (SEP-2663): tasks/get, tasks/update and tasks/cancel.

Calls become tasks in `roundgate.methods.tools`; `roundgate.protocol.tasks` has the life of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field

from roundgate.backends import Catalog
from roundgate.methods.parts import Extension, Kit, Method
from roundgate.methods.results import Reply
from roundgate.methods.rounds import RequestContext
from roundgate.protocol import EXTENSION, REQUIRED, Params, Route
from roundgate.tasks import NamedTask

_ROUTE: Final = Route("tasks", named_by="taskId", needs_name_header=False)
"""The extension demands the header of clients, for routing that the gateway has no use for;
FastMCP 4.1 does not send it."""


class TaskParams(Params):
    """tasks/get and tasks/cancel"""

    task_id: str = Field(alias="taskId")


class UpdateTaskParams(TaskParams):
    """tasks/update"""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TasksExtension(Extension):
    """Calls that outlive their request."""

    name = EXTENSION
    feature = "tasks"
    routes = MappingProxyType({"tasks/get": _ROUTE, "tasks/update": _ROUTE, "tasks/cancel": _ROUTE})

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether there are tasks of ours or of a service, or may be once a missing back end
        is served again."""
        return makes_tasks(catalog) or bool(catalog.task_sources or catalog.missing)

    def methods(self, kit: Kit) -> Mapping[str, Method[Any]]:
        """Return the rows of the three methods."""
        tasks = TaskMethods(kit)
        return {
            "tasks/get": Method(tasks.get, TaskParams, requires=REQUIRED),
            "tasks/update": Method(tasks.update, UpdateTaskParams, requires=REQUIRED),
            "tasks/cancel": Method(tasks.cancel, TaskParams, requires=REQUIRED),
        }


def makes_tasks(catalog: Catalog) -> bool:
    """Return whether calls of some tool become tasks of ours, which need workers."""
    return any(served.tool.task != "forbidden" for served in catalog.tools.values())


class TaskMethods:
    """The tasks of a caller, ours and those of services behind us."""

    def __init__(self, kit: Kit) -> None:
        self._tasks = kit.parts.tasks
        self._scopes = kit.scopes
        self._acknowledged = kit.results.acknowledged
        self._rest = kit.results.rest()

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
