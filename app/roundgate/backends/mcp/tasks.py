"""The tasks of a server of 2026-07-28, by the server's ids (`TaskSource`). The gateway does not store
them: a client's id contains the server's id, sealed for its owner (docs/decisions/0025)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.backends.mcp.server import McpServer
from roundgate.backends.mcp.tools import result_from_wire
from roundgate.backends.mcp.uris import Uris
from roundgate.backends.service_tasks import task_view
from roundgate.client.types import Json
from roundgate.errors import BackendError, TaskNotFound
from roundgate.protocol import REQUIRED, TaskView

LIMIT_S: Final = 10.0
"""The timeout of a request about a task, in seconds."""
_UNKNOWN: Final = "error -32602"


def view_from_wire(task: Any, uris: Uris) -> TaskView:
    """Return the view of a server's task. Its result is forwarded as the result of a call is.

    Raises:
        BackendError: the task or its result is malformed.
    """
    match task:
        case {"status": "completed", "result": dict(raw)}:
            result = result_from_wire(uris.in_result(raw), uris.name)
            task = {**task, "result": result.to_wire()}
    return task_view(task)


class ServerTasks(Struct, frozen=True):
    """The tasks of one server."""

    server: McpServer
    uris: Uris

    async def get(self, task_id: str, principal: Principal) -> TaskView:
        """See `TaskSource`."""
        task = await self._ask("tasks/get", {"taskId": task_id}, principal)
        view = view_from_wire(task, self.uris)
        if view.task_id != task_id:
            raise BackendError(f"{self.server.name} answered about a different task")
        return view

    async def update(
        self, task_id: str, responses: Mapping[str, Any], principal: Principal
    ) -> None:
        """See `TaskSource`."""
        params = {"taskId": task_id, "inputResponses": dict(responses)}
        await self._ask("tasks/update", params, principal)

    async def cancel(self, task_id: str, principal: Principal) -> None:
        """See `TaskSource`."""
        await self._ask("tasks/cancel", {"taskId": task_id}, principal)

    def watch(
        self, task_id: str, principal: Principal, changed: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Return `None`: the gateway polls the task."""
        return None

    async def _ask(self, method: str, params: Json, principal: Principal) -> Json:
        capabilities = {"extensions": dict(REQUIRED["extensions"])}
        try:
            # all three methods are idempotent (tasks extension)
            return await self.server.ask(method, params, LIMIT_S, principal, capabilities)
        except BackendError as error:
            if error.reason == _UNKNOWN:
                raise TaskNotFound from None
            raise
