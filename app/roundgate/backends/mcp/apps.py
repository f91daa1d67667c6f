"""MCP Apps of a server: the references to its pages in `_meta`, and the declarations of the
extension. Everything else is forwarded unchanged, including the origins and permissions that a page
requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roundgate.backends.mcp.tools import UsableTool
from roundgate.client import ServerInfo
from roundgate.client.types import Json
from roundgate.protocol.apps import EXTENSION, FLAT_KEYS, SCHEME, page_uris
from roundgate.replay import Context, run_of


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


def declared_extension(context: Context) -> Json:
    """Return the extension as the call's client declared it; empty if the client shows no pages."""
    extensions = run_of(context).call.capabilities.declared.get("extensions")
    settings = extensions.get(EXTENSION) if isinstance(extensions, dict) else None
    return {EXTENSION: settings} if isinstance(settings, dict) else {}


def has_pages(server: ServerInfo, tools: Iterable[UsableTool]) -> bool:
    """Return whether a server has pages: it declares the extension, or a tool names a page."""
    extensions = server.capabilities.get("extensions")
    is_declared = isinstance(extensions, dict) and EXTENSION in extensions
    return is_declared or any(any(page_uris(tool.definition.get("_meta") or {})) for tool in tools)
