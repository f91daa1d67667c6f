"""A snapshot of a server: its lists, as one poll read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from roundgate.backends.mcp.apps import is_page
from roundgate.backends.mcp.lists import Lists, read_lists, read_with_earlier
from roundgate.backends.mcp.server import McpServer
from roundgate.backends.mcp.skills import SkillList, read_skill_list
from roundgate.backends.mcp.tools import LeftOut, UsableTool, usable_tools
from roundgate.backends.mcp.uris import MAX_URI
from roundgate.client import ServerInfo
from roundgate.client.types import Json
from roundgate.protocol.apps import page_uris


class ServerSnapshot(Struct, frozen=True):
    """The lists of a server."""

    definitions: Sequence[Json]
    """The definitions of the tools, as the server sent them."""
    info: ServerInfo
    usable: Sequence[UsableTool]
    left_out: Sequence[LeftOut]
    ttl_ms: int | None
    """The shortest time to live of the lists in milliseconds, as the server declares it."""
    lists: Lists
    """The prompts, resources and resource templates."""
    skills: SkillList
    is_private: bool = False
    """Whether a list is for the gateway's authorization alone (`cacheScope: private`)."""

    @property
    def has_tasks(self) -> bool:
        """Return whether calls may become tasks of the server."""
        return self.info.is_modern and self.info.has_tasks

    @property
    def by_name(self) -> dict[str, UsableTool]:
        """The tools that can be served, by name."""
        return {tool.name: tool for tool in self.usable}

    @property
    def faults(self) -> Mapping[str, str]:
        """The reasons why lists besides the tools could not be read, by their methods."""
        skills = {} if self.skills.fault is None else {"skills/list": self.skills.fault}
        return {**self.lists.faults, **skills}

    @property
    def pinned(self) -> Mapping[str, Sequence[Json]]:
        """The definitions in the lists that a lock file pins, by kind."""
        return {
            "tools": self.definitions,
            "prompts": self.lists.get("prompts/list"),
            "templates": self.lists.get("resources/templates/list"),
            "skills": self.skills.entries,
            "resources": self._listed_pages,
        }

    @property
    def pages(self) -> Sequence[str]:
        """The URIs of the pages that tools name, or that the server lists."""
        named = [uri for tool in self.usable for uri in page_uris(tool.definition.get("_meta", {}))]
        uris = dict.fromkeys([*named, *(raw["uri"] for raw in self._listed_pages)])
        return [uri for uri in uris if len(uri) <= MAX_URI]

    @property
    def _listed_pages(self) -> Sequence[Json]:
        return [raw for raw in self.lists.get("resources/list") if is_page(raw.get("uri"))]

    def offers_the_same_as(self, other: ServerSnapshot | None) -> bool:
        """Return whether the server offers the same as in another snapshot."""
        return (
            other is not None
            and self.definitions == other.definitions
            and self.has_tasks == other.has_tasks
            and self.info.is_modern == other.info.is_modern
            and self.lists.offers_the_same_as(other.lists)
            and self.skills == other.skills
            and self.is_private == other.is_private
        )

    def has_emptied_list_of(self, other: ServerSnapshot) -> bool:
        """Return whether a list that had entries in another snapshot is now empty."""
        is_emptied = bool(other.definitions) and not self.definitions
        return is_emptied or self.lists.has_emptied_list_of(other.lists)


async def read_snapshot(
    server: McpServer, previous: ServerSnapshot | None, *, check_arguments: bool
) -> ServerSnapshot:
    """Read the lists of a server.

    Args:
        server: the connection.
        previous: the previous snapshot. Its entries replace a list that cannot be read, and its
            tools are not compiled again if their definitions are the same.
        check_arguments: whether calls validate arguments, so that tools need their schemas compiled.

    Raises:
        ClientError, BackendError: the server is unavailable, or its list of tools is unusable.
    """
    info, listing = await server.tools()
    earlier = () if previous is None else previous.definitions
    listing, fault = read_with_earlier(listing, earlier, "name")
    connection = await server.connection()
    lists = await read_lists(connection, info, None if previous is None else previous.lists)
    if fault is not None:
        lists = replace(lists, faults={**lists.faults, "tools/list": fault})
    known_skills = SkillList() if previous is None else previous.skills
    skills = await read_skill_list(connection, info, known_skills)
    ttl_ms = min((ms for ms in (listing.ttl_ms, lists.ttl_ms) if ms is not None), default=None)
    is_private = listing.is_private or lists.is_private or skills.is_private
    if previous is not None and previous.definitions == listing.items:
        usable, left_out = previous.usable, previous.left_out
    else:
        usable, left_out = await asyncio.to_thread(
            usable_tools, listing.items, check_arguments=check_arguments
        )
    return ServerSnapshot(listing.items, info, usable, left_out, ttl_ms, lists, skills, is_private)
