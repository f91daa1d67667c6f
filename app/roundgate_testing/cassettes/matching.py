"""Placeholders in texts, paths into messages, and the comparison of a recorded message with a new
one, which binds placeholders to values.

Placeholders are `${kind}`, `${kind:1}` and `${secret:NAME}`. A literal `${` has an additional `$`
in front. Paths such as `result.content[0].text`, `items[*].id` and `pin` select values to ignore or
to redact. A path matches every place that ends with its steps: `pin` is any member of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from roundgate.errors import Inside, UsageError
from roundgate.json import encode
from roundgate.settings.yaml_file import dotted

Path: TypeAlias = tuple[str | int, ...]

_LONGEST: Final = 300
"""The limit on the characters of a value in a report."""
_MISSING: Final = object()

# -- paths -----------------------------------------------------------------------------------------

_STEP: Final = re.compile(r"\[(\*|\d+)\]|(?:^|\.)([^.\[\]]+)")


class UnboundPlaceholder(Inside):
    """A placeholder of a cassette has no value yet."""


@lru_cache(maxsize=256)
def steps(text: str) -> Path:
    """Parse a path into its steps; `*` stands for any step. Raise `ValueError` if the path is
    malformed."""
    matched = list(_STEP.finditer(text))
    if not matched or "".join(step[0] for step in matched) != text:
        raise ValueError(f"{text!r} is not a path: write it as arguments.items[0].pin, or pin")
    return tuple(
        step[2] if step[2] is not None else "*" if step[1] == "*" else int(step[1])
        for step in matched
    )


def check_paths(option: str, paths: Sequence[str]) -> Sequence[str]:
    """Return the paths of a command-line option. Raise `UsageError` if a path is malformed."""
    for path in paths:
        try:
            steps(path)
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None
    return paths


def matches(pattern: str, path: Path) -> bool:
    """Return whether a path ends with the steps of a pattern."""
    pattern_steps = steps(pattern)
    return len(path) >= len(pattern_steps) and is_at(
        pattern_steps, path[len(path) - len(pattern_steps) :]
    )


def is_at(place: Path, path: Path) -> bool:
    """Return whether a path has exactly the steps of a place, in which `*` stands for any step."""
    return len(place) == len(path) and all(
        wanted in ("*", step) for wanted, step in zip(place, path, strict=True)
    )


def any_matches(patterns: Sequence[str], path: Path) -> bool:
    """Return whether one of the patterns matches a path."""
    return any(matches(pattern, path) for pattern in patterns)


# -- placeholders ----------------------------------------------------------------------------------

_MARK: Final = re.compile(r"(\$+)\{")
_INSIDE: Final = re.compile(r"([A-Za-z][\w-]*)(?::([\w.-]+))?\}")


@dataclass(frozen=True, slots=True)
class ValueSlot:
    """A placeholder. `key` is the text after the colon; `None` if values of the kind are not
    distinguished."""

    kind: str
    key: str | None = None

    def __str__(self) -> str:
        return f"${{{self.kind}}}" if self.key is None else f"${{{self.kind}:{self.key}}}"


def escape(text: str) -> str:
    """Return a literal text as a cassette contains it, with `${` escaped."""
    return _MARK.sub(lambda mark: f"${mark[0]}", text) if "${" in text else text


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[str | ValueSlot, ...]:
    """Parse a text of a cassette into literal texts and placeholders. Raise `ValueError` if a
    placeholder is malformed."""
    pieces: list[str | ValueSlot] = []
    plain, at = "", 0
    for mark in _MARK.finditer(text):
        if mark.start() < at:
            continue
        plain += text[at : mark.start()]
        if len(mark[1]) > 1:
            plain += mark[0][1:]
            at = mark.end()
            continue
        inside = _INSIDE.match(text, mark.end())
        if inside is None:
            raise ValueError(
                f"{text[mark.start() : mark.start() + 30]!r} is not a valid placeholder"
            )
        pieces += [plain] if plain else []
        pieces.append(ValueSlot(inside[1], inside[2]))
        plain, at = "", inside.end()
    plain += text[at:]
    return (*pieces, plain) if plain else tuple(pieces)


def only_slot(text: str) -> ValueSlot | None:
    """Return the placeholder if it is the whole text, or `None`."""
    match parse(text):
        case [ValueSlot() as slot]:
            return slot
    return None


def fill(recorded: Any, value_of: Callable[[ValueSlot], Any]) -> Any:
    """Return a recorded value with its placeholders replaced. A placeholder that is a whole text
    may have a value of any type.

    Raises:
        UnboundPlaceholder: `value_of` has no value for a placeholder.
    """
    match recorded:
        case str():
            if (slot := only_slot(recorded)) is not None:
                return value_of(slot)
            pieces = parse(recorded)
            return "".join(
                str(value_of(piece)) if isinstance(piece, ValueSlot) else piece for piece in pieces
            )
        case Mapping():
            return {key: fill(item, value_of) for key, item in recorded.items()}
        case list() | tuple():
            return [fill(item, value_of) for item in recorded]
    return recorded


def slots(recorded: Any) -> Iterator[ValueSlot]:
    """Yield each placeholder in a recorded value."""
    match recorded:
        case str():
            yield from (piece for piece in parse(recorded) if isinstance(piece, ValueSlot))
        case Mapping():
            for item in recorded.values():
                yield from slots(item)
        case list() | tuple():
            for item in recorded:
                yield from slots(item)


class Bindings:
    """The values of a cassette's placeholders in one conversation."""

    def __init__(self, values: Mapping[ValueSlot, Any] | None = None) -> None:
        self.values: dict[ValueSlot, Any] = dict(values or {})

    def learn(self, slot: ValueSlot, value: Any) -> str | None:
        """Bind a placeholder to a value. If the placeholder has another value, or another
        placeholder of its kind has this value, return a description of the expected value,
        otherwise `None`."""
        if slot in self.values:
            bound = self.values[slot]
            return None if bound == value else f"{slot}, which is {shown(bound)}"
        if slot.key is None or slot.kind in ("any", "secret"):
            return None
        for other, bound in self.values.items():
            if other.kind == slot.kind and bound == value:
                return f"{slot}, a different value from {other}"
        self.values[slot] = value
        return None

    def shown(self, pieces: Sequence[str | ValueSlot]) -> str:
        """Return a text with the known values of its placeholders."""
        return "".join(
            str(self.values.get(piece, piece)) if isinstance(piece, ValueSlot) else piece
            for piece in pieces
        )


# -- comparison ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the recording: the path, and both values as texts."""

    path: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.path}\n    recorded: {self.expected}\n    now:      {self.actual}"


def shown(value: Any) -> str:
    """Return a JSON value on one line, cut to `_LONGEST` characters."""
    if value is _MISSING:
        return "(nothing)"
    text = encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def compare(
    recorded: Any, now: Any, bindings: Bindings, path: Path = (), ignore: Sequence[str] = ()
) -> Iterator[Difference]:
    """Yield the differences between a recorded value and a new one, and bind the placeholders in
    the recorded value. Paths in `ignore` are not compared."""
    if ignore and any_matches(ignore, path):
        return
    if isinstance(recorded, str):
        yield from _compare_text(recorded, now, bindings, path)
    elif isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            pair = recorded.get(key, _MISSING), now.get(key, _MISSING)
            yield from compare(*pair, bindings, (*path, key), ignore)
    elif isinstance(recorded, (list, tuple)) and isinstance(now, list):
        for index in range(max(len(recorded), len(now))):
            before = recorded[index] if index < len(recorded) else _MISSING
            after = now[index] if index < len(now) else _MISSING
            yield from compare(before, after, bindings, (*path, index), ignore)
    elif not _is_same(recorded, now):
        yield Difference(dotted(path), shown(recorded), shown(now))


def _is_same(recorded: Any, now: Any) -> bool:
    if isinstance(recorded, bool) or isinstance(now, bool):
        return recorded is now
    return bool(recorded == now)


def _compare_text(recorded: str, now: Any, bindings: Bindings, path: Path) -> Iterator[Difference]:
    if now is _MISSING:
        yield Difference(dotted(path), shown(recorded), shown(now))
        return
    if (slot := only_slot(recorded)) is not None:
        is_text = isinstance(now, (str, int, float)) and not isinstance(now, bool) and now != ""
        expected = bindings.learn(slot, now) if is_text else f"{slot}, a text"
        if expected is not None:
            yield Difference(dotted(path), expected, shown(now))
        return
    pieces = parse(recorded)
    values = _split(pieces, now, bindings) if isinstance(now, str) else None
    if values is None:
        yield Difference(dotted(path), shown(bindings.shown(pieces)), shown(now))
        return
    for slot, value in values:
        if (expected := bindings.learn(slot, value)) is not None:
            yield Difference(dotted(path), expected, shown(value))


def _split(
    pieces: Sequence[str | ValueSlot], text: str, bindings: Bindings
) -> list[tuple[ValueSlot, str]] | None:
    """Return the value of each placeholder in a text, or `None` if the literal parts differ.

    In one pass, each placeholder matches as few characters as possible, but at least one.
    """
    known = [
        str(bindings.values[piece])
        if isinstance(piece, ValueSlot) and piece in bindings.values
        else piece
        for piece in pieces
    ]
    values: list[tuple[ValueSlot, str]] = []
    at, waiting = 0, None
    for index, piece in enumerate(known):
        if isinstance(piece, ValueSlot):
            if waiting is not None:
                values.append((waiting, text[at : at + 1]))
                at += 1
            waiting = piece
            continue
        if waiting is None:
            if not text.startswith(piece, at):
                return None
            at += len(piece)
            continue
        is_last = index == len(known) - 1
        end = len(text) - len(piece) if is_last else text.find(piece, at + 1)
        if end <= at or not text.startswith(piece, end):
            return None
        values.append((waiting, text[at:end]))
        at, waiting = end + len(piece), None
    if waiting is not None:
        values.append((waiting, text[at:]))
        return values if text[at:] else None
    return values if at == len(text) else None
