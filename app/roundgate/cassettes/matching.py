"""What was recorded against what is said now: values of placeholders are learned and held
to, differences are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate.cassettes.paths import Path, Slot, any_matches, dotted, parse

_LONGEST: Final = 300
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recorded: where, and in words."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}\n    recorded: {self.expected}\n    now:      {self.got}"


class Bindings:
    """What the placeholders of a cassette stand for in one conversation."""

    def __init__(self, values: Mapping[Slot, Any] | None = None) -> None:
        self.values: dict[Slot, Any] = dict(values or {})

    def learn(self, slot: Slot, value: Any) -> str | None:
        """Have a placeholder stand for a value from now on; what is wrong if
        it stands for another."""
        if slot in self.values:
            known = self.values[slot]
            return None if known == value else f"{slot}, which is {shown(known)}"
        if slot.key is None or slot.kind in ("any", "secret"):
            return None
        for other, known in self.values.items():
            if other.kind == slot.kind and known == value:
                return f"{slot}, another value than {other}"
        self.values[slot] = value
        return None


def shown(value: Any) -> str:
    """A JSON value in a line, not too long."""
    if value is _MISSING:
        return "(nothing)"
    from roundgate.json import encode

    text = encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def compare(
    recorded: Any, now: Any, bindings: Bindings, path: Path = (), ignore: Sequence[str] = ()
) -> Iterator[Difference]:
    """Each difference between a recorded value and one of now; placeholders learn
    their values on the way."""
    if ignore and any_matches(ignore, path):
        return
    if isinstance(recorded, str):
        yield from _compare_text(recorded, now, bindings, path)
    elif isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            yield from _member(recorded, now, key, bindings, path, ignore)
    elif isinstance(recorded, (list, tuple)) and isinstance(now, list):
        yield from _compare_lists(recorded, now, bindings, path, ignore)
    elif not _same(recorded, now):
        yield Difference(dotted(path), shown(recorded), shown(now))


def _member(
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
    key: str,
    bindings: Bindings,
    path: Path,
    ignore: Sequence[str],
) -> Iterator[Difference]:
    inside = (*path, key)
    if key in recorded and key in now:
        yield from compare(recorded[key], now[key], bindings, inside, ignore)
    elif not any_matches(ignore, inside):
        yield Difference(
            dotted(inside),
            shown(recorded.get(key, _MISSING)),
            shown(now.get(key, _MISSING)),
        )


def _compare_lists(
    recorded: Sequence[Any], now: list[Any], bindings: Bindings, path: Path, ignore: Sequence[str]
) -> Iterator[Difference]:
    for index in range(max(len(recorded), len(now))):
        inside = (*path, index)
        if index < min(len(recorded), len(now)):
            yield from compare(recorded[index], now[index], bindings, inside, ignore)
        elif not any_matches(ignore, inside):
            left = recorded[index] if index < len(recorded) else _MISSING
            yield Difference(
                dotted(inside), shown(left), shown(now[index] if index < len(now) else _MISSING)
            )


def _same(recorded: Any, now: Any) -> bool:
    if isinstance(recorded, bool) or isinstance(now, bool):
        return recorded is now
    return bool(recorded == now)


def _compare_text(recorded: str, now: Any, bindings: Bindings, path: Path) -> Iterator[Difference]:
    pieces = parse(recorded)
    if len(pieces) == 1 and isinstance(pieces[0], Slot):
        wrong = bindings.learn(pieces[0], now) if _may_stand_for(now) else f"{pieces[0]}, a text"
        if wrong is not None:
            yield Difference(dotted(path), wrong, shown(now))
        return
    found = _split(pieces, now, bindings) if isinstance(now, str) else None
    if found is None:
        yield Difference(dotted(path), shown(_with_values(pieces, bindings)), shown(now))
        return
    for slot, value in found:
        if (wrong := bindings.learn(slot, value)) is not None:
            yield Difference(dotted(path), wrong, shown(value))


def _may_stand_for(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""


def _with_values(pieces: Sequence[str | Slot], bindings: Bindings) -> str:
    """A text as it was expected: with the values that are known."""
    return "".join(
        str(bindings.values.get(one, one)) if isinstance(one, Slot) else one for one in pieces
    )


def _split(
    pieces: Sequence[str | Slot], text: str, bindings: Bindings
) -> list[tuple[Slot, str]] | None:
    """What each placeholder in a text stands for, `None` if the text is another one.

    Each takes as little as it can: one pass, however many there are.
    """
    known = [
        str(bindings.values[one]) if isinstance(one, Slot) and one in bindings.values else one
        for one in pieces
    ]
    found: list[tuple[Slot, str]] = []
    at, waiting = 0, None
    for index, piece in enumerate(known):
        if isinstance(piece, Slot):
            if waiting is not None:
                found.append((waiting, text[at : at + 1]))
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
        found.append((waiting, text[at:end]))
        at, waiting = end + len(piece), None
    if waiting is not None:
        found.append((waiting, text[at:]))
        return found if text[at:] else None
    return found if at == len(text) else None


def fill(recorded: Any, value_of: Callable[[Slot], Any]) -> Any:
    """A recorded value with what its placeholders stand for.

    Raises:
        UnboundPlaceholder: `value_of` does not know one.
    """
    match recorded:
        case str():
            pieces = parse(recorded)
            if len(pieces) == 1 and isinstance(pieces[0], Slot):
                return value_of(pieces[0])
            return "".join(str(value_of(one)) if isinstance(one, Slot) else one for one in pieces)
        case Mapping():
            return {key: fill(item, value_of) for key, item in recorded.items()}
        case list() | tuple():
            return [fill(item, value_of) for item in recorded]
    return recorded


def slots(recorded: Any) -> Iterator[Slot]:
    """Each placeholder in a recorded value."""
    match recorded:
        case str():
            yield from (one for one in parse(recorded) if isinstance(one, Slot))
        case Mapping():
            for item in recorded.values():
                yield from slots(item)
        case list() | tuple():
            for item in recorded:
                yield from slots(item)
