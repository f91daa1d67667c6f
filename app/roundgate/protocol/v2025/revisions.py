"""The three revisions as data: which members each kind of value has in each of
them (their `schema.ts`).

2025-03-26   batches; tools with annotations, audio
2025-06-18   titles, output schemas and structured results, links to resources, `elicitation/create`
2025-11-25   icons, forms with defaults and choices, pages to open, sampling with tools, resumable streams
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Revision:
    """What one revision knows. Each set has the names of the members that a
    value of its kind may have."""

    version: str
    tool: frozenset[str]
    prompt: frozenset[str]
    argument: frozenset[str]
    """An argument of a prompt."""
    resource: frozenset[str]
    template: frozenset[str]
    contents: frozenset[str]
    """What a resource holds."""
    block: frozenset[str]
    """Members of a content block beside those of its own kind."""
    annotations: frozenset[str]
    implementation: frozenset[str]
    has_structured: bool
    """Whether tools have output schemas and structured results, and results links to resources."""
    has_rich_forms: bool
    """Whether a form may have defaults for every kind of field, choices of
    several and titled choices."""
    asks: frozenset[str]
    """What a server may ask a client, as `ClientCapabilities` name it; "elicitation.url" is a page
    to open, and "sampling.tools" sampling with tools."""
    has_batches: bool
    """Whether a body may be an array of messages."""


_SPRING: Final = Revision(
    version="2025-03-26",
    tool=frozenset({"name", "description", "inputSchema", "annotations"}),
    prompt=frozenset({"name", "description", "arguments"}),
    argument=frozenset({"name", "description", "required"}),
    resource=frozenset({"uri", "name", "description", "mimeType", "annotations", "size"}),
    template=frozenset({"uriTemplate", "name", "description", "mimeType", "annotations"}),
    contents=frozenset({"uri", "mimeType", "text", "blob"}),
    block=frozenset({"type", "annotations"}),
    annotations=frozenset({"audience", "priority"}),
    implementation=frozenset({"name", "version"}),
    has_structured=False,
    has_rich_forms=False,
    asks=frozenset({"sampling", "roots"}),
    has_batches=True,
)
_SUMMER: Final = Revision(
    version="2025-06-18",
    tool=_SPRING.tool | {"title", "outputSchema", "_meta"},
    prompt=_SPRING.prompt | {"title", "_meta"},
    argument=_SPRING.argument | {"title"},
    resource=_SPRING.resource | {"title", "_meta"},
    template=_SPRING.template | {"title", "_meta"},
    contents=_SPRING.contents | {"_meta"},
    block=_SPRING.block | {"_meta"},
    annotations=_SPRING.annotations | {"lastModified"},
    implementation=_SPRING.implementation | {"title"},
    has_structured=True,
    has_rich_forms=False,
    asks=_SPRING.asks | {"elicitation"},
    has_batches=False,
)
_AUTUMN: Final = Revision(
    version="2025-11-25",
    tool=_SUMMER.tool | {"icons"},
    prompt=_SUMMER.prompt | {"icons"},
    argument=_SUMMER.argument,
    resource=_SUMMER.resource | {"icons"},
    template=_SUMMER.template | {"icons"},
    contents=_SUMMER.contents,
    block=_SUMMER.block,
    annotations=_SUMMER.annotations,
    implementation=_SUMMER.implementation | {"icons", "description", "websiteUrl"},
    has_structured=True,
    has_rich_forms=True,
    asks=_SUMMER.asks | {"elicitation.url", "sampling.tools"},
    has_batches=False,
)

REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType(
    {revision.version: revision for revision in (_AUTUMN, _SUMMER, _SPRING)}
)
"""By version, newest first."""
VERSIONS: Final = tuple(REVISIONS)


def negotiated(requested: str) -> Revision:
    """The revision for a client that asks for one: that, or the newest that we have
    (lifecycle, "Version Negotiation")."""
    return REVISIONS.get(requested, _AUTUMN)
