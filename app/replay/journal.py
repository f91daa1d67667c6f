"""The journal: all that is known of one call, so that its handler can be run again from the top.

Two kinds of things are remembered under the names that the handler gives them: steps that have finished, and questions
with their answers. Between the rounds of a request the journal travels to the client and back, sealed; nothing in it
depends on the process that wrote it.

    question:  (nothing) ──asked──▶ Asked ──answer arrives──▶ Answered
                                      ▲                           │ unusable, or the question reads differently now
                                      └── next attempt ◀──────────┘
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from app.errors import NotJson
from app.protocol.jsonrpc import encode


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that returned."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """A step that raised. `told` is whether its text was meant for the caller (`ToolError`)."""

    key: str
    message: str
    told: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that waits for its answer. `problem` is what was wrong with the last one."""

    key: str
    digest: str
    attempt: int = 1
    changed: int = 0
    """How many rounds in a row it read differently: once is a new version of the handler, often is a clock in it."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and the digest of the question as it was shown; `None` if it came unasked."""

    key: str
    digest: str | None
    attempt: int
    changed: int
    response: Any


@dataclass(frozen=True, slots=True)
class Passed:
    """A place where the handler shed its load, which it did."""

    key: str


@dataclass(frozen=True, slots=True)
class Slept:
    """A sleep that began, and when it is over, in milliseconds since the epoch."""

    key: str
    until_ms: int


Entry: TypeAlias = Finished | Raised | Asked | Answered | Passed | Slept
Step: TypeAlias = Finished | Raised | Passed | Slept

_TAGS: Final[Mapping[str, type[Entry]]] = {
    "s": Finished,
    "e": Raised,
    "q": Asked,
    "a": Answered,
    "p": Passed,
    "w": Slept,
}
_TAG_OF: Final = {kind: tag for tag, kind in _TAGS.items()}


MAX_DEPTH: Final = 100
"""Levels of a value that can be remembered; what the journal travels in adds a few, and JSON readers stop at 200."""


def wire_key(key: str, attempt: int) -> str:
    """What a question is called on the wire: its key, and which attempt it is if not the first. Never used twice."""
    return key if attempt == 1 else f"{key}~{attempt}"


@dataclass(slots=True)
class Journal:
    """What is known of one call: steps, questions, and the handler's own `state`, all JSON."""

    steps: dict[str, Step] = field(default_factory=dict)
    questions: dict[str, Asked | Answered] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Remember something, in place of what was known under its key."""
        if isinstance(entry, (Asked, Answered)):
            self.questions[entry.key] = entry
        else:
            self.steps[entry.key] = entry

    def receive(self, responses: Mapping[str, Any]) -> None:
        """Take answers to outstanding questions by their wire keys; others are not needed and are dropped."""
        for entry in [entry for entry in self.questions.values() if isinstance(entry, Asked)]:
            key = wire_key(entry.key, entry.attempt)
            if key in responses:
                self.add(Answered(entry.key, entry.digest, entry.attempt, entry.changed, responses[key]))

    def receive_unasked(self, responses: Mapping[str, Any]) -> None:
        """Take answers that a client sends along without any state: it may know the questions from before."""
        for key, response in responses.items():
            self.add(Answered(key, None, 1, 0, response))

    def outstanding(self) -> list[Asked]:
        """The questions that wait, in the order in which they were asked."""
        return [entry for entry in self.questions.values() if isinstance(entry, Asked)]

    def entries(self) -> Iterator[Entry]:
        """Everything remembered but `state`."""
        yield from self.steps.values()
        yield from self.questions.values()

    def to_json(self) -> Any:
        """As JSON: `[[tag, key, …], …]` and the state."""
        return [[row(entry) for entry in self.entries()], plain(self.state, "ctx.state")]

    @classmethod
    def from_json(cls, value: Any) -> Journal:
        """The inverse of `to_json`, for values that we wrote ourselves.

        Raises:
            ValueError, TypeError, KeyError: we did not.
        """
        rows, state = value
        journal = cls(state=dict(state))
        for one in rows:
            journal.add(from_row(one))
        return journal

    def largest(self) -> str:
        """The entry that takes the most room, for an error message: "step 'plan' (12000 bytes)"."""
        sizes = [(len(encode(_fields(entry))), _describe(entry)) for entry in self.entries()]
        size, what = max([*sizes, (len(encode(self.state)), "ctx.state")])
        return f"{what} ({size} bytes)"


def row(entry: Entry) -> list[Any]:
    """An entry as JSON: `[tag, key, …]`."""
    return [_TAG_OF[type(entry)], *_fields(entry)]


def from_row(value: Any) -> Entry:
    """The inverse of `row`, for what we wrote ourselves.

    Raises:
        ValueError, TypeError, KeyError: we did not.
    """
    tag, *members = value
    return _TAGS[tag](*members)


def _fields(entry: Entry) -> list[Any]:
    return [getattr(entry, name) for name in entry.__slots__]


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
            raise NotJson(f"{where[:200]}… is nested more than {MAX_DEPTH} levels deep, or contains itself")
        case dict():
            items = value.items()
            return {_plain_key(key, where): plain(item, f"{where}.{key}", room - 1) for key, item in items}
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
    """The text itself, without the subclass that a member of an enum is."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJson(f"{where} is {ascii(value)[:100]}, which is no Unicode text (a file name may not be)") from None
    return str.__str__(value)
