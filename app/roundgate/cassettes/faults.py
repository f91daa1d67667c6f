"""What goes wrong on purpose while a cassette is replayed.

lost:2       the response to interaction 2 is lost; the request comes (or is sent) again
twice:2      request 2 is sent twice, and both are answered alike (only where the client is replayed)
cut:2        the response to interaction 2 breaks off in the middle; cut:2:3 lets three events through before
delay:2:0.5  half a second passes before interaction 2
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from roundgate.errors import UsageError

KINDS: Final = ("lost", "twice", "cut", "delay")
_LONGEST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, at one interaction; `amount` is how many events come before a cut,
    or seconds of a delay."""

    kind: str
    number: int
    amount: float = 0.0


@dataclass(slots=True)
class Faults:
    """The faults of one replay; each but a delay happens once."""

    all: tuple[Fault, ...] = ()
    _left: list[Fault] = field(default_factory=list)

    def begun(self) -> Faults:
        """A copy of which none has happened."""
        return Faults(self.all, list(self.all))

    def takes(self, kind: str, number: int) -> bool:
        """Whether this fault happens now; it does not again."""
        found = next((one for one in self._left if (one.kind, one.number) == (kind, number)), None)
        if found is not None:
            self._left.remove(found)
        return found is not None

    def delay_s(self, number: int) -> float:
        """How long to wait before an interaction."""
        return sum(one.amount for one in self.all if (one.kind, one.number) == ("delay", number))

    def events_before_cut(self, number: int) -> int:
        """How many events of a stream get through before it breaks."""
        found = [one.amount for one in self.all if (one.kind, one.number) == ("cut", number)]
        return int(found[0]) if found else 0


NO_FAULTS: Final = Faults()


def parse_faults(
    given: Iterable[str], interactions: int, *, kinds: Iterable[str] = KINDS
) -> Faults:
    """Faults as they are said on a command line.

    Raises:
        UsageError: one is malformed, not possible here, or names an interaction that there is not.
    """
    return Faults(tuple(_fault(one, interactions, tuple(kinds)) for one in given))


def _fault(text: str, interactions: int, kinds: tuple[str, ...]) -> Fault:
    kind, *numbers = text.split(":")
    try:
        number, *more = [float(one) for one in numbers]
    except ValueError:
        number, more = 0.0, [0.0, 0.0]
    if kind not in kinds or len(more) > 1 or (more and kind in ("lost", "twice")):
        examples = ", ".join(f"{one}:2:0.5" if one == "delay" else f"{one}:2" for one in kinds)
        raise UsageError(f"--fault {text}: write it as one of {examples}")
    if not (number.is_integer() and 1 <= number <= interactions):
        raise UsageError(f"--fault {text}: the cassette has interactions 1 to {interactions}")
    amount = more[0] if more else 0.0
    if not 0 <= amount <= (_LONGEST_S if kind == "delay" else 10_000):
        raise UsageError(f"--fault {text}: at most {_LONGEST_S:g} seconds, at least 0")
    return Fault(kind, int(number), amount)
