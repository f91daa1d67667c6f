"""JSON Schema for arguments and structured results (basic/index, "JSON Schema Usage").

jsonschema-rs does the work: 0.5 us a validation where the pure Python library takes 200
(docs/decisions/0003). Schemas are 2020-12 unless `$schema` names an earlier draft. No `$ref` is
ever fetched; depth and size are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonschema_rs

from roundgate.values import dataclass

MAX_DEPTH: Final = 64
MAX_NODES: Final = 50_000
MAX_EFFORT: Final = 4_000
_MAX_ERRORS: Final = 8
_MAX_MESSAGE: Final = 240


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled schema."""

    _validator: jsonschema_rs.Validator
    _branches: int

    @classmethod
    def compile(cls, schema: Mapping[str, Any]) -> Schema:
        """Check a schema and make it ready.

        Raises:
            ValueError: it is no valid schema, too deep or too large, or refers to
                something outside itself.
        """
        _check_bounds(schema)
        try:
            return cls(jsonschema_rs.validator_for(dict(schema), offline=True), _branches(schema))
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            place = ".".join(map(str, getattr(error, "instance_path", ())))  # properties.q.type
            said = f"{place}: {_first_line(error)}" if place else _first_line(error)
            raise ValueError(f"not a usable JSON Schema: {said}") from None

    def is_valid(self, value: Any) -> bool:
        """Whether a JSON value conforms."""
        try:
            return self._validator.is_valid(value)
        except (ValueError, OverflowError):
            return False

    def problems(self, value: Any, root: str) -> list[str]:
        """What is wrong with a value, a sentence each, with its place: `arguments.limit:
        500 is greater than …`."""
        try:
            return self._problems(value, root)
        except (ValueError, OverflowError):
            return [f"{root}: holds a number that JSON cannot carry (NaN or Infinity)"]

    def _problems(self, value: Any, root: str) -> list[str]:
        if self._validator.is_valid(value):
            return []
        if not self._can_explain(value):
            return [
                f"{root}: does not conform to the schema; with fewer values in it, the answer would say where"
            ]
        found: list[str] = []
        for error in self._validator.iter_errors(value):
            path = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path
            )
            found.append(f"{root}{path}: {error.message}"[:_MAX_MESSAGE])
            if len(found) == _MAX_ERRORS:
                break
        return found

    def _can_explain(self, value: Any) -> bool:
        """Whether looking for the places takes milliseconds.

        The validator finds every error before it hands out the first, and each once for every way
        through `anyOf`: two million values take 90 s, thirty levels of a recursive union for ever.
        `is_valid` is fast with both.
        """
        deepest = 0
        for nodes, (depth, _) in enumerate(_walk(value), 1):
            deepest = max(deepest, depth)
            if nodes * self._branches**deepest > MAX_EFFORT:
                return False
        return True


def _branches(schema: Mapping[str, Any]) -> int:
    """How many ways each level of a value multiplies the work by: 1 unless references
    make the schema recursive."""
    nodes = [node for _, node in _walk(schema) if isinstance(node, Mapping)]
    if not any("$ref" in node or "$dynamicRef" in node for node in nodes):
        return 1
    lists = [[node.get(word, ()) for word in ("anyOf", "oneOf", "allOf")] for node in nodes]
    return max(1, *(sum(len(one) for one in found if isinstance(one, list)) for found in lists))


def _first_line(error: Exception) -> str:
    return (getattr(error, "message", "") or str(error)).splitlines()[0][:_MAX_MESSAGE]


def _check_bounds(schema: Any) -> None:
    for nodes, (depth, _) in enumerate(_walk(schema)):
        if depth > MAX_DEPTH:
            raise ValueError(f"not a usable JSON Schema: nested more than {MAX_DEPTH} levels deep")
        if nodes >= MAX_NODES:
            raise ValueError(f"not a usable JSON Schema: more than {MAX_NODES} values in it")


def _walk(value: Any) -> Iterator[tuple[int, Any]]:
    """Each value in a value, with its depth."""
    stack = [(0, value)]
    while stack:
        depth, node = stack.pop()
        yield depth, node
        if isinstance(node, Mapping):
            stack.extend((depth + 1, child) for child in node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend((depth + 1, child) for child in node)
