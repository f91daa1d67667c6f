"""Values as one of these revisions has them: what it does not know is left out,
what it demands is there.

A link to a resource, which 2025-03-26 lacks, becomes a line of text. A structured result is an
object or it is none: a later revision allows any JSON value, and its text says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from roundgate.protocol.v2025.revisions import Revision

Wire: TypeAlias = dict[str, Any]

_OF_BLOCK: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "text": frozenset({"text"}),
        "image": frozenset({"data", "mimeType"}),
        "audio": frozenset({"data", "mimeType"}),
        "resource": frozenset({"resource"}),
    }
)
"""The members of each kind of block that are its own; of a link to a resource they
are those of a resource."""


def tool(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """An entry of tools/list."""
    shaped = _only(revision.tool, definition)
    if not _is_object_schema(shaped.get("outputSchema")):
        shaped.pop("outputSchema", None)
    return shaped


def prompt(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """An entry of prompts/list."""
    shaped = _only(revision.prompt, definition)
    if "arguments" in shaped:
        shaped["arguments"] = [_only(revision.argument, one) for one in shaped["arguments"]]
    return shaped


def resource(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """An entry of resources/list."""
    return _annotated(revision, _only(revision.resource, definition))


def template(revision: Revision, definition: Mapping[str, Any]) -> Wire:
    """An entry of resources/templates/list."""
    return _annotated(revision, _only(revision.template, definition))


ENTRIES: Final[Mapping[str, Callable[[Revision, Mapping[str, Any]], Wire]]] = MappingProxyType(
    {"tools": tool, "prompts": prompt, "resources": resource, "resourceTemplates": template}
)
"""How the entries of each list are shaped, by the member of the result that has them."""


def block(revision: Revision, given: Mapping[str, Any]) -> Wire:
    """A block of content."""
    kind = given.get("type", "")
    if kind == "resource_link":
        if not revision.has_structured:
            return {"type": "text", "text": _link_in_words(given)}
        own = revision.resource
    else:
        own = _OF_BLOCK.get(kind, frozenset())
    shaped = _annotated(revision, _only(own | revision.block, given))
    if kind == "resource":
        shaped["resource"] = _only(revision.contents, given["resource"])
    return shaped


def result(revision: Revision, given: Mapping[str, Any]) -> Wire:
    """A result of any method."""
    shaped = {name: value for name, value in given.items() if name not in _OF_LATER}
    if isinstance(blocks := shaped.get("content"), list):
        # nearly all are plain text, in which nothing of another revision has room
        shaped["content"] = [
            one if len(one) == 2 and "text" in one else block(revision, one) for one in blocks
        ]
    elif isinstance(contents := shaped.get("contents"), list):
        shaped["contents"] = [_only(revision.contents, one) for one in contents]
    elif isinstance(messages := shaped.get("messages"), list):
        shaped["messages"] = [
            {**one, "content": block(revision, one["content"])} for one in messages
        ]
    if not (revision.has_structured and isinstance(shaped.get("structuredContent"), dict)):
        shaped.pop("structuredContent", None)
    return shaped


def implementation(revision: Revision, given: Mapping[str, Any]) -> Wire:
    """Who the server is."""
    return _only(revision.implementation, given)


_OF_LATER: Final = frozenset({"resultType", "ttlMs", "cacheScope"})


def _only(known: frozenset[str], given: Mapping[str, Any]) -> Wire:
    return {name: value for name, value in given.items() if name in known}


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
