"""Crash tests of a call: its process dies at each possible moment, and the test compares the
outcomes.

    step charge   begins ──── has run ──── is remembered          a process may die at all three
    round 1       ─────────────────────────────────── answered    each response may be lost

After a crash, the client repeats the request, and a task continues on another worker. Each of these
calls must behave like a call without replay. The test reports effects outside of steps, because a
replay repeats them. It also replays the call in other processes (`replays`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from roundgate.client import Answers, AnswersLike, CallResult, Question
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.errors import ClientError, Diverged, NondeterminismError, NothingGoesOn
from roundgate.replay import VERSION, WATCH, Began, Cut, Run, StepWatch
from roundgate_testing.instances import InstanceLife, Loads, Setup
from roundgate_testing.replays import (
    CallEnding,
    collecting_effects,
    ending_of_result,
    findings_elsewhere,
    truth,
    without_reference,
)

log: Final = logging.getLogger("roundgate.testing")

Moment: TypeAlias = Literal["begins", "has run", "is remembered"]
Crash: TypeAlias = Literal["everywhere"] | tuple[str, Moment]

_UNKNOWN: Final = ("ended without a known outcome", "began, but its outcome is unknown")
"""The parts of error messages by which a `once` tool and an `at_most_once` step report an unknown
outcome."""
PROGRESS_S: Final = 5.0
"""The time in seconds between two lines of the log about a test that goes on."""
MAX_MOMENTS: Final = 1_000
"""The maximum number of crash points that one test tries."""


@dataclass(frozen=True, slots=True)
class Point:
    """A crash point: a place and a moment, or a request whose response is lost."""

    what: str
    moment: str

    def __str__(self) -> str:
        return f"{self.what} {self.moment}"


class Watched:
    """The record of one call: its crash points, steps and effects. The call's process may die at a
    crash point."""

    def __init__(self, dies_at: int | None, observe: Callable[[], Any] | None = None) -> None:
        """Make an empty record. `dies_at` is the number of the crash point, from 0; `observe`
        returns the effects so far."""
        self.points: list[Point] = []
        self.outside: list[str] = []
        """Descriptions of the effects outside of steps."""
        self.steps: set[str] = set()
        """The place, kind and function of each step that ran."""
        self.errors: list[NondeterminismError] = []
        self.last_run: Run | None = None
        self.is_open = False
        """Whether the call's effects may depend on timing, because its handler cancelled a step, or
        a step has an unknown outcome."""
        self.upgrade: ConfigFile | None = None
        self.values: dict[tuple[int, str], Any] = {}
        """The values that the engine made, by restart and place. Every repetition of a call gets
        the values of the first."""
        self.has_died = False
        self.begins_upgraded = False
        self._dies_at = dies_at
        self._observe = observe
        self._seen = self._size()

    @property
    def file(self) -> ConfigFile | None:
        """Return the configuration to serve now; `None` for the first one."""
        return self.upgrade if self.has_died or self.begins_upgraded else None

    @property
    def may_die(self) -> bool:
        """Return whether the call's process dies at a crash point."""
        return self._dies_at is not None

    def reaches(self, what: str, moment: str) -> bool:
        """Record a crash point, and return whether the process dies there."""
        dies = len(self.points) == self._dies_at
        self.points.append(Point(what, moment))
        self.has_died = self.has_died or dies
        return dies

    def look(self, before: str | None) -> None:
        """Record new effects as effects outside of a step, before the event `before`. With `None`,
        only count them, because a step had them."""
        size = self._size()
        if before is not None and size > self._seen:
            self.outside.append(
                f"it has an effect outside of a step, before {before}: {self._latest(size)}"
            )
        self._seen = size

    def value(self, run: Run, key: str, value: Any) -> Any:
        """Return the value of an earlier repetition of the call at a place, or else `value`.
        Versions are exempt, because they depend on the served configuration."""
        if self.upgrade is not None and key.startswith(VERSION):
            return value
        return self.values.setdefault((run.journal.generation, key), value)

    def run_ended(self, run: Run) -> None:
        """Record how a run of the handler ended."""
        self.last_run = run
        if isinstance(run.error, NondeterminismError):
            self.errors.append(run.error)
        self.is_open |= any(isinstance(entry, Began | Cut) for entry in run.journal.entries())

    def _size(self) -> int:
        if self._observe is None:
            return 0
        effects = self._observe()
        return effects if isinstance(effects, int) else len(effects)

    def _latest(self, size: int) -> str:
        effects = None if self._observe is None else self._observe()
        if isinstance(effects, Sequence) and not isinstance(effects, str | bytes):
            return ", ".join(repr(effect)[:80] for effect in effects[self._seen : size][:3])
        return f"{size - self._seen} more"


class Steps(StepWatch):
    """A watch that kills an instance at the crash point of its call."""

    def __init__(self, watched: Watched, life: InstanceLife) -> None:
        self._watched = watched
        self._life = life
        self._running = 0

    async def begins(self, key: str, what: str | None) -> None:
        self._watched.steps.add(" ".join([key, *(what or "").split(" ")[:2]]))
        if not self._running:
            self._watched.look(f"step {key}")
        await self._reach(key, "begins")
        self._running += 1

    async def has_run(self, key: str) -> None:
        self._running -= 1
        self._watched.look(None)
        await self._reach(key, "has run")

    async def is_remembered(self, key: str) -> None:
        await self._reach(key, "is remembered")

    def value(self, run: Run, key: str, value: Any) -> Any:
        return self._watched.value(run, key, value)

    def run_ended(self, run: Run) -> None:
        self._watched.run_ended(run)

    async def _reach(self, key: str, moment: Moment) -> None:
        if self._watched.reaches(key, moment):
            await self._life.die()


@dataclass
class _Record:
    """The outcome of one call: its ending, and the texts of its questions by key."""

    watched: Watched
    ending: CallEnding
    result: CallResult | None = None
    asked: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_unknown(self) -> bool:
        """Return whether the call ended with an error that reports an unknown outcome."""
        text = "" if self.result is None or not self.result.is_error else self.result.text
        return any(error in text for error in _UNKNOWN)

    def asked_again(self) -> list[str]:
        """Return descriptions of the questions that were answered and then asked with another
        text."""
        return [
            f"question {key} was answered, and is asked again because its text changed:"
            f" {texts[0]!r}, then {texts[-1]!r}"
            for key, texts in self.asked.items()
            if len(set(texts)) > 1
        ]

    def differences(self, reference: _Record) -> list[str]:
        """Return descriptions of the differences from a call without replay."""
        if self.ending != reference.ending:
            return [f"{self.ending} instead of: {reference.ending}"]
        if self.watched.is_open or reference.watched.is_open:
            return []
        ran, runs = self.watched.steps, reference.watched.steps
        asked, asks = self.asked.keys(), reference.asked.keys()
        return [
            *(f"it runs step {key}, unlike the call without replay" for key in ran - runs),
            *(f"it skips step {key}, unlike the call without replay" for key in runs - ran),
            *(f"it asks {key}, unlike the call without replay" for key in asked - asks),
            *(f"it does not ask {key}, unlike the call without replay" for key in asks - asked),
        ]


class _Progress:
    """Logs how far a long test is, every `PROGRESS_S`."""

    def __init__(self, tool: str, count: int) -> None:
        self._tool = tool
        self._count = count
        self._clock = Clock()
        self._told_ms = self._clock.monotonic_ms()

    def tell(self, tried: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= PROGRESS_S * 1000:
            self._told_ms = now_ms
            log.info("crash points of %s: %d of %d tried", self._tool, tried, self._count)


Play: TypeAlias = Callable[[Watched, AnswersLike], Awaitable[CallResult]]
"""Makes the call at a new gateway and records it."""


@dataclass
class CrashTest:
    """A test that a call ends the same way after a crash at each crash point; see
    `Gateway.call`."""

    setup: Setup
    file: ConfigFile
    loads: Loads
    now_ms: int
    tool: str
    arguments: Mapping[str, Any]
    answers: AnswersLike
    events: Mapping[str, Any]
    play: Play
    crash: Crash
    upgrade: ConfigFile | None
    observe: Callable[[], Any] | None
    reset: Callable[[], Any] | None
    values: dict[tuple[int, str], Any] = field(default_factory=dict)
    """As `Watched.values`."""

    async def survive(self) -> CallResult:
        """Make the call without a crash, then once per crash point; return the first result.

        Raises:
            NondeterminismError: the handler took another path in a replay.
            Diverged: a run ended differently, or had effects outside of steps.
            ValueError: the crash point does not exist, or there are too many.
        """
        with collecting_effects() as effects:
            first = await self._played(Watched(None, self.observe))
        for error in first.watched.errors:
            raise error
        if first.result is None:
            raise Diverged(self.tool, [f"{first.ending}, without any crash"])
        findings = [*first.watched.outside, *effects]
        endings = [first.ending]
        reference = None
        if self.crash == "everywhere" and self.upgrade is None:
            reference = await self._reference(first.watched)
        if reference is not None:
            findings += [
                f"when it runs again from the top after each question: {difference}"
                for difference in first.differences(reference)
            ]
            if not findings:
                findings += await self._findings_elsewhere(first)
        if self.upgrade is not None:
            whole = Watched(None)
            whole.begins_upgraded = True
            endings.append((await self._played(whole)).ending)
        then = "its process dies" if self.upgrade is None else "the other version continues"
        errors: list[NondeterminismError] = []
        numbers = self._crash_points(first.watched.points)
        progress = _Progress(self.tool, len(numbers))
        for tried, number in enumerate(numbers):
            progress.tell(tried)
            played = await self._played(Watched(number))
            errors += played.watched.errors
            happened = f"when {first.watched.points[number]}, and {then}"
            different: list[str] = []
            if not played.is_unknown:
                if played.ending not in endings:
                    different = [f"{played.ending} instead of: {first.ending}"]
                elif reference is not None and not findings:
                    different = played.differences(reference)
            findings += [
                f"{happened}: {difference_text}"
                for difference_text in different + played.asked_again()
            ]
        if findings:
            raise Diverged(self.tool, list(dict.fromkeys(findings))) from next(iter(errors), None)
        return first.result

    def _crash_points(self, points: Sequence[Point]) -> list[int]:
        if self.crash == "everywhere":
            numbers = list(range(len(points)))
        else:
            numbers = [
                n for n, point in enumerate(points) if (point.what, point.moment) == self.crash
            ]
            if not numbers:
                steps = ", ".join(sorted({point.what for point in points})) or "none"
                raise ValueError(f"the call never reaches {self.crash}; its steps are: {steps}")
        if len(numbers) > MAX_MOMENTS:
            raise ValueError(
                f"the call has {len(numbers)} crash points, but a test tries at most {MAX_MOMENTS}: "
                "name one with crash="
            )
        return numbers

    async def _played(self, watched: Watched) -> _Record:
        await self._begin()
        watched.look(None)
        watched.upgrade, watched.values = self.upgrade, self.values
        texts_by_key: dict[str, list[str]] = {}
        result = None
        try:
            result = await self.play(watched, _recording(self.answers, texts_by_key))
            ending = ending_of_result(result)
        except (ClientError, NothingGoesOn) as error:
            ending = CallEnding("raised", without_reference(f"{type(error).__name__}: {error}"))
        return _Record(watched, ending, result, texts_by_key)

    async def _begin(self) -> None:
        if self.reset is not None and inspect.isawaitable(done := self.reset()):
            await done

    async def _reference(self, watched: Watched) -> _Record | None:
        """Return the outcome of the call without replay; `None` if it cannot be determined."""
        if watched.last_run is None:  # a tool without a handler
            return None
        await self._begin()
        watched_here, texts_by_key = Watched(None), dict[str, list[str]]()
        watched_here.values = self.values
        answers, call = Answers.of(_recording(self.answers, texts_by_key)), watched.last_run.call
        token = WATCH.set(Steps(watched_here, InstanceLife()))
        try:
            facts = (
                self.file,
                self.loads,
                self.now_ms,
                self.tool,
                self.arguments,
                call,
                answers,
                self.events,
            )
            ending = await truth(*facts)
        finally:
            WATCH.reset(token)
        is_known = ending.how not in ("raised", "went on")
        return _Record(watched_here, ending, asked=texts_by_key) if is_known else None

    async def _findings_elsewhere(self, first: _Record) -> list[str]:
        run = first.watched.last_run
        if run is None or run.decides_by_state or run.journal.generation > 1:
            return []
        return await findings_elsewhere(self.setup, self.tool, self.arguments, run, first.ending)


def _recording(
    answers: AnswersLike, texts_by_key: dict[str, list[str]]
) -> Callable[[Question], Awaitable[Any]]:
    """Return a source of answers that records the texts of answered questions in `texts_by_key`."""
    source = Answers.of(answers)

    async def answer(question: Question) -> Any:
        key = question.key.partition("~")[0]  # without the number of the attempt
        response = await source(replace(question, key=key))
        if response is not None:
            texts_by_key.setdefault(key, []).append(question.message or repr(question.params))
        return response

    return answer
