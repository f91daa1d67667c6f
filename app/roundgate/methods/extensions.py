"""The extensions of the protocol, and their table.

Tasks (SEP-2663): tasks/get, tasks/update and tasks/cancel. Calls become tasks in
`roundgate.methods.tools`; `roundgate.protocol.tasks` has the life of a task.

Search: three tools (`roundgate.backends.search`) replace a long list, and a call through `call_tool`
is a call of the tool that it names, with that tool's scopes, approvals, questions, tasks and state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace
from pydantic import Field

from roundgate.backends import Catalog
from roundgate.backends.definitions import meta_of
from roundgate.errors import InvalidParams
from roundgate.methods.parts import Extension, Kit, Method, Tools
from roundgate.methods.rounds import Reply, RequestContext
from roundgate.methods.skills import SkillsExtension
from roundgate.methods.tools import invalid_arguments
from roundgate.protocol import (
    EXTENSION,
    REQUIRED,
    CallToolParams,
    ListParams,
    Params,
    Route,
    ToolResult,
    apps,
)
from roundgate.tasks import NamedTask

_ROUTE: Final = Route("tasks", named_by="taskId", needs_name_header=False)
"""The route of all three methods. The extension requires the header of clients, for routing that
the gateway does not need; FastMCP 4.1 does not send it."""


class TaskParams(Params):
    """The params of tasks/get and tasks/cancel."""

    task_id: str = Field(alias="taskId")


class UpdateTaskParams(TaskParams):
    """The params of tasks/update."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TasksExtension(Extension):
    """Calls that outlive their request."""

    name = EXTENSION
    feature = "tasks"
    routes = MappingProxyType({"tasks/get": _ROUTE, "tasks/update": _ROUTE, "tasks/cancel": _ROUTE})

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether the catalog has tasks of the gateway or of a service, or may have tasks
        once a missing back end is served again."""
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
    """Return whether calls of some tool become tasks of the gateway, which need workers."""
    return any(served.tool.task != "forbidden" for served in catalog.tools.values())


class TaskMethods:
    """The methods for a caller's tasks: the gateway's tasks and the tasks of services."""

    def __init__(self, kit: Kit) -> None:
        self._tasks = kit.parts.tasks
        self._access = kit.access
        self._acknowledged = kit.results.acknowledged
        self._rest = kit.results.rest()

    async def get(self, context: RequestContext, params: TaskParams) -> Reply:
        """Serve tasks/get."""
        task = await self._find(context, params.task_id)
        return Reply(b"%b%b" % (self._tasks.detailed(await task.look())[:-1], self._rest))

    async def update(self, context: RequestContext, params: UpdateTaskParams) -> Reply:
        """Serve tasks/update."""
        task = await self._find(context, params.task_id)
        await task.update(params.input_responses)
        return self._acknowledged

    async def cancel(self, context: RequestContext, params: TaskParams) -> Reply:
        """Serve tasks/cancel."""
        task = await self._find(context, params.task_id)
        await task.cancel()
        return self._acknowledged

    async def _find(self, context: RequestContext, task_id: str) -> NamedTask:
        """Return a task of the caller whose tool it may call. Reads no row unless some task's tool
        needs scopes.

        Raises:
            TaskNotFound: the task is unknown, has expired, or is another owner's.
            InsufficientScope: the tool of the task needs scopes that the token lacks.
            CallRefused: the rules of `policy` allow the caller no call of the tool.
            Unavailable: the scopes of the tool are not known now.
        """
        principal = context.principal
        task = self._tasks.find(principal, task_id)
        context.correlation.task = self._tasks.name_in_log(principal, task_id)
        if self._access.any_task:
            self._access.check(await task.tool(), principal)
        return task


class SearchExtension(Extension):
    """Search in place of a long list. The extension has no methods: every client can call its
    tools."""

    name = "roundgate/search"
    feature = "search"

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether search replaces the list of tools."""
        return catalog.call_tool is not None

    def settings(self) -> None:
        """Return `None`, because clients need not know the extension."""
        return

    def tools(self, tools: Tools, kit: Kit) -> Tools:
        """Return tools that serve calls through `call_tool`."""
        call_tool = kit.catalog.call_tool
        if call_tool is None:
            return tools
        return ThroughSearch(tools, call_tool, kit)


class ThroughSearch:
    """Tools behind a search: a call of `call_tool` is a call of the tool that it names."""

    def __init__(self, tools: Tools, call_tool: str, kit: Kit) -> None:
        self._tools = tools
        self._catalog = kit.catalog
        self._arguments = kit.arguments
        self._call_tool = call_tool
        self._results = kit.results

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve tools/list."""
        return await self._tools.list(context, params)

    async def call(self, context: RequestContext, params: CallToolParams) -> Reply:
        """Serve tools/call."""
        if params.name != self._call_tool:
            return await self._tools.call(context, params)
        context.correlation.through = self._call_tool
        served = self._catalog.tool(params.name)
        sent, is_valid = self._arguments.of_tool(served, params.arguments)
        if not is_valid:
            return self._results.tool(invalid_arguments(served, sent))
        name = sent["name"]
        try:
            named_tool = self._catalog.tool(name)
            is_known = named_tool.name != self._call_tool and apps.is_for_models(
                meta_of(named_tool.tool.definition)
            )
        except InvalidParams:
            is_known = False
        if not is_known:
            text = f"There is no tool {name[:64]!r}; search_tools finds the names"
            return self._results.tool(ToolResult.error(text))
        arguments = sent.get("arguments", {})
        named = params.model_copy(update={"name": name, "sent": arguments})
        # headers mirror arguments by the schema of `call_tool`, not of the named tool
        inbound = replace(context.inbound, headers=None, name=name)
        return await self._tools.call(replace(context, inbound=inbound), named)


class AppsExtension(Extension):
    """MCP Apps (SEP-1865): the declaration that tools have pages. Pages are ordinary resources, and
    calls of pages are ordinary calls; hosts do the rest."""

    name = apps.EXTENSION
    feature = "apps"

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether the catalog has a page."""
        return any(uri.startswith(apps.SCHEME) for uri in (*catalog.resources, *catalog.unlisted))


EXTENSIONS: Final[tuple[Extension, ...]] = (
    TasksExtension(),
    SearchExtension(),
    AppsExtension(),
    SkillsExtension(),
)

ROUTES: Final[Mapping[str, Route]] = {
    method: route for extension in EXTENSIONS for method, route in extension.routes.items()
}
"""The routes of all extensions' methods, served or not."""
