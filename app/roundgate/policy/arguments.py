"""The JSON Schemas of rules about arguments: only keywords that the validator checks, and the parts of
arguments that a schema looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from roundgate.protocol import Path, Schema


def compiled_arguments(definition: Mapping[str, Any]) -> Schema:
    """Return the compiled schema of a rule's arguments. Raise ValueError if it is not usable."""
    arguments = Schema.compile(definition)
    if arguments.backtracks:
        # beyond its limit, the validator says that a text does not match
        raise ValueError("a pattern looks ahead or behind, or refers back")
    if unchecked := next(_unchecked(definition), None):
        raise ValueError(unchecked)
    return arguments


_NAMED_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""The keywords whose value is an object of schemas."""
_SCHEMAS: Final = frozenset(
    {
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    }
)
"""The keywords whose value is a schema or a list of schemas."""
_KEYWORDS: Final = frozenset(
    {
        *(*_NAMED_SCHEMAS, *_SCHEMAS, "$ref", "$dynamicRef", "$recursiveRef"),
        *("$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
        *("$comment", "title", "description", "default", "examples", "deprecated"),
        *("readOnly", "writeOnly", "type", "enum", "const", "multipleOf", "pattern"),
        *("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "maxLength", "minLength"),
        *("maxItems", "minItems", "uniqueItems", "maxContains", "minContains"),
        *("maxProperties", "minProperties", "required", "dependentRequired"),
    }
)


def _unchecked(schema: Any, place: str = "") -> Iterator[str]:
    """Yield a sentence for each keyword of a rule's schema that the validator ignores. A misspelt
    keyword would let an `allow` match all calls."""
    if not isinstance(schema, Mapping):  # true and false; the names in `dependencies`
        return
    for keyword, value in schema.items():
        path = f"{place}{keyword}"
        if keyword not in _KEYWORDS:
            near = get_close_matches(keyword, _KEYWORDS, 1)
            meant = f": did you mean {near[0]}?" if near else ""
            if isinstance(value, Mapping) and not place:
                meant = ": arguments are members of `properties`"
            yield f"{path} is not a keyword that is checked{meant}"
        elif keyword in _NAMED_SCHEMAS:
            for name, part in value.items():
                yield from _unchecked(part, f"{path}.{name}.")
        elif keyword in _SCHEMAS:
            for part in value if isinstance(value, (list, tuple)) else [value]:
                yield from _unchecked(part, f"{path}.")


_OF_NO_VALUE: Final = frozenset(
    {
        *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly"),
    }
)
"""The keywords that look at no value."""
_OF_SHAPE: Final = frozenset(
    {
        *(*_OF_NO_VALUE, "type", "required", "dependentRequired", "propertyNames"),
        *("minProperties", "maxProperties", "minItems", "maxItems"),
    }
)
"""The keywords that look at no value of a member or item."""
_OF_SAME_VALUE: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_OF_MEMBERS: Final = frozenset(
    {
        *("items", "prefixItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties"),
    }
)


def looks_at(schema: Any, path: Path) -> bool:
    """Return whether the result of a schema may depend on the value at a place; True in doubt."""
    if not isinstance(schema, Mapping):  # true and false
        return False
    if not path:
        return not schema.keys() <= _OF_NO_VALUE
    for keyword in schema.keys() - _OF_SHAPE:
        parts = schema[keyword] if isinstance(schema[keyword], (list, tuple)) else [schema[keyword]]
        if keyword == "properties":
            found = looks_at(schema[keyword].get(path[0]), path[1:])
        elif keyword in _OF_SAME_VALUE:
            found = any(looks_at(part, path) for part in parts)
        else:
            found = keyword not in _OF_MEMBERS or any(looks_at(part, path[1:]) for part in parts)
        if found:
            return True
    return False
