"""Where an operation's requests go (OpenAPI "Server Object"), and whether they may."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from roundgate.errors import UnusableOperation
from roundgate.values import dataclass

_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
_HERE: Final = ("localhost", "0.0.0.0", "::1")  # noqa: S104 - compared, not bound
_USABLE: Final = re.compile(r"https?://[^/?#\s@]+(?:/[^?#\s]*)?")


@dataclass(frozen=True, slots=True)
class Servers:
    """Chooses among them by the configuration."""

    base_url: str | None
    variables: Mapping[str, str] = field(default_factory=dict)
    origins: Sequence[str] = ()

    def of(self, own: Any, of_document: Any, document_uri: str) -> str:
        """The base URL for an operation.

        Args:
            own: `servers` of the operation, or of its path.
            of_document: `servers` of the document.
            document_uri: what relative URLs are relative to.

        Raises:
            UnusableOperation: there is none, or it is at an origin that the
                configuration does not name.
        """
        if own:
            url = self._first(own, document_uri)
            if self._may_go_to(url):
                return url
            if self.base_url is None:
                home = self._first(of_document, document_uri) if of_document else None
                if home is not None and _origin(home) == _origin(url):
                    return url
                raise UnusableOperation(
                    f"its server is at {_origin(url)}", f"add {_origin(url)} to `origins`"
                )
        if self.base_url is not None:
            return self.base_url
        return self._first(of_document or [{"url": "/"}], document_uri)

    def _first(self, servers: Any, document_uri: str) -> str:
        server = servers[0] if isinstance(servers, list) and servers else None
        if not isinstance(server, dict):
            raise UnusableOperation("its servers are no list of objects", "set `base_url`")
        url = urljoin(
            document_uri,
            _VARIABLE.sub(lambda found: self._value(found[1], server), str(server.get("url"))),
        )
        if not _USABLE.fullmatch(url) or ".." in urlsplit(url).path.split("/"):
            raise UnusableOperation(
                "the document does not say at which http(s) URL the service is", self._remedy()
            )
        if _is_here(url) and not _is_here(document_uri) and urlsplit(document_uri).scheme != "file":
            raise UnusableOperation(
                f"the document is from {_origin(document_uri)} and has its service at {_origin(url)},"
                " which is this machine",
                self._remedy(),
            )
        return url.rstrip("/")

    def _remedy(self) -> str:
        """With a base URL it is about servers of one operation, for which that does not hold."""
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
                f"{name!r} of the server's URL is one of {allowed}", f"correct `variables.{name}`"
            )
        return str(value)

    def _may_go_to(self, url: str) -> bool:
        origin = _origin(url)
        if self.base_url is not None and origin == _origin(self.base_url):
            return True
        return any(_matches(origin, allowed.rstrip("/")) for allowed in self.origins)


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host.startswith("127.") or host.endswith(".localhost") or host in _HERE


def _matches(origin: str, allowed: str) -> bool:
    if "://*." not in allowed:
        return origin == allowed
    scheme, _, domain = allowed.partition("://*.")
    return origin.startswith(f"{scheme}://") and origin.endswith(f".{domain}")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
