"""The skills of a server (SEP-2640), under URIs of the gateway.

The gateway puts the name of the back end in front of each path, whatever the scheme. It forwards
digests, sizes and frontmatter unchanged:

    skill://acme/refunds/SKILL.md  ──▶  skill://NAME/acme/refunds/SKILL.md

The list is read with the server's other lists. A request for a single skill or a directory always
goes to the server, so a host that sees a changed file can get its new digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from msgspec import Struct

from roundgate.backends.mcp.config import PartConfig
from roundgate.backends.mcp.lists import checked_text, read_list, read_with_earlier
from roundgate.backends.mcp.server import McpServer
from roundgate.backends.mcp.tools import MAX_REASON, LeftOut, left_out, without_hop
from roundgate.backends.mcp.uris import MAX_URI, SCHEME, Uris
from roundgate.backends.skills.source import Directory
from roundgate.client import ServerInfo
from roundgate.client.connection import Connection
from roundgate.client.types import Json, is_object_list
from roundgate.errors import BackendError, BadAnswer, HttpRefused, RpcError, UnexpectedAnswer
from roundgate.protocol import skills
from roundgate.protocol.skills import DYNAMIC, EXTENSION, SKILL_FILE, children_of, media_type

Accepts: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Returns whether the lock file has a skill as the server describes it."""
LIMIT_S: Final = 10.0
"""The timeout of a request about a skill or directory, in seconds."""
_UNKNOWN: Final = ("error -32602", "error -32002")


class SkillList(Struct, frozen=True):
    """The skills that one poll of a server read."""

    entries: Sequence[Json] = ()
    """The list as the server sent it."""
    is_declared: bool = False
    """Whether the server has the extension."""
    has_directories: bool = False
    """Whether the server lists directories."""
    fault: str | None = None
    """The reason why the list could not be read; the previous `entries` then stay."""
    is_private: bool = False
    """Whether the list is for the gateway's authorization alone."""


async def read_skill_list(
    connection: Connection, server: ServerInfo, previous: SkillList
) -> SkillList:
    """Return the skills that a server lists. If the list is unusable, return the previous entries.

    Raises:
        ClientError: the connection failed.
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
        return SkillList(previous.entries, True, has_directories, reason, previous.is_private)
    listing, fault = read_with_earlier(listing, previous.entries, "uri")
    return SkillList(listing.items, True, has_directories, fault, listing.is_private)


class ServerSkills(Struct, frozen=True):
    """The skills of one server (`SkillSource`)."""

    server: McpServer
    config: PartConfig
    """The selection of resources, and their scopes."""
    uris: Uris
    """The gateway's URIs, which have the name of the back end in all schemes."""
    entries: Sequence[Mapping[str, Any]]
    has_directories: bool
    accepts: Accepts | None
    """Tells accepted skills from quarantined ones; `None` accepts all."""

    @classmethod
    def from_list(
        cls,
        skill_list: SkillList,
        server: McpServer,
        config: PartConfig,
        accepts: Accepts | None,
    ) -> tuple[ServerSkills, list[LeftOut]]:
        """Return the skills of a list that can be served, and records of the others, except of
        quarantined skills."""
        uris = Uris(server.name, is_named=True)
        entries: dict[str, Mapping[str, Any]] = {}
        others: list[LeftOut] = []
        for raw in skill_list.entries:
            try:
                entry = entry_from_wire(raw, uris)
                if config.excludes(raw["uri"]) or not (accepts is None or accepts(raw)):
                    continue
                if entry["uri"] in entries:
                    raise ValueError("the server lists another skill with this uri")
                entries[entry["uri"]] = entry
            except ValueError as error:
                others.append(left_out(raw, "uri", error))
        listed = list(entries.values())
        # a directory of the server may have files of quarantined skills
        has_directories = skill_list.has_directories and accepts is None
        return cls(server, config, uris, listed, has_directories, accepts), others

    @property
    def scopes(self) -> frozenset[str]:
        """See `SkillSource`."""
        return frozenset(self.config.scopes)

    @property
    def starts(self) -> frozenset[str]:
        """The beginnings of the URIs of all skills."""
        matches = (SCHEME.match(entry["uri"]) for entry in self.entries)
        schemes = {match[0] for match in matches if match is not None}
        return frozenset(self.uris.start(scheme) for scheme in {*schemes, skills.SCHEME})

    async def get(self, uri: str) -> Mapping[str, Any] | None:
        """See `SkillSource`."""
        server_uri = self.uris.theirs(uri)
        if self.config.excludes(server_uri):
            return None
        result = await self._ask("skills/get", {"uri": server_uri})
        if result is None:
            return None
        try:
            entry = entry_from_wire(result.get("skill"), self.uris)
            if self.accepts is not None and not self.accepts(result["skill"]):
                return None
        except ValueError as error:
            raise UnexpectedAnswer(
                f"{self.server.name} answered with a malformed skill: {error}"
            ) from None
        if entry["uri"] != uri:
            raise UnexpectedAnswer(f"{self.server.name} answered about a different skill")
        return entry

    def may_read(self, uri: str) -> bool:
        """Return whether a file of a skill may be read, by the gateway's URI. In quarantine, that is
        a file that an accepted skill names; the host verifies its digest."""
        if self.accepts is None:
            return True
        for entry in self.entries:
            folder, files = entry["uri"].removesuffix(SKILL_FILE), entry["resources"]
            if files != DYNAMIC and (uri == entry["uri"] or any(uri == f["uri"] for f in files)):
                return True
            steps = unquote(uri.removeprefix(folder)).split("/")
            if files == DYNAMIC and uri.startswith(folder) and not {"", ".", ".."} & {*steps}:
                return True
        return False

    async def directory(self, uri: str, cursor: str | None) -> Directory | None:
        """See `SkillSource`. If the server does not list directories, derive the children from the
        files of the listed skills."""
        if not self.has_directories:
            children = children_of(uri, self._listed_files())
            return None if children is None or cursor is not None else Directory(children)
        server_uri = self.uris.theirs(uri)
        if self.config.excludes(server_uri):
            return None
        params = {"uri": server_uri, **({} if cursor is None else {"cursor": cursor})}
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
            resources = entry["resources"]
            for file in [{"uri": entry["uri"]}] if resources == DYNAMIC else resources:
                name = unquote(file["uri"].rpartition("/")[2])
                file_type = media_type(name, is_text=False)
                size = {"size": file["size"]} if "size" in file else {}
                yield {"uri": file["uri"], "name": name, "mimeType": file_type, **size}

    async def _ask(self, method: str, params: Json) -> Json | None:
        """Return the result of a request; `None` if the server does not know the URI.

        Raises:
            Unavailable: the server did not answer.
            BackendError: the server refused the request.
        """
        try:
            return await self.server.ask(method, params, LIMIT_S)
        except BackendError as error:
            if error.reason in _UNKNOWN:
                return None
            raise


def entry_from_wire(raw: Any, uris: Uris) -> Mapping[str, Any]:
    """Return an entry of skills/list with the gateway's URIs.

    Raises:
        ValueError: hosts would refuse the entry.
    """
    if not isinstance(raw, dict):
        raise ValueError("it is not an object")
    uri = checked_text(raw, "uri", MAX_URI)
    if not _has_authority(uri) or not uri.endswith(f"/{SKILL_FILE}"):
        raise ValueError(f"its uri is not the URI of a {SKILL_FILE}")
    frontmatter, files = raw.get("frontmatter"), raw.get("resources")
    if not isinstance(frontmatter, dict) or not all(
        isinstance(frontmatter.get(member), str) for member in ("name", "description")
    ):
        raise ValueError("its frontmatter has no name and description")
    if files != DYNAMIC:
        if not is_object_list(files):
            raise ValueError(f"its resources are neither a list nor {DYNAMIC!r}")
        files = [_file(file, uris) for file in files or ()]
    return {**without_hop(raw), "uri": uris.ours(uri), "resources": files}


def _has_authority(uri: str) -> bool:
    """Return whether a URI has the form SCHEME://…, so that the gateway can put a name in front."""
    scheme = SCHEME.match(uri)
    return scheme is not None and scheme[0].endswith("://")


def _file(raw: Json, uris: Uris) -> Json:
    """Return a file of a skill with the gateway's URI; raise ValueError if its digest or size is
    missing."""
    uri, size = checked_text(raw, "uri", MAX_URI), raw.get("size")
    if not isinstance(raw.get("digest"), str) or not isinstance(size, int) or size < 0:
        raise ValueError("a file in its resources lacks a digest or size")
    if not _has_authority(uri):
        raise ValueError(
            f"a file in its resources has a uri without scheme and authority: {uri[:80]}"
        )
    return {**raw, "uri": uris.ours(uri)}
