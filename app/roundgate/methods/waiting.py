"""Waiting for a task within a request, for clients that know no tasks.

    round 1   tools/call report                    the task is made; waits; time is up  →  state alone
    round 2   tools/call report, requestState      waits on                             →  the task's questions
    round 3   … with inputResponses                they go to the task; waits on        →  its result

A request waits for as long as a call may take. What a client sends back says which task
it waits for, sealed for it and for this call. The task itself is like any other: it
goes on when nobody waits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from roundgate import json
from roundgate.clock import Clock, Deadline
from roundgate.errors import StateRefused, Unavailable
from roundgate.methods.request import RequestContext
from roundgate.methods.rounds import InputRequired
from roundgate.protocol import CallToolParams, Status, TaskView, ToolResult
from roundgate.tasks import NamedTask, Watch
from roundgate.tokens import Binding, StateSealer

PREFIX: Final = "wait."
"""Of a `requestState` that says which task is waited for."""
LEFT_MS: Final = 5_000.0
"""What of its time a request leaves for its answer; a tenth at most."""


class Waiting:
    """Waits for tasks. `timeout_s` is how long a call may take, in seconds."""

    def __init__(
        self, watch: Watch, sealer: StateSealer, clock: Clock, *, timeout_s: float, max_rounds: int
    ) -> None:
        self._watch = watch
        self._sealer = sealer
        self._clock = clock
        self._timeout_ms = timeout_s * 1000
        self._max_rounds = max_rounds

    def deadline(self, context: RequestContext) -> Deadline:
        """Until when a request that begins now may wait."""
        limit_ms = self._timeout_ms
        if context.remaining_ms is not None:
            limit_ms = min(limit_ms, context.remaining_ms)
        return self._clock.deadline(limit_ms - min(LEFT_MS, limit_ms / 10))

    def begun(self, asked: CallToolParams, context: RequestContext) -> tuple[str, int] | None:
        """Return the task that a call already waits for, and its round; `None` if the call waits
        for none. Records the id of that call for the log.

        Raises:
            StateRefused: the state belongs to another call or caller.
        """
        state = asked.request_state
        if not isinstance(state, str) or not state.startswith(PREFIX):
            return None
        opened = self._sealer.open(state.removeprefix(PREFIX), context.principal, _binding(asked))
        context.correlation.known_call_id = opened.call_id
        match opened.payload:
            case {"task": str(task_id)}:
                return task_id, opened.round + 1
        raise StateRefused

    async def until_settled(self, task: NamedTask, deadline: Deadline) -> TaskView | None:
        """A task once it has ended, or asks something, or this request has no more time for it.
        `None` if who has it could not be asked in all that time: it is there all the same, and
        another call would begin another.

        Raises:
            TaskNotFound, InternalError: as `NamedTask.look`.
        """
        latest: TaskView | None = None
        with suppress(Unavailable):
            latest = await task.look()
        if _is_settled(latest):
            return latest
        changed = asyncio.Event()

        def tell(view: TaskView) -> None:
            nonlocal latest
            latest = view
            changed.set()

        end = self._watch.begin(task, latest, tell)
        try:
            async with asyncio.timeout(max(0.0, (deadline.remaining_ms() or 0) / 1000)):
                while not _is_settled(latest):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pass
        finally:
            end()
        return latest

    def still(
        self,
        task_id: str,
        view: TaskView | None,
        asked: CallToolParams,
        context: RequestContext,
        round_: int,
    ) -> InputRequired | None:
        """The end of a round whose task has not ended: its questions, if it has any, and the state
        to go on with. `None` if there have been too many rounds.
        """
        if round_ >= self._max_rounds:
            return None
        state = self._sealer.seal(
            {"task": task_id},
            context.principal,
            _binding(asked),
            round_=round_,
            origin=context.span.carrier(),
            call_id=context.correlation.call_id,
        )
        return InputRequired({} if view is None else requests_of(view), PREFIX + state)


def _is_settled(view: TaskView | None) -> bool:
    if view is None:
        return False
    return view.status.is_terminal or view.status is Status.INPUT_REQUIRED


def requests_of(view: TaskView) -> dict[str, Any]:
    """The outstanding questions of a task on the wire, by key."""
    if view.status is not Status.INPUT_REQUIRED:
        return {}
    return {key: json.decode(request) for key, request in view.requests.items()}


def result_of(view: TaskView) -> dict[str, Any]:
    """What a task ended with, as the result of a call."""
    if view.status is Status.COMPLETED and view.outcome is not None:
        result: dict[str, Any] = json.decode(view.outcome)
        return result
    if view.status is Status.FAILED and view.outcome is not None:
        message = str(json.decode(view.outcome).get("message", ""))
        return ToolResult.error(message).to_wire()
    return ToolResult.error("The task was cancelled").to_wire()


def _binding(asked: CallToolParams) -> Binding:
    return Binding.of("wait for a task", asked.name, asked.arguments)
