"""MCP Apps of a server: the references to its pages in `_meta`, the declarations of the extension,
and the definitions of pages in a lock file. Everything else is forwarded unchanged, including the
origins and permissions that a page requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from roundgate.backends.mcp.tools import UsableTool, without_hop
from roundgate.client import ServerInfo
from roundgate.client.types import Json
from roundgate.protocol.apps import EXTENSION, FLAT_KEYS, SCHEME, page_uris
from roundgate.replay import AnyContext, call_of


def with_page_uris(value: Mapping[str, Any], rename: Callable[[str], str]) -> Mapping[str, Any]:
    """Return an object with renamed URIs of pages in its `_meta`."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or not any(page_uris(meta)):
        return value
    changed = {
        key: _renamed(member, rename) if key in FLAT_KEYS else member
        for key, member in meta.items()
    }
    if isinstance(ui := meta.get("ui"), dict) and "resourceUri" in ui:
        changed["ui"] = {**ui, "resourceUri": _renamed(ui["resourceUri"], rename)}
    return {**value, "_meta": changed}


def _renamed(uri: Any, rename: Callable[[str], str]) -> Any:
    """Return the renamed URI of a page; return any other value unchanged."""
    return rename(uri) if isinstance(uri, str) and uri.startswith(SCHEME) else uri


def declared_extension(context: AnyContext) -> Json:
    """Return the extension as the call's client declared it; empty if the client shows no pages."""
    extensions = call_of(context).capabilities.declared.get("extensions")
    settings = extensions.get(EXTENSION) if isinstance(extensions, dict) else None
    return {EXTENSION: settings} if isinstance(settings, dict) else {}


def has_pages(server: ServerInfo, tools: Iterable[UsableTool]) -> bool:
    """Return whether a server has pages: it declares the extension, or a tool names a page."""
    extensions = server.capabilities.get("extensions")
    is_declared = isinstance(extensions, dict) and EXTENSION in extensions
    return is_declared or any(any(page_uris(tool.definition.get("_meta") or {})) for tool in tools)


def is_page(uri: Any) -> bool:
    """Return whether a value is the URI of a page, in any spelling of its scheme."""
    return isinstance(uri, str) and uri[: len(SCHEME)].lower() == SCHEME


def page_definition(uri: str, contents: Sequence[Json]) -> Json:
    """Return the definition of a page for a lock file: the contents that the server sent for its
    URI, including origins and permissions. A digest replaces each text, which may have megabytes."""
    return {"uri": uri, "contents": [_with_digests(without_hop(item)) for item in contents]}


def _with_digests(item: Json) -> Json:
    texts = {name: item[name] for name in ("text", "blob") if isinstance(item.get(name), str)}
    digests = {
        name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        for name, text in texts.items()
    }
    return {**item, **digests}
