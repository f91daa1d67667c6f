"""The engine: one function through which every handler runs, whatever back end, wherever its journal lives.

A handler is run from the top each time, against a journal of what is already known. A question without an answer
*suspends* the run: its outcome is the open questions and the journal, which is all that any process needs to go on.

    run(handler, state) → Completed(value)               it returned
                        | Suspended(requests, journal)   it waits: for answers, for a time, or only for its next turn
                        | Failed(error)                  it raised

Suspension reaches the handler as `Suspend`, a `BaseException`: `except Exception` lets it pass. It is raised once all
branches of the handler have come to rest, so questions asked side by side come out together.

    branch 1   ask a ──────── waits ────────────────┐
    branch 2   step s ─── runs to its end ─ ask b ──┤ nothing moves any more: a and b go out
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

from anyio import to_thread

from app.clock import Deadline
from app.errors import CallTimeout, GatewayError, MissingCapability, ToolError
from app.protocol.capabilities import ClientCapabilities, merged
from app.replay.alarms import Limit
from app.replay.journal import Answered, Asked, Entry, Finished, Journal, Passed, Raised, Slept, Step, plain, wire_key
from app.replay.questions import Answer, BadAnswer, Question, digest_of

T = TypeVar("T")

Checkpoint: TypeAlias = Callable[[Entry], Awaitable[None]]
"""Makes an entry durable before the handler goes on; a journal that travels with the client needs nothing."""

log = logging.getLogger("app.replay")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_CHANGES: Final = 3
QUIET_TURNS: Final = 10
"""Turns of the event loop without any engine call after which the handler's branches count as at rest."""
SHED_MARGIN_MS: Final = 250
"""What has to be left of the time, beyond what a step is expected to take, for another to be begun."""
SLOWER: Final = 1.25
"""What a step is expected to take: the longest so far times this. Steps of seconds differ by more than a margin."""
HOLD_MS: Final = 1_000
"""A task that has to wait no longer than this keeps its worker; letting go and being taken up again costs as much."""


class Suspend(BaseException):
    """Ends a run that cannot go on now. Not an `Exception`, so that a handler does not catch it by accident."""


class StepFailed(Exception):
    """A step raised; this is what its handler sees, in the run in which it happened and in each replay of it."""


@dataclass(frozen=True, slots=True)
class Completed(Generic[T]):
    """The handler returned."""

    value: T


@dataclass(frozen=True, slots=True)
class Suspended:
    """The handler waits: for answers to `requests` (by wire key), or, if there are none, for its next turn."""

    requests: Mapping[str, Any]
    journal: Journal
    wants_task: bool = False
    """It is to go on as a task: it said so, time is nearly up, or it has to wait longer than a request may."""
    wake_ms: int | None = None
    """Its next turn is not to come before this, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; a deadline that passed is a `CallTimeout`."""

    error: Exception


async def _nowhere(entry: Entry) -> None:
    """The checkpoint of a journal that travels with the client."""


async def _at_once() -> None:
    """Nobody has to be asked before a step."""


@dataclass(slots=True)
class Run:
    """One run of a handler: what its context asks of the engine."""

    journal: Journal
    capabilities: ClientCapabilities
    deadline: Deadline
    checkpoint: Checkpoint = _nowhere
    admit: Callable[[], Awaitable[None]] = _at_once
    task_id: str | None = None
    """The task that this run belongs to, if it does."""
    may_become_task: bool = False
    """Whether what is still an ordinary call may go on as a task: its tool and its client both want that."""
    message: str | None = None
    """What the handler last said it is doing: the `statusMessage` of a task."""
    cancelled: bool = False
    """Nobody wants the outcome any more."""
    yields: bool = False
    """Whether it is to stop at its next step, because the process is about to."""
    wants_task: bool = False
    wake_ms: int | None = None
    requests: dict[str, Any] = field(default_factory=dict)
    suspended: bool = False
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _parked: list[asyncio.Future[NoReturn]] = field(default_factory=list)
    _in_flight: int = 0
    _activity: int = 0
    _watching: bool = False
    _steps_run: int = 0
    _longest_ms: float = 0

    async def ask(self, asked: Mapping[str, Question]) -> dict[str, Answer]:
        """The answers, if all are known; otherwise what is open is asked and the run suspends.

        Raises:
            MissingCapability: the client did not declare what a question needs; nothing is asked.
        """
        answers: dict[str, Answer] = {}
        opened: list[tuple[Asked, Question]] = []
        for name, question in asked.items():
            known = self._known(self._key("question", name), name, question)
            if isinstance(known, Answer):
                answers[name] = known
            else:
                opened.append((known, question))
        if opened:
            self._open(opened)
            await self._park()
        return answers

    async def ask_anew(self, asked: Mapping[str, Question]) -> NoReturn:
        """Ask, whether or not there was an answer before: the low-level form, which looks answers up itself."""
        opened: list[tuple[Asked, Question]] = []
        for name, question in asked.items():
            self._enter("question", name)
            entry, digest = self.journal.questions.get(name), digest_of(name, question)
            if not isinstance(entry, Asked) or entry.digest != digest:
                entry = Asked(name, digest, 1 if entry is None else entry.attempt + 1)
            opened.append((entry, question))
        self._open(opened)
        await self._park()

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function returned, now or in an earlier run; it is run once, and remembered.

        Raises:
            StepFailed: it raised, now or then. (A `ToolError` is raised again as such.)
            NotJson: what it returned cannot be remembered.
        """
        key = self._key("step", name)
        known = self.journal.steps.get(key)
        if known is None:
            await self._before_step()
            known = await self._run_step(key, function, args, kwargs)
        return _outcome_of(known, name)

    async def shed(self, name: str) -> None:
        """Give the turn back once: the client's next retry, or another worker, goes on from here."""
        key = self._key("shed", name)
        if f"shed:{key}" not in self.journal.steps:
            await self._remember(Passed(f"shed:{key}"))
            await self._park()

    async def continue_as_task(self) -> None:
        """End the ordinary call here, if it may go on as a task; nothing happens if it may not, or already is one."""
        if self.suspended:
            raise Suspend
        if self.may_become_task:
            self.wants_task = True
            await self._park()

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait, once: a later run waits for what is left, a task without holding a worker."""
        key = f"sleep:{self._key('sleep', name)}"
        known = self.journal.steps.get(key)
        if not isinstance(known, Slept):
            known = Slept(key, self.deadline.clock.now_ms() + round(seconds * 1000))
            self.journal.add(known)  # kept with whatever the run leaves; if that is nothing, nobody was waiting
        await self._rest(known.until_ms)

    async def poll(self, name: str, function: Callable[..., Any], args: Sequence[Any], every_s: float) -> Any:
        """What the function returned when for the first time that was not `None`; asked now and then, then remembered.

        Raises:
            StepFailed, NotJson: as `step`.
        """
        key = self._key("step", name)
        while (known := self.journal.steps.get(key)) is None:
            await self._before_step()
            known = await self._run_step(key, function, tuple(args), {}, only_values=True)
            if known != Finished(key, None):
                break
            await self._rest(self.deadline.clock.now_ms() + round(every_s * 1000))
        return _outcome_of(known, name)

    async def _rest(self, until_ms: int) -> None:
        """Wait for a moment: here if it is near, otherwise by giving the turn back.

        An ordinary call that may become a task does so if the moment is beyond its deadline; one that may not gives its
        turn back just before that, and goes on waiting in its next round.
        """
        left_ms = until_ms - self.deadline.clock.now_ms()
        remaining_ms = self.deadline.remaining_ms()
        here_ms = math.inf if remaining_ms is None else max(0.0, remaining_ms - SHED_MARGIN_MS)
        if self.task_id is not None:
            here_ms = min(here_ms, HOLD_MS)
        if left_ms > here_ms:
            if self.task_id is None and not self.may_become_task:
                await self._wait_here(here_ms)
            self.wants_task = True
            self.wake_ms = until_ms if self.wake_ms is None else min(self.wake_ms, until_ms)
            await self._park()
        await self._wait_here(left_ms)

    async def _wait_here(self, for_ms: float) -> None:
        self._in_flight += 1
        try:
            await asyncio.sleep(max(0.0, for_ms) / 1000)
        finally:
            self._in_flight -= 1
            self._stir()

    async def _before_step(self) -> None:
        """At the boundary of a step: stop if time is nearly up and there has been any progress."""
        if self.suspended:  # between two times of a poll
            raise Suspend
        remaining_ms = self.deadline.remaining_ms()
        short = remaining_ms is not None and remaining_ms < self._longest_ms * SLOWER + SHED_MARGIN_MS
        if self.yields or (short and self._steps_run > 0):
            self.wants_task = True
            await self._park()
        self._in_flight += 1
        try:
            await self.admit()
        finally:
            self._in_flight -= 1
            self._stir()
        if self.suspended:
            raise Suspend

    async def _run_step(
        self, key: str, function: Callable[..., Any], args: Any, kwargs: Any, *, only_values: bool = False
    ) -> Finished | Raised:
        self._in_flight += 1
        begun_ms = self.deadline.clock.monotonic_ms()
        outside = _inside.set((self, key))
        try:
            entry = await _finish(key, function, args, kwargs)
            if not only_values or entry != Finished(key, None):
                await self._remember(entry)
        finally:
            _inside.reset(outside)
            self._in_flight -= 1
            self._longest_ms = max(self._longest_ms, self.deadline.clock.monotonic_ms() - begun_ms)
            self._stir()
        self._steps_run += 1
        return entry

    async def _remember(self, entry: Entry) -> None:
        await self.checkpoint(entry)
        self.journal.add(entry)

    def _known(self, key: str, name: str, question: Question) -> Answer | Asked:
        """The usable answer to a question, or the question as it has to be asked now."""
        entry, digest = self.journal.questions.get(key), digest_of(name, question)
        match entry:
            case None:
                return Asked(key, digest)
            case Asked(digest=before) if before == digest:
                return entry
            case Answered(digest=before) if before is None or before == digest:
                try:
                    answer = question.read(name, entry.response)
                except BadAnswer as error:
                    return Asked(key, digest, entry.attempt + 1, problem=str(error)[:500])
                if before is None or entry.changed:
                    # one that came unasked belongs from here on to the question that took it
                    self.journal.add(replace(entry, digest=digest, changed=0))
                return answer
        if entry.changed + 1 >= MAX_CHANGES:
            raise RuntimeError(
                f"question {name!r} reads differently in every round; build it from arguments, answers and steps alone "
                "(a time or a random value belongs into ctx.step, which remembers it)"
            )
        return Asked(key, digest, entry.attempt + 1, changed=entry.changed + 1)

    def _open(self, opened: Sequence[tuple[Asked, Question]]) -> None:
        """Put questions to the client: all of them, or none if it lacks a capability for any."""
        names = ", ".join(entry.key for entry, _ in opened)
        self.capabilities.require(merged(question.requires for _, question in opened), f"asking {names}")
        for entry, question in opened:
            self.journal.add(entry)
            self.requests[wire_key(entry.key, entry.attempt)] = question.to_wire(entry.problem)

    def _key(self, kind: str, name: str) -> str:
        """The name, and which use of it in this run this is if not the first."""
        self._enter(kind, name)
        count = self._counts[kind, name] = self._counts.get((kind, name), 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _enter(self, kind: str, name: str) -> None:
        """Let nothing begin once the run is suspended or over, nor under a name that cannot be a key."""
        if self.suspended:
            raise Suspend
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a {kind}: use 1 to 64 of A-Z a-z 0-9 _ . -")
        run, step = _inside.get()
        if run is self:
            # a later run remembers the step as a whole: what it contains would be skipped there, or never answered
            raise RuntimeError(f"step {step!r} contains the {kind} {name!r}; a step is one piece: use ctx beside it")

    def close(self) -> None:
        """The run is over: branches that its handler left behind begin nothing more."""
        self.suspended = True
        for future in self._parked:
            future.cancel()

    def stop(self) -> None:
        """End the run from outside: whatever waits ends now, whatever asks anything of the engine ends then."""
        self.suspended = True
        for future in self._parked:
            if not future.done():
                future.set_exception(Suspend())

    async def _park(self) -> NoReturn:
        """Wait until every branch has come to rest, then suspend."""
        if self.suspended:
            raise Suspend
        future: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._parked.append(future)
        self._stir()
        await future
        raise AssertionError("a parked branch is only ever woken by Suspend")

    def _stir(self) -> None:
        """Something moved: start over counting quiet turns, if there is anybody to wake."""
        self._activity += 1
        if self._parked and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._watch, self._activity, QUIET_TURNS)

    def _watch(self, seen: int, turns: int) -> None:
        if self._in_flight:
            self._watching = False  # the end of the step stirs again
        elif seen != self._activity or turns:
            left = turns - 1 if seen == self._activity else QUIET_TURNS
            asyncio.get_running_loop().call_soon(self._watch, self._activity, left)
        else:
            self.stop()


_inside: ContextVar[tuple[Run | None, str]] = ContextVar("_inside", default=(None, ""))
"""The step that is being run, and whose."""


async def run(handler: Callable[[], Awaitable[T]], state: Run) -> Completed[T] | Suspended | Failed:
    """Run a handler to its end, to its next question, or to its deadline.

    Cancellation of the call is no outcome: it passes through, because nobody is waiting any more.
    """
    try:
        return await _outcome(handler, state)
    finally:
        state.close()


async def _outcome(handler: Callable[[], Awaitable[T]], state: Run) -> Completed[T] | Suspended | Failed:
    remaining_ms = state.deadline.remaining_ms()
    limit = Limit(None if remaining_ms is None else remaining_ms / 1000)
    try:
        with limit:
            value = await handler()
    except Suspend:
        return _suspended(state)
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return _failed(_caused_by(error, "what the handler waited for was cancelled, the call itself was not"), state)
    except SystemExit as error:  # as argparse raises it; it would end the server
        return _failed(_caused_by(error, f"the handler called sys.exit({error.code!r})"), state)
    except BaseExceptionGroup as group:
        return _failed(_cause_in(group), state)
    except TimeoutError as error:
        if limit.expired:
            return Failed(CallTimeout(f"The call did not finish within {round((remaining_ms or 0) / 1000, 2):g} s"))
        return _failed(error, state)
    except Exception as error:
        return _failed(error, state)
    # a handler that swallowed the suspension does not get away with a result that skipped a question
    return _suspended(state) if state.suspended else Completed(value)


def _failed(error: Exception, state: Run) -> Suspended | Failed:
    """What a handler raises after it was told to suspend is what came of not being told what it asked."""
    return _suspended(state) if state.suspended else Failed(error)


def _cause_in(group: BaseExceptionGroup[BaseException]) -> Exception:
    """What branches of a TaskGroup raised: the first error where all are meant for the caller, else the group."""
    leaves = list(_leaves(group))
    missing = [leaf.missing for leaf in leaves if isinstance(leaf, MissingCapability)]
    if len(missing) == len(leaves):
        return MissingCapability(str(leaves[0]), merged(missing))
    if isinstance(leaves[0], GatewayError) and all(isinstance(leaf, GatewayError) for leaf in leaves):
        return leaves[0]
    return group if isinstance(group, Exception) else _caused_by(group, "branches of the handler failed")


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _caused_by(error: BaseException, message: str) -> RuntimeError:
    failure = RuntimeError(message)
    failure.__cause__ = error
    return failure


def _suspended(state: Run) -> Suspended:
    return Suspended(state.requests, state.journal, state.wants_task, state.wake_ms)


async def _finish(key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Finished | Raised:
    try:
        value = await _call(function, args, kwargs)
    except ToolError as error:
        return Raised(key, _text(error), told=True)
    except Exception as error:
        log.warning("step %s raised", key, exc_info=error)  # the journal keeps the text; only the log has the traceback
        return Raised(key, f"{type(error).__name__}: {_text(error)}"[:1000], told=False)
    return Finished(key, plain(value, f"the value of step {key!r}"))


def _text(error: Exception) -> str:
    return str(error).encode(errors="replace").decode()  # a file name in it may be no Unicode


def _outcome_of(entry: Step, name: str) -> Any:
    match entry:
        case Finished(value=value):
            return value
        case Raised(message=message, told=True):
            raise ToolError(message)
        case Raised(message=message):
            raise StepFailed(f"step {name!r} failed: {message}")
    raise AssertionError(f"{name!r} is not a step")


async def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await to_thread.run_sync(lambda: function(*args, **kwargs), abandon_on_cancel=True)
    return await value if inspect.isawaitable(value) else value
