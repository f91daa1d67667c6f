"""Values in the form of one of these revisions, without members that it does not have.

A link to a resource, which 2025-03-26 lacks, becomes a line of text. A structured result that is
not an object, which only a later revision allows, is omitted, because the result's text has the
same content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

Wire: TypeAlias = dict[str, Any]

_OF_BLOCK: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "text": frozenset({"text"}),
        "image": frozenset({"data", "mimeType"}),
        "audio": frozenset({"data", "mimeType"}),
        "resource": frozenset({"resource"}),
    }
)
"""The own members of each kind of block. A link to a resource has the members of a resource."""


def tool(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of tools/list in the form of a revision."""
    shaped = _only(revision.tool, definition)
    if not _is_object_schema(shaped.get("outputSchema")):
        shaped.pop("outputSchema", None)
    return shaped


def prompt(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of prompts/list in the form of a revision."""
    shaped = _only(revision.prompt, definition)
    if "arguments" in shaped:
        shaped["arguments"] = [
            _only(revision.argument, argument) for argument in shaped["arguments"]
        ]
    return shaped


def resource(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of resources/list in the form of a revision."""
    return _annotated(revision, _only(revision.resource, definition))


def template(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of resources/templates/list in the form of a revision."""
    return _annotated(revision, _only(revision.template, definition))


ENTRIES: Final[Mapping[str, Callable[[Revision, Mapping[str, Any]], Wire]]] = MappingProxyType(
    {"tools": tool, "prompts": prompt, "resources": resource, "resourceTemplates": template}
)
"""The function that shapes the entries of each list, by the list's member in the result."""


def block(revision: Revision, content: Mapping[str, Any]) -> Wire:
    """Return a block of content in the form of a revision."""
    kind = content.get("type", "")
    if kind == "resource_link":
        if not revision.has_structured:
            return {"type": "text", "text": _link_in_words(content)}
        own = revision.resource
    else:
        own = _OF_BLOCK.get(kind, frozenset())
    shaped = _annotated(revision, _only(own | revision.block, content))
    if kind == "resource":
        shaped["resource"] = _only(revision.contents, content["resource"])
    return shaped


def result(revision: Revision, members: Mapping[str, Any]) -> Wire:
    """Return a result of any method in the form of a revision."""
    shaped = {name: value for name, value in members.items() if name not in _OF_LATER}
    if isinstance(blocks := shaped.get("content"), list):
        # nearly all are plain text without further members
        shaped["content"] = [
            content if len(content) == 2 and "text" in content else block(revision, content)
            for content in blocks
        ]
    elif isinstance(contents := shaped.get("contents"), list):
        shaped["contents"] = [_only(revision.contents, content) for content in contents]
    elif isinstance(messages := shaped.get("messages"), list):
        shaped["messages"] = [
            {**content, "content": block(revision, content["content"])} for content in messages
        ]
    if not (revision.has_structured and isinstance(shaped.get("structuredContent"), dict)):
        shaped.pop("structuredContent", None)
    return shaped


def implementation(revision: Revision, members: Mapping[str, Any]) -> Wire:
    """Return the server's `Implementation` in the form of a revision."""
    return _only(revision.implementation, members)


_OF_LATER: Final = frozenset({"resultType", "ttlMs", "cacheScope"})


def _only(known: frozenset[str], members: Mapping[str, Any]) -> Wire:
    return {name: value for name, value in members.items() if name in known}


def _annotated(revision: Revision, shaped: Wire) -> Wire:
    if isinstance(shaped.get("annotations"), Mapping):
        shaped["annotations"] = _only(revision.annotations, shaped["annotations"])
    return shaped


def _is_object_schema(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "object"


def _link_in_words(link: Mapping[str, Any]) -> str:
    named = link.get("title") or link.get("name") or "Resource"
    described = f": {link['description']}" if link.get("description") else ""
    return f"{named}{described} ({link.get('uri', '')})"


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision, as in its `schema.ts`. Each set names the members of a kind of value.

    2025-03-26   batches; tools with annotations, audio
    2025-06-18   titles, output schemas, structured results, links to resources,
    `elicitation/create`
    2025-11-25   icons, forms with defaults and choices, pages to open, sampling with tools
    """

    version: str
    tool: frozenset[str]
    prompt: frozenset[str]
    argument: frozenset[str]
    """The members of an argument of a prompt."""
    resource: frozenset[str]
    template: frozenset[str]
    contents: frozenset[str]
    """The members of a resource's contents."""
    block: frozenset[str]
    """The members that content blocks of every kind may have."""
    annotations: frozenset[str]
    implementation: frozenset[str]
    has_structured: bool
    """Whether tools have output schemas and structured results, and results may have links to
    resources."""
    has_rich_forms: bool
    """Whether a form may have defaults for every type of field, multiple choice, and titled
    options."""
    asks: frozenset[str]
    """The questions that a server may ask a client, in the words of `ClientCapabilities`;
    "elicitation.url" is a page to open, and "sampling.tools" sampling with tools."""
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
"""The revisions by version, newest first."""
VERSIONS: Final = tuple(REVISIONS)


def negotiated(requested: str) -> Revision:
    """Return the revision that a client asks for, or the newest one (lifecycle, "Version
    Negotiation")."""
    return REVISIONS.get(requested, _AUTUMN)
