"""A bound on the work of validating a value, known before the validation.

A union tries its alternatives one after the other. If several of them look at the same member, that
member is read several times. In a recursive schema the readings multiply at every level:

    Filter = And | Or | integer      And.left and Or.left are both a Filter
    {"left": {"left": {"left": 1}}}  the 1 is read 2 * 2 * 2 times

Validators run in native code that no deadline interrupts and that blocks every other call. The schema
alone says how often a part at each depth of a value can be read; `Readings` adds up the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from msgspec import Struct
from pydantic_core import from_json

from roundgate.json import at_pointer, walk

_FEW: Final = 8
"""A number of readings of one part that is not worth counting."""
_FEW_LEVELS: Final = 200
"""The number of levels at which readings have to be few."""
_MAX_STEPS: Final = 100_000
"""The maximum number of readings to add up for one schema. A schema with more is taken to multiply
without bound."""
_MAX: Final = 10**12
"""The limit at which counts stop growing, and the count of a schema that is not counted."""
_COPIES_PER_ERROR: Final = 40
"""The number of values that can be copied in the time that one error takes."""
_CHARS_PER_COPY: Final = 100

_SAME: Final = ("not", "if", "then", "else")
_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_NAMED: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_LOOKS_FURTHER: Final = frozenset(
    {
        *(*_REFERENCES, *_SAME, *_SAME_LISTS, *_SAME_NAMED),
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "required", "dependentRequired", "contentSchema"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    }
)
_Kind: TypeAlias = "tuple[str, str | int | None]"
"""A member or an element, by name or index; `None` for all others."""
_Part: TypeAlias = "tuple[tuple[int, int], ...]"
"""The ids of the subschemas that read one part, each with the number of its readings."""
_LEAF: Final[Mapping[str, Any]] = {}
"""Stands for each subschema that looks only at the value itself."""


class _Reader(Struct):
    """The subschemas that read one value together, because one of them applies the others."""

    count: int
    missing: int
    """The number of required members, which may all be missing."""
    parts: Set[_Part]
    """The readers of each kind of part."""


class Readings:
    """The bound on the readings that validating by one schema takes.

    Args:
        schema: a JSON Schema of any draft.
        of_pydantic: whether pydantic validates, with the model behind this schema. pydantic reads
            one alternative of `oneOf`, reads JSON texts, and caches nothing. jsonschema-rs
            validates each value once where a schema refers to itself.
    """

    def __init__(self, schema: Mapping[str, Any], *, of_pydantic: bool = False) -> None:
        self._schema = schema
        self._of_pydantic = of_pydantic
        self._schemas: dict[int, Mapping[str, Any]] = {}
        self._root = self._id(schema)
        self._steps = 0

    @cached_property
    def are_few(self) -> bool:
        """Whether no part of any value is read more than a few times."""
        return not self._decodes and all(self._most.at(at) <= _FEW for at in range(_FEW_LEVELS))

    def may_exceed(self, limit: int, value: Any) -> bool:
        """Return whether validating a value may take more than `limit` readings."""
        if self.are_few:
            return False
        of_objects = self._most_with_missing if self._of_pydantic else self._most
        readings = 0
        for parts, (depth, part) in enumerate(self._walk(value), 1):
            readings += (of_objects if isinstance(part, Mapping) else self._most).at(depth)
            if readings > limit and parts * self._most_of_one_turn > limit:
                return True
        return False

    def may_have_more_errors(self, limit: int, value: Any) -> bool:
        """Return whether a value may have more than `limit` errors. Each error copies its part of
        the value, which also counts."""
        sizes = _sizes(value)
        errors: float = 0
        for depth, part in walk(value):
            is_object = isinstance(part, Mapping)
            here = (self._most_with_missing if is_object else self._most).at(depth)
            if is_object and self._names_are_read:
                here += len(part)
            errors += max(1, here) * (1 + sizes[id(part)] / _COPIES_PER_ERROR)
            if errors > limit:
                return True
        return False

    def _walk(self, value: Any) -> Iterator[tuple[int, Any]]:
        """Yield each part of a value with its depth, also those of JSON texts that are read."""
        for depth, part in walk(value):
            yield depth, part
            if self._decodes and isinstance(part, str):
                yield from ((depth + 1 + below, inner) for below, inner in walk(_decoded(part)))

    @cached_property
    def _decodes(self) -> bool:
        return self._of_pydantic and self._has("contentSchema")

    @cached_property
    def _names_are_read(self) -> bool:
        return self._has("propertyNames")

    def _has(self, word: str) -> bool:
        return any(isinstance(part, Mapping) and word in part for _, part in walk(self._schema))

    @cached_property
    def _most(self) -> _Levels:
        return _Levels(self._root, self._readers)

    @cached_property
    def _most_with_missing(self) -> _Levels:
        return _Levels(self._root, self._readers, with_missing=True)

    @cached_property
    def _most_of_one_turn(self) -> int:
        """The maximum number of readings of one part of any value, if each recursive subschema
        reads each part once."""
        if self._of_pydantic or not self._readers:
            return _MAX
        recursive = _recursive(self._readers, self._root)
        return _Levels(self._root, self._readers, once=recursive).total({self._root, *recursive})

    @cached_property
    def _readers(self) -> Mapping[int, _Reader]:
        """The readers of a whole value and of its parts, by the id of the subschema that applies the
        others; empty if they are too many."""
        readers: dict[int, _Reader] = {}
        waiting = [self._root]
        try:
            while waiting:
                if (node := waiting.pop()) not in readers:
                    readers[node] = self._reader(node)
                    waiting += (inner for part in readers[node].parts for inner, _ in part)
        except OverflowError:
            return {}
        return readers

    def _reader(self, node: int) -> _Reader:
        count, missing = 0, 0
        parts: set[_Part] = set()
        for together in self._together(node):
            schemas = [(self._schemas[each], n) for each, n in together.items()]
            by_kind = [(self._parts(schema), n) for schema, n in schemas]
            read: dict[_Kind, list[tuple[int, int]]] = {
                kind: [] for kinds, _ in by_kind for kind in kinds
            }
            for kinds, n in by_kind:
                reads_others = kinds["member", None] or kinds["element", None]
                for kind in read if reads_others else kinds:
                    others = kinds[kind[0], None]
                    read[kind] += [(self._id(inner), n) for inner in kinds.get(kind, others)]
            self._count(sum(map(len, read.values())))
            parts |= {tuple(readers) for readers in read.values() if readers}
            count = max(count, together.total())
            missing = max(missing, sum(n * _required(schema) for schema, n in schemas))
        return _Reader(count, missing, parts)

    def _together(self, node: int) -> Iterator[Counter[int]]:
        """Yield the ids of the subschemas that read one value together, once for each combination of
        alternatives only one of which counts."""
        forks = [(Counter[int](), [node])]
        while forks:
            together, waiting = forks.pop()
            while waiting:
                self._count(1)
                node = waiting.pop()
                together[node] += 1
                schema = self._schemas[node]
                waiting += map(self._id, self._same(schema))
                if self._of_pydantic and (choice := [*map(self._id, schema.get("oneOf", ()))]):
                    forks += [(together.copy(), [*waiting, other]) for other in choice[1:]]
                    waiting.append(choice[0])
            yield together

    def _count(self, steps: int) -> None:
        """Raise OverflowError after too many steps."""
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise OverflowError

    def _same(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the subschemas that read the same value."""
        for word in _REFERENCES:
            if isinstance(reference := schema.get(word), str):
                yield self._referred(reference)
        # these validate once more, to find the parts that were examined
        twice = "unevaluatedProperties" in schema or "unevaluatedItems" in schema
        for _ in range(1 + twice):
            yield from _subschemas_at(schema, *_SAME)
            for word in _SAME_LISTS:
                if word != "oneOf" or not self._of_pydantic:
                    yield from schema.get(word, ())
            for word in _SAME_NAMED:
                named = schema.get(word, {}).values()
                yield from (each for each in named if not isinstance(each, (list, tuple)))

    def _parts(self, schema: Mapping[str, Any]) -> Mapping[_Kind, list[Any]]:
        """Return the subschemas that read each kind of part of the value."""
        patterns = [*schema.get("patternProperties", {}).values()]
        contained = _subschemas_at(schema, "contains")
        items = schema.get("items")  # before 2020-12 also the elements at fixed places
        elements = schema.get("prefixItems", items if isinstance(items, (list, tuple)) else ())
        members = _subschemas_at(schema, "additionalProperties", "unevaluatedProperties")
        others = _subschemas_at(schema, "items", "additionalItems", "unevaluatedItems")
        named = schema.get("properties", {}).items()
        return {
            **{("member", name): [each, *patterns] for name, each in named},
            **{("element", at): [each, *contained] for at, each in enumerate(elements)},
            ("member", None): [*patterns, *members],
            ("element", None): [*contained, *others],
            ("name", None): _subschemas_at(schema, "propertyNames"),
            ("text", None): _subschemas_at(schema, "contentSchema") if self._of_pydantic else [],
        }

    def _id(self, schema: Any) -> int:
        looks_further = isinstance(schema, Mapping) and not _LOOKS_FURTHER.isdisjoint(schema)
        part = schema if looks_further else _LEAF
        self._schemas[id(part)] = part
        return id(part)

    def _referred(self, reference: str) -> Any:
        """Return the subschema that a reference names, or the whole schema if it names none."""
        name = reference.partition("#")[2]
        if name.startswith("/"):
            try:
                return at_pointer(self._schema, unquote(name))
            except LookupError:
                return self._schema
        return self._named.get(reference, self._named.get(name, self._schema))

    @cached_property
    def _named(self) -> dict[str, Any]:
        words = ("$id", "$anchor", "$dynamicAnchor")
        return {
            node[word]: node
            for _, node in walk(self._schema)
            if isinstance(node, Mapping)
            for word in words
            if isinstance(node.get(word), str)
        }


class _Levels:
    """The maximum number of readings of one part of a value, by its depth. `once` has subschemas that
    read each part only once."""

    def __init__(
        self,
        root: int,
        readers: Mapping[int, _Reader],
        *,
        with_missing: bool = False,
        once: Set[int] = frozenset(),
    ) -> None:
        self._root = root
        self._readers = readers
        self._once = once
        whole = {each: of.count + with_missing * of.missing for each, of in readers.items()}
        self._levels = [whole or {root: _MAX}]

    def at(self, depth: int) -> int:
        """Return the maximum for parts at this depth."""
        while len(self._levels) <= depth and self._levels[-1]:
            if len(self._levels) * len(self._readers) >= _MAX_STEPS:
                return _MAX
            self._add_level()
        return self._levels[min(depth, len(self._levels) - 1)].get(self._root, 0)

    def total(self, nodes: Set[int]) -> int:
        """Return the sum of the maxima at all depths, for values that one of these subschemas
        reads."""
        unknown = self.at(_MAX_STEPS)
        return unknown + sum(level.get(each, 0) for level in self._levels for each in nodes)

    def _add_level(self) -> None:
        readings = {each: n for each, n in self._levels[-1].items() if each not in self._once}
        if len(self._levels) == 1:
            readings |= dict.fromkeys(self._once, 1)
        level: dict[int, int] = {}
        for node, reader in self._readers.items():
            kinds = [sum(n * readings.get(each, 0) for each, n in part) for part in reader.parts]
            if most := max(kinds, default=0):
                level[node] = min(_MAX, most)
        self._levels.append(level)


def _recursive(readers: Mapping[int, _Reader], root: int) -> Set[int]:
    """Return subschemas without which none reads a part of the value that it reads itself."""
    recursive: set[int] = set()
    above: dict[int, bool] = {}  # whether a subschema that was met is above the present one
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if node in above:
            above[node] = False
            waiting.pop()
            continue
        above[node] = True
        inner = {each for part in readers[node].parts for each, _ in part}
        recursive |= {each for each in inner if above.get(each)}
        waiting += inner - above.keys()
    return recursive


def _subschemas_at(schema: Mapping[str, Any], *words: str) -> list[Any]:
    """Return the subschemas at these keywords, except for lists."""
    return [
        schema[word]
        for word in words
        if word in schema and not isinstance(schema[word], (list, tuple))
    ]


def _required(schema: Mapping[str, Any]) -> int:
    """Return the number of members that a schema may require."""
    words = ("dependentRequired", "dependencies")
    lists = [each for word in words for each in schema.get(word, {}).values()]
    lists.append(schema.get("required", ()))
    return sum(len(each) for each in lists if isinstance(each, (list, tuple)))


def _decoded(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text


def _sizes(value: Any) -> dict[int, int]:
    """Return the cost of copying each part of a value, by id."""
    sizes: dict[int, int] = {}
    for _, part in reversed(list(walk(value))):
        inner = part.values() if isinstance(part, Mapping) else part
        if isinstance(part, str):
            sizes[id(part)] = 1 + len(part) // _CHARS_PER_COPY
        elif isinstance(part, (Mapping, list, tuple)):
            sizes[id(part)] = 1 + sum(sizes[id(inner_part)] for inner_part in inner)
        else:
            sizes[id(part)] = 1
    return sizes
