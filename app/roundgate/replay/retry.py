"""The steps that ended a call, and the journal with which the call is retried there.

To retry a call at the step that ended it, its journal is cut off where the step failed; a replay of
the rest reaches the step and runs it. This is possible only if nothing was begun after the failure:
if the handler had caught the error and refunded the customer, the retry would charge a refunded
order.

    plan ✓   charge ✗                  cut off before `charge`: it runs again
    plan ✓   charge ✗   refund ✓       refused: `refund` was perhaps done because `charge` had failed
    a ✓   b ✗   c ✓  (beside b)        `b` runs again; `c` ran beside it, so it is remembered
    a ✓   b ✗   c cancelled with it    `b` and `c` run again
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from roundgate.errors import NotRetryable
from roundgate.replay.journal import (
    Answered,
    Asked,
    Began,
    Entry,
    Finished,
    Raised,
    Unanswered,
)

MAX_CAUSES: Final = 50
"""The most causes of an error that are followed."""
_ASKED: Final = (Asked, Answered, Unanswered)


def failed_steps_of(error: BaseException) -> tuple[str, ...]:
    """Return the places of the steps whose failure is this error, or caused it.

    Along a chain of causes the nearest failed step counts; in a group, that of each member.
    """
    return tuple(dict.fromkeys(_failures(error, MAX_CAUSES)))


def _failures(error: BaseException | None, left: int) -> Iterator[str]:
    while error is not None and left > 0:
        step: str | None = getattr(error, "failed_step", None)
        if step is not None:
            yield step
            return
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _failures(member, left - 1)
            return
        error, left = error.__cause__ or error.__context__, left - 1


def before_failure(entries: Sequence[Entry], failed: Collection[str]) -> list[Entry]:
    """Return the entries of a journal without the failure of these steps and its consequences.
    Results of steps that ran beside them are kept.

    Args:
        entries: every entry of the journal, in order.
        failed: the places of the steps whose failure ended the call.

    Raises:
        NotRetryable: something was done after the failure, or a step that may run only once would
            run again.
    """
    place = next((n for n, one in enumerate(entries) if _is_failure(one, failed)), None)
    if place is None:
        unknown = ", ".join(sorted(failed))
        raise NotRetryable(f"whether {unknown} took effect is not known; find out at its service")
    first = entries[place]
    begun_before = {one.key for one in entries[:place]} | _beside(first)
    later = [one for one in entries[place:] if one.key not in failed]
    if done := [one for one in later if _is_done(one) and one.key not in begun_before]:
        names = ", ".join(dict.fromkeys(map(_name, done)))
        raise NotRetryable(
            f"after {first.key} had failed, {names} was done, perhaps because of that; call the "
            "tool again instead"
        )
    ended_well = [one for one in later if isinstance(one, Finished) and one.key in begun_before]
    again = {*failed, *(one.key for one in later)} - {one.key for one in ended_well}
    if once := sorted({one.key for one in entries if isinstance(one, Began)} & again):
        raise NotRetryable(
            f"{', '.join(once)} may run only once (at_most_once); find out at its service whether "
            "it took effect"
        )
    return [*entries[:place], *ended_well]


def _beside(entry: Entry) -> set[str]:
    return set(entry.beside or ()) if isinstance(entry, Raised) else set()


def _is_failure(entry: Entry, failed: Collection[str]) -> bool:
    return isinstance(entry, Raised) and entry.key in failed


def _is_done(entry: Entry) -> bool:
    """Return whether an entry has an effect that a retry could contradict. Pauses, failed attempts
    and cancelled steps have none; an idempotency key never changes."""
    is_key = entry.key.rpartition("/")[2].startswith("key:")
    return isinstance(entry, (Finished, Raised, Began, *_ASKED)) and not is_key


def _name(entry: Entry) -> str:
    return f"the question {entry.key}" if isinstance(entry, _ASKED) else entry.key
