"""Tasks as tools: what a client gets that knows no tasks, and the tools that take the handle.

    tools/call report {…}            →  a handle: {"taskId": …}, and how to go on
    tools/call task_result {taskId}  →  the result, once there is one; within a request's time, else "still working"
    tools/call task_status {taskId}  →  how it is, and what it asks
    tools/call task_answer {taskId, answers}, task_cancel {taskId}

A handle is good for the caller alone, like the id of any task. What a task asks is asked of
the user while `task_result` waits, where the client can be asked; otherwise it is told in
words, and `task_answer` takes the answers where its tool is asked in words at all. Nobody
approves anything with it.

Waiting for a task within a request, for clients that know no tasks.

    round 1   tools/call report                    the task is made; waits; time is up  →  state alone
    round 2   tools/call report, requestState      waits on                             →  the task's questions
    round 3   … with inputResponses                they go to the task; waits on        →  its result

A request waits for as long as a call may take. What a client sends back says which task
it waits for, sealed for it and for this call. The task itself is like any other: it
goes on when nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from roundgate import json
from roundgate.backends import Fallback, OwnTool, is_approval
from roundgate.clock import Clock, Deadline
from roundgate.errors import StateRefused, TaskNotFound, ToolError, Unavailable
from roundgate.methods.in_words import questions_in_words, requirement_of
from roundgate.methods.results import Reply, Results
from roundgate.methods.rounds import InputRequired, RequestContext
from roundgate.methods.scopes import Scopes
from roundgate.protocol import CallToolParams, Schema, Status, TaskView, ToolResult, merged
from roundgate.tasks import NamedTask, NamedTasks, Watch
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


_TASK_ID: Final = {"type": "string", "description": "The taskId of the handle."}
_OF_TASK: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"taskId": _TASK_ID},
    "required": ["taskId"],
    "additionalProperties": False,
}
_ANSWERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "taskId": _TASK_ID,
        "answers": {
            "type": "object",
            "description": "An answer for each question, by its name, in the shape that was told "
            "with the question.",
            "additionalProperties": {"type": "object"},
        },
    },
    "required": ["taskId", "answers"],
    "additionalProperties": False,
}
_DESCRIPTIONS: Final = {
    OwnTool.STATUS: "How a task is, and what it asks, by the handle that a call was answered with.",
    OwnTool.RESULT: "The result of a task. Waits for it for a while; if the task still works then, "
    "call again.",
    OwnTool.TASK_ANSWER: "Answers what a task asks. The answers are the user's; ask the user, and "
    "do not make them up.",
    OwnTool.CANCEL: "Cancels a task.",
}
_READ_ONLY: Final = frozenset({OwnTool.STATUS, OwnTool.RESULT})


def definitions(names: Mapping[OwnTool, str]) -> list[dict[str, Any]]:
    """The tools that take handles, as the schema's `Tool`."""
    return [
        {
            "name": names[own],
            "description": description,
            "inputSchema": _ANSWERS if own is OwnTool.TASK_ANSWER else _OF_TASK,
            "annotations": {"readOnlyHint": own in _READ_ONLY, "openWorldHint": False},
        }
        for own, description in _DESCRIPTIONS.items()
    ]


class TaskTools:
    """Serves the tools that take handles."""

    def __init__(
        self,
        fallback: Fallback,
        tasks: NamedTasks,
        scopes: Scopes,
        waiting: Waiting,
        results: Results,
    ) -> None:
        self._fallback = fallback
        self._names = fallback.names
        self._tasks = tasks
        self._scopes = scopes
        self._waiting = waiting
        self._results = results
        self._of_task, self._answers = Schema.compile(_OF_TASK), Schema.compile(_ANSWERS)

    def handle(self, created: Mapping[str, Any]) -> Reply:
        """What a call is answered with that goes on as a task; `created` is
        the schema's `CreateTaskResult`."""
        task = {
            name: value for name, value in created.items() if name not in ("resultType", "_meta")
        }
        how = json.encode({"taskId": task["taskId"]}).decode()
        text = (
            f"This goes on as a task, which is not finished. Call {self._names[OwnTool.RESULT]} "
            f"with {how} for its result; it waits for a while, so call it again if the task still "
            f"works then. {self._names[OwnTool.STATUS]} tells how it is, "
            f"{self._names[OwnTool.CANCEL]} ends it. Do not call the first tool again: that would "
            "begin another task."
        )
        return self._results.tool(ToolResult([text], structured_content=task))

    async def serve(
        self, own: OwnTool, asked: CallToolParams, context: RequestContext, deadline: Deadline
    ) -> Reply:
        """A call of one of them.

        Raises:
            ToolError: the arguments are wrong, there is no such task, or it cannot be answered
                here.
            InsufficientScope: its tool needs more.
            Unavailable, InternalError: who has the task cannot be asked.
        """
        schema = self._answers if own is OwnTool.TASK_ANSWER else self._of_task
        if not schema.is_valid(asked.arguments):
            problems = schema.problems(dict(asked.arguments), "arguments")
            raise ToolError(
                "Invalid arguments; correct them and call again:\n"
                + "\n".join(f"- {problem}" for problem in problems)
            )
        try:
            task_id = asked.arguments["taskId"]
            task = self._tasks.find(context.principal, task_id)
            context.correlation.task = self._tasks.name_in_log(context.principal, task_id)
            tool = await task.tool()
            self._scopes.check(tool, context.principal)
            match own:
                case OwnTool.STATUS:
                    return self._told(await task.look(), task.id, tool, context)
                case OwnTool.CANCEL:
                    await task.cancel()
                    return self._told(await task.look(), task.id, tool, context)
                case OwnTool.TASK_ANSWER:
                    await self._answer(task, tool, asked.arguments["answers"])
                    return self._results.tool(
                        ToolResult(
                            [
                                "The answers were taken."
                                f" Call {self._names[OwnTool.RESULT]} to go on waiting for the "
                                "result."
                            ]
                        )
                    )
            return await self._result(task, tool, asked, context, deadline)
        except TaskNotFound as error:
            raise ToolError(str(error)) from None

    async def _result(
        self,
        task: NamedTask,
        tool: str,
        asked: CallToolParams,
        context: RequestContext,
        deadline: Deadline,
    ) -> Reply:
        begun = self._waiting.begun(asked, context)
        if begun is not None and asked.input_responses:
            await task.update(asked.input_responses)
        view = await self._waiting.until_settled(task, deadline)
        if view is None:
            raise Unavailable("How the task is cannot be read just now; ask again later")
        if view.status.is_terminal:
            return self._results.tool_of(result_of(view))
        requests = requests_of(view)
        if requests and _can_be_asked(requests, context):
            round_ = 1 if begun is None else begun[1]
            still = self._waiting.still(task.id, view, asked, context, round_)
            if still is not None:
                return self._results.input_required(still)
        return self._told(view, task.id, tool, context)

    async def _answer(self, task: NamedTask, tool: str, answers: Mapping[str, Any]) -> None:
        requests = requests_of(await task.look())
        if any(is_approval(requests[key]) for key in answers if key in requests):
            raise ToolError(
                "This question asks a person for approval, which no text can do:"
                f" call {self._names[OwnTool.RESULT]} in a client that can show forms"
            )
        if tool not in self._fallback.in_words:
            raise ToolError(
                "What this task asks cannot be answered with a tool: call "
                f"{self._names[OwnTool.RESULT]} in a client that can be asked, and it asks the user"
            )
        if not answers.keys() & requests.keys():
            waits_for = ", ".join(requests) or "nothing"
            raise ToolError(f"The task does not ask this; it waits for an answer to {waits_for}")
        await task.update(answers)

    def _told(self, view: TaskView, task_id: str, tool: str, context: RequestContext) -> Reply:
        """How a task is, in words."""
        message = "" if view.status_message is None else f": {view.status_message}"
        said = [f"The task is {view.status.value.replace('_', ' ')}{message}"]
        requests = requests_of(view)
        if requests and tool in self._fallback.in_words:
            said.append(questions_in_words(requests))
            said.append(
                f"Then call {self._names[OwnTool.TASK_ANSWER]} with the taskId and the answers by "
                "the names of the questions."
            )
        elif requests and _can_be_asked(requests, context):
            said.append(f"Call {self._names[OwnTool.RESULT]}, and the user is asked what it needs.")
        elif requests:
            said.append("It has to ask the user something, and this client cannot be asked.")
        elif not view.status.is_terminal:
            said.append(f"Call {self._names[OwnTool.RESULT]} to wait for its result.")
        elif view.status is Status.COMPLETED:
            said.append(f"Call {self._names[OwnTool.RESULT]} for its result.")
        structured = {"taskId": task_id, "status": view.status.value}
        return self._results.tool(ToolResult(["\n\n".join(said)], structured_content=structured))


def _can_be_asked(requests: Mapping[str, Any], context: RequestContext) -> bool:
    """Whether the client itself can be asked all of them."""
    required = merged(requirement_of(request) for request in requests.values())
    return context.inbound.meta.capabilities.has_declared(required)
