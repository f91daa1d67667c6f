"""The lists of a server besides its tools: prompts, resources and resource templates.

A failure to read a list does not affect the others: its previous entries stay, and the reason is
recorded. A server that declares resources need not support templates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.backends.mcp.tools import MAX_REASON, check_types
from roundgate.client import ServerInfo
from roundgate.client.connection import Connection
from roundgate.client.flows import WholeList
from roundgate.client.types import Json
from roundgate.errors import BadAnswer, HttpRefused, RpcError

LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resources", "resourceTemplates"),
}
"""The capability that a list needs, and the member of its pages, by its method."""
_KEYS: Final = {"resources/list": "uri", "resources/templates/list": "uriTemplate"}
LIST_S: Final = 20.0
"""Seconds within which a server must return a list. Of a list of tools, these seconds limit the
pages after the first."""
_NOT_FOUND: Final = -32601
_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "title": (str, "text"),
    "description": (str, "text"),
    "mimeType": (str, "text"),
    "annotations": (dict, "an object"),
    "arguments": (list, "a list"),
    "icons": (list, "a list"),
    "_meta": (dict, "an object"),
}
"""The types of the optional members that clients read."""


class Lists(Struct, frozen=True):
    """The lists that one poll of a server read, by their methods, as the server sent them."""

    entries: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    """The capabilities among "prompts", "resources" and "completions" that the server has."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """The reason why a list could not be read, by its method."""
    ttl_ms: int | None = None
    """The shortest time to live of the lists in milliseconds, as the server declares it."""
    is_private: bool = False
    """Whether a list is for the gateway's authorization alone (`cacheScope: private`)."""

    def get(self, method: str) -> Sequence[Json]:
        """Return the entries of a list."""
        return self.entries.get(method, ())

    def offers_the_same_as(self, other: Lists) -> bool:
        """Return whether the lists equal the lists of another poll, apart from their time to
        live."""
        return replace(self, ttl_ms=None) == replace(other, ttl_ms=None)

    def has_emptied_list_of(self, other: Lists) -> bool:
        """Return whether a list that had entries in another poll is now empty."""
        return any(self.get(method) == [] for method, entries in other.entries.items() if entries)


async def read_lists(connection: Connection, server: ServerInfo, previous: Lists | None) -> Lists:
    """Return the lists that a server declares.

    Args:
        connection: the connection to the server.
        server: the server's information.
        previous: the lists of the previous poll.

    Raises:
        ClientError: the connection failed.
    """
    previous = previous or Lists()
    declared = frozenset({"prompts", "resources", "completions"} & server.capabilities.keys())
    methods = [method for method, (capability, _) in LISTS.items() if capability in declared]
    connection.cache.clear(*methods)
    results = await asyncio.gather(*(_read(connection, method, previous) for method in methods))
    ttls = [listing.ttl_ms for listing, _ in results if listing.ttl_ms is not None]
    return Lists(
        {method: listing.items for method, (listing, _) in zip(methods, results, strict=True)},
        declared,
        {method: fault for method, (_, fault) in zip(methods, results, strict=True) if fault},
        min(ttls, default=None),
        any(listing.is_private for listing, _ in results),
    )


async def _read(
    connection: Connection, method: str, previous: Lists
) -> tuple[WholeList, str | None]:
    """Return a list, and the reason for a failure to read it, or `None`."""
    earlier = previous.get(method)
    try:
        listing = await read_list(connection, method, LISTS[method][1])
        return read_with_earlier(listing, earlier, _KEYS.get(method, "name"))
    except (RpcError, BadAnswer, HttpRefused) as error:
        if isinstance(error, RpcError) and error.code == _NOT_FOUND:
            return WholeList([], None), None
        kept = WholeList(list(earlier), None, previous.is_private)
        return kept, str(error.args[0])[:MAX_REASON]


def read_with_earlier(
    listing: WholeList, earlier: Sequence[Json], key: str
) -> tuple[WholeList, str | None]:
    """Return a list, and the reason why its last pages could not be read, or `None`. Their entries
    stay as they were in an earlier poll."""
    if listing.error is None:
        return listing, None
    read = {str(entry.get(key)) for entry in listing.items}
    rest = [entry for entry in earlier if str(entry.get(key)) not in read]
    reason = f"after {len(read)} entries: {listing.error.args[0]}"[:MAX_REASON]
    return replace(listing, items=[*listing.items, *rest]), reason


async def read_list(connection: Connection, method: str, member: str) -> WholeList:
    """Return a list.

    Raises:
        RpcError, BadAnswer, HttpRefused: the list is not served, or takes more than `LIST_S`.
        ClientError: the server cannot be asked any more.
    """
    try:
        async with asyncio.timeout(LIST_S + 1):
            return await connection.listing(method, member, LIST_S)
    except TimeoutError:
        raise BadAnswer(f"The server did not answer {method} within {LIST_S:g} s") from None


def check_entry(raw: Json) -> None:
    """Raise ValueError if clients would refuse an entry of a list of prompts or resources."""
    check_types(raw, _TYPES, ["icons", "arguments"])


def checked_text(raw: Json, member: str, longest: int) -> str:
    """Return a required string of an entry; raise ValueError if it is missing, empty or too long."""
    value: Any = raw.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise ValueError(f"its {member} is not text of 1 to {longest:,} characters")
    return value
