"""JSON Schema for arguments and structured results (basic/index, "JSON Schema Usage").

jsonschema-rs does the work: 0.5 us a validation where the pure Python library takes 200 (docs/decisions/0003). Schemas
are 2020-12 unless `$schema` names an earlier draft. No `$ref` is ever fetched; depth and size are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

MAX_DEPTH: Final = 64
MAX_NODES: Final = 50_000
_MAX_ERRORS: Final = 8
_MAX_MESSAGE: Final = 240


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled schema."""

    _validator: jsonschema_rs.Validator

    @classmethod
    def compile(cls, schema: Mapping[str, Any]) -> Schema:
        """Check a schema and make it ready.

        Raises:
            ValueError: it is no valid schema, too deep or too large, or refers to something outside itself.
        """
        _check_bounds(schema)
        try:
            return cls(jsonschema_rs.validator_for(dict(schema), offline=True))
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ValueError(f"not a usable JSON Schema: {_first_line(error)}") from None

    def is_valid(self, value: Any) -> bool:
        """Whether a JSON value conforms."""
        try:
            return self._validator.is_valid(value)
        except (ValueError, OverflowError):
            return False

    def problems(self, value: Any, root: str) -> list[str]:
        """What is wrong with a value, a sentence each, with its place: `arguments.limit: 500 is greater than …`."""
        try:
            return self._problems(value, root)
        except (ValueError, OverflowError):
            return [f"{root}: holds a number that JSON cannot carry (NaN or Infinity)"]

    def _problems(self, value: Any, root: str) -> list[str]:
        found: list[str] = []
        for error in self._validator.iter_errors(value):
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
            found.append(f"{root}{path}: {error.message}"[:_MAX_MESSAGE])
            if len(found) == _MAX_ERRORS:
                break
        return found


def _first_line(error: Exception) -> str:
    return (getattr(error, "message", "") or str(error)).splitlines()[0][:_MAX_MESSAGE]


def _check_bounds(schema: Any) -> None:
    for nodes, depth in enumerate(_depths(schema)):
        if depth > MAX_DEPTH:
            raise ValueError(f"not a usable JSON Schema: nested more than {MAX_DEPTH} levels deep")
        if nodes >= MAX_NODES:
            raise ValueError(f"not a usable JSON Schema: more than {MAX_NODES} values in it")


def _depths(value: Any) -> Iterator[int]:
    """How deep each value in a value is."""
    stack = [(0, value)]
    while stack:
        depth, node = stack.pop()
        yield depth
        if isinstance(node, Mapping):
            stack.extend((depth + 1, child) for child in node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend((depth + 1, child) for child in node)
