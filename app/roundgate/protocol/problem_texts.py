"""The problems of a JSON value as sentences that a model can act on.

The validator says of a union only that no alternative fits. Here the nearest alternative says what is
wrong, or all of them say what they accept:

    "XL" is not one of "S" or "L"                         an optional enum
    "x" must be of type integer or null                   alternatives of other types
    must have exactly one of "base64", "text"             alternatives that differ in a required member
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from jsonschema_rs import ValidationError

from roundgate.json import at_pointer, encode

MAX_NESTED: Final = 8
"""The maximum number of unions within unions that are explained."""
_MAX_VALUE: Final = 80
Alternatives: TypeAlias = Sequence[Sequence[ValidationError]]


def problem_texts(
    error: ValidationError, schema: Mapping[str, Any], depth: int = 0
) -> Iterator[tuple[Sequence[str | int], str]]:
    """Yield the place and the text of each problem that an error of the validator stands for.

    Args:
        error: the error.
        schema: the whole schema.
        depth: the number of unions around the error.
    """
    path, keyword = error.instance_path, error.kind.name
    alternatives: Alternatives = getattr(error.kind, "context", ())
    if keyword not in ("anyOf", "oneOf") or depth > MAX_NESTED or not alternatives:
        yield path, error.message
        return
    names = _required_names(schema, error.schema_path)
    if names:
        yield path, f"must have {'exactly' if keyword == 'oneOf' else 'at least'} one of {names}"
    elif all(alternatives):  # no alternative fits
        nearest = _nearest(alternatives, len(path))
        if len(nearest) == 1:
            for inner in nearest[0]:
                yield from problem_texts(inner, schema, depth + 1)
        else:
            yield _choice(error, [_telling(errors) for errors in nearest])
    else:
        yield path, "fits several alternatives of the schema; make it fit exactly one"


def _required_names(schema: Mapping[str, Any], place: Sequence[str | int]) -> str:
    """Return the members of which alternatives require one each; empty if they differ otherwise."""
    try:
        pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in place)
        parts = at_pointer(schema, pointer)
    except LookupError:
        return ""
    if not all(isinstance(part, dict) and part.keys() == {"required"} for part in parts):
        return ""
    return ", ".join(encode(name).decode() for part in parts for name in part["required"])


def _nearest(alternatives: Alternatives, depth: int) -> Alternatives:
    """Return the alternatives that accept the type of the value, and among them those whose constants
    fit; all if none does."""

    def has(errors: Sequence[ValidationError], keywords: Sequence[str], *, here: bool) -> bool:
        return any(
            error.kind.name in keywords and (len(error.instance_path) == depth) is here
            for error in errors
        )

    of_type = [errors for errors in alternatives if not has(errors, ("type",), here=True)]
    near = of_type or alternatives
    return [errors for errors in near if not has(errors, ("const", "enum"), here=False)] or near


def _telling(errors: Sequence[ValidationError]) -> ValidationError:
    """Return the error that tells most: a constant, which often selects the alternative."""
    return next((error for error in errors if error.kind.name in ("const", "enum")), errors[0])


def _choice(
    union: ValidationError, errors: Sequence[ValidationError]
) -> tuple[Sequence[str | int], str]:
    """Return the place and the text of a problem for which each alternative has an error."""
    first = errors[0]
    is_one_place = all(error.instance_path == first.instance_path for error in errors)
    error = first if is_one_place else union
    wanted = dict.fromkeys(text for error in errors for text in _wanted(error))
    return error.instance_path, f"{_shown(error.instance)} must be {' or '.join(wanted)}"


def _wanted(error: ValidationError) -> Sequence[str]:
    kind: Any = error.kind
    match kind.name:
        case "type":
            return [f"of type {name}" for name in sorted(kind.types)]
        case "const":
            return [_shown(kind.expected_value)]
        case "enum":
            return [_shown(option) for option in kind.options]
        case "required":
            return [f"an object with {_shown(kind.property)}"]
    return [error.message]


def _shown(value: Any) -> str:
    text = encode(value).decode()
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
