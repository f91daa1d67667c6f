"""The skills of a server (SEP-2640), under URIs of the gateway.

The name of the back end is in front of each path, whatever the scheme; digests, sizes and
frontmatter pass as they came:

    skill://acme/refunds/SKILL.md  ──▶  skill://NAME/acme/refunds/SKILL.md

The list is read with the server's other lists. A single skill and a directory are asked for anew,
so a host that found a file changed learns the new digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from roundgate.backends.base import Directory
from roundgate.backends.mcp.config import PartConfig
from roundgate.backends.mcp.lists import checked_text, left_out, read_list
from roundgate.backends.mcp.server import Server
from roundgate.backends.mcp.tools import MAX_REASON, LeftOut, without_hop
from roundgate.backends.mcp.uris import MAX_URI, SCHEME, Uris
from roundgate.client import ServerInfo
from roundgate.client.connection import Connection
from roundgate.client.messages import Listener
from roundgate.client.types import Json, is_object_list
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    BadAnswer,
    HttpRefused,
    NoAnswer,
    RpcError,
    Unavailable,
    UnexpectedAnswer,
)
from roundgate.protocol import skills
from roundgate.protocol.skills import DYNAMIC, EXTENSION, SKILL_FILE, children_of, media_type

LIMIT_S: Final = 10.0
"""Seconds within which a server must answer about a skill or directory."""
_UNKNOWN: Final = ("error -32602", "error -32002")


@dataclass(frozen=True, slots=True)
class SkillList:
    """The skills of one look at a server."""

    entries: Sequence[Json] = ()
    """The list as the server sent it."""
    is_declared: bool = False
    """Whether the server has the extension."""
    has_directories: bool = False
    """Whether the server lists directories."""
    fault: str | None = None
    """The reason why the list could not be read; `entries` are then those of the last look."""


async def read_skill_list(
    connection: Connection, server: ServerInfo, known: SkillList
) -> SkillList:
    """Return the skills that a server lists. A list that fails takes no other away.

    Raises:
        ClientError: the server cannot be asked any more.
    """
    extensions = server.capabilities.get("extensions")
    settings = extensions.get(EXTENSION) if isinstance(extensions, dict) else None
    if not isinstance(settings, dict):
        return SkillList()
    has_directories = settings.get("directoryRead") is True
    connection.cache.clear("skills/list")
    try:
        listing = await read_list(connection, "skills/list", "skills")
    except (RpcError, BadAnswer, HttpRefused) as error:
        reason = str(error.args[0])[:MAX_REASON]
        return SkillList(known.entries, True, has_directories, reason)
    return SkillList(listing.items, True, has_directories)


@dataclass(frozen=True, slots=True)
class ServerSkills:
    """The skills of one server (`SkillSource`)."""

    server: Server
    clock: Clock
    config: PartConfig
    """The selection of resources, and their scopes."""
    uris: Uris
    """URIs that have the name of the back end in all schemes."""
    entries: Sequence[Mapping[str, Any]]
    has_directories: bool

    @classmethod
    def of(
        cls, found: SkillList, server: Server, clock: Clock, config: PartConfig
    ) -> tuple[ServerSkills, list[LeftOut]]:
        """Return the skills of a list that can be served, and the others."""
        uris = Uris(server.name, is_named=True)
        entries: dict[str, Mapping[str, Any]] = {}
        others: list[LeftOut] = []
        for raw in found.entries:
            try:
                entry = entry_from_wire(raw, uris)
                if config.excludes(raw["uri"]):
                    continue
                if entry["uri"] in entries:
                    raise ValueError("the server lists another skill with this uri")
                entries[entry["uri"]] = entry
            except ValueError as error:
                others.append(left_out(raw, "uri", error))
        listed = list(entries.values())
        return cls(server, clock, config, uris, listed, found.has_directories), others

    @property
    def scopes(self) -> frozenset[str]:
        """See `SkillSource`."""
        return frozenset(self.config.scopes)

    @property
    def starts(self) -> frozenset[str]:
        """The beginnings of the URIs of all skills."""
        schemes = (SCHEME.match(entry["uri"]) for entry in self.entries)
        listed = {scheme[0] for scheme in schemes if scheme is not None}
        return frozenset(self.uris.start(scheme) for scheme in {*listed, skills.SCHEME})

    async def get(self, uri: str) -> Mapping[str, Any] | None:
        """See `SkillSource`."""
        own = self.uris.theirs(uri)
        result = None if self.config.excludes(own) else await self._ask("skills/get", {"uri": own})
        if result is None:
            return None
        try:
            entry = entry_from_wire(result.get("skill"), self.uris)
        except ValueError as error:
            text = f"{self.server.name} has a skill that hosts refuse: {error}"
            raise UnexpectedAnswer(text) from None
        if entry["uri"] != uri:
            raise UnexpectedAnswer(f"{self.server.name} answered with another skill")
        return entry

    async def directory(self, uri: str, cursor: str | None) -> Directory | None:
        """See `SkillSource`. For a server that lists no directories, the files of the listed skills
        say what a directory has."""
        if not self.has_directories:
            children = children_of(uri, self._listed_files())
            return None if children is None or cursor is not None else Directory(children)
        own = self.uris.theirs(uri)
        if self.config.excludes(own):
            return None
        params = {"uri": own, **({} if cursor is None else {"cursor": cursor})}
        result = await self._ask("resources/directory/read", params)
        if result is None:
            return None
        resources, next_cursor = result.get("resources"), result.get("nextCursor")
        if not is_object_list(resources) or not isinstance(next_cursor, (str, type(None))):
            raise UnexpectedAnswer(f"{self.server.name} answered without the files of a directory")
        children = [self._child(child) for child in resources or ()]
        served = [
            each for each in children if not self.config.excludes(self.uris.theirs(each["uri"]))
        ]
        return Directory(served, next_cursor)

    def _child(self, raw: Json) -> Mapping[str, Any]:
        uri = raw.get("uri")
        if not isinstance(uri, str):
            raise UnexpectedAnswer(f"{self.server.name} lists a file without a URI")
        return {**without_hop(raw), "uri": self.uris.ours(uri)}

    def _listed_files(self) -> Iterator[Mapping[str, Any]]:
        for entry in self.entries:
            listed = entry["resources"]
            for file in [{"uri": entry["uri"]}] if listed == DYNAMIC else listed:
                name = unquote(file["uri"].rpartition("/")[2])
                kind = media_type(name, is_text=False)
                size = {"size": file["size"]} if "size" in file else {}
                yield {"uri": file["uri"], "name": name, "mimeType": kind, **size}

    async def _ask(self, method: str, params: Json) -> Json | None:
        """Return the result of a request; `None` if the server does not know the URI.

        Raises:
            Unavailable: the server did not answer.
            BackendError: it refused the request.
        """
        deadline = self.clock.deadline(LIMIT_S * 1000)
        listener = Listener(capabilities={})
        try:
            return await self.server.request(method, params, listener, deadline, is_repeatable=True)
        except NoAnswer as error:
            raise Unavailable(str(error)) from None
        except BackendError as error:
            if error.reason in _UNKNOWN:
                return None
            raise


def entry_from_wire(raw: Any, uris: Uris) -> Mapping[str, Any]:
    """Return a server's entry of a skill under the gateway's URIs.

    Raises:
        ValueError: hosts would refuse the entry.
    """
    if not isinstance(raw, dict):
        raise ValueError("it is no object")
    uri = checked_text(raw, "uri", MAX_URI)
    if not _has_authority(uri) or not uri.endswith(f"/{SKILL_FILE}"):
        raise ValueError(f"its uri is not that of a {SKILL_FILE}")
    described, files = raw.get("frontmatter"), raw.get("resources")
    if not isinstance(described, dict) or not all(
        isinstance(described.get(member), str) for member in ("name", "description")
    ):
        raise ValueError("its frontmatter has no name and description")
    if files != DYNAMIC:
        files = [_file(file, uris) for file in _objects(files)]
    return {**without_hop(raw), "uri": uris.ours(uri), "resources": files}


def _has_authority(uri: str) -> bool:
    """Return whether a URI has the form SCHEME://…, so that the gateway can put a name in front."""
    scheme = SCHEME.match(uri)
    return scheme is not None and scheme[0].endswith("://")


def _objects(files: Any) -> Sequence[Json]:
    if not is_object_list(files):
        raise ValueError(f"its resources are neither a list nor {DYNAMIC!r}")
    return files  # type: ignore[no-any-return]


def _file(raw: Json, uris: Uris) -> Json:
    """Return a file of a skill with the gateway's URI; raise ValueError if its digest or size is
    missing."""
    uri, size = checked_text(raw, "uri", MAX_URI), raw.get("size")
    if not isinstance(raw.get("digest"), str) or not isinstance(size, int) or size < 0:
        raise ValueError("one of its resources has no digest and size")
    if not _has_authority(uri):
        raise ValueError(f"one of its resources has a uri without scheme and authority: {uri[:80]}")
    return {**raw, "uri": uris.ours(uri)}
