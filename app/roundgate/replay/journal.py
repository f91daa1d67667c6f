"""The journal: everything that is known of a call, so that its handler can
be run again from the top.

Two kinds of things are remembered, each under its place in the handler (`branches.Branch.key`):
what was done (steps, sleeps, time limits), and what was asked, with the answers. Between the
rounds of a request the journal travels to the client and back, sealed; nothing in it depends on
the process that wrote it.

    question:  (nothing) ──asked──▶ Asked ──answer arrives──▶ Answered
                                      ▲                           │ unusable, or the question reads differently now
                                      └── next attempt ◀──────────┘
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, TypeAlias

from roundgate.errors import NotJson, NotRetryable
from roundgate.json import encode

JOURNAL_VERSION: Final = 1
"""The version of what journals are written in."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that returned. `what` is its `identity`; idempotency keys have none."""

    key: str
    value: Any
    what: str | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """A step that raised. `told` is whether its text was meant for the caller (`ToolError`)."""

    key: str
    message: str
    told: bool
    what: str | None = None
    how: str | None = None
    """`TIMED_OUT`, `NOT_JSON`, or `None` for whatever else."""
    attempts: int | None = None
    """The number of attempts, if more than one."""
    beside: Sequence[str] | None = None
    """The places of other steps that were running when this one failed, and so did not begin
    because of the failure."""


TIMED_OUT: Final = "timeout"
NOT_JSON: Final = "value"


@dataclass(frozen=True, slots=True)
class Tried:
    """A step of which some attempts have failed, and when the next one is due, in
    milliseconds since the epoch."""

    key: str
    attempts: int
    again_ms: int
    what: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A step that the handler itself cancelled (`asyncio.timeout`, a failed sibling)
    after so many milliseconds."""

    key: str
    after_ms: int
    what: str | None = None


@dataclass(frozen=True, slots=True)
class Began:
    """An `at_most_once` step whose function was about to be called. If nothing follows,
    nobody knows what happened."""

    key: str
    what: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that waits for its answer. `problem` is what was wrong with the last one."""

    key: str
    digest: str
    attempt: int = 1
    changed: int = 0
    """How many rounds in a row it read differently: once is a new version of the handler,
    often is a clock in it."""
    problem: str | None = None
    wire: str | None = None
    """What clients know it by, where that is not the key."""
    until_ms: int | None = None
    """When its default stands in for an answer, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and the digest of the question as it was shown; `None` if it came unasked."""

    key: str
    digest: str | None
    attempt: int
    changed: int
    response: Any
    wire: str | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question whose time was over before there was an answer; its default is the answer."""

    key: str
    digest: str
    attempt: int
    wire: str | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A place where the handler gave its turn back, and where it will not do so again."""

    key: str


@dataclass(frozen=True, slots=True)
class Slept:
    """A sleep or a time limit that began, with its end in milliseconds since the epoch. `was_left`
    is `True` once the block of a limit was left in time: the limit passes in no later run."""

    key: str
    until_ms: int
    what: str | None = None
    was_left: bool | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The place in the order of an event without an outcome of its own: a sleep ended, questions
    were answered, a time limit passed. Recorded for time limits always, for other events if the
    handler has branches."""

    PREFIX: ClassVar[str] = "told:"
    key: str

    @classmethod
    def of(cls, place: str) -> Told:
        """That of a place."""
        return cls(f"{cls.PREFIX}{place}")


QuestionEntry: TypeAlias = Asked | Answered | Unanswered
Step: TypeAlias = Finished | Raised | Tried | Cut | Began | Passed | Slept | Told
Entry: TypeAlias = Step | QuestionEntry

_TAGS: Final[Mapping[str, type[Entry]]] = {
    "s": Finished,
    "e": Raised,
    "t": Tried,
    "c": Cut,
    "b": Began,
    "q": Asked,
    "a": Answered,
    "u": Unanswered,
    "p": Passed,
    "w": Slept,
    "o": Told,
}
_TAG_OF: Final = {kind: tag for tag, kind in _TAGS.items()}
_REQUIRED: Final = {
    kind: sum(f.default is MISSING for f in fields(kind)) + (3 if kind is Asked else 0)
    for kind in _TAG_OF
}
"""How many members every entry of a kind is written with: those behind are left out
where they say nothing."""


MAX_DEPTH: Final = 100
"""Levels of a value that can be remembered; what the journal travels in adds a few, and
JSON readers stop at 200."""


def wire_key(key: str, attempt: int) -> str:
    """What a question is called on the wire: its key, and which attempt it is if not the
    first. Never used twice."""
    return key if attempt == 1 else f"{key}~{attempt}"


class WireNames:
    """The names by which clients know the questions of a call. None is used twice."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def take(self, wire: str) -> None:
        """Mark a name as taken."""
        self._taken.add(wire)

    def new(self, base: str) -> str:
        """A free one: `confirm`, or `confirm#2`."""
        number = self._numbers.get(base, 0) + 1
        while (wire := base if number == 1 else f"{base}#{number}") in self._taken:
            number += 1
        self._numbers[base] = number - 1
        return wire


@dataclass(slots=True)
class Journal:
    """What is known of one call: steps, questions, and the handler's own `state`, all JSON."""

    steps: dict[str, Step] = field(default_factory=dict)
    questions: dict[str, QuestionEntry] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] | None = None
    """What the handler was restarted with, in place of what it was called with."""
    generation: int = 1
    """How often the handler has begun anew, and once: clients know the questions
    of each by other keys."""
    unasked: Mapping[str, Any] = field(default_factory=dict)
    """Responses that came with a request that had no state: nobody had asked. Not kept."""
    received: set[str] = field(default_factory=set)
    """The places of questions whose answers arrived with this request or were read with this claim.
    Not stored."""

    def add(self, entry: Entry) -> None:
        """Remember an entry; it replaces the one of its key. Steps are kept in the
        order of their outcomes."""
        if isinstance(entry, (Asked, Answered, Unanswered)):
            self.questions[entry.key] = entry
        else:
            self.steps.pop(entry.key, None)
            self.steps[entry.key] = entry

    def receive(self, responses: Mapping[str, Any]) -> None:
        """Take answers to outstanding questions by their wire keys; others are not
        needed and are dropped."""
        for entry in self.outstanding():
            key = wire_key(entry.wire or entry.key, entry.attempt)
            if key in responses:
                answer = Answered(
                    entry.key,
                    entry.digest,
                    entry.attempt,
                    entry.changed,
                    responses[key],
                    entry.wire,
                )
                self.add(answer)
                self.received.add(entry.key)

    def receive_unasked(self, responses: Mapping[str, Any]) -> None:
        """Take responses that a client sends along without any state; only who asks
        for such looks at them."""
        self.unasked = dict(responses)

    def response(self, wire: str) -> Any:
        """The last response under a wire key as it came, or `None`."""
        for entry in self.questions.values():
            if isinstance(entry, Answered) and (entry.wire or entry.key) == wire:
                return entry.response
        return None

    def outstanding(self) -> list[Asked]:
        """The questions that wait, in the order in which they were asked."""
        return [entry for entry in self.questions.values() if isinstance(entry, Asked)]

    def entries(self) -> Iterator[Entry]:
        """Everything remembered but `state`."""
        yield from self.steps.values()
        yield from self.questions.values()

    def to_json(self) -> Any:
        """Return it as JSON: `[[[tag, key, …], …], state, version, generation, arguments]`, the
        last two only after a restart."""
        rows = [row(entry) for entry in self.entries()]
        restarted = [] if self.generation == 1 else [self.generation, self.arguments]
        return [rows, plain(self.state, "ctx.state"), JOURNAL_VERSION, *restarted]

    def restarted(self, arguments: dict[str, Any]) -> Journal:
        """The journal of a handler that begins anew with these arguments."""
        return Journal(generation=self.generation + 1, arguments=arguments)

    @classmethod
    def from_json(cls, value: Any) -> Journal:
        """The inverse of `to_json`, for values that we wrote ourselves.

        Raises:
            ValueError, TypeError, KeyError: we did not, or a later version did.
        """
        rows, state, version, *restarted = value
        if type(version) is not int:
            raise ValueError("a journal's version is a number")
        if version > JOURNAL_VERSION:
            raise ValueError(
                f"a journal of version {version}; the newest that is known here is {JOURNAL_VERSION}"
            )
        generation, arguments = restarted or (1, None)
        journal = cls(state=dict(state), arguments=arguments, generation=generation)
        for one in rows:
            journal.add(from_row(one))
        return journal

    def largest(self) -> str:
        """The entry that takes the most room, for an error message: "step 'plan' (12000 bytes)"."""
        sizes = [(len(encode(row(entry)[1:])), _describe(entry)) for entry in self.entries()]
        size, what = max([*sizes, (len(encode(self.state)), "ctx.state")])
        return f"{what} ({size} bytes)"


def row(entry: Entry) -> list[Any]:
    """An entry as JSON: `[tag, key, …]`, without what says nothing at its end."""
    kind = type(entry)
    members = [getattr(entry, name) for name in kind.__slots__]
    while len(members) > _REQUIRED[kind] and members[-1] is None:
        members.pop()
    return [_TAG_OF[kind], *members]


def from_row(value: Any) -> Entry:
    """The inverse of `row`, for what we wrote ourselves.

    Raises:
        ValueError: a later version wrote it.
        ValueError, TypeError: nobody did.
    """
    tag, *members = value
    kind = _TAGS.get(tag)
    if kind is None or len(members) > len(kind.__slots__):
        raise ValueError(f"an entry {tag!r} with {len(members)} members")
    return kind(*members)


def _describe(entry: Entry) -> str:
    return f"{'the answer to' if isinstance(entry, (Asked, Answered)) else 'step'} {entry.key!r}"


def plain(value: Any, where: str, room: int = MAX_DEPTH) -> Any:
    """A copy of a JSON value as it will read when it comes back; tuples become lists.

    Raises:
        NotJson: names the place and the type of what JSON cannot hold.
    """
    match value:
        case None | bool():
            return value
        case str():
            return _plain_text(value, where)
        case int() | float() if type(value) in (int, float):
            if isinstance(value, float) and not math.isfinite(value):
                raise NotJson(f"{where} is {value}, which JSON cannot hold")
            return value
        case dict() | list() | tuple() if room == 0:
            raise NotJson(
                f"{where[:200]}… is nested more than {MAX_DEPTH} levels deep, or contains itself"
            )
        case dict():
            items = value.items()
            return {
                _plain_key(key, where): plain(item, f"{where}.{key}", room - 1)
                for key, item in items
            }
        case list() | tuple():
            return [plain(item, f"{where}[{index}]", room - 1) for index, item in enumerate(value)]
    raise NotJson(
        f"{where} is {type(value).__name__}, which JSON cannot hold: "
        "only dict, list, str, int, float, bool and None can (a pydantic model has model_dump(mode='json'))"
    )


def _plain_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise NotJson(f"{where} has the key {key!r}; JSON objects have strings as keys")
    return _plain_text(key, f"a key of {where}")


def _plain_text(value: str, where: str) -> str:
    """The text as a plain `str`; a member of a `StrEnum` is a subclass."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJson(
            f"{where} is {ascii(value)[:100]}, which is no Unicode text (a file name may not be)"
        ) from None
    return str.__str__(value)


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
