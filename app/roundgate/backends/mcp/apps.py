"""MCP Apps of a server: the references to its pages in `_meta`, and the declarations of the
extension. Everything else of a page passes as it came, with the origins and permissions that it
asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roundgate.backends.mcp.tools import UsableTool
from roundgate.client import ServerInfo
from roundgate.client.types import Json
from roundgate.protocol.apps import EXTENSION, FLAT_KEYS, SCHEME, page_uris
from roundgate.replay import Context, run_of


def with_pages(value: Mapping[str, Any], renamed: Callable[[str], str]) -> Mapping[str, Any]:
    """Return an object in whose `_meta` the URIs of pages are renamed."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or not any(page_uris(meta)):
        return value
    changed = {
        key: _renamed(member, renamed) if key in FLAT_KEYS else member
        for key, member in meta.items()
    }
    if isinstance(ui := meta.get("ui"), dict) and "resourceUri" in ui:
        changed["ui"] = {**ui, "resourceUri": _renamed(ui["resourceUri"], renamed)}
    return {**value, "_meta": changed}


def _renamed(uri: Any, renamed: Callable[[str], str]) -> Any:
    """Return the renamed URI of a page. Any other value is returned as it is."""
    return renamed(uri) if isinstance(uri, str) and uri.startswith(SCHEME) else uri


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
