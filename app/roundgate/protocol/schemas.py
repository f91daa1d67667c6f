"""JSON Schema for arguments and structured results (basic/index, "JSON Schema Usage").

jsonschema-rs validates in 0.5 µs, the pure Python library in 200 (docs/decisions/0003). It takes 9
MiB, so it is loaded with the first schema that is compiled. Schemas are 2020-12 unless `$schema`
names an earlier draft. No `$ref` is ever fetched; depth and size are bounded.

The validator says of a union only that no alternative fits. Here the nearest alternative says what is
wrong, or all of them say what they accept:

    "XL" is not one of "S" or "L"                         an optional enum
    "x" must be of type integer or null                   alternatives of other types
    must have exactly one of "base64", "text"             alternatives that differ in a required member
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from roundgate.json import at_pointer, encode, walk

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

    from roundgate.protocol.readings import Readings

MAX_DEPTH: Final = 64
MAX_NODES: Final = 50_000
_MAX_FOLLOWED: Final = 1_500
"""The maximum sum of the depths at which a schema with `unevaluatedProperties` refers to others. The
compiler follows them on its own stack, and the process ends where that has no room (at some 4,000)."""
MAX_EFFORT: Final = 4_000
"""The maximum number of errors of a value whose problems are listed. Listing them takes some 50
ms."""
MAX_READINGS: Final = 2_000_000
"""The maximum number of readings for validating a value. They block the event loop for some 50
ms."""
MAX_BACKTRACKED: Final = 5_000
"""The maximum number of values to validate if a pattern backtracks."""
_MAX_BACKTRACKS: Final = 5_000
"""The limit for patterns that look ahead, look behind or refer back: at most 0.1 ms for each text."""
_MAX_ERRORS: Final = 8
_MAX_MESSAGE: Final = 240


Path: TypeAlias = tuple[str | int, ...]
"""The place of a part of a JSON value: names of members and indexes of items."""


class PartlyKnown(Struct, frozen=True):
    """A JSON object of which some parts are unknown."""

    value: dict[str, Any]
    unknown: Sequence[Path] = ()
    """The places of the unknown parts; `()` is the whole object."""


class Schema(Struct, frozen=True, dict=True):
    """A schema that validates values. Made by `compile` if it may be unusable; a schema that is known
    to be usable is compiled at its first use."""

    _source: Mapping[str, Any]
    _accepts: Callable[[Any], bool] | None = None
    """A quick check, which accepts only values that conform and may refuse others that do."""

    @classmethod
    def compile(cls, schema: Mapping[str, Any]) -> Schema:
        """Compile a schema.

        Raises:
            ValueError: the schema is invalid, too deep or too large, or refers to another document.
        """
        _check_bounds(schema)
        made = cls(schema)
        _ = made._validator
        return made

    @property
    def _validator(self) -> Validator:
        return self._compiled[0]

    @property
    def backtracks(self) -> bool:
        """Whether matching a pattern takes more than linear time."""
        return self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[Validator, bool]:
        return _compile(self._source)

    @cached_property
    def _readings(self) -> Readings:
        from roundgate.protocol.readings import Readings  # here: plain tools do not need them

        return Readings(self._source)

    def is_valid(self, value: Any) -> bool:
        """Return whether a JSON value conforms."""
        return self.conforms(value) is True

    def conforms(self, value: Any) -> bool | None:
        """Return whether a JSON value conforms; `None` if the value has no JSON, or would take too
        much work to validate."""
        if self._accepts is not None and self._accepts(value):
            return True
        if (self.backtracks or not self._readings.are_few) and not self._can_validate(value):
            return None
        try:
            return self._validator.is_valid(value)
        except (ValueError, OverflowError):
            return None

    def misfits(self, value: Any) -> list[Path]:
        """Return the places of the parts of a JSON value that do not conform; `()` alone if they
        would take too much work to find."""
        if (conforms := self.conforms(value)) is not False:
            return [] if conforms else [()]
        if not self._can_explain(value):
            return [()]
        return [tuple(error.instance_path) for error in self._validator.iter_errors(value)]

    def problems(self, value: Any, root: str) -> list[str]:
        """Return the problems of a value, one sentence each with its place: `arguments.limit: 500
        is greater than …`."""
        if not self._can_validate(value):
            return [f"{root}: too much work for this schema; send fewer values, or nest them less"]
        try:
            return self._problems(value, root)
        except UnicodeError:
            return [f"{root}: holds half of a surrogate pair, which is not valid text"]
        except (ValueError, OverflowError):
            return [f"{root}: holds a number that JSON cannot carry (NaN or Infinity)"]

    def _problems(self, value: Any, root: str) -> list[str]:
        if self._validator.is_valid(value):
            return []
        if not self._can_explain(value):
            return [f"{root}: does not conform to the schema; send fewer values to learn where"]
        problems: list[str] = []
        found = (
            text
            for error in self._validator.iter_errors(value)
            for text in problem_texts(error, self._source)
        )
        for place, text in islice(found, _MAX_ERRORS):
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
            problems.append(f"{root}{path}: {text}"[:_MAX_MESSAGE])
        return problems

    def _can_validate(self, value: Any) -> bool:
        """Return whether validating stays within `MAX_BACKTRACKED` and `MAX_READINGS`, because it
        blocks the event loop."""
        if self.backtracks and not _has_at_most(MAX_BACKTRACKED, value):
            return False
        readings = self._readings
        return readings.are_few or not readings.may_exceed(MAX_READINGS, value)

    def _can_explain(self, value: Any) -> bool:
        """Return whether listing all errors stays within `MAX_EFFORT`.

        The validator finds every error before it returns the first, once for each path through
        `anyOf`: two million values take 90 s, and thirty levels of a recursive union practically
        forever.
        Each missing required member and each wrong name is an error with a copy of the object:
        1,000 bytes of empty objects took 8 s and 700 MB.
        """
        return _has_at_most(MAX_EFFORT, value) and not self._readings.may_have_more_errors(
            MAX_EFFORT, value
        )


def _compile(schema: Mapping[str, Any]) -> tuple[Validator, bool]:
    """Return the validator of a schema, and whether matching a pattern takes more than linear time.
    Raise ValueError if the schema is unusable."""
    import jsonschema_rs  # here: plain tools do not need its 9 MiB

    make = partial(jsonschema_rs.validator_for, dict(schema), offline=True)
    unusable = (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError)
    try:
        return make(pattern_options=jsonschema_rs.RegexOptions()), False
    except unusable:  # perhaps only a pattern needs the other engine
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS)
    try:
        return make(pattern_options=options), True
    except unusable as error:
        place = ".".join(map(str, getattr(error, "instance_path", ())))  # properties.q.type
        reason = f"{place}: {_first_line(error)}" if place else _first_line(error)
        raise ValueError(f"not a usable JSON Schema: {reason}") from None


def _has_at_most(limit: int, value: Any) -> bool:
    return all(nodes < limit for nodes, _ in enumerate(walk(value)))


def _first_line(error: Exception) -> str:
    return (getattr(error, "message", "") or str(error)).splitlines()[0][:_MAX_MESSAGE]


def _check_bounds(schema: Any) -> None:
    followed, follows_all = 0, False
    for nodes, (depth, part) in enumerate(walk(schema)):
        if depth > MAX_DEPTH:
            raise ValueError(f"not a usable JSON Schema: nested more than {MAX_DEPTH} levels deep")
        if nodes >= MAX_NODES:
            raise ValueError(f"not a usable JSON Schema: more than {MAX_NODES} values in it")
        if isinstance(part, Mapping):
            followed += depth * ("$ref" in part or "$dynamicRef" in part)
            follows_all |= "unevaluatedProperties" in part or "unevaluatedItems" in part
    if follows_all and followed > _MAX_FOLLOWED:
        raise ValueError(
            "not a usable JSON Schema: too many $ref for unevaluatedProperties or unevaluatedItems,"
            " which follow them all"
        )


MAX_NESTED: Final = 8
"""The maximum number of unions within unions that are explained."""
_MAX_VALUE: Final = 80
Alternatives: TypeAlias = "Sequence[Sequence[ValidationError]]"


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
    texts = (text for error in errors for text in _wanted(error))
    wanted = dict.fromkeys(islice(texts, _MAX_MESSAGE))
    return error.instance_path, f"{_shown(error.instance)} must be {' or '.join(wanted)}"


def _wanted(error: ValidationError) -> Iterable[str]:
    kind: Any = error.kind
    match kind.name:
        case "type":
            return [f"of type {name}" for name in sorted(kind.types)]
        case "const":
            return [_shown(kind.expected_value)]
        case "enum":
            return map(_shown, kind.options)
        case "required":
            return [f"an object with {_shown(kind.property)}"]
    return [error.message]


def _shown(value: Any) -> str:
    text = encode(value).decode()
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
