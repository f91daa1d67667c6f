"""A document before anything is configured: whether it is one, and whether it
says where its service is."""

from __future__ import annotations

from roundgate.backends.openapi import sources, swagger2
from roundgate.backends.openapi.servers import Servers
from roundgate.errors import UnreadableDocument, UnusableOperation


def base_url_for(raw: bytes, name: str, otherwise: str) -> tuple[str, str] | None:
    """Return the `base_url` that a document in a file needs, and the reason; `None` if the
    document's own server can be used.

    Args:
        raw: the document.
        name: the file's name.
        otherwise: the URL if the document names none.

    Raises:
        UnreadableDocument: the file is no OpenAPI document.
    """
    value = sources.parsed(raw, name)
    if not isinstance(value, dict) or not ({"openapi", "swagger"} & value.keys()):
        raise UnreadableDocument(
            f"{name} is no OpenAPI document: it says neither `openapi` nor `swagger`"
        )
    servers = swagger2.servers(value) if "swagger" in value else value.get("servers")
    chosen, place = Servers(None), f"file:///{name}"
    try:
        chosen.of(None, servers, place)
    except UnusableOperation:
        pass
    else:
        return None
    try:
        url = chosen.first(servers, place)
    except UnusableOperation:
        return otherwise, "where the service is; the document does not say it"
    return (
        url,
        "from the document, whose server is used without this line only if it is on the internet",
    )
