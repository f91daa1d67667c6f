"""The headers that mirror the body: `MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`,
`Mcp-Param-*`.

Streamable-http, "Request Metadata": values are encoded for HTTP (the base64 sentinel), decoded
before they are compared, and any disagreement with the body is a `HeaderMismatch`. Nothing here
knows which method needs which header: `validation` does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roundgate.errors import HeaderMismatch
from roundgate.protocol.header_lines import Headers

PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"
PARAM_PREFIX: Final = "Mcp-Param-"
ANNOTATION: Final = "x-mcp-header"

_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_PLAIN: Final = re.compile(r"[\x20-\x7e\t]*")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = re.compile(r"(-?[0-9]+)(?:\.0*)?")
_MIRRORED: Final = frozenset(name.lower().encode() for name in (PROTOCOL_VERSION, METHOD, NAME))
_PARAM_PREFIX_LOWER: Final = PARAM_PREFIX.lower().encode()


def read(headers: Headers, name: bytes) -> str | None:
    """A mirroring header, still encoded, without the white space around it (RFC 9110 section 5.5;
    httptools leaves it); `None` if it is not sent."""
    value = headers.get(name)
    return None if value is None else value.strip(b" \t").decode("latin-1")


def repeated(headers: Headers) -> str | None:
    """The first mirroring header that came twice: two readers could then
    believe different things."""
    for name in headers.repeated:
        if name in _MIRRORED or name.startswith(_PARAM_PREFIX_LOWER):
            return name.decode("latin-1")
    return None


def encode_value(value: str) -> str:
    """A string as a header value: as it is where that survives HTTP, else
    `=?base64?…?=` of its UTF-8."""
    looks_encoded = value.startswith("=?base64?") and value.endswith("?=")
    if _PLAIN.fullmatch(value) and value == value.strip() and not looks_encoded:
        return value
    # as in the body, where `json.encode` writes "?" for a lone surrogate
    encoded = base64.b64encode(value.encode("utf-8", "replace"))
    return f"=?base64?{encoded.decode()}?="


def decode_value(header: str, value: str) -> str:
    """The inverse of `encode_value`; strict about alphabet, padding and UTF-8.

    Raises:
        HeaderMismatch: the value is neither plain visible ASCII nor
            well-formed base64 in the sentinel.
    """
    sentinel = _SENTINEL.fullmatch(value)
    if sentinel is None:
        if _PLAIN.fullmatch(value) is None:
            raise HeaderMismatch(
                f"Header mismatch: {header} has characters outside visible ASCII; encode it as =?base64?…?="
            )
        return value
    try:
        decoded = base64.b64decode(sentinel[1], validate=True)
        if base64.b64encode(decoded).decode() == sentinel[1]:
            return decoded.decode()
    except (binascii.Error, ValueError):
        pass
    raise HeaderMismatch(
        f"Header mismatch: {header} is not well-formed base64 of UTF-8 between =?base64? and ?="
    )


@dataclass(frozen=True, slots=True)
class ParamHeader:
    """One property annotated with `x-mcp-header`: the header's name, where the value is in
    the arguments, its type."""

    header: str
    key: str
    path: tuple[str, ...]
    type: str

    def check(self, arguments: Mapping[str, Any], headers: Headers) -> None:
        """Header and argument agree, or both are absent; `null` counts as absent.

        Raises:
            HeaderMismatch: one is there without the other, or they differ.
        """
        value, raw = (
            _value_at(arguments, self.path),
            read(headers, _PARAM_PREFIX_LOWER + self.key.encode()),
        )
        where = f"argument {'.'.join(self.path)!r}"
        if value is None or isinstance(value, (dict, list)):
            if raw is not None:
                raise HeaderMismatch(
                    f"Header mismatch: {self.header} is sent but {where} has no value to mirror"
                )
        elif raw is None:
            raise HeaderMismatch(
                f"Header mismatch: {self.header} is missing; it must mirror {where}"
            )
        elif not self._equal(value, decode_value(self.header, raw)):
            raise HeaderMismatch(f"Header mismatch: {self.header} does not match {where}")

    def _equal(self, value: Any, text: str) -> bool:
        # "servers SHOULD compare the header value and the body value
        # numerically" (Server Validation)
        if (
            self.type == "integer"
            and not isinstance(value, bool)
            and isinstance(value, (int, float))
            and value == value // 1
        ):
            number = _DECIMAL.fullmatch(text)
            return number is not None and len(number[1]) < 400 and int(number[1]) == int(value)
        if isinstance(value, bool):
            return text == ("true" if value else "false")
        return text == str(value)


def mirrored_arguments(input_schema: Mapping[str, Any]) -> tuple[ParamHeader, ...]:
    """The `x-mcp-header` annotations of a tool's input schema.

    Raises:
        ValueError: an annotation breaks the rules of "Schema Extension"; clients
            would have to drop the tool.
    """
    found: dict[str, ParamHeader] = {}
    for path, schema in _positions(input_schema):
        if ANNOTATION in schema:
            header = _param_header(path, schema)
            if header.key in found:
                raise ValueError(
                    f"{ANNOTATION} {schema[ANNOTATION]!r} is used twice; the names must differ in more than case"
                )
            found[header.key] = header
    return tuple(found.values())


def _param_header(path: tuple[str, ...] | None, schema: Mapping[str, Any]) -> ParamHeader:
    name, kind = schema[ANNOTATION], schema.get("type")
    if not path:
        raise ValueError(
            f"{ANNOTATION} {name!r} must be on a property reached through `properties` alone"
        )
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError(
            f"{ANNOTATION} of {'.'.join(path)!r} must be an HTTP token (RFC 9110 section 5.6.2), not {name!r}"
        )
    if kind not in ("string", "integer", "boolean"):
        raise ValueError(
            f"{ANNOTATION} of {'.'.join(path)!r} needs type string, integer or boolean, not {kind!r}"
        )
    return ParamHeader(PARAM_PREFIX + name, name.lower(), path, kind)


# Keywords of 2020-12 and of the drafts before it, whose schemas are served too.
# Schema or list of schemas:
_APPLICATORS: Final = (
    "items", "contains", "unevaluatedItems", "additionalItems", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "not", "if", "then", "else", "contentSchema", "allOf", "anyOf", "oneOf", "prefixItems",
)  # fmt: skip
_NAMED_SCHEMAS: Final = (
    "patternProperties",
    "dependentSchemas",
    "dependencies",
    "$defs",
    "definitions",
)


def _positions(
    root: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema inside a schema, with its chain of `properties` keys; `None` once
    another keyword is crossed."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while stack:
        path, schema = stack.pop()
        if isinstance(schema, list):
            stack.extend((None, one) for one in schema)
        if not isinstance(schema, Mapping):
            continue
        yield path, schema
        stack.extend((None, schema.get(keyword)) for keyword in _APPLICATORS)
        stack.extend(
            (None, one) for keyword in _NAMED_SCHEMAS for one in _members(schema, keyword).values()
        )
        for name, one in _members(schema, "properties").items():
            stack.append((None if path is None else (*path, name), one))


def _members(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)  # a draft that does not know the keyword lets it hold anything
    return value if isinstance(value, Mapping) else {}


def _value_at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    node: Any = arguments
    for key in path:
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node
