"""Crash tests of a call: its process dies at each possible moment, and each run is compared.

    step charge   begins ──── has run ──── is remembered          a process may die at each of the three
    round 1       ─────────────────────────────────── answered    and the answer of each round may be lost

The client sends the request again, as clients do; a task continues on another worker. Each such
call must do the same as one that is never replayed (`unreplayed`), and nothing outside of a step,
because it would be done again. Other processes replay the call as well (`elsewhere`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from roundgate.client import Answers, AnswersLike, CallResult, Question
from roundgate.config import ConfigFile
from roundgate.errors import ClientError, Diverged, NondeterminismError, NothingGoesOn
from roundgate.replay import Began, Cut
from roundgate.testing.effects import collecting_effects
from roundgate.testing.endings import Ending, ending_of_result, without_reference
from roundgate.testing.memory import Life

if TYPE_CHECKING:
    from roundgate.replay import Run
    from roundgate.testing.elsewhere import Source
    from roundgate.testing.gateway import Gateway

Moment: TypeAlias = Literal["begins", "has run", "is remembered"]
Crash: TypeAlias = Literal["everywhere"] | tuple[str, Moment]

_UNKNOWN: Final = ("ended without a known outcome", "it is not known whether it took effect")
"""Of a tool that is `once`, and of a step that is `at_most_once`."""
MAX_MOMENTS: Final = 1_000
"""Moments in one call at which it is made to die. A call that has more is too long for this."""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment in a call: of a step, by its place, or of an answer."""

    what: str
    moment: str

    def __str__(self) -> str:
        return f"{self.what} {self.moment}"

    def is_meant(self, crash: Crash) -> bool:
        """Whether the caller wants to know of this one."""
        return crash == "everywhere" or (self.what, self.moment) == crash


class Watched:
    """One call while it is watched: the moments that it comes to, at one of
    which its process dies."""

    def __init__(self, dies_at: int | None, observe: Callable[[], Any] | None = None) -> None:
        """`dies_at` counts moments from 0; `None`: nobody dies."""
        self.points: list[Point] = []
        self.outside: list[str] = []
        """What was done outside of a step, in words."""
        self.steps: set[str] = set()
        """The steps that ran: place, kind and function."""
        self.errors: list[NondeterminismError] = []
        self.last_run: Run | None = None
        self.is_open = False
        """Whether the call's effects may depend on timing: something was cut, or its outcome is
        unknown."""
        self.upgrade: ConfigFile | None = None
        self.has_died = False
        self.begins_upgraded = False
        self._dies_at = dies_at
        self._observe = observe
        self._seen = self._size()

    @property
    def file(self) -> ConfigFile | None:
        """What is served by now, if it is not what was served at first."""
        return self.upgrade if self.has_died or self.begins_upgraded else None

    def of(self, life: Life) -> _Steps:
        """What watches the steps of one instance."""
        return _Steps(self, life)

    def comes_to(self, what: str, moment: str) -> bool:
        """Note a moment; whether its process dies there."""
        number = len(self.points)
        self.points.append(Point(what, moment))
        dies = number == self._dies_at
        self.has_died = self.has_died or dies
        return dies

    def look(self, before: str | None) -> None:
        """Note what has been done since the last look.

        Args:
            before: what comes next; `None` if it was a step that did it.
        """
        size = self._size()
        if before is not None and size > self._seen:
            self.outside.append(
                f"it does something outside of a step, before {before}: {self._latest(size)}"
            )
        self._seen = size

    def run_ended(self, run: Run) -> None:
        """Note how a run of the handler ended."""
        self.last_run = run
        if isinstance(run.error, NondeterminismError):
            self.errors.append(run.error)
        self.is_open |= any(isinstance(one, Began | Cut) for one in run.journal.entries())

    def _size(self) -> int:
        if self._observe is None:
            return 0
        seen = self._observe()
        return seen if isinstance(seen, int) else len(seen)

    def _latest(self, size: int) -> str:
        seen = None if self._observe is None else self._observe()
        if isinstance(seen, Sequence) and not isinstance(seen, str | bytes):
            return ", ".join(repr(one)[:80] for one in seen[self._seen : size][:3])
        return f"{size - self._seen} more"


class _Steps:
    """The steps of one instance (a `StepWatch`)."""

    def __init__(self, watched: Watched, life: Life) -> None:
        self._watched = watched
        self._life = life
        self._running = 0

    async def begins(self, key: str, what: str | None) -> None:
        self._watched.steps.add(" ".join([key, *(what or "").split(" ")[:2]]))
        if not self._running:
            self._watched.look(f"step {key}")
        await self._moment(key, "begins")
        self._running += 1

    async def has_run(self, key: str) -> None:
        self._running -= 1
        self._watched.look(None)
        await self._moment(key, "has run")

    async def is_remembered(self, key: str) -> None:
        await self._moment(key, "is remembered")

    def run_ended(self, run: Run) -> None:
        self._watched.run_ended(run)

    async def _moment(self, key: str, moment: Moment) -> None:
        if self._watched.comes_to(key, moment):
            await self._life.die()


@dataclass
class _Play:
    """One call from its beginning to its end."""

    watched: Watched
    result: CallResult | None = None
    error: str | None = None
    asked: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ending(self) -> Ending:
        """What is compared."""
        if self.result is None:
            return Ending("raised", self.error and without_reference(self.error))
        return ending_of_result(self.result)

    @property
    def is_unknown(self) -> bool:
        """Whether it ended with the one honest thing that can be said of what
        must not be done twice."""
        text = "" if self.result is None or not self.result.is_error else self.result.text
        return any(one in text for one in _UNKNOWN)

    def asked_again(self) -> list[str]:
        """Questions that were answered, and then asked in other words."""
        return [
            f"question {key} was answered, and is asked again because it reads differently:"
            f" {texts[0]!r}, then {texts[-1]!r}"
            for key, texts in self.asked.items()
            if len(set(texts)) > 1
        ]

    def compared(self, truth: Truth) -> list[str]:
        """Return the differences from a call that is never replayed, in words."""
        watched = self.watched
        different = (
            [] if self.ending == truth.ending else [f"{self.ending} instead of: {truth.ending}"]
        )
        if watched.is_open or truth.watched.is_open or different:
            return different
        return [
            *(f"it runs step {key}, and does not otherwise" for key in watched.steps - truth.steps),
            *(
                f"it does not run step {key}, and does otherwise"
                for key in truth.steps - watched.steps
            ),
            *(f"it asks {key}, and does not otherwise" for key in self.asked.keys() - truth.asked),
            *(
                f"it does not ask {key}, and does otherwise"
                for key in truth.asked - self.asked.keys()
            ),
        ]


@dataclass
class Truth:
    """The record of a call that is never replayed."""

    ending: Ending
    watched: Watched
    asked: set[str]

    @property
    def steps(self) -> set[str]:
        """Return the steps that the call ran."""
        return self.watched.steps


class Another(Protocol):
    """A maker of the calls that a call of the gateway under test is compared with."""

    def gateway(self, watch: Watched, upgrade: Sequence[Source]) -> Gateway:
        """Return a gateway in the initial state of the one under test."""

    async def truth(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        answers: AnswersLike,
        watched: Watched,
        reset: Callable[[], Any] | None,
    ) -> Truth | None:
        """Return the record of the call without replay, or `None` if it cannot be determined.
        `watched` has seen the call as clients make it."""

    async def elsewhere(
        self, tool: str, arguments: Mapping[str, Any], watched: Watched, expected: Ending
    ) -> list[str]:
        """Return the differences when other processes replay the call that `watched` has seen."""


async def survive(
    tool: str,
    arguments: Mapping[str, Any],
    answers: AnswersLike,
    another: Another,
    crash: Crash,
    upgrade: Sequence[Source],
    observe: Callable[[], Any] | None,
    reset: Callable[[], Any] | None,
) -> CallResult:
    """The result of a call that ends the same way wherever its process dies; see `Gateway.call`.

    Raises:
        Diverged: it does not.
        ValueError: there is no such moment, or there are too many.
    """

    async def play(watched: Watched) -> _Play:
        if reset is not None and inspect.isawaitable(done := reset()):
            await done
        watched.look(None)
        async with another.gateway(watched, upgrade) as gateway:
            return await _played(gateway, watched, tool, arguments, answers)

    with collecting_effects() as effects:
        first = await play(Watched(None, observe))
    for error in first.watched.errors:
        raise error
    if first.result is None:
        raise Diverged(tool, [f"{first.ending}, although nothing happens to it"])
    findings = [*first.watched.outside, *effects]
    endings = [first.ending]
    truth = None
    if crash == "everywhere" and not upgrade:
        truth = await another.truth(tool, arguments, answers, first.watched, reset)
    if truth is not None:
        differences = first.compared(truth)
        findings += [
            f"where it is run again from the top after each question: {one}" for one in differences
        ]
        findings += (
            []
            if findings
            else await another.elsewhere(tool, arguments, first.watched, first.ending)
        )
    if upgrade:
        whole = Watched(None)
        whole.begins_upgraded = True
        endings.append((await play(whole)).ending)
    points = [number for number, one in enumerate(first.watched.points) if one.is_meant(crash)]
    if not points and crash != "everywhere":
        known = ", ".join(sorted({one.what for one in first.watched.points})) or "none"
        raise ValueError(f"the call never comes to {crash}; its steps are: {known}")
    if len(points) > MAX_MOMENTS:
        raise ValueError(
            f"the call has {len(points)} moments to die at, and {MAX_MOMENTS} can be gone through: name one"
        )
    then = "the other version goes on" if upgrade else "its process dies"
    errors: list[NondeterminismError] = []
    for number in points:
        played = await play(Watched(number))
        errors += played.watched.errors
        happened = f"when {first.watched.points[number]}, and {then}"
        if not played.is_unknown:
            if played.ending not in endings:
                findings.append(f"{happened}: {played.ending} instead of: {first.ending}")
            elif truth is not None and not findings:
                findings += [f"{happened}: {one}" for one in played.compared(truth)]
        findings += [f"{happened}: {one}" for one in played.asked_again()]
    if findings:
        raise Diverged(tool, list(dict.fromkeys(findings))) from next(iter(errors), None)
    return first.result


async def _played(
    gateway: Gateway,
    watched: Watched,
    tool: str,
    arguments: Mapping[str, Any],
    answers: AnswersLike,
) -> _Play:
    played = _Play(watched)
    try:
        played.result = await gateway.call(tool, arguments, answers=noting(answers, played.asked))
    except (ClientError, NothingGoesOn) as error:
        played.error = f"{type(error).__name__}: {error}"
    watched.look("its end")
    return played


def noting(
    answers: AnswersLike, asked: dict[str, list[str]]
) -> Callable[[Question], Awaitable[Any]]:
    """Return a source of answers that records the texts of the questions, by key."""
    given = Answers.of(answers)

    async def answer(question: Question) -> Any:
        key = question.key.partition("~")[0]  # what is asked again has another one
        found = await given(replace(question, key=key))
        if found is not None:
            texts = asked.setdefault(key, [])
            texts.append(question.message or repr(question.params))
        return found

    return answer
