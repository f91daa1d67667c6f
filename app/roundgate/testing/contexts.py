"""A context without a gateway, for tests that call a handler as a function.

    with fake_context(answers={"confirm": {"go": True}}) as ctx:
        assert await refund(ctx, order=7) == "refunded"

The context runs the real engine, but questions are answered at once, so the handler runs only once.
The clock advances when the handler waits for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from roundgate.auth import LOCAL, Principal
from roundgate.client import Answers, AnswersLike, Question, answer_all
from roundgate.clock import Deadline
from roundgate.errors import Suspend
from roundgate.protocol import ClientCapabilities, Meta
from roundgate.replay import Branch, Call, Context, Journal, Parked, Run, Stop, inside, number_tasks
from roundgate.testing.instances import VirtualClock

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
) -> Iterator[Context]:
    """Yield a context for one call of an async handler. The block must run in an event loop.

    Args:
        answers: answers to questions, as for `roundgate.client`.
        principal: the caller.
        capabilities: the client's capabilities.
        clock: the clock; by default a new `VirtualClock`.
        task_id: the id of the call's task; `None` if the call is not a task.

    Raises:
        Unanswered: a question has no answer. Raised where the handler asks.
        AnswerInvalid: an answer does not fit its question. Raised where the handler asks.
    """
    call = Call(
        principal=principal,
        meta=Meta(ClientCapabilities(capabilities), None, None, None),
        deadline=Deadline(clock or VirtualClock(), None),
        task_id=task_id,
    )
    run = AnsweredRun(call, Answers.of(answers))
    number_tasks(asyncio.get_running_loop())
    run.begin()
    try:
        with inside(run.root):
            yield Context(run)
    finally:
        run.close()


class AnsweredRun(Run):
    """A run whose questions are answered as soon as all of its branches wait."""

    def __init__(self, call: Call, answers: Answers, journal: Journal | None = None) -> None:
        super().__init__(call, journal or Journal())
        self._answers = answers
        self._answering: asyncio.Task[None] | None = None

    def come_to_rest(self) -> None:
        if self.requests:
            with inside(None):  # the task that answers is not a branch
                self._answering = asyncio.ensure_future(self._answer())
        elif self.clock.pass_time():
            self.quiescence.restart_quiet()
        elif self.restart_arguments is None and (left := [*self._that_gave_their_turn_back()]):
            for one in left:
                one.future.set_result(None)
        else:
            super().come_to_rest()

    async def park(self, branch: Branch) -> None:  # type: ignore[override]
        """Wait until the branch can continue in the same run. Raise `Suspend` for the low-level
        form."""
        await self.quiescence.park(branch)
        if self.decides_by_state:  # the low-level form receives its answers in a new run
            self.stop(Stop.SUSPENDED)
            raise Suspend

    def _that_gave_their_turn_back(self) -> Iterator[Parked]:
        return (one for one in self._parked if one.until_ms is None and not one.future.done())

    async def _answer(self) -> None:
        asked = [Question.read(key, request) for key, request in self.requests.items()]
        asking = {_path(entry.key) for entry in self.journal.outstanding()}
        failed: Exception | None = None
        try:
            self.journal.receive(await answer_all(asked, self._answers))
        except Exception as error:  # raised where the handler asks
            failed = error
        self.requests.clear()
        for one in self._parked:
            if one.branch.path in asking and not one.future.done():
                if failed is None:
                    one.future.set_result(None)
                else:
                    one.future.set_exception(failed)


def _path(key: str) -> str:
    """Return the path of the branch that a key belongs to."""
    return key[: key.rfind("/") + 1]
