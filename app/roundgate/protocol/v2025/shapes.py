"""Values in the form of one of these revisions: without members of later revisions, with members
that no revision knows.

A value for which a revision has no place becomes text: a link to a resource, which 2025-03-26 lacks,
is a line of text, a block of a type that these revisions do not know is its JSON, and so is a
structured result that the revision does not allow, unless the result has a text of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json

Wire: TypeAlias = dict[str, Any]

_BLOCKS: Final = ("text", "image", "audio", "resource", "resource_link")
"""The types of blocks that these revisions know."""


def tool(revision: OlderRevision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of tools/list in the form of a revision."""
    shaped = _without(revision.tool, definition)
    if not _is_object_schema(shaped.get("outputSchema")):
        shaped.pop("outputSchema", None)
    return shaped


def prompt(revision: OlderRevision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of prompts/list in the form of a revision."""
    shaped = _without(revision.entry, definition)
    if "arguments" in shaped:
        shaped["arguments"] = [
            _without(revision.argument, argument) for argument in shaped["arguments"]
        ]
    return shaped


def resource(revision: OlderRevision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of resources/list in the form of a revision."""
    return _annotated(revision, _without(revision.entry, definition))


def template(revision: OlderRevision, definition: Mapping[str, Any]) -> Wire:
    """Return an entry of resources/templates/list in the form of a revision."""
    return _annotated(revision, _without(revision.entry, definition))


ENTRIES: Final[Mapping[str, Callable[[OlderRevision, Mapping[str, Any]], Wire]]] = MappingProxyType(
    {"tools": tool, "prompts": prompt, "resources": resource, "resourceTemplates": template}
)
"""The function that shapes the entries of each list, by the list's member in the result."""


def block(revision: OlderRevision, content: Mapping[str, Any]) -> Wire:
    """Return a block of content in the form of a revision."""
    kind = content.get("type")
    if kind == "text" and len(content) == 2:  # nearly all
        return dict(content)
    if kind not in _BLOCKS:
        return _text(json.encode(content).decode())
    if kind == "resource_link" and not revision.has_structured:
        return _text(_link_in_words(content))
    own = revision.entry if kind == "resource_link" else frozenset[str]()
    shaped = _annotated(revision, _without(own | revision.block, content))
    if isinstance(embedded := shaped.get("resource"), Mapping):
        shaped["resource"] = _without(revision.contents, embedded)
    return shaped


def result(revision: OlderRevision, members: Mapping[str, Any]) -> Wire:
    """Return a result of any method in the form of a revision."""
    shaped = _without(_OF_LATER, members)
    if isinstance(blocks := shaped.get("content"), list):
        shaped["content"] = [block(revision, content) for content in blocks]
        if not (revision.has_structured and isinstance(shaped.get("structuredContent"), dict)):
            structured = shaped.pop("structuredContent", None)
            if structured is not None and all(each.get("type") != "text" for each in blocks):
                shaped["content"].append(_text(json.encode(structured).decode()))
    elif isinstance(contents := shaped.get("contents"), list):
        shaped["contents"] = [_without(revision.contents, content) for content in contents]
    elif isinstance(messages := shaped.get("messages"), list):
        shaped["messages"] = [
            {**content, "content": block(revision, content["content"])} for content in messages
        ]
    return shaped


def implementation(revision: OlderRevision, members: Mapping[str, Any]) -> Wire:
    """Return the server's `Implementation` in the form of a revision."""
    return _without(revision.implementation, members)


_OF_LATER: Final = frozenset({"resultType", "ttlMs", "cacheScope"})


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _without(later: frozenset[str], members: Mapping[str, Any]) -> Wire:
    return {name: value for name, value in members.items() if name not in later}


def _annotated(revision: OlderRevision, shaped: Wire) -> Wire:
    if isinstance(shaped.get("annotations"), Mapping):
        shaped["annotations"] = _without(revision.annotations, shaped["annotations"])
    return shaped


def _is_object_schema(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "object"


def _link_in_words(link: Mapping[str, Any]) -> str:
    named = link.get("title") or link.get("name") or "Resource"
    described = f": {link['description']}" if link.get("description") else ""
    return f"{named}{described} ({link.get('uri', '')})"


class OlderRevision(Struct, frozen=True):
    """One revision, by what its `schema.ts` lacks. Each set names the members of a kind of value that
    only later revisions have.

    2025-03-26   batches; tools with annotations, audio
    2025-06-18   titles, output schemas, structured results, links to resources,
    `elicitation/create`
    2025-11-25   icons, forms with defaults and choices, pages to open, sampling with tools
    """

    version: str
    entry: frozenset[str]
    """Later members of a prompt, a resource, a template, and a link to a resource."""
    tool: frozenset[str]
    argument: frozenset[str]
    """Later members of an argument of a prompt."""
    contents: frozenset[str]
    """Later members of a resource's contents."""
    block: frozenset[str]
    """Later members of content blocks of every kind."""
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


_NONE: Final = frozenset[str]()
_AUTUMN: Final = OlderRevision(
    version="2025-11-25",
    entry=_NONE,
    tool=_NONE,
    argument=_NONE,
    contents=_NONE,
    block=_NONE,
    annotations=_NONE,
    implementation=_NONE,
    has_structured=True,
    has_rich_forms=True,
    asks=frozenset({"sampling", "sampling.tools", "roots", "elicitation", "elicitation.url"}),
    has_batches=False,
)
_SUMMER: Final = replace(
    _AUTUMN,
    version="2025-06-18",
    entry=frozenset({"icons"}),
    tool=frozenset({"icons"}),
    implementation=frozenset({"icons", "description", "websiteUrl"}),
    has_rich_forms=False,
    asks=frozenset({"sampling", "roots", "elicitation"}),
)
_SPRING: Final = replace(
    _SUMMER,
    version="2025-03-26",
    entry=_SUMMER.entry | {"title", "_meta"},
    tool=_SUMMER.tool | {"title", "outputSchema", "_meta"},
    argument=frozenset({"title"}),
    contents=frozenset({"_meta"}),
    block=frozenset({"_meta"}),
    annotations=frozenset({"lastModified"}),
    implementation=_SUMMER.implementation | {"title"},
    has_structured=False,
    asks=frozenset({"sampling", "roots"}),
    has_batches=True,
)

REVISIONS: Final[Mapping[str, OlderRevision]] = MappingProxyType(
    {revision.version: revision for revision in (_AUTUMN, _SUMMER, _SPRING)}
)
"""The revisions by version, newest first."""
VERSIONS: Final = tuple(REVISIONS)


def negotiated(requested: str) -> OlderRevision:
    """Return the revision that a client asks for, or the newest one (lifecycle, "Version
    Negotiation")."""
    return REVISIONS.get(requested, _AUTUMN)
