"""JSON Schema for arguments and structured results (basic/index, "JSON Schema Usage").

jsonschema-rs does the work: 0.5 us a validation where the pure Python library takes 200
(docs/decisions/0003). Schemas are 2020-12 unless `$schema` names an earlier draft. No `$ref` is
ever fetched; depth and size are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from roundgate.json import at_pointer
from roundgate.protocol.branching import ANY, ITEMS, Branching, Edges, Key

MAX_DEPTH: Final = 64
MAX_NODES: Final = 50_000
MAX_EFFORT: Final = 4_000
"""The most errors that a value may have for its problems to be listed: some 50 ms."""
MAX_READINGS: Final = 2_000_000
"""The most readings that validating a value may take: some 50 ms, during which the event loop is
blocked."""
_FEW_BRANCHES: Final = 8
MAX_BACKTRACKED: Final = 5_000
"""The most values that are validated if a pattern backtracks."""
_LINEAR: Final = jsonschema_rs.RegexOptions()
_BACKTRACKING: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=5_000)
"""Options for patterns that look ahead, look behind or refer back: at most 0.1 ms for each text."""
_MAX_ERRORS: Final = 8
_MAX_MESSAGE: Final = 240


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled schema."""

    _validator: jsonschema_rs.Validator
    _work: _Work
    _backtracks: bool
    """Whether a pattern takes more than linear time."""

    @classmethod
    def compile(cls, schema: Mapping[str, Any]) -> Schema:
        """Check a schema and make it ready.

        Raises:
            ValueError: it is no valid schema, too deep or too large, or refers to
                something outside itself.
        """
        _check_bounds(schema)
        work = _Work(schema)
        try:
            return cls(_validator(schema, _LINEAR), work, _backtracks=False)
        except _UNUSABLE:  # or its pattern needs the other engine
            pass
        try:
            return cls(_validator(schema, _BACKTRACKING), work, _backtracks=True)
        except _UNUSABLE as error:
            place = ".".join(map(str, getattr(error, "instance_path", ())))  # properties.q.type
            reason = f"{place}: {_first_line(error)}" if place else _first_line(error)
            raise ValueError(f"not a usable JSON Schema: {reason}") from None

    def is_valid(self, value: Any) -> bool:
        """Whether a JSON value conforms."""
        if not self._can_validate(value):
            return False
        try:
            return self._validator.is_valid(value)
        except (ValueError, OverflowError):
            return False

    def problems(self, value: Any, root: str) -> list[str]:
        """What is wrong with a value, a sentence each, with its place: `arguments.limit:
        500 is greater than …`."""
        if not self._can_validate(value):
            return [f"{root}: too much work for this schema; send fewer values, or nest them less"]
        try:
            return self._problems(value, root)
        except UnicodeError:
            return [f"{root}: holds half of a surrogate pair, which is no text"]
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

    def _can_validate(self, value: Any) -> bool:
        """Return whether validating stays within `MAX_BACKTRACKED` and `MAX_READINGS`: the event
        loop is blocked meanwhile."""
        if self._backtracks and not _has_at_most(MAX_BACKTRACKED, value):
            return False
        return self._work.can_validate(value)

    def _can_explain(self, value: Any) -> bool:
        """Return whether listing all errors stays within `MAX_EFFORT`.

        The validator finds every error before it returns the first, once for each path through
        `anyOf`: two million values take 90 s, and thirty levels of a recursive union never end.
        Each missing required member and each wrong name is an error with a copy of the object:
        1,000 bytes of empty objects took 8 s and 700 MB.
        """
        return _has_at_most(MAX_EFFORT, value) and self._work.can_explain(value)


_UNUSABLE: Final = (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError)


def _validator(schema: Mapping[str, Any], patterns: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(dict(schema), offline=True, pattern_options=patterns)


def _has_at_most(limit: int, value: Any) -> bool:
    return all(nodes < limit for nodes, _ in enumerate(_walk(value)))


class _Work:
    """The amount of work that a schema's values take."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._graph = _Graph(schema)
        self._branches = _branches(schema)

    def can_validate(self, value: Any) -> bool:
        """Return whether validating a value takes at most `MAX_READINGS` readings."""
        return not self._varies or self._validating.price(value, MAX_READINGS) <= MAX_READINGS

    def can_explain(self, value: Any) -> bool:
        """Return whether a value has at most `MAX_EFFORT` errors."""
        return self._explaining.price_of_errors(value, MAX_EFFORT) <= MAX_EFFORT

    @cached_property
    def _varies(self) -> bool:
        if not self._branches:
            return False
        most = self._validating.most(_FEW_BRANCHES)
        return most is None or most > _FEW_BRANCHES

    @cached_property
    def _validating(self) -> Branching:
        """Return the branching of validation. The validator caches results where a schema refers to
        itself."""
        return Branching(self._graph.root, self._graph.edges, self._graph.is_recursive)

    @cached_property
    def _explaining(self) -> Branching:
        return Branching(self._graph.root, self._graph.edges_to_parts)


_SAME: Final = ("not", "if", "then", "else")
_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_NAMED: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_BRANCHING: Final = frozenset({*_SAME_LISTS, *_SAME_NAMED, "if", "not", "patternProperties"})


def _branches(schema: Mapping[str, Any]) -> bool:
    return any(
        isinstance(node, Mapping) and not _BRANCHING.isdisjoint(node) for _, node in _walk(schema)
    )


class _Graph:
    """The subschemas of a schema by id, and the subschemas that each leads to."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._nodes: dict[int, Mapping[str, Any]] = {}
        self._edges: dict[int, Edges] = {}
        self.root = self._node(schema)

    def edges(self, node: int) -> Edges:
        """Return the subschemas that a subschema leads to."""
        if node not in self._edges:
            schema = self._nodes[node]
            same = tuple(map(self._node, self._same(schema)))
            if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
                same *= 2  # these validate once more, to find the parts that were examined
            members = tuple((key, self._node(one)) for key, one in _members(schema))
            names = (self._node(schema["propertyNames"]),) if "propertyNames" in schema else ()
            self._edges[node] = Edges(all_of=same, members=members, names=names)
        return self._edges[node]

    def edges_to_parts(self, node: int) -> Edges:
        """Return the same edges, without subschemas that examine no part of the value, but with the
        required members. Validation ends at the first missing member; listing errors does not."""
        edges = self.edges(node)
        return replace(
            edges,
            all_of=tuple(filter(self._looks_at_parts, edges.all_of)),
            required=tuple(_required(self._nodes[node])),
        )

    def _looks_at_parts(self, node: int) -> bool:
        return bool(self._next(node) or self.edges(node).names or any(_required(self._nodes[node])))

    def is_recursive(self, node: int) -> bool:
        """Return whether a subschema leads back to itself."""
        return node in self._on_cycles

    @cached_property
    def _on_cycles(self) -> frozenset[int]:
        """Return the subschemas that lead back to themselves (Kosaraju's algorithm)."""
        leads_to = {node: self._next(node) for node in self._reached()}
        comes_from: dict[int, set[int]] = {node: set() for node in leads_to}
        for node, targets in leads_to.items():
            for target in targets:
                comes_from[target].add(node)
        seen: set[int] = set()
        found: set[int] = set()
        for node in reversed(list(_finished(leads_to, leads_to, set()))):
            together = list(_finished([node], comes_from, seen))
            if len(together) > 1 or node in leads_to[node]:
                found.update(together)
        return frozenset(found)

    def _reached(self) -> set[int]:
        found, waiting = {self.root}, [self.root]
        while waiting:
            new = self._next(waiting.pop()) - found
            found |= new
            waiting.extend(new)
        return found

    def _next(self, node: int) -> set[int]:
        edges = self.edges(node)
        return {*edges.all_of, *(one for _, one in edges.members)}

    def _node(self, schema: Any) -> int:
        found = schema if isinstance(schema, Mapping) else _ANYTHING
        self._nodes[id(found)] = found
        return id(found)

    def _same(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for word in _REFERENCES:
            if isinstance(reference := schema.get(word), str):
                yield self._referred(reference)
        yield from (schema[word] for word in _SAME if word in schema)
        for word in _SAME_LISTS:
            yield from schema.get(word, ())
        for word in _SAME_NAMED:
            yield from schema.get(word, {}).values()

    def _referred(self, reference: str) -> Any:
        """Return the subschema that a reference names, or the whole schema if there is none."""
        name = reference.partition("#")[2]
        if not name.startswith("/"):
            return self._named.get(reference, self._named.get(name, self._schema))
        try:
            return at_pointer(self._schema, unquote(name))
        except LookupError:
            return self._schema

    @cached_property
    def _named(self) -> dict[str, Any]:
        words = ("$id", "$anchor", "$dynamicAnchor")
        return {
            node[word]: node
            for _, node in _walk(self._schema)
            if isinstance(node, Mapping)
            for word in words
            if isinstance(node.get(word), str)
        }


def _finished(
    starts: Iterable[int], leads_to: Mapping[int, set[int]], seen: set[int]
) -> Iterator[int]:
    """Yield the unseen nodes that can be reached, each after all nodes that it leads to."""
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(leads_to[start]))]
        while stack:
            node, targets = stack[-1]
            target = next((one for one in targets if one not in seen), None)
            if target is None:
                stack.pop()
                yield node
            else:
                seen.add(target)
                stack.append((target, iter(leads_to[target])))


_ANYTHING: Final[Mapping[str, Any]] = {}


def _members(schema: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    """Yield the subschemas for parts of the value, each with the part's key."""
    named: dict[Key, list[Any]] = {
        name: [one] for name, one in schema.get("properties", {}).items()
    }
    first: dict[Key, list[Any]] = {i: [one] for i, one in enumerate(_first_items(schema))}
    rest = [
        schema[word] for word in ("additionalProperties", "unevaluatedProperties") if word in schema
    ]
    others = [
        schema[word]
        for word in ("items", "additionalItems", "unevaluatedItems")
        if word in schema and not isinstance(schema[word], (list, tuple))
    ]
    for pattern in schema.get("patternProperties", {}).values():
        rest.append(pattern)
        for found in named.values():
            found.append(pattern)
    if "contains" in schema:
        others.append(schema["contains"])
        for found in first.values():
            found.append(schema["contains"])
    keyed = {**named, **first, ANY: rest, ITEMS: others}
    yield from ((key, one) for key, found in keyed.items() for one in found)


def _required(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from schema.get("required", ())
    for word in ("dependentRequired", "dependencies"):
        for names in schema.get(word, {}).values():
            if isinstance(names, (list, tuple)):
                yield from names


def _first_items(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the subschemas of elements at fixed places; before 2020-12, `items` held them."""
    items = schema.get("items")
    yield from schema.get("prefixItems", items if isinstance(items, (list, tuple)) else ())


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
