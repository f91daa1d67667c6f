"""The extensions of the protocol, and their table.

Tasks (SEP-2663): tasks/get, tasks/update and tasks/cancel. Calls become tasks in
`roundgate.methods.tools`; `roundgate.protocol.tasks` has the life of a task.

Search: three tools (`roundgate.backends.search`) replace a long list, and a call through `call_tool`
is a call of the tool that it names, with that tool's scopes, approvals, questions, tasks and state.

Skills (SEP-2640): skills/list, skills/get and resources/directory/read. The files of skills are read
with resources/read. The skills of all back ends are one list. A request for a skill or directory goes
to the back end that its URI names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from roundgate.backends import Catalog
from roundgate.backends.base import meta_of
from roundgate.errors import InvalidParams, ResourceNotFound
from roundgate.methods.parts import Extension, Kit, Listing, Method, Tools, ToolsByName, list_hint
from roundgate.methods.rounds import Reply, RequestContext
from roundgate.methods.tools import invalid_arguments
from roundgate.protocol import (
    EXTENSION,
    REQUIRED,
    CallToolParams,
    ListParams,
    Params,
    Route,
    ToolResult,
    Uri,
    apps,
    skills,
    without_none,
)
from roundgate.tasks import NamedTask

if TYPE_CHECKING:  # loaded only if a back end has skills
    from roundgate.backends.skills.source import SkillSource

T = TypeVar("T")

_SKILL_ROUTE: Final = Route("skills")
_SHOWN: Final = 200
"""The maximum length of a URI in an error message, in characters."""


class GetSkillParams(Params, frozen=True):
    """The params of skills/get."""

    uri: Uri


class ReadDirectoryParams(ListParams, frozen=True, kw_only=True):
    """The params of resources/directory/read."""

    uri: Uri


class SkillsExtension(Extension):
    """Skills of folders and of servers."""

    name = skills.EXTENSION
    feature = "skills"
    routes = MappingProxyType(
        {
            "skills/list": _SKILL_ROUTE,
            "skills/get": _SKILL_ROUTE,
            "resources/directory/read": _SKILL_ROUTE,
        }
    )

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether a back end has skills, or may have some."""
        return bool(catalog.skill_sources)

    def settings(self) -> dict[str, Any]:
        """Return the setting that announces directories."""
        return {"directoryRead": True}

    def methods(self, kit: Kit) -> Mapping[str, Method[Any]]:
        """Return the rows of the three methods."""
        methods = SkillMethods(kit)
        return {
            "skills/list": Method(methods.list, ListParams),
            "skills/get": Method(methods.get, GetSkillParams, counts=True),
            "resources/directory/read": Method(
                methods.read_directory, ReadDirectoryParams, counts=True
            ),
        }


class SkillMethods:
    """The methods of skills."""

    def __init__(self, kit: Kit) -> None:
        self._catalog = kit.catalog
        self._calls = kit.calls
        self._results = kit.results
        self._access = kit.access
        hint, is_personal = kit.config.caching.resources, kit.access.any_skill
        self._cache = list_hint(hint, kit.catalog, is_personal=is_personal)
        self._list = Listing("skills", self._cache, kit.results)

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve skills/list."""
        return self._list.reply(self._access.pages("skills", context.principal), params.cursor)

    async def get(self, context: RequestContext, params: GetSkillParams) -> Reply:
        """Serve skills/get.

        Raises:
            InvalidParams: there is no such skill.
        """
        uri = params.uri
        entry = await self._ask_source(context, uri, lambda source: source.get(uri))
        if entry is None:
            raise InvalidParams(
                f"No skill is served at {uri[:_SHOWN]}; skills/list has the URIs of SKILL.md files"
            )
        return self._results.reply({"skill": dict(entry)}, self._cache)

    async def read_directory(self, context: RequestContext, params: ReadDirectoryParams) -> Reply:
        """Serve resources/directory/read.

        Raises:
            InvalidParams: there is no such directory.
        """
        uri, cursor = params.uri, params.cursor
        page = await self._ask_source(context, uri, lambda source: source.directory(uri, cursor))
        if page is None:
            raise InvalidParams(
                f"{uri[:_SHOWN]} is not a directory resource; URIs of directories have no slash at "
                "the end, and a cursor comes from the last page"
            )
        children = self._access.readable_children(uri, page.children, context.principal)
        members = {"resources": children, **without_none(nextCursor=page.next_cursor)}
        return self._results.reply(members)

    async def _ask_source(
        self,
        context: RequestContext,
        uri: str,
        ask: Callable[[SkillSource], Awaitable[T | None]],
    ) -> T | None:
        """Return the answer of the back end that a URI names; `None` if there is no such back end.

        Raises:
            InsufficientScope: the skills need scopes that the token lacks.
            Unavailable: a server does not answer.
        """
        source = self._catalog.skill_source(uri)
        if source is None:
            return None
        try:
            self._access.check_skill(uri, source.scopes, context.principal)
        except ResourceNotFound:
            return None
        return await self._calls.ask(context, f"skill {uri[:_SHOWN]}", lambda: ask(source))


_TASK_ROUTE: Final = Route("tasks", named_by="taskId", needs_name_header=False)
"""The route of all three methods. The extension requires the header of clients, for routing that
the gateway does not need; FastMCP 4.1 does not send it."""


class TaskParams(Params, frozen=True):
    """The params of tasks/get and tasks/cancel."""

    task_id: str


class UpdateTaskParams(TaskParams, frozen=True):
    """The params of tasks/update."""

    input_responses: dict[str, Any]


class TasksExtension(Extension):
    """Calls that outlive their request."""

    name = EXTENSION
    feature = "tasks"
    routes = MappingProxyType(
        {"tasks/get": _TASK_ROUTE, "tasks/update": _TASK_ROUTE, "tasks/cancel": _TASK_ROUTE}
    )

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


class ThroughSearch(ToolsByName):
    """Tools behind a search: a call of `call_tool` is a call of the tool that it names."""

    def __init__(self, tools: Tools, call_tool: str, kit: Kit) -> None:
        super().__init__(tools, [call_tool])
        self._catalog = kit.catalog
        self._arguments = kit.arguments
        self._call_tool = call_tool
        self._results = kit.results

    async def call_named(self, context: RequestContext, params: CallToolParams) -> Reply:
        """Serve tools/call for `call_tool`."""
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
        named = replace(params, name=name, sent=arguments)
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
