"""MCP Apps of a server: its pages under URIs of the gateway.

A `ui://` URI gets the name of the back end in front of its authority, so that two servers cannot
have the same:

    ui://clock/app.html  ──▶  ui://NAME/clock/app.html

The URI changes wherever a host looks for it: in the `_meta` of tools and results, in links and
embedded resources, and in the contents of a page. Everything else of a page passes as it came, with
the origins and permissions that it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roundgate.backends.base import Resource
from roundgate.backends.mcp.reading import Reading
from roundgate.backends.mcp.tools import UsableTool
from roundgate.client import ServerInfo
from roundgate.client.types import Json
from roundgate.protocol import ResourceContents
from roundgate.protocol.apps import EXTENSION, FLAT_KEYS, SCHEME, page_uris
from roundgate.replay import Context, run_of


@dataclass(frozen=True, slots=True)
class PageUris:
    """The gateway's URIs for the pages of one back end."""

    name: str
    """The name of the back end."""

    @property
    def start(self) -> str:
        """The beginning of all of them."""
        return f"{SCHEME}{self.name}/"

    def ours(self, uri: Any) -> Any:
        """Return the gateway's URI for a server's page. Any other value is returned as it is."""
        is_page = isinstance(uri, str) and uri.startswith(SCHEME)
        return self.start + uri.removeprefix(SCHEME) if is_page else uri

    def theirs(self, uri: str) -> str:
        """Return the server's URI for one of the gateway's."""
        return SCHEME + uri.removeprefix(self.start)

    def in_meta(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object in whose `_meta` pages have the gateway's URIs."""
        meta = value.get("_meta")
        if not isinstance(meta, dict) or not any(page_uris(meta)):
            return value
        changed = {key: self.ours(meta[key]) if key in FLAT_KEYS else meta[key] for key in meta}
        if isinstance(ui := meta.get("ui"), dict) and "resourceUri" in ui:
            changed["ui"] = {**ui, "resourceUri": self.ours(ui["resourceUri"])}
        return {**value, "_meta": changed}

    def in_result(self, result: Json) -> Json:
        """Return the result of a tool with the gateway's URIs in `_meta` and in its content."""
        changed = dict(self.in_meta(result))
        blocks = result.get("content")
        if isinstance(blocks, list):
            changed["content"] = [self._in_block(block) for block in blocks]
        return changed

    def _in_block(self, block: Any) -> Any:
        if not isinstance(block, dict):
            return block
        changed = self._in_resource(block)
        resource = block.get("resource")
        if isinstance(resource, dict):
            changed = {**changed, "resource": self._in_resource(resource)}
        return changed

    def _in_resource(self, resource: Json) -> Json:
        """Return a link, an embedded resource or contents with the gateway's URIs."""
        changed = self.in_meta(resource)
        return {**changed, **({"uri": self.ours(resource["uri"])} if "uri" in resource else {})}


def declared_by(context: Context) -> Json:
    """Return the extension as a call's client declares it; empty if the client shows no pages."""
    extensions = run_of(context).call.capabilities.declared.get("extensions")
    settings = extensions.get(EXTENSION) if isinstance(extensions, dict) else None
    return {EXTENSION: settings} if isinstance(settings, dict) else {}


def has_pages(server: ServerInfo, tools: Iterable[UsableTool]) -> bool:
    """Return whether a server has pages: it declares them, or a tool names one."""
    extensions = server.capabilities.get("extensions")
    is_declared = isinstance(extensions, dict) and EXTENSION in extensions
    return is_declared or any(any(page_uris(tool.definition.get("_meta") or {})) for tool in tools)


def pages_of(uris: PageUris, reading: Reading) -> Resource:
    """Return the reader of a server's pages, which need not be in its list of resources."""

    async def read(
        context: Context, uri: str, values: Mapping[str, Any]
    ) -> Sequence[ResourceContents]:
        return await reading.read(context, uris.theirs(uri), uris.ours)

    return Resource({"uri": uris.start, "name": uris.name}, read)
