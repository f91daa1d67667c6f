"""The URIs under which clients know the resources of a server, and the URIs that match a template.

With `uris: kept`, a URI is the server's own. With `uris: named`, the gateway puts the name of the
back end in front of the authority, or of the path of a URI without authority:

    notes://ann/1         ──▶  notes://NAME/ann/1
    file:///srv/{+path}   ──▶  file://NAME//srv/{+path}
    memo:today            ──▶  memo:NAME/today

URIs of pages (`ui://`) and skills (`skill://`) always have the name, because several servers often
use the same URI, and servers need not list these resources.

Links, embedded resources and references to pages in results change in the same way, so a client can
read the resources that a tool names. Only the literal text of a template decides whether a URI
matches: the server extracts the values of the variables, so templates whose expansion has no inverse
are served, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from roundgate.backends.mcp.apps import with_page_uris
from roundgate.client.types import Json, is_object_list
from roundgate.protocol import apps, skills

MAX_URI: Final = 4_096
"""The maximum length of a URI or template. Clients may send 8,192 characters, with the name."""
MAX_EXPRESSIONS: Final = 20
"""The maximum number of expressions in a template: the time to match a URI grows with it."""
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://)?")
MAX_VARIABLES: Final = 100
"""The maximum number of variables in a template, because each has its own completion."""
ALWAYS_NAMED: Final = frozenset({apps.SCHEME, skills.SCHEME})
"""The schemes whose URIs always have the name of the back end."""
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"[A-Za-z0-9_.%-]+")
_OPERATORS: Final = "+#./;?&"
_STARTED: Final = "#./;?&"
"""The operators whose expansion begins with the operator itself, or is empty."""


class Uris(Struct, frozen=True):
    """The gateway's URIs for the resources of one server."""

    name: str
    """The name of the back end."""
    is_named: bool
    """Whether the URIs of all schemes have the name."""

    def start(self, scheme: str) -> str:
        """Return the beginning of the gateway's URIs of a scheme: `ui://` → `ui://NAME/`."""
        return f"{scheme}{self.name}/"

    def ours(self, uri: str) -> str:
        """Return the gateway's URI or template for a URI or template of the server. Text without a
        scheme is returned unchanged."""
        scheme = self._scheme(uri)
        return uri if scheme is None else self.start(scheme) + uri.removeprefix(scheme)

    def theirs(self, uri: str) -> str:
        """Return the server's URI for a URI of the gateway: the inverse of `ours`. Any other URI is
        returned unchanged."""
        scheme = self._scheme(uri)
        if scheme is None or not uri.startswith(self.start(scheme)):
            return uri
        return scheme + uri.removeprefix(self.start(scheme))

    def may_have(self, uri: str) -> bool:
        """Return whether a URI of the gateway may belong to the server. A named URI must begin with
        the name of this back end."""
        scheme = self._scheme(uri)
        return scheme is None or uri.startswith(self.start(scheme))

    def _scheme(self, uri: str) -> str | None:
        """Return the scheme of a URI whose gateway form has the name, or `None`."""
        scheme = SCHEME.match(uri)
        has_name = scheme is not None and (self.is_named or scheme[0] in ALWAYS_NAMED)
        return scheme[0] if scheme is not None and has_name else None

    def in_meta(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object with the gateway's URIs of pages in its `_meta`."""
        return with_page_uris(value, self.ours)

    def in_block(self, block: Json) -> Json:
        """Return a content block with the gateway's URIs."""
        if block.get("type") == "text" and "_meta" not in block:
            return block
        block = dict(self.in_meta(block))
        match block:
            case {"type": "resource_link", "uri": str(uri)}:
                return {**block, "uri": self.ours(uri)}
            case {"type": "resource", "resource": {"uri": str(uri)} as resource}:
                return {**block, "resource": {**self.in_meta(resource), "uri": self.ours(uri)}}
        return block

    def in_result(self, result: Json) -> Json:
        """Return the result of a tool with the gateway's URIs in its content and its `_meta`."""
        result = dict(self.in_meta(result))
        blocks = result.get("content")
        if not is_object_list(blocks):
            return result
        return {**result, "content": [self.in_block(block) for block in blocks or ()]}


class Pattern(Struct, frozen=True):
    """A pattern of the URIs that may match a template: its literal text, with any text for expressions.

    A variable without an operator has no "/", and `{?x}` begins with "?" or is empty, and so on for
    the other operators.
    """

    parts: Sequence[tuple[str, str]]
    """Pairs of literal text and the expression that follows it; the last expression is empty."""

    @classmethod
    def parse(cls, template: str) -> Pattern:
        """Return the pattern of a template; raise ValueError if it is malformed."""
        parts: list[tuple[str, str]] = []
        end = 0
        for expression in _EXPRESSION.finditer(template):
            if not expression[1].strip(_OPERATORS):
                raise ValueError("its uriTemplate has an expression without a variable")
            parts.append((template[end : expression.start()], expression[1]))
            end = expression.end()
        parts.append((template[end:], ""))
        if any("{" in literal or "}" in literal for literal, _ in parts):
            raise ValueError("its uriTemplate has an unmatched brace")
        if len(parts) > MAX_EXPRESSIONS + 1:
            raise ValueError(f"its uriTemplate has more than {MAX_EXPRESSIONS} expressions")
        if sum(part.count(",") + 1 for _, part in parts if part) > MAX_VARIABLES:
            raise ValueError(f"its uriTemplate has more than {MAX_VARIABLES} variables")
        return cls(parts)

    @property
    def variables(self) -> list[str]:
        """The names of the variables, without modifiers."""
        return list(dict.fromkeys(self._variables()))

    def _variables(self) -> Iterator[str]:
        for _, expression in self.parts:
            for spec in expression.lstrip(_OPERATORS).split(","):
                if (name := _VARIABLE.match(spec)) is not None:
                    yield name[0]

    def match(self, uri: str) -> Mapping[str, Any] | None:
        """Return an empty mapping if a URI may match the template, otherwise `None`."""
        reached = {0}
        for literal, expression in self.parts:
            reached = {at + len(literal) for at in reached if uri.startswith(literal, at)}
            if not reached:
                return None
            if expression:
                reached = set(_ends(expression, uri, reached))
        return {} if len(uri) in reached else None


def _ends(expression: str, uri: str, starts: set[int]) -> Iterator[int]:
    """Yield the offsets in a URI at which the text of an expression may end."""
    operator = expression[0] if expression[0] in _OPERATORS else ""
    if operator and operator in _STARTED:
        yield from starts
        starts = {at + 1 for at in starts if uri.startswith(operator, at)}
    takes_slash = bool(operator) or expression.endswith("*")
    stop = -1
    for start in sorted(starts):
        if start > stop:  # not reached from an earlier start
            end = -1 if takes_slash else uri.find("/", start)
            stop = len(uri) if end < 0 else end
            yield from range(start, stop + 1)
