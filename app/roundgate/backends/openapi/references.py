"""`$ref` (OpenAPI "Reference Object", JSON Schema 2020-12 section 8.2.3): what one leads to,
and where that stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from roundgate.backends.openapi.sources import Sources
from roundgate.errors import DanglingReference, UnreadableDocument, UnusableOperation
from roundgate.json import at_pointer

MAX_HOPS: Final = 50
_NOT_SCHEMAS: Final = ("example", "examples", "default", "const", "enum")


class Place(NamedTuple):
    """Where a value stands: its document's URI and a JSON Pointer; the pointer
    begins with "/" or is empty."""

    uri: str
    pointer: str
    is_part: bool = False
    """Whether it is meant as a part of another schema (`allOf`), which has more members."""
    is_missing: bool = False
    """Whether the target is missing. Then `uri` is the document that has the `$ref`, and `pointer`
    is the `$ref` as written."""


@dataclass(slots=True)
class References:
    """Resolves references between the documents of one description."""

    sources: Sources
    _names: dict[str, dict[str, str]] = field(default_factory=dict)

    def resolve(self, uri: str, reference: str) -> tuple[Place, Any]:
        """Return the place and the value that a reference in the document at `uri` leads to.

        Raises:
            DanglingReference: the target is missing, or may not be read.
        """
        target, fragment = urldefrag(reference)
        fragment = unquote(fragment)
        whole = urljoin(uri, target) if target else uri
        named = self._named(uri)
        if reference in named:
            return self._at(uri, named[reference], reference)
        try:
            self.sources.document(whole)
        except UnreadableDocument as error:
            raise DanglingReference(
                f"$ref {reference[:200]!r}: {error}",
                "add the place to `references`, or put the file there",
            ) from None
        if fragment and not fragment.startswith("/"):
            pointer = self._named(whole).get(f"#{fragment}")
            if pointer is None:
                raise DanglingReference(f"$ref {reference[:200]!r}: there is no such anchor")
            return self._at(whole, pointer, reference)
        return self._at(whole, fragment, reference)

    def follow(self, uri: str, value: Any) -> tuple[str, Any]:
        """Return a value with every `$ref` at its top followed, and the URI of the document that
        holds it.

        Raises:
            DanglingReference: a reference has no target.
            UnusableOperation: the references form a circle, or are more than `MAX_HOPS`.
        """
        for _ in range(MAX_HOPS):
            if not (isinstance(value, dict) and isinstance(value.get("$ref"), str)):
                return uri, value
            place, value = self.resolve(uri, value["$ref"])
            uri = place.uri
        raise UnusableOperation("a $ref leads in a circle, or through too many others")

    def _at(self, uri: str, pointer: str, reference: str) -> tuple[Place, Any]:
        try:
            return Place(uri, pointer), at_pointer(self.sources.document(uri), pointer)
        except (LookupError, ValueError):
            raise DanglingReference(f"$ref {reference[:200]!r} leads to nothing") from None

    def _named(self, uri: str) -> dict[str, str]:
        """Pointers by `$id` and by `#anchor`; looked for once in each document."""
        if uri not in self._names:
            self._names[uri] = {}
            if urldefrag(uri).url in self.sources.read:
                self._names[uri] = dict(_names_in(self.sources.document(uri)))
        return self._names[uri]


def _names_in(document: Any) -> Iterator[tuple[str, str]]:
    stack = [("", document)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(word), str):
                    yield f"#{node[word]}", pointer
            if isinstance(node.get("$id"), str):
                yield node["$id"], pointer
            stack.extend(
                (f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", item)
                for key, item in node.items()
                if key not in _NOT_SCHEMAS or pointer.endswith("/properties")
            )
        elif isinstance(node, list):
            stack.extend((f"{pointer}/{index}", item) for index, item in enumerate(node))
