"""Skills (SEP-2640): skills/list, skills/get and resources/directory/read. The files of skills are
read with resources/read.

The skills of all back ends are one list. A request for a skill or directory goes to the back end
that its URI names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from roundgate.backends import Catalog
from roundgate.errors import InternalError, InvalidParams, ResourceNotFound
from roundgate.methods.parts import Extension, Kit, Listing, Method, list_hint
from roundgate.methods.rounds import Reply, RequestContext
from roundgate.protocol import ListParams, Params, Route, Uri, skills, without_none
from roundgate.replay import Journal, Restarted, Run, Suspended, engine
from roundgate.tasks import log_failure

if TYPE_CHECKING:  # loaded only if a back end has skills
    from roundgate.backends.skills.source import SkillSource

T = TypeVar("T")

_ROUTE: Final = Route("skills")
_SHOWN: Final = 200
"""The maximum length of a URI in an error message, in characters."""


class GetSkillParams(Params):
    """The params of skills/get."""

    uri: Uri


class ReadDirectoryParams(ListParams):
    """The params of resources/directory/read."""

    uri: Uri


class SkillsExtension(Extension):
    """Skills of folders and of servers."""

    name = skills.EXTENSION
    feature = "skills"
    routes = MappingProxyType(
        {"skills/list": _ROUTE, "skills/get": _ROUTE, "resources/directory/read": _ROUTE}
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
        self._clock = kit.parts.clock
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
        subject = f"skill {uri[:_SHOWN]}"
        call = self._calls.call(context)
        outcome = await engine.run_handler(lambda: ask(source), Run(call, Journal()))
        if isinstance(outcome, (Suspended, Restarted)):  # a source has no context to ask with
            raise InternalError(
                log_failure(subject, RuntimeError("the back end asked a question"), self._clock)
            )
        return self._calls.value(outcome, subject)
