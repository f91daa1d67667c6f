"""The work of validating a value, counted before the validation.

A union tries its alternatives one after the other. If several of them look at the same member, that
member is read several times. In a recursive schema the readings multiply at every level:

    Filter = And | Or | integer      And.left and Or.left are both a Filter
    {"left": {"left": {"left": 1}}}  the 1 is read 2 * 2 * 2 times

Validators run in native code that no deadline interrupts and that blocks every other call.
`Readings` computes the number in time proportional to the value: the work of a subschema for one
part of the value is computed once, however often that part is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from msgspec import Struct
from pydantic_core import from_json

from roundgate.json import at_pointer, walk

_FEW: Final = 8
"""A number of readings of one part that is not worth counting."""
_MANY: Final = 64
"""The number of readings, or of alternatives, of one part above which readings count as
multiplying."""
_MAX_STATES: Final = 300
_MAX: Final = 10**12
"""The limit at which counts stop growing."""
_MAX_PAIRS: Final = 100_000
"""The maximum number of examined pairs of a subschema and a part."""
_COPIES_PER_ERROR: Final = 40
"""The number of values that can be copied in the time that one error takes."""
_CHARS_PER_COPY: Final = 100
_ALTERNATIVES_PER_ERROR: Final = 8
"""The number of alternatives of a union that can be listed in the time that one error takes."""

_SAME: Final = ("not", "if", "then", "else")
_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_NAMED: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_QUOTED: Final = ("enum", "const", "not", "pattern")
"""The keywords whose whole value is in the text of an error."""


_LOOKS_FURTHER: Final = frozenset(
    {
        *(*_REFERENCES, *_SAME, *_SAME_LISTS, *_SAME_NAMED),
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "required", "dependentRequired", "contentSchema"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    }
)


class _Readers(NamedTuple):
    """The subschemas that read one value. Some *look further*: they apply other subschemas or read
    parts."""

    nodes: tuple[int, ...] = ()
    """The ids of subschemas that look further."""
    leaves: int = 0
    """The number of subschemas that look only at the value itself."""
    quoted: int = 0
    """The cost of copying the keywords that errors of the leaves quote."""


class _Subschema(Struct):
    """The readers that one subschema applies, by the value that they read."""

    same: _Readers
    """Readers of the same value."""
    one_of: _Readers
    """Readers of the same value, only one of which counts."""
    members: Mapping[str | int, _Readers]
    """Readers of the members and elements that have their own subschemas, by name or index."""
    other_members: _Readers
    other_items: _Readers
    names: _Readers
    """Readers of the name of each member."""
    content: _Readers
    """Readers of the value that a JSON text encodes."""
    required: tuple[str, ...]
    quoted: int
    """The cost of copying the keywords that errors of the subschema itself quote."""

    def inner(self) -> Iterator[int]:
        """Yield the ids of subschemas that look further and read parts of the value."""
        for readers in self.members.values():
            yield from readers.nodes
        for readers in (self.other_members, self.other_items, self.names, self.content):
            yield from readers.nodes


class _Look(NamedTuple):
    """The work of one subschema at one part of a value."""

    here: int
    """Readings of the part itself, of members that are missing, and of members' names."""
    alternatives: int
    """Readings of the part by subschemas that look at nothing else."""
    parts: int
    """Readings of the part's own parts by subschemas that look at nothing else."""
    reads: list[tuple[int, Any]]
    """The subschemas that look further, each with the value that it reads."""
    choice: tuple[int, ...]
    """The subschemas of the part, only one of which counts."""
    quoted: int
    """The cost of copying the keywords that errors quote, of the part and of its own parts."""


class Readings:
    """The counter of the readings that validating by one schema takes.

    Args:
        schema: a JSON Schema of any draft.
        of_pydantic: whether pydantic validates, with the model behind this schema. pydantic reads
            one alternative of `oneOf`, reads JSON texts, and caches nothing. jsonschema-rs
            validates each value once where a schema refers to itself.
    """

    def __init__(self, schema: Mapping[str, Any], *, of_pydantic: bool = False) -> None:
        self._schema = schema
        self._of_pydantic = of_pydantic
        self._parts: dict[int, Mapping[str, Any]] = {}
        self._subschemas: dict[int, _Subschema] = {}
        self._root = self._id(schema)

    @cached_property
    def are_few(self) -> bool:
        """Whether no part of any value is read more than a few times."""
        return self._most[0] <= _FEW and not self._decodes

    def may_exceed(self, limit: int, value: Any) -> bool:
        """Return whether validating a value may take more than `limit` readings."""
        if self.are_few:
            return False
        _, work = self._most
        if self._size(value) * work <= limit:
            return False
        looks = self._looks(value)
        if looks is None:
            return True
        total = self._add_up(
            value, looks, lambda look, _: look.here + look.alternatives + look.parts
        )
        if total > limit and not self._of_pydantic:
            # nothing is read again where the schema refers to itself
            parts = len(looks) + sum(1 for _ in walk(value))
            total = min(total, parts * self._most_of_one_turn)
        return total > limit

    def may_have_more_errors(self, limit: int, value: Any) -> bool:
        """Return whether a value may have more than `limit` errors. Each error copies its part of
        the value, the names of the path to it and the keywords that it quotes, which also count. An
        alternative that looks at no part is a part of its union's error."""
        looks = self._looks(value)
        if looks is None:
            return True
        sizes, names = _sizes(value), _size_of_names(value)

        def errors(look: _Look, part: int) -> float:
            copied = look.here * sizes.get(part, 1) + look.quoted
            listed = look.alternatives / _ALTERNATIVES_PER_ERROR
            return look.here + look.parts + listed + copied / _COPIES_PER_ERROR

        return self._add_up(value, looks, errors) * (1 + names / _COPIES_PER_ERROR) > limit

    def _looks(self, value: Any) -> dict[tuple[int, int], _Look] | None:
        """Return the work at each pair of a subschema and a part (by id), in the order in which
        they are found; `None` if there are too many."""
        looks: dict[tuple[int, int], _Look] = {}
        waiting: list[tuple[int, Any]] = [(self._root, value)]
        texts: dict[int, Any] = {}
        while waiting:
            node, part = waiting.pop()
            at = node, id(part)
            if at in looks:
                continue
            if len(looks) == _MAX_PAIRS:
                return None
            look = looks[at] = _look(self._subschema(node), part, texts)
            waiting.extend(look.reads)
            waiting.extend((look_ahead, part) for look_ahead in look.choice)
        return looks

    def _add_up(
        self,
        value: Any,
        looks: Mapping[tuple[int, int], _Look],
        price: Callable[[_Look, int], float],
    ) -> float:
        """Return the total price of a value. Each part counts once for each path that leads to
        it."""
        totals: dict[tuple[int, int], float] = {}
        begun: set[tuple[int, int]] = set()
        waiting = [(self._root, id(value))]
        while waiting:
            at = waiting[-1]
            part = at[1]
            look = looks[at]
            if at not in begun:
                begun.add(at)
                below = [(node, id(inner)) for node, inner in look.reads]
                below += [(node, part) for node in look.choice]
                if new := [candidate for candidate in below if candidate not in begun]:
                    waiting.extend(new)
                    continue
            waiting.pop()
            if at not in totals:
                total = price(look, part)
                for node, inner in look.reads:
                    total += totals.get((node, id(inner)), 0)
                if look.choice:
                    total += max(totals.get((node, part), 0) for node in look.choice)
                totals[at] = min(total, _MAX)
        return totals[self._root, id(value)]

    @cached_property
    def _decodes(self) -> bool:
        return any(subschema.content != _NO_READERS for subschema in self._subschemas.values())

    def _size(self, value: Any) -> int:
        """Return the number of values in a value, and in the JSON texts that are read."""
        size = 0
        for _, part in walk(value):
            size += 1
            if self._decodes and isinstance(part, str):
                size += sum(1 for _ in walk(_decoded(part)))
        return size

    @cached_property
    def _most(self) -> tuple[float, float]:
        """The bounds for one part of any value: on its readings, and on its readings with its
        missing members and its members' names. Both are infinite if readings multiply.

        A state holds the subschemas that read one part, each with a count. A state determines the
        states of the parts below; there are few states unless readings multiply.
        """
        most, work, leaves = 1, 1, 0
        waiting = self._states({self._root: 1})
        seen = set(waiting or ())
        while waiting:
            state = waiting.pop()
            readers = [(self._subschema(node), count) for node, count in state]
            count_here = sum(n * (1 + s.same.leaves + min(1, s.one_of.leaves)) for s, n in readers)
            beside = sum(
                n * (len(s.required) + bool(s.names.nodes or s.names.leaves)) for s, n in readers
            )
            most, work = max(most, count_here), max(work, count_here + beside)
            for counts, count_of_leaves in _below(readers):
                leaves = max(leaves, count_of_leaves)
                states = self._states(counts)
                if states is None or len(seen) > _MAX_STATES:
                    return inf, inf
                waiting += [next_state for next_state in states if next_state not in seen]
                seen.update(states)
        return (inf, inf) if waiting is None else (most + leaves, work + leaves)

    def _states(self, counts: Mapping[int, int]) -> list[frozenset[tuple[int, int]]] | None:
        """Return the states of a part that these subschemas read, one for each combination of
        alternatives; `None` if there are too many, or a part is read too often."""
        states: list[frozenset[tuple[int, int]]] = []
        forks: list[tuple[Counter[int], list[tuple[int, int]]]] = [(Counter(), [*counts.items()])]
        while forks:
            state, waiting = forks.pop()
            while waiting:
                node, count = waiting.pop()
                state[node] += count
                if state.total() > _MANY or len(forks) + len(states) > _MANY:
                    return None
                subschema = self._subschema(node)
                waiting += [(inner, count) for inner in subschema.same.nodes]
                first, *others = subschema.one_of.nodes or (None,)
                forks += [(state.copy(), [*waiting, (inner, count)]) for inner in others]
                if first is not None:
                    waiting.append((first, count))
            states.append(frozenset(state.items()))
        return states

    @cached_property
    def _most_of_one_turn(self) -> float:
        """The maximum number of readings of one part of any value, if no subschema is followed
        again below itself."""
        counts: dict[int, float] = {}  # readings of the value itself
        deep: dict[int, float] = {}  # the maximum readings of a part of the value
        begun: set[int] = set()
        waiting = [self._root]
        while waiting:
            node = waiting[-1]
            subschema = self._subschema(node)
            same, choice, inner = subschema.same, subschema.one_of, set(subschema.inner())
            if node not in begun:
                begun.add(node)
                below = {*same.nodes, *choice.nodes, *inner}
                if new := below - begun:
                    waiting.extend(new)
                    continue
            waiting.pop()
            if node not in counts:
                more = _sum(counts, same.nodes) + same.leaves + _max(counts, choice.nodes)
                counts[node] = min(_MAX, 1 + more)
                parts = max(_max(counts, inner), _max(deep, inner))
                deep[node] = min(_MAX, parts + _sum(deep, same.nodes) + _max(deep, choice.nodes))
        return max(counts[self._root], deep[self._root])

    def _id(self, schema: Any) -> int:
        part = schema if isinstance(schema, Mapping) else _ANYTHING
        self._parts[id(part)] = part
        return id(part)

    def _readers(self, schemas: Iterable[Any]) -> _Readers:
        nodes, leaves, quoted = [], 0, 0
        for schema in schemas:
            if isinstance(schema, Mapping) and not _LOOKS_FURTHER.isdisjoint(schema):
                nodes.append(self._id(schema))
            else:
                leaves += 1
                quoted += _quoted(schema)
        return _Readers(tuple(nodes), leaves, quoted) if nodes or leaves else _NO_READERS

    def _subschema(self, node: int) -> _Subschema:
        if node not in self._subschemas:
            self._subschemas[node] = self._read(self._parts[node])
        return self._subschemas[node]

    def _read(self, schema: Mapping[str, Any]) -> _Subschema:
        same = list(self._same(schema))
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            same *= 3  # these validate each again, and what is in it, to find the parts that were examined
        patterns = _mapping(schema, "patternProperties").values()
        contained = _subschemas_at(schema, "contains")
        items = schema.get("items")  # before 2020-12 also the elements at fixed places
        elements = _list(schema, "prefixItems") or (
            items if isinstance(items, (list, tuple)) else ()
        )
        choice = _list(schema, "oneOf") if self._of_pydantic else ()
        content = _subschemas_at(schema, "contentSchema") if self._of_pydantic else ()
        return _Subschema(
            same=self._readers(same),
            one_of=self._readers(choice),
            members={
                **{
                    name: self._readers([subschema, *patterns])
                    for name, subschema in _mapping(schema, "properties").items()
                },
                **{
                    at: self._readers([subschema, *contained])
                    for at, subschema in enumerate(elements)
                },
            },
            other_members=self._readers(
                [
                    *patterns,
                    *_subschemas_at(schema, "additionalProperties", "unevaluatedProperties"),
                ]
            ),
            other_items=self._readers(
                [
                    *contained,
                    *_subschemas_at(schema, "items", "additionalItems", "unevaluatedItems"),
                ]
            ),
            names=self._readers(_subschemas_at(schema, "propertyNames")),
            content=self._readers(content),
            required=tuple(_required(schema)),
            quoted=_quoted(schema),
        )

    def _same(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for word in _REFERENCES:
            if isinstance(reference := schema.get(word), str):
                yield self._referred(reference)
        yield from _subschemas_at(schema, *_SAME)
        for word in _SAME_LISTS:
            if word != "oneOf" or not self._of_pydantic:
                yield from _list(schema, word)
        for word in _SAME_NAMED:
            yield from _mapping(schema, word).values()

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


_ANYTHING: Final[Mapping[str, Any]] = {}
_NO_READERS: Final = _Readers()


def _look(subschema: _Subschema, part: Any, texts: dict[int, Any]) -> _Look:
    """Return the work of one subschema at one part. `texts` keeps the values that JSON texts
    encode, by id."""
    same, choice = subschema.same, subschema.one_of
    count_here, parts, quoted = 1, 0, subschema.quoted + same.quoted
    reads = [(node, part) for node in same.nodes]
    if isinstance(part, Mapping):
        count_here += sum(1 for name in subschema.required if name not in part)
        members, others, names = subschema.members, subschema.other_members, subschema.names
        if members or others is not _NO_READERS:
            for name, item in part.items():
                nodes, leaves, of_leaves = members.get(name, others)
                parts += leaves
                quoted += of_leaves
                reads += [(node, item) for node in nodes]
        if names is not _NO_READERS:
            count_here += len(part)
            quoted += names.quoted * len(part)
            reads += [(node, name) for name in part for node in names.nodes]
    elif isinstance(part, (list, tuple)):
        members, others = subschema.members, subschema.other_items
        if members:
            for index, item in enumerate(part):
                nodes, leaves, of_leaves = members.get(index, others)
                parts += leaves
                quoted += of_leaves
                reads += [(node, item) for node in nodes]
        else:
            parts += others.leaves * len(part)
            quoted += others.quoted * len(part)
            reads += [(node, item) for node in others.nodes for item in part]
    elif subschema.content is not _NO_READERS and isinstance(part, str):
        if id(part) not in texts:
            texts[id(part)] = _decoded(part)
        parts += subschema.content.leaves
        reads += [(node, texts[id(part)]) for node in subschema.content.nodes]
    alternatives = same.leaves + min(1, choice.leaves)
    return _Look(count_here, alternatives, parts, reads, choice.nodes, quoted)


def _subschemas_at(schema: Mapping[str, Any], *words: str) -> list[Any]:
    """Return the subschemas at these keywords, except for lists."""
    return [
        schema[word]
        for word in words
        if word in schema and not isinstance(schema[word], (list, tuple))
    ]


def _below(
    readers: Sequence[tuple[_Subschema, int]],
) -> Iterator[tuple[Mapping[int, int], int]]:
    """Yield, for each kind of part below one part, the counts of its subschemas and of its leaves."""
    keys = {key for subschema, _ in readers for key in subschema.members}
    kinds: list[list[tuple[_Readers, int]]] = [
        [
            (s.members.get(key, s.other_members if isinstance(key, str) else s.other_items), n)
            for s, n in readers
        ]
        for key in keys
    ]
    kinds += [
        [(getattr(subschema, name), count) for subschema, count in readers]
        for name in ("other_members", "other_items", "names", "content")
    ]
    for kind in kinds:
        counts: Counter[int] = Counter()
        for read_by, count in kind:
            for node in read_by.nodes:
                counts[node] += count
        leaves = sum(read_by.leaves * count for read_by, count in kind)
        if counts or leaves:
            yield counts, leaves


def _sum(counts: Mapping[int, float], nodes: Iterable[int]) -> float:
    return sum(counts.get(node, 0) for node in nodes)


def _max(counts: Mapping[int, float], nodes: Iterable[int]) -> float:
    return max((counts.get(node, 0) for node in nodes), default=0)


def _required(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from _list(schema, "required")
    for word in ("dependentRequired", "dependencies"):
        for names in _mapping(schema, word).values():
            if isinstance(names, (list, tuple)):
                yield from names


def _mapping(schema: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    """Return the value of a keyword, which may have any type in a draft that does not know it."""
    value = schema.get(word)
    return value if isinstance(value, Mapping) else {}


def _list(schema: Mapping[str, Any], word: str) -> Sequence[Any]:
    value = schema.get(word)
    return value if isinstance(value, (list, tuple)) else ()


def _decoded(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text


def _quoted(schema: Any) -> int:
    """Return the cost of copying the keywords that errors of a subschema quote."""
    if not isinstance(schema, Mapping):
        return 0
    copied = [schema[word] for word in _QUOTED if word in schema]
    return sum(_sizes(value)[id(value)] + _size_of_names(value) for value in copied)


def _size_of_names(value: Any) -> int:
    """Return the cost of copying the long names of members in a value."""
    return sum(
        len(name) // _CHARS_PER_COPY
        for _, part in walk(value)
        if isinstance(part, Mapping)
        for name in part
    )


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
