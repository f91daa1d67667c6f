"""The resources and resource templates of a server as the gateway lists them, and their contents.
All are forwarded unchanged, except for members that belong to one hop, and URIs (`mcp.uris`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from roundgate.backends.base import ChangeReporter, Complete, Resource
from roundgate.backends.mcp.config import PartConfig
from roundgate.backends.mcp.lists import Lists, check_entry, checked_text
from roundgate.backends.mcp.requests import ServerRequests
from roundgate.backends.mcp.tools import LeftOut, left_out, own_meta, without_hop
from roundgate.backends.mcp.uris import MAX_URI, SCHEME, Pattern, Uris
from roundgate.client.types import Json, is_object_list, without_nulls
from roundgate.errors import ResourceNotFound, UnexpectedAnswer
from roundgate.json import bounded_integer
from roundgate.protocol import (
    BlobResourceContents,
    ForwardedRead,
    ResourceContents,
    TextResourceContents,
)
from roundgate.protocol.uri_template import ascii_uri
from roundgate.replay import Context


def make_resources(
    lists: Lists,
    requests: ServerRequests,
    config: PartConfig,
    uris: Uris,
    reporter: ChangeReporter,
) -> tuple[list[Resource], list[LeftOut]]:
    """Return the selected resources and templates that can be served, and records of the others."""
    served: dict[tuple[str, str], Resource] = {}
    others: list[LeftOut] = []
    for method, member in (("resources/list", "uri"), ("resources/templates/list", "uriTemplate")):
        for raw in map(without_nulls, lists.get(method)):
            try:
                uri = _checked(raw, member, uris)
                if not config.has(uri):
                    continue
                if (member, uri) in served:
                    raise ValueError(f"the server lists another resource with this {member}")
                completes = "completions" in lists.declared
                served[member, uri] = Resource(
                    {**without_hop(raw), member: uris.ours(uri)},
                    partial(_read, requests, uris, uri if member == "uri" else None),
                    _completions(uri, requests) if member == "uriTemplate" and completes else {},
                    frozenset(config.scopes),
                    _selected(uri, config, uris) if member == "uriTemplate" else None,
                    reporter,
                )
            except ValueError as error:
                others.append(left_out(raw, member, error))
    return list(served.values()), others


def _checked(raw: Json, member: str, uris: Uris) -> str:
    """Return the URI of a resource; raise ValueError if clients would refuse its definition."""
    uri = checked_text(raw, member, MAX_URI)
    if not isinstance(raw.get("name"), str):
        raise ValueError("its name is not text")
    check_entry(raw)
    if uris.is_named and SCHEME.match(uri) is None:
        raise ValueError(f"its {member} has no scheme, so it cannot have the name of the back end")
    return uri


class _Selected(Struct, frozen=True):
    """The URIs of a template, except URIs that `exclude` names or that belong to other back
    ends."""

    pattern: Pattern
    config: PartConfig
    uris: Uris

    def match(self, uri: str) -> Mapping[str, Any] | None:
        """See `Pattern.match`."""
        if not self.uris.may_have(uri) or self.config.excludes(self.uris.theirs(uri)):
            return None
        return self.pattern.match(uri)


def _selected(template: str, config: PartConfig, uris: Uris) -> _Selected:
    return _Selected(Pattern.parse(ascii_uri(uris.ours(template))), config, uris)


def _completions(template: str, requests: ServerRequests) -> Mapping[str, Complete]:
    """Return the completions of the variables of a template."""
    reference = {"type": "ref/resource", "uri": template}
    names = Pattern.parse(template).variables
    return {name: requests.completes(reference, name) for name in names}


async def _read(
    requests: ServerRequests,
    uris: Uris,
    listed: str | None,
    context: Context,
    uri: str,
    values: Mapping[str, Any],
) -> ForwardedRead:
    """Read a resource by the gateway's URI, or by the URI under which the server lists it; return its
    contents.

    Raises:
        UnexpectedAnswer: the answer has no contents.
        InvalidParams: the resource is a quarantined page.
    """
    server_uri = listed or uris.theirs(uri)
    raw = await requests.send(context, "read", "resources/read", {"uri": server_uri})
    items = raw.get("contents")
    if not is_object_list(items):
        raise UnexpectedAnswer(f"{requests.server.name} answered without contents")
    requests.require_accepted_page(server_uri, items or ())
    contents = [_contents(item, uris, requests.server.name) for item in items or ()]
    own = ("contents", "resultType", "ttlMs", "cacheScope")
    others = {key: value for key, value in without_hop(raw).items() if key not in own}
    ttl_ms = bounded_integer(raw.get("ttlMs"))
    return ForwardedRead(contents, others, ttl_ms, raw.get("cacheScope") == "private")


def _contents(raw: Json, uris: Uris, server: str) -> ResourceContents:
    """Return contents under the gateway's URI, otherwise unchanged. Raise UnexpectedAnswer if they
    have no URI, or neither text nor base64."""
    uri, text, blob, meta = (raw.get(name) for name in ("uri", "text", "blob", "_meta"))
    kind = raw.get("mimeType")
    passed_meta = own_meta(meta) or None if isinstance(meta, dict) else None
    known = {"uri": uri, "mimeType": kind, "_meta": passed_meta}
    known |= {"text": text} if isinstance(text, str) else {"blob": blob}
    forwarded = {  # in the server's order
        name: value
        for name, value in raw.items()
        if name not in ("uri", "text", "blob", "mimeType", "_meta") or known.get(name) is not None
    }
    if isinstance(uri, str) and isinstance(text, str):
        return TextResourceContents(uris.ours(uri), text, kind, passed_meta, forwarded)
    if isinstance(uri, str) and isinstance(blob, str):
        return BlobResourceContents(uris.ours(uri), blob, kind, passed_meta, forwarded)
    raise UnexpectedAnswer(f"{server} answered with contents that have neither text nor blob")


def unlisted_resource(
    start: str,
    requests: ServerRequests,
    config: PartConfig,
    uris: Uris,
    may_read: Callable[[str], bool],
) -> Resource:
    """Return a resource that reads every URI that begins with `start`, listed or not, if `may_read`
    allows it.

    `include` selects from lists only; `exclude` applies to these URIs, too.
    """

    async def read(context: Context, uri: str, values: Mapping[str, Any]) -> ForwardedRead:
        if config.excludes(uris.theirs(uri)) or not may_read(uri):
            raise ResourceNotFound(uri)
        return await _read(requests, uris, None, context, uri, values)

    return Resource({"uri": start, "name": start}, read, scopes=frozenset(config.scopes))
