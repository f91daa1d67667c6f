"""A context without a gateway, for tests that call a handler as a function.

    with fake_context(answers={"confirm": {"go": True}}) as ctx:
        assert await refund(ctx, order=7) == "refunded"

The context runs the real engine, but answers questions at once, so the handler runs only once. The
clock advances when the handler waits only for time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from roundgate.auth import LOCAL, Principal
from roundgate.client import Answers, AnswersLike, Question, answer_all
from roundgate.clock import Deadline
from roundgate.errors import Suspend
from roundgate.protocol import ClientCapabilities, Meta
from roundgate.replay import Branch, Call, Context, Journal, Parked, Run, Stop, inside, number_tasks
from roundgate.settings import TasksConfig
from roundgate.tasks import Life
from roundgate_testing.instances import VirtualClock

CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
"""The default client capabilities: every kind of question."""


@contextmanager
def fake_context(
    answers: AnswersLike = None,
    *,
    principal: Principal = LOCAL,
    capabilities: Mapping[str, Any] = CAPABILITIES,
    clock: VirtualClock | None = None,
    task_id: str | None = None,
    events: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Context]:
    """Yield a context for one call of an async handler. The block must run in an event loop.

    Args:
        answers: answers to questions, as for `roundgate.client`.
        principal: the caller.
        capabilities: the client's capabilities.
        clock: the clock; by default a new `VirtualClock`.
        task_id: the id of the call's task; `None` if the call is not a task.
        events: the payloads of external events by name; other events time out.

    Raises:
        Unanswered: a question has no answer; raised in the handler.
        AnswerInvalid: an answer does not fit its question; raised in the handler.
    """
    clock = clock or VirtualClock()
    call = Call(
        principal=principal,
        meta=Meta(ClientCapabilities(capabilities), None, None, None),
        deadline=Deadline(clock, None),
        task_id=task_id,
        external=EventsHere(),
        last_ms=Life.from_config(TasksConfig()).last_ms(clock.now_ms()),
    )
    run = AnsweredRun(call, Answers.of(answers), events=events)
    number_tasks(asyncio.get_running_loop())
    run.begin()
    try:
        with inside(run.root):
            yield Context(run)
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class EventsHere:
    """External events with unusable tokens, which an `AnsweredRun` delivers."""

    base: str = "http://127.0.0.1/events/"
    max_open: int = TasksConfig().max_open_events
    default_s: float = TasksConfig().ttl_s

    def token(self, name: str) -> str:
        return f"token-of-{name}"


def find_payload(events: Mapping[str, Any], name: str) -> tuple[Any] | None:
    """Return the payload of an event in a tuple, or `None` if `events` has none. `events` may name
    an event with or without its branch."""
    path, slash, last = name.rpartition("/")
    short = last.removeprefix("event:").partition("@")[0]  # without the number of a restart
    for spelling in (f"{path}{slash}{short}", short):
        if spelling in events:
            return (events[spelling],)
    return None


class AnsweredRun(Run):
    """A run that answers its questions and delivers its events as soon as all of its branches
    wait."""

    def __init__(
        self,
        call: Call,
        answers: Answers,
        journal: Journal | None = None,
        events: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(call, journal or Journal())
        self._answers = answers
        self._events = events
        self._answering: asyncio.Task[None] | None = None

    def come_to_rest(self) -> None:
        if self.requests:
            with inside(None):  # the task that answers is not a branch
                self._answering = asyncio.ensure_future(self._answer())
        elif self._deliver() or self.clock.pass_time() or self._miss():
            self.quiescence.restart_quiet()
        elif self.restart_arguments is None and (turns := [*self._that_gave_their_turn_back()]):
            for parked in turns:
                parked.future.set_result(None)
        else:
            super().come_to_rest()

    async def park(self, branch: Branch) -> None:  # type: ignore[override]
        """Wait until the branch can continue in the same run.

        Raises:
            Suspend: the handler is in the low-level form.
        """
        await self.quiescence.park(branch)
        if self.decides_by_state:  # the low-level form receives its answers in a new run
            self.stop(Stop.SUSPENDED)
            raise Suspend

    def _that_gave_their_turn_back(self) -> Iterator[Parked]:
        return (
            parked
            for parked in self._parked
            if parked.until_ms is None and not parked.future.done()
        )

    def _deliver(self) -> bool:
        """Deliver the events that branches await; return whether any had a payload."""
        payload_of_name = {name: find_payload(self._events, name) for name in self.awaited}
        payloads = {
            name: payload[0] for name, payload in payload_of_name.items() if payload is not None
        }
        self.journal.deliver(payloads, self.awaited | self._open)
        self._wake(payloads)
        return bool(payloads)

    def _miss(self) -> bool:
        """Advance the clock beyond the time limit of the next event; return whether a branch awaits
        one."""
        awaited = [entry for entry in self.journal.opened() if entry.name in self.awaited]
        if not awaited or not isinstance(self.clock, VirtualClock):
            return False
        missed = min(awaited, key=lambda entry: entry.until_ms)
        self.clock.move_to(missed.until_ms)
        self.journal.missed.add(missed.key)
        self._wake([missed.name])
        return True

    @property
    def _open(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.journal.opened())

    def _wake(self, names: Collection[str]) -> None:
        waiting = [branch for name, branch in self.awaits if name in names]
        self.awaits = [parked for parked in self.awaits if parked[0] not in names]
        for parked in self._parked:
            if parked.branch in waiting and not parked.future.done():
                parked.future.set_result(None)

    async def _answer(self) -> None:
        questions = [Question.read(key, request) for key, request in self.requests.items()]
        asking = {_path(entry.key) for entry in self.journal.outstanding()}
        failed: Exception | None = None
        try:
            self.journal.receive(await answer_all(questions, self._answers))
        except Exception as error:  # raised in the handler
            failed = error
        self.requests.clear()
        for parked in self._parked:
            if parked.branch.path in asking and not parked.future.done():
                if failed is None:
                    parked.future.set_result(None)
                else:
                    parked.future.set_exception(failed)


def _path(key: str) -> str:
    """Return the path of the branch to which a key belongs."""
    return key[: key.rfind("/") + 1]
