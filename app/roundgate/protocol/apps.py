"""MCP Apps (SEP-1865): HTML pages with which a host shows the results of tools. Pure functions.

A tool names its page by a `ui://` URI in `_meta.ui.resourceUri`; hosts read the page with
resources/read. `visibility` without "model" means a tool that only pages call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import ConfigDict
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from roundgate.protocol.content import Value, without_none

EXTENSION: Final = "io.modelcontextprotocol/ui"
SCHEME: Final = "ui://"
HTML: Final = "text/html;profile=mcp-app"
SETTINGS: Final[Mapping[str, Any]] = {"mimeTypes": [HTML]}
"""The settings that a client declares: the media types of the pages that it shows."""
DECLARED: Final[Mapping[str, Any]] = {"extensions": {EXTENSION: SETTINGS}}
"""The capability of a client that shows pages. Without it, servers leave pages out of their
lists."""
FLAT_KEYS: Final = ("ui/resourceUri", "openai/outputTemplate")
"""Other members of `_meta` that name a page: the deprecated form, and the form of OpenAI's Apps SDK."""


class Csp(TypedDict, total=False):
    """The origins that a page needs; a host blocks all others."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    connectDomains: list[str]
    """Origins of requests: `https://api.example.com`."""
    resourceDomains: list[str]
    """Origins of scripts, styles, images, fonts and media."""
    frameDomains: list[str]
    """Origins of nested frames."""
    baseUriDomains: list[str]
    """Origins of the document's base URI."""


class App(Value, frozen=True):
    """The page of a tool: an HTML file, and options for the host that shows the page."""

    file: str | None = None
    """Path of the HTML file, relative to the folder of the function's module. Without a file, the
    tool has no page of its own; pages may call the tool."""
    csp: Csp | None = None
    """The origins that the page needs; by default none."""
    permissions: Sequence[Literal["camera", "microphone", "geolocation", "clipboardWrite"]] = ()
    """The browser permissions that the page requests."""
    domain: str | None = None
    """The page's own origin, in the format of the host."""
    prefers_border: bool | None = None
    """Whether the host draws a border; by default the host decides."""
    visibility: Sequence[Literal["model", "app"]] | None = None
    """The callers of the tool: `["app"]` hides it from models, `["model"]` from pages."""

    def page_meta(self) -> dict[str, Any]:
        """Return the `_meta.ui` of the page's resource."""
        permissions: dict[str, Any] = {name: {} for name in self.permissions}
        return without_none(
            csp=None if self.csp is None else dict(self.csp),
            permissions=permissions or None,
            domain=self.domain,
            prefersBorder=self.prefers_border,
        )

    def tool_meta(self, uri: str | None) -> dict[str, Any]:
        """Return the `_meta.ui` of the tool; `uri` is the URI of its page, if any."""
        visibility = None if self.visibility is None else list(self.visibility)
        return without_none(resourceUri=uri, visibility=visibility)


def page_uris(meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the URIs of pages that a `_meta` names, in all forms."""
    ui = meta.get("ui")
    page = ui.get("resourceUri") if isinstance(ui, Mapping) else None
    for uri in (page, *(meta.get(key) for key in FLAT_KEYS)):
        if isinstance(uri, str) and uri.startswith(SCHEME):
            yield uri


def is_for_models(meta: Mapping[str, Any]) -> bool:
    """Return whether a model may call the tool with this `_meta`."""
    ui = meta.get("ui")
    visibility = ui.get("visibility") if isinstance(ui, Mapping) else None
    return not isinstance(visibility, list) or "model" in visibility
