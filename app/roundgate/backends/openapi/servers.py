"""The server that receives an operation's requests (OpenAPI "Server Object").

Requests carry credentials, so a document alone cannot choose their destination. Requests go only to
`base_url`, to `origins` and, without `base_url`, to the origin of the document. A document from a
file has no origin, so its first server is used if it is on the public internet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from msgspec import Struct, field

from roundgate.backends.openapi import documents, swagger2
from roundgate.backends.openapi.documents import UnusableOperation
from roundgate.errors import UnreadableDocument
from roundgate.net.addresses import canonical_host, canonical_origin, is_public

_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
_USABLE: Final = re.compile(r"https?://[^/?#\s@%\\]+(?:/[^?#\s\\]*)?")


class Servers(Struct, frozen=True):
    """A selector of servers, according to the configuration."""

    base_url: str | None
    variables: Mapping[str, str] = field(default_factory=dict)
    origins: Sequence[str] = ()

    def of(self, own: Any, of_document: Any, document_uri: str) -> str:
        """Return the base URL for an operation.

        Args:
            own: `servers` of the operation, or of its path.
            of_document: `servers` of the document.
            document_uri: the base of relative URLs.

        Raises:
            UnusableOperation: there is no server, or requests may not go to its origin.
        """
        if own:
            url = self.first(own, document_uri)
            if self._may_go_to(url):
                return url
            if self.base_url is None:
                own_url = self._document_server(of_document, document_uri) if of_document else None
                if own_url is not None and canonical_origin(own_url) == canonical_origin(url):
                    return url
                raise UnusableOperation(
                    f"its server is at {canonical_origin(url)}",
                    f"add {canonical_origin(url)} to `origins`",
                )
        if self.base_url is not None:
            return self.base_url
        return self._document_server(of_document or [{"url": "/"}], document_uri)

    def _document_server(self, servers: Any, document_uri: str) -> str:
        """Return the first of the document's servers. Raise UnusableOperation if requests may not
        go to it."""
        url = self.first(servers, document_uri)
        if self._may_go_to(url):
            return url
        is_file = urlsplit(document_uri).scheme == "file"
        if is_public(url) if is_file else canonical_origin(url) == canonical_origin(document_uri):
            return url
        why = (
            "which is not on the public internet"
            if is_file
            else f"and the document is from {canonical_origin(document_uri)}"
        )
        raise UnusableOperation(
            f"its server is at {canonical_origin(url)}, {why}",
            f"add {canonical_origin(url)} to `origins`, or set `base_url`",
        )

    def first(self, servers: Any, document_uri: str) -> str:
        """Return the URL of the first server, whether or not requests may go to it.

        Raises:
            UnusableOperation: there is no server, or its URL is unusable.
        """
        server = servers[0] if isinstance(servers, list) and servers else None
        if not isinstance(server, dict):
            raise UnusableOperation("its servers are not a list of objects", "set `base_url`")
        url = urljoin(
            document_uri,
            _VARIABLE.sub(lambda match: self._value(match[1], server), str(server.get("url"))),
        )
        if not _USABLE.fullmatch(url) or ".." in urlsplit(url).path.split("/"):
            raise UnusableOperation(
                "the document has no http(s) URL of the service", self._remedy()
            )
        try:
            canonical_origin(url)
        except ValueError:
            raise UnusableOperation("its server has an invalid port", self._remedy()) from None
        return url.rstrip("/")

    def _remedy(self) -> str:
        if self.base_url is None:
            return "set `base_url`"
        return "correct the operation's `servers` with an overlay"

    def _value(self, name: str, server: Mapping[str, Any]) -> str:
        declared = (server.get("variables") or {}).get(name)
        declared = declared if isinstance(declared, dict) else {}
        value = self.variables.get(name, declared.get("default"))
        if value is None:
            raise UnusableOperation(
                f"the server's URL needs a value for {name!r}",
                f"set `variables.{name}`, or `base_url`",
            )
        allowed = declared.get("enum")
        if allowed and str(value) not in map(str, allowed):
            raise UnusableOperation(
                f"{name!r} of the server's URL must be one of {allowed}",
                f"correct `variables.{name}`",
            )
        return str(value)

    def _may_go_to(self, url: str) -> bool:
        if self.base_url is not None and canonical_origin(url) == canonical_origin(self.base_url):
            return True
        return any(_matches(url, allowed.rstrip("/")) for allowed in self.origins)


def _matches(url: str, allowed: str) -> bool:
    if "://*." not in allowed:
        return canonical_origin(url) == canonical_origin(allowed)
    scheme, _, domain = allowed.partition("://*.")
    origin = canonical_origin(f"{scheme}://{domain}")
    host = f".{canonical_host(origin)}"
    return (
        canonical_host(url).endswith(host)
        and canonical_origin(url).replace(canonical_host(url), host[1:]) == origin
    )


def base_url_for(raw: bytes, name: str, otherwise: str) -> tuple[str, str] | None:
    """Return the `base_url` that a document in a file needs, and the reason; `None` if the
    document's own server can be used.

    Args:
        otherwise: the URL to return if the document names no usable server.

    Raises:
        UnreadableDocument: the file is not an OpenAPI document.
    """
    value = documents.parsed(raw, name)
    if not isinstance(value, dict) or not ({"openapi", "swagger"} & value.keys()):
        raise UnreadableDocument(
            f"{name} is not an OpenAPI document: it has neither `openapi` nor `swagger`"
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
        return otherwise, "the URL of the service, which the document lacks"
    return (
        url,
        "from the document, whose server is used without this line only if it is on the internet",
    )
