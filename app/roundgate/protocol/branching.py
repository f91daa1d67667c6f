"""The number of times that each part of a value is read when a type or schema is applied to it.

A union tries its alternatives one after the other. If several of them look at the same member,
that member is read several times, and in a recursive type this multiplies with every level:

    Filter = And | Or | int          And.left and Or.left are both a Filter
    {"left": {"left": {"left": 1}}}  the 1 is read 2 * 2 * 2 times

`Branching` computes the number before the value is read. A state holds the nodes of the type that
read a part of the value, each with a count. A member's name leads from one state to the next, so
one walk through a value yields its price. States are computed on first use.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from pydantic_core import from_json

ANY: Final = "*"
"""The key of members that have no key of their own."""
ITEMS: Final = -1
"""The key of elements that have no key of their own; an element's own key is its index."""

Key: TypeAlias = str | int
Readers: TypeAlias = frozenset[tuple[Any, int]]
"""The nodes of a type that read one value, each with a count."""
State: TypeAlias = frozenset[Readers]
"""Alternatives; tags in the value decide between them."""

_MAX: Final = 10_000_000
"""The limit at which counts stop growing."""
_MAX_STATES: Final = 2_000
_MAX_ALTERNATIVES: Final = 64
_COPIES_PER_ERROR: Final = 40
"""The number of values that can be copied in the time that one error takes."""
_CHARS_PER_COPY: Final = 100


@dataclass(frozen=True, slots=True)
class Edges:
    """The nodes that reading continues with after one node of a type."""

    all_of: tuple[Any, ...] = ()
    """Nodes that read the same value."""
    one_of: tuple[Any, ...] = ()
    """Nodes of which a tag selects one that reads the same value."""
    members: tuple[tuple[Key, Any], ...] = ()
    """Nodes that read a part of the value, each with its key."""
    required: tuple[str, ...] = ()
    """Members whose absence is an error of its own."""
    names: tuple[Any, ...] = ()
    """Nodes that read the name of each member."""
    decodes: bool = False
    """Whether the nodes read the value that a JSON text encodes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The number of times that a value is read, and the states that read its parts."""

    count: int
    onward: Mapping[Key, State]
    required: Mapping[str, int] = field(default_factory=dict)
    """The number of times that each required member is looked up."""
    names: int = 0
    """The number of times that the name of each member is read."""
    decodes: bool = False

    def value_of(self, part: Any) -> Any:
        """Return the value that is read: the decoded value of a JSON text if this reading
        decodes."""
        if not (self.decodes and isinstance(part, str)):
            return part
        try:
            return from_json(part)
        except ValueError:
            return part

    def effort(self, part: Any) -> int:
        """Return the most readings, missing members and names that this reading may find in a
        part."""
        if not isinstance(part, Mapping):
            return self.count
        missing = sum(times for name, times in self.required.items() if name not in part)
        return self.count + missing + self.names * len(part)

    def under(self, key: Key) -> State:
        others = ANY if isinstance(key, str) else ITEMS
        return self.onward.get(key, self.onward.get(others, frozenset()))


class Branching:
    """The states of one type."""

    def __init__(
        self,
        root: Any,
        edges: Callable[[Any], Edges],
        reads_once: Callable[[Any], bool] = lambda node: False,
    ) -> None:
        """
        Args:
            root: the node that reads the whole value.
            edges: returns the edges of a node; nodes are hashable.
            reads_once: returns whether a node caches each value that it has read.
        """
        self._edges = edges
        self._reads_once = reads_once
        self._start: State = frozenset({frozenset({(root, 1)})})
        self._nodes: dict[Any, _Reading] = {}
        self._states: dict[State, _Reading] = {}

    def price(self, value: Any, limit: int) -> int:
        """Return how many readings a value takes, or a number above `limit`."""
        total, stack = 0, [(value, self._start)]
        while stack and total <= limit:
            part, state = stack.pop()
            reading = self._explored(state)
            part = reading.value_of(part)
            total += reading.effort(part)
            if not reading.onward:
                continue
            others = reading.onward.get(ANY if isinstance(part, Mapping) else ITEMS)
            stack.extend(
                (item, then)
                for key, item in _parts(part)
                if (then := reading.onward.get(key, others)) is not None
            )
        return total

    def price_of_errors(self, value: Any, limit: int) -> float:
        """Return how many errors a value may have, or a number above `limit`. Copying an error's
        part of the value counts as well."""
        total, stack = 0.0, [(value, self._start, 0)]
        while stack and total <= limit:
            part, state, copies = stack.pop()
            reading = self._explored(state)
            effort = reading.effort(part)
            size = 1 + (len(part) // _CHARS_PER_COPY if isinstance(part, str) else 0)
            copies += effort
            total += effort + copies * size / _COPIES_PER_ERROR
            others = reading.under(ANY if isinstance(part, Mapping) else ITEMS)
            stack.extend(
                (item, reading.onward.get(key, others), copies) for key, item in _parts(part)
            )
        return total

    def missing(self, limit: int, *, states: int = 300) -> int | None:
        """Return how many required members a part may lack that is read more than once, over all
        values; a number above `limit` if there are more, or if a JSON text is decoded, whose
        content is unchecked. `None` as for `most`."""

        def number(reading: _Reading) -> int:
            if reading.decodes:
                return limit + 1
            return sum(reading.required.values()) if reading.count > 1 else 0

        return self._largest(number, limit, states)

    def most(self, limit: int, *, states: int = 300) -> int | None:
        """Return how often one part of any value may be read, or a number above `limit`. Return
        `None` if that takes more than `states` states."""
        return self._largest(lambda one: one.count, limit, states)

    def _largest(self, number: Callable[[_Reading], int], limit: int, states: int) -> int | None:
        most, seen, waiting = 1, {self._start}, deque([self._start])
        while waiting:
            reading = self._explored(waiting.popleft())
            most = max(most, number(reading))
            if most > limit:
                break
            new = set(reading.onward.values()) - seen
            seen |= new
            waiting.extend(new)
            if len(seen) > states:
                return None
        return most

    def _explored(self, state: State) -> _Reading:
        if state not in self._states:
            if len(self._states) >= _MAX_STATES:
                self._states.clear()
            self._states[state] = _either([self._read_by(readers) for readers in state])
        return self._states[state]

    def _read_by(self, readers: Readers) -> _Reading:
        return self._together([(self._reading(node), count) for node, count in readers])

    def _reading(self, node: Any) -> _Reading:
        """Return the reading of one node, including all nodes that read the same value."""
        if node not in self._nodes:
            self._nodes[node] = _Reading(0, {})  # for a node that leads back to itself
            self._nodes[node] = self._made(self._edges(node))
        return self._nodes[node]

    def _made(self, edges: Edges) -> _Reading:
        own: dict[Key, Counter[Any]] = {}
        for key, target in edges.members:
            own.setdefault(key, Counter())[target] += 1
        parts = [_Reading(0, {key: frozenset({_counted(one)}) for key, one in own.items()})]
        parts += [self._reading(one) for one in edges.all_of]
        if edges.one_of:
            parts.append(_either([self._reading(one) for one in edges.one_of]))
        made = self._together([(one, 1) for one in parts])
        return replace(
            made,
            count=max(1, made.count),
            required=Counter(made.required) + Counter(edges.required),
            names=made.names + sum(self._reading(one).count for one in edges.names),
            decodes=made.decodes or edges.decodes,
        )

    def _together(self, readings: list[tuple[_Reading, int]]) -> _Reading:
        """Return the combination of readings that all happen, each `times` times."""
        count = min(_MAX, sum(one.count * times for one, times in readings))
        onward: dict[Key, State] = {}
        for key in {key for one, _ in readings for key in one.onward}:
            state: State = frozenset({frozenset()})
            for one, times in readings:
                if alternatives := one.under(key):
                    state = self._product(state, alternatives, times)
            onward[key] = state
        required: Counter[str] = Counter()
        for one, times in readings:
            for name, looked_for in one.required.items():
                required[name] = min(_MAX, required[name] + looked_for * times)
        names = min(_MAX, sum(one.names * times for one, times in readings))
        decodes = any(one.decodes for one, _ in readings)
        return _Reading(count, onward, required, names, decodes)

    def _product(self, state: State, alternatives: State, times: int) -> State:
        return _few(
            {self._sum(one, other, times) for one in _few(state) for other in _few(alternatives)}
        )

    def _sum(self, one: Readers, other: Readers, times: int) -> Readers:
        counts = Counter(dict(one))
        for node, count in other:
            counts[node] = 1 if self._reads_once(node) else counts[node] + count * times
        return _counted(counts)


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _counted(counts: Mapping[Any, int]) -> Readers:
    return frozenset((node, min(count, _MAX)) for node, count in counts.items())


def _either(readings: list[_Reading]) -> _Reading:
    """Return an upper bound of several readings of which one happens."""
    keys = {key for one in readings for key in one.onward}
    onward = {key: _few({two for one in readings for two in one.under(key)}) for key in keys}
    required: Counter[str] = Counter()
    for one in readings:
        required |= Counter(one.required)
    return _Reading(
        max((one.count for one in readings), default=0),
        onward,
        required,
        max((one.names for one in readings), default=0),
        any(one.decodes for one in readings),
    )


def _few(alternatives: Iterable[Readers]) -> State:
    """Return the alternatives; if there are too many, one alternative that is at least as large as
    each."""
    found = frozenset(alternatives)
    if len(found) <= _MAX_ALTERNATIVES:
        return found
    largest: dict[Any, int] = {}
    for readers in found:
        for node, count in readers:
            largest[node] = max(count, largest.get(node, 0))
    return frozenset({_counted(largest)})
