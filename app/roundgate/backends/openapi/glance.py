"""A document before anything is configured: whether it is one, and whether it
says where its service is."""

from __future__ import annotations

from roundgate.backends.openapi import sources, swagger2
from roundgate.backends.openapi.servers import Servers
from roundgate.errors import UnreadableDocument, UnusableOperation


def server_of(raw: bytes, name: str) -> str | None:
    """Return the URL of its service that a document names, or `None` if it names none that can be
    used as it stands.

    Raises:
        UnreadableDocument: it is no OpenAPI document.
    """
    value = sources.parsed(raw, name)
    if not isinstance(value, dict) or not ({"openapi", "swagger"} & value.keys()):
        raise UnreadableDocument(
            f"{name} is no OpenAPI document: it says neither `openapi` nor `swagger`"
        )
    servers = swagger2.servers(value) if "swagger" in value else value.get("servers")
    try:
        return Servers(None).first(servers or [{"url": "/"}], f"file:///{name}")
    except UnusableOperation:
        return None
