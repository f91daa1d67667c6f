"""The journal: the record of a call, with which its handler can run again from the top.

The journal records actions (steps, sleeps, time limits) and questions with their answers, each
under its place in the handler (`branches.Branch.key`). Between the rounds of a request, the sealed
journal travels to the client and back. Any process can read it.

    question:  (nothing) ──asked──▶ Asked ──answer arrives──▶ Answered
                                      ▲                           │ unusable, or the question reads differently now
                                      └── next attempt ◀──────────┘

To retry a call at the step that ended it, `before_failure` cuts its journal off where the step
failed; a replay of the rest runs the step again. This requires that no other action began after the
failure: if the handler had caught the error and refunded the customer, the retry would charge a
refunded order.

    plan ✓   charge ✗                  cut off before `charge`: it runs again
    plan ✓   charge ✗   refund ✓       refused: `refund` was perhaps done because `charge` had failed
    a ✓   b ✗   c ✓  (beside b)        `b` runs again; `c` ran beside it, so it is remembered
    a ✓   b ✗   c cancelled with it    `b` and `c` run again
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias, get_args

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import astuple, fields, replace

from roundgate.errors import NotJson, NotRetryable
from roundgate.json import encode

TIMED_OUT: Final = "timeout"
NOT_JSON: Final = "value"
MAX_DEPTH: Final = 100
"""The maximum nesting depth of a recorded value. The journal adds a few levels, and JSON readers
stop at 200."""
MAX_CAUSES: Final = 50
"""The maximum number of causes of an error that `find_failed_steps` follows."""
JOURNAL_VERSION: Final = 1
HANDLER: Final = "handler:"
"""The key of the handler's version."""
VERSION: Final = "version:"
"""The prefix of the key of a version."""


class _Row(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry; its JSON is `[tag, key, …]`."""


class Finished(_Row, frozen=True, tag="s"):
    """A step that returned. `what` is its `identity`."""

    key: str
    value: Any
    what: str | None = None


class Raised(_Row, frozen=True, tag="e"):
    """A step that raised an error. `told` is True if the message is meant for the caller
    (`ToolError`)."""

    key: str
    message: str
    told: bool
    what: str | None = None
    how: str | None = None
    """The kind of failure: `TIMED_OUT`, `NOT_JSON`, or `None` for other errors."""
    attempts: int | None = None
    """The number of attempts, if more than one."""
    beside: Sequence[str] | None = None
    """The places of steps that ran at the same time, so that this failure did not cause their
    start."""
    at_ms: int | None = None
    """The time of the failure in a task, in milliseconds since the epoch."""
    reference: str | None = None
    """The reference of the failure in the log of a task."""


class Tried(_Row, frozen=True, tag="t"):
    """A step with failed attempts, and the time of the next one in milliseconds since the epoch."""

    key: str
    attempts: int
    again_ms: int
    what: str | None = None
    failure: Sequence[Any] | None = None
    """The last failure: message, told, how, time and reference, as in `Raised`."""


class Cut(_Row, frozen=True, tag="c"):
    """A step that the handler itself cancelled (`asyncio.timeout`, a failed sibling) after some
    milliseconds."""

    key: str
    after_ms: int
    what: str | None = None


class Began(_Row, frozen=True, tag="b"):
    """An `at_most_once` step that is about to be called. Without a later entry its outcome is
    unknown."""

    key: str
    what: str | None = None


class Asked(_Row, frozen=True, tag="q"):
    """An open question. `problem` is the fault of the last answer."""

    key: str
    digest: str
    attempt: int = 1
    changed: int = 0
    """The number of consecutive rounds in which the question changed: one after a new version of
    the handler, many if the text contains the time."""
    problem: str | None = None
    wire: str | None = None
    """The wire name, if different from the key."""
    until_ms: int | None = None
    """When the default becomes the answer, in milliseconds since the epoch."""


class Answered(_Row, frozen=True, tag="a"):
    """An answer, and the digest of the question as it was shown; `None` if the answer came
    unasked."""

    key: str
    digest: str | None
    attempt: int
    changed: int
    response: Any
    wire: str | None = None


class TimedOutQuestion(_Row, frozen=True, tag="u"):
    """A question that timed out; its default is the answer."""

    key: str
    digest: str
    attempt: int
    wire: str | None = None


class Passed(_Row, frozen=True, tag="p"):
    """A place where the handler has already ended a round or turn."""

    key: str


class Slept(_Row, frozen=True, tag="w"):
    """A sleep or time limit that began, and its end in milliseconds since the epoch. `was_left` is
    `True` once the block of a limit ended in time; the limit then never passes in later runs."""

    key: str
    until_ms: int
    what: str | None = None
    was_left: bool | None = None


class Told(_Row, frozen=True, tag="o"):
    """The order of an event without an outcome of its own: a sleep ended, questions were answered,
    a time limit passed. Always recorded for time limits, and for other events if the handler has
    branches."""

    PREFIX: ClassVar[str] = "told:"
    key: str

    @classmethod
    def of(cls, place: str) -> Told:
        """Return the entry for a place."""
        return cls(f"{cls.PREFIX}{place}")


DELIVERED: Final = "delivered"
MISSED: Final = "missed"


class Opened(_Row, frozen=True, tag="v"):
    """An external event that can be delivered until `until_ms` (milliseconds since the epoch).
    `token` is the right to deliver it."""

    key: str
    until_ms: int
    token: str
    base: str | None = None
    """The base URL for the token; `None` if none was configured."""
    mark: str | None = None
    """The name of the event in the task's record, if different from the key."""
    outcome: str | None = None
    """`DELIVERED`, `MISSED` (not delivered in time), or `None` while the event is open."""
    payload: Any = None
    """The delivered payload."""

    @property
    def name(self) -> str:
        """Return the name of the event in the task's record."""
        return self.key if self.mark is None else self.mark


class Remembered(_Row, frozen=True, tag="r"):
    """A value that the engine made for its handler without side effects: an idempotency key, a
    time, the seed of random numbers, a version (`remembered`)."""

    key: str
    value: Any


QuestionEntry: TypeAlias = Asked | Answered | TimedOutQuestion
Step: TypeAlias = (
    Finished | Raised | Tried | Cut | Began | Passed | Slept | Told | Opened | Remembered
)
Entry: TypeAlias = Step | QuestionEntry


class _Written(Struct, array_like=True):
    """A row in a list. msgspec compiles the types of a Struct once, but a union at each call."""

    entry: Entry


_REQUIRED: Final = {
    kind: sum(f.required for f in fields(kind)) + (3 if kind is Asked else 0)
    for kind in get_args(Entry)
}
"""The number of members that are always written. Later members are omitted at the end if they are
`None`."""


def wire_key(key: str, attempt: int) -> str:
    """Return the key of a question on the wire: its name, followed by the attempt after the first.
    No key is reused."""
    return key if attempt == 1 else f"{key}~{attempt}"


class WireNames:
    """The names by which clients know the questions of a call. No name is reused."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def take(self, wire: str) -> None:
        """Mark a name as used."""
        self._taken.add(wire)

    def new(self, base: str) -> str:
        """Return an unused name: `confirm`, or `confirm#2`."""
        number = self._numbers.get(base, 0) + 1
        while (wire := base if number == 1 else f"{base}#{number}") in self._taken:
            number += 1
        self._numbers[base] = number - 1
        return wire


class Journal(Struct):
    """The records of one call: steps, questions, and the handler's own `state`, all JSON."""

    steps: dict[str, Step] = field(default_factory=dict)
    questions: dict[str, QuestionEntry] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] | None = None
    """The arguments of the last restart."""
    generation: int = 1
    """The number of restarts plus one; each generation uses different keys for its questions."""
    unasked: Mapping[str, Any] = field(default_factory=dict)
    """Responses that came without a state. Not stored."""
    received: set[str] = field(default_factory=set)
    """The places of questions whose answers arrived with this request or were read at this claim.
    Not stored."""
    missed: set[str] = field(default_factory=set)
    """The places of events that can no longer be delivered, but have no recorded outcome yet. Not
    stored."""

    def add(self, entry: Entry) -> None:
        """Record an entry and replace the entry with the same key. Steps stay in the order of their
        outcomes."""
        if isinstance(entry, (Asked, Answered, TimedOutQuestion)):
            self.questions[entry.key] = entry
        else:
            self.steps.pop(entry.key, None)
            self.steps[entry.key] = entry

    def receive(self, responses: Mapping[str, Any]) -> None:
        """Record answers to outstanding questions by their wire keys; ignore other answers."""
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

    def opened(self) -> list[Opened]:
        """Return the events without an outcome in the order in which they were opened."""
        return [
            entry
            for entry in self.steps.values()
            if isinstance(entry, Opened) and entry.outcome is None
        ]

    def deliver(self, payloads: Mapping[str, Any], deliverable: Collection[str]) -> None:
        """Record the payloads of events by their names in the task's record. `deliverable` has the
        names of the events that can still be delivered."""
        for entry in self.opened():
            if entry.name in payloads:
                payload = payloads[entry.name]
                self.steps[entry.key] = replace(entry, outcome=DELIVERED, payload=payload)
            elif entry.name not in deliverable:
                self.missed.add(entry.key)

    def response(self, wire: str) -> Any:
        """Return the last response under a wire key unchanged, or `None`."""
        for entry in self.questions.values():
            if isinstance(entry, Answered) and (entry.wire or entry.key) == wire:
                return entry.response
        return None

    def outstanding(self) -> list[Asked]:
        """Return the open questions, in the order in which they were asked."""
        return [entry for entry in self.questions.values() if isinstance(entry, Asked)]

    def entries(self) -> Iterator[Entry]:
        """Yield all entries: steps, then questions."""
        yield from self.steps.values()
        yield from self.questions.values()

    def to_json(self) -> Any:
        """Return `[[[tag, key, …], …], state, version, generation, arguments]`, the last two only
        after a restart."""
        rows = [row(entry) for entry in self.entries()]
        restarted = [] if self.generation == 1 else [self.generation, self.arguments]
        return [rows, plain(self.state, "ctx.state"), JOURNAL_VERSION, *restarted]

    def restarted(self, arguments: dict[str, Any]) -> Journal:
        """Return an empty journal of the next generation."""
        return Journal(generation=self.generation + 1, arguments=arguments)

    @classmethod
    def from_json(cls, value: Any) -> Journal:
        """Return the journal that `to_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: a later version or another program wrote it.
        """
        rows, state, version, *restarted = value
        if type(version) is not int:
            raise ValueError("the version of a journal must be an integer")
        if version > JOURNAL_VERSION:
            raise ValueError(
                f"the journal has version {version}, but this process reads up to {JOURNAL_VERSION}"
            )
        generation, arguments = restarted or (1, None)
        journal = cls(state=dict(state), arguments=arguments, generation=generation)
        for entry_row in rows:
            journal.add(from_row(entry_row))
        return journal

    def largest(self) -> str:
        """Describe the largest entry, for an error message: "step 'plan' (12000 bytes)"."""
        sizes = [(len(encode(row(entry)[1:])), _describe(entry)) for entry in self.entries()]
        size, what = max([*sizes, (len(encode(self.state)), "ctx.state")])
        return f"{what} ({size} bytes)"


def row(entry: Entry) -> list[Any]:
    """Return an entry as JSON: `[tag, key, …]`, without trailing `None` members."""
    members = list(astuple(entry))
    while len(members) > _REQUIRED[type(entry)] and members[-1] is None:
        members.pop()
    return [entry.__struct_config__.tag, *members]


def from_row(value: Any) -> Entry:
    """Return the entry that `row` wrote.

    Raises:
        ValueError: a later version or another program wrote it.
    """
    try:
        return convert((value,), _Written).entry
    except ValidationError as error:
        raise ValueError(f"unknown journal entry: {error}") from None


def _describe(entry: Entry) -> str:
    return f"{'the answer to' if isinstance(entry, (Asked, Answered)) else 'step'} {entry.key!r}"


Place: TypeAlias = "str | tuple[Place, str | int]"
"""The place of a value: a text, or the place of the dict or list and the key or index in it."""


_PLAIN: Final = frozenset({dict, list, tuple, str, int, float, bool, type(None)})


def plain(value: Any, where: Place, room: int = MAX_DEPTH, *, exact: bool = False) -> Any:
    """Return a copy of a JSON value in the form in which a later run reads it; tuples become lists.
    Other subclasses of JSON's types become these types, or are refused if `exact`.

    Raises:
        NotJson: a part has no JSON form; the message names its place and type.
    """
    if exact and type(value) not in _PLAIN:
        _refuse_subclass(value, where)
    match value:
        case str():
            return _plain_text(value, where)
        case None | bool():
            return value
        case int() | float() if type(value) in (int, float):
            if isinstance(value, float) and not math.isfinite(value):
                raise NotJson(f"{path(where)} is {value}, which JSON cannot hold")
            return value
        case dict() | list() | tuple() if room == 0:
            raise NotJson(
                f"{path(where)[:200]}… is nested more than {MAX_DEPTH} levels deep, or contains itself"
            )
        case dict():
            return {
                _plain_key(key, where, exact): plain(item, (where, key), room - 1, exact=exact)
                for key, item in value.items()
            }
        case list() | tuple():
            return [
                plain(item, (where, index), room - 1, exact=exact)
                for index, item in enumerate(value)
            ]
    raise NotJson(
        f"{path(where)} is {type(value).__name__}, which JSON cannot hold: "
        "only dict, list, str, int, float, bool and None can (a pydantic model has model_dump(mode='json'))"
    )


def _refuse_subclass(value: Any, where: Place) -> None:
    """Raise NotJson for an object whose class is derived from a JSON type."""
    base = next((kind for kind in (str, dict, list, tuple) if isinstance(value, kind)), None)
    if base is not None:
        back = "list" if base is tuple else base.__name__
        raise NotJson(
            f"{path(where)} is {type(value).__name__}, but would come back as {back}: return {base.__name__}(…)"
        )


def _plain_key(key: Any, where: Place, exact: bool) -> str:
    if exact and type(key) is not str:
        _refuse_subclass(key, (where, "key"))
    if not isinstance(key, str):
        raise NotJson(f"{path(where)} has the key {key!r}; JSON objects have strings as keys")
    return _plain_text(key, where, "a key of ")


def _plain_text(value: str, where: Place, prefix: str = "") -> str:
    """Return the text as a plain `str`, because members of a `StrEnum` belong to a subclass. Raise
    NotJson for a lone surrogate."""
    if type(value) is str and value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJson(
            f"{prefix}{path(where)} is {ascii(value)[:100]}, which is not valid Unicode text "
            "(some file names are not)"
        ) from None
    return str.__str__(value)


def path(where: Place) -> str:
    """Return a place as text, such as `ctx.state.rows[3]`."""
    match where:
        case parent, int() as index:
            return f"{path(parent)}[{index}]"
        case parent, key:
            return f"{path(parent)}.{key}"
    return where


_ASKED: Final = (Asked, Answered, TimedOutQuestion)


def find_failed_steps(error: BaseException) -> tuple[str, ...]:
    """Return the places of the steps whose failure is this error or its cause.

    In a chain of causes the nearest failed step counts; in a group, the nearest one of each member.
    """
    return tuple(dict.fromkeys(_failures(error, MAX_CAUSES)))


def _failures(error: BaseException | None, depth_left: int) -> Iterator[str]:
    while error is not None and depth_left > 0:
        step: str | None = getattr(error, "failed_step", None)
        if step is not None:
            yield step
            return
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _failures(member, depth_left - 1)
            return
        error, depth_left = error.__cause__ or error.__context__, depth_left - 1


def before_failure(entries: Sequence[Entry], failed: Collection[str]) -> list[Entry]:
    """Return the entries of a journal without the failure of some steps and without its
    consequences. The results of steps that ran beside them stay.

    Args:
        entries: every entry of the journal, in order.
        failed: the places of the steps whose failure ended the call.

    Raises:
        NotRetryable: another action began after the failure, or a step that may run only once would
            run again.
    """
    place = next((n for n, entry in enumerate(entries) if _is_failure(entry, failed)), None)
    if place is None:
        unknown = ", ".join(sorted(failed))
        raise NotRetryable(f"the outcome of {unknown} is unknown; check at its service")
    first = entries[place]
    begun_before = {entry.key for entry in entries[:place]} | _beside(first)
    later = [entry for entry in entries[place:] if entry.key not in failed]
    if done := [entry for entry in later if _is_done(entry) and entry.key not in begun_before]:
        names = ", ".join(dict.fromkeys(map(_name, done)))
        raise NotRetryable(
            f"{names} happened after {first.key} had failed, perhaps because of the failure; call the tool "
            "again instead"
        )
    ended_well = [
        entry for entry in later if isinstance(entry, Finished) and entry.key in begun_before
    ]
    again = {*failed, *(entry.key for entry in later)} - {entry.key for entry in ended_well}
    if once := sorted({entry.key for entry in entries if isinstance(entry, Began)} & again):
        raise NotRetryable(
            f"{', '.join(once)} may run only once (at_most_once); check at its service whether "
            "it took effect"
        )
    return [*entries[:place], *ended_well]


def _beside(entry: Entry) -> set[str]:
    return set(entry.beside or ()) if isinstance(entry, Raised) else set()


def _is_failure(entry: Entry, failed: Collection[str]) -> bool:
    return isinstance(entry, Raised) and entry.key in failed


def _is_done(entry: Entry) -> bool:
    """Return whether an entry has an effect that a retry could contradict. Pauses, failed attempts,
    cancelled steps and values of the engine have no such effect."""
    return isinstance(entry, (Finished, Raised, Began, Opened, *_ASKED))


def _name(entry: Entry) -> str:
    return f"the question {entry.key}" if isinstance(entry, _ASKED) else entry.key


def before_step(entries: Sequence[Entry], key: str) -> list[Entry] | None:
    """Return the entries of a journal before the first entry of a place; `None` if the journal has
    no such entry.

    Every prefix of a journal is the journal of a call whose process died at that point. So a replay
    can continue from it, even with concurrent branches.
    """
    place = next((n for n, entry in enumerate(entries) if entry.key == key), None)
    return None if place is None else list(entries[:place])
