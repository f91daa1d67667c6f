"""Tasks as tools, and questions in words, for clients that do not support tasks or cannot be asked.

    tools/call report {…}            →  a handle: {"taskId": …}, and how to continue
    tools/call task_result {taskId}  →  the result; or, if the request's time runs out, "still working"
    tools/call task_status {taskId}  →  its status and its questions
    tools/call task_answer {taskId, answers}, task_cancel {taskId}

A handle is valid for its caller alone, like the id of any task. While `task_result` waits, it asks the
task's questions if the client can be asked. Otherwise it returns them in words, and `task_answer`
takes the answers, except to approvals.

A call can also wait for its task, over several rounds:

    round 1   tools/call report                    creates the task; waits; time is up  →  state alone
    round 2   tools/call report, requestState      waits                                →  the task's questions
    round 3   … with inputResponses                passes them on; waits                →  its result

The state names the task, sealed for this caller and this call. The task runs whether or not a
request waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from roundgate import json
from roundgate.aio import Until
from roundgate.backends import Fallback, OwnTool, is_approval
from roundgate.clock import Clock
from roundgate.errors import StateRefused, TaskNotFound, ToolError, Unavailable
from roundgate.methods.access import Access
from roundgate.methods.parts import Replies
from roundgate.methods.rounds import WAITING, InputRequired, Reply, RequestContext, is_waiting
from roundgate.protocol import CallToolParams, Status, TaskView, ToolResult, merged
from roundgate.replay import required_capability
from roundgate.tasks import NamedTask, NamedTasks, Watch
from roundgate.tokens import Binding, StateSealer

LEFT_MS: Final = 5_000.0
"""The maximum time that a waiting request reserves for its response, in milliseconds; a tenth of
the time that it has left if that is shorter."""


class Waiting:
    """Waits for tasks."""

    def __init__(self, watch: Watch, sealer: StateSealer, clock: Clock, *, max_rounds: int) -> None:
        self._watch = watch
        self._sealer = sealer
        self._clock = clock
        self._max_rounds = max_rounds

    def begun(self, params: CallToolParams, context: RequestContext) -> tuple[str, int]:
        """Return the task that a call already waits for, by its state, and the number of this
        round. Also record the call's id for the log.

        Raises:
            StateRefused: the state belongs to another call or caller.
        """
        token = params.request_state.removeprefix(WAITING)
        opened = self._sealer.open(token, context.principal, _binding(params))
        context.correlation.known_call_id = opened.call_id
        match opened.payload:
            case {"task": str(task_id)}:
                return task_id, opened.round + 1
        raise StateRefused

    async def until_settled(self, task: NamedTask, context: RequestContext) -> TaskView | None:
        """Return a task once it has ended or asks questions, or shortly before the request's
        deadline. Return `None` if its service could not be reached until then.

        Raises:
            TaskNotFound, InternalError: see `NamedTask.look`.
        """
        left_ms = context.deadline.remaining_ms() or 0
        deadline = self._clock.deadline(left_ms - min(LEFT_MS, left_ms / 10))
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
            with Until(deadline):
                while not _is_settled(latest):
                    changed.clear()
                    await changed.wait()
        finally:
            end()
        return latest

    def still(
        self,
        task_id: str,
        view: TaskView | None,
        params: CallToolParams,
        context: RequestContext,
        round_: int,
    ) -> InputRequired | None:
        """Return the end of a round whose task has not ended: the task's questions, if it has any,
        and the state for the next round. Return `None` after too many rounds."""
        if round_ >= self._max_rounds:
            return None
        state = self._sealer.seal(
            {"task": task_id},
            context.principal,
            _binding(params),
            round_=round_,
            origin=context.span.carrier(),
            call_id=context.correlation.call_id,
        )
        return InputRequired({} if view is None else task_requests(view), WAITING + state)


def _is_settled(view: TaskView | None) -> bool:
    return view is not None and (view.status.is_terminal or view.status is Status.INPUT_REQUIRED)


def _binding(params: CallToolParams) -> Binding:
    return Binding.of("wait for a task", params.name, params.arguments)


def task_requests(view: TaskView) -> dict[str, Any]:
    """Return the outstanding questions of a task on the wire, by key."""
    if view.status is not Status.INPUT_REQUIRED:
        return {}
    return {key: json.decode(request) for key, request in view.requests.items()}


def result_from_view(view: TaskView) -> dict[str, Any]:
    """Return the outcome of a task as the result of a call."""
    if view.status is Status.COMPLETED and view.outcome is not None:
        result: dict[str, Any] = json.decode(view.outcome)
        return result
    if view.status is Status.FAILED and view.outcome is not None:
        message = str(json.decode(view.outcome).get("message", ""))
        return ToolResult.error(message).to_wire()
    return ToolResult.error("The task was cancelled").to_wire()


def required_capabilities(requests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities that a client needs to answer these questions."""
    return merged(map(required_capability, requests.values()))


def questions_in_words(requests: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return questions on the wire as text for a model, and a template of the answers by key."""
    questions = {key: _in_words(key, request) for key, request in requests.items()}
    text = "\n\n".join(text for text, _ in questions.values())
    return text, {key: answer for key, (_, answer) in questions.items()}


def _in_words(key: str, request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    params = request.get("params") or {}
    match request.get("method"):
        case "elicitation/create" if params.get("mode") == "url":
            return (
                f"Question {key}, for the user: {params.get('message', '')}\n"
                "Give the user this address to open themselves, and ask whether they did: "
                f"{params.get('url', '')}\n"
                'The answer is {"action": "accept"} if they did; {"action": "decline"} if they '
                "refuse.",
                {"action": "accept"},
            )
        case "elicitation/create":
            schema = params.get("requestedSchema", {})
            return (
                f"Question {key}, for the user: {params.get('message', '')}\n"
                "Ask the user, and do not make the answer up.\n"
                'The answer is {"action": "accept", "content": …}, where content fits this JSON '
                "Schema:\n"
                f"{json.encode(schema).decode()}\n"
                'or {"action": "decline"} if the user refuses.',
                {"action": "accept", "content": dict.fromkeys(schema.get("properties", {}), "…")},
            )
        case "sampling/createMessage":
            shown = {name: params[name] for name in ("systemPrompt", "messages") if name in params}
            content = {"type": "text", "text": "…"}
            return (
                f"Question {key}, for you: write the next message of this conversation, in at most"
                f" {params.get('maxTokens', 1000)} tokens.\n{json.encode(shown).decode()}\n"
                'The answer is {"role": "assistant", "model": "your name", "content": {"type": '
                '"text", "text": …}}.',
                {"role": "assistant", "model": "…", "content": content},
            )
    return (
        f"Question {key}: which directories or files may be worked with?\n"
        'The answer is {"roots": [{"uri": "file:///…"}]}.',
        {"roots": [{"uri": "file:///…"}]},
    )


ANSWERS: Final = {
    "type": "object",
    "description": "An answer for each question, by its name, in the shape that the "
    "question describes.",
    "additionalProperties": {"type": "object"},
}
_TASK_ID: Final = {"type": "string", "description": "The taskId of the handle."}
_DESCRIPTIONS: Final = {
    OwnTool.STATUS: "Return a task's status and its questions, by the handle from a call's result.",
    OwnTool.RESULT: "Return the result of a task. Waits for a while; if the task is still working "
    "then, call again.",
    OwnTool.TASK_ANSWER: "Answer a task's questions. The answers are the user's; ask the user, and "
    "do not make them up.",
    OwnTool.CANCEL: "Cancel a task.",
}
_READ_ONLY: Final = frozenset({OwnTool.STATUS, OwnTool.RESULT})


def arguments_schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: Final = {
    own: arguments_schema(
        taskId=_TASK_ID, **({"answers": ANSWERS} if own is OwnTool.TASK_ANSWER else {})
    )
    for own in _DESCRIPTIONS
}
"""The schemas of the arguments of the tools that accept handles."""


def definitions(names: Mapping[OwnTool, str]) -> list[dict[str, Any]]:
    """Return the definitions (schema: `Tool`) of the tools that accept handles."""
    return [
        {
            "name": names[own],
            "description": description,
            "inputSchema": SCHEMAS[own],
            "annotations": {"readOnlyHint": own in _READ_ONLY, "openWorldHint": False},
        }
        for own, description in _DESCRIPTIONS.items()
    ]


class TaskTools:
    """Serves the tools that accept handles."""

    def __init__(
        self,
        fallback: Fallback,
        tasks: NamedTasks,
        access: Access,
        waiting: Waiting,
        results: Replies,
    ) -> None:
        self._fallback = fallback
        self._names = fallback.names
        self._tasks = tasks
        self._access = access
        self._waiting = waiting
        self._results = results

    def handle(self, created: Mapping[str, Any]) -> Reply:
        """Return the reply with the handle of a call that became a task: the schema's
        `CreateTaskResult`."""
        task = {
            name: value for name, value in created.items() if name not in ("resultType", "_meta")
        }
        how = json.encode({"taskId": task["taskId"]}).decode()
        text = (
            f"This call continues as a task. Call {self._names[OwnTool.RESULT]} with {how} for its "
            "result; that waits for a while, so call it again if the task is still working. "
            f"{self._names[OwnTool.STATUS]} returns its status, {self._names[OwnTool.CANCEL]} cancels it. "
            "Do not call the first tool again: that would start another task."
        )
        # several frameworks give the model nothing but the structured content
        structured = {**task, "instructions": text}
        return self._results.tool(ToolResult([text], structured_content=structured))

    async def serve(self, own: OwnTool, params: CallToolParams, context: RequestContext) -> Reply:
        """Serve a call of one of these tools. The arguments are valid.

        Raises:
            ToolError: the task is unknown, or its questions cannot be answered in words.
            InsufficientScope: the tool of the task needs scopes that the token lacks.
            CallRefused: the rules of `policy` allow the caller no call of the tool.
            Unavailable, InternalError: the service of the task cannot be reached, or fails.
        """
        try:
            task_id = params.arguments["taskId"]
            task = self._tasks.find(context.principal, task_id)
            context.correlation.task = self._tasks.name_in_log(context.principal, task_id)
            tool = await task.tool()
            self._access.check(tool, context.principal)
            match own:
                case OwnTool.RESULT:
                    return await self._result(task, tool, params, context)
                case OwnTool.TASK_ANSWER:
                    await self._answer(task, tool, params.arguments["answers"])
                    text = (
                        f"The answers were accepted. Call {self._names[OwnTool.RESULT]} to continue "
                        "waiting for the result."
                    )
                    return self._results.tool(ToolResult([text]))
                case OwnTool.CANCEL:
                    await task.cancel()
            return self._status(await task.look(), task.id, tool, context)
        except TaskNotFound as error:
            raise ToolError(str(error)) from None

    async def _result(
        self,
        task: NamedTask,
        tool: str,
        params: CallToolParams,
        context: RequestContext,
    ) -> Reply:
        begun = self._waiting.begun(params, context) if is_waiting(params) else None
        if begun is not None and params.input_responses:
            await task.update(params.input_responses)
        view = await self._waiting.until_settled(task, context)
        if view is None:
            raise Unavailable("The task's status cannot be read now; try again later")
        if view.status.is_terminal:
            return self._results.stored_tool(result_from_view(view))
        requests = task_requests(view)
        if requests and _can_be_asked(requests, context):
            round_ = 1 if begun is None else begun[1]
            still = self._waiting.still(task.id, view, params, context, round_)
            if still is not None:
                return self._results.input_required(still)
        return self._status(view, task.id, tool, context)

    async def _answer(self, task: NamedTask, tool: str, answers: Mapping[str, Any]) -> None:
        requests = task_requests(await task.look())
        if any(is_approval(requests[key]) for key in answers if key in requests):
            raise ToolError(
                "This question asks a person for approval, so it cannot be answered in words:"
                f" call {self._names[OwnTool.RESULT]} in a client that can show forms"
            )
        if tool not in self._fallback.in_words:
            raise ToolError(
                "This task's questions cannot be answered with a tool: call "
                f"{self._names[OwnTool.RESULT]} in a client that can be asked, which then asks the user"
            )
        if not answers.keys() & requests.keys():
            waits_for = ", ".join(requests) or "nothing"
            raise ToolError(
                f"The task has not asked this question; it waits for an answer to {waits_for}"
            )
        await task.update(answers)

    def _status(self, view: TaskView, task_id: str, tool: str, context: RequestContext) -> Reply:
        """Return the status of a task in words."""
        message = "" if view.status_message is None else f": {view.status_message}"
        texts = [f"The task is {view.status.value.replace('_', ' ')}{message}"]
        requests = task_requests(view)
        result = self._names[OwnTool.RESULT]
        if requests and tool in self._fallback.in_words:
            texts.append(questions_in_words(requests)[0])
            texts.append(
                f"Then call {self._names[OwnTool.TASK_ANSWER]} with the taskId and the answers by "
                "the names of the questions."
            )
        elif requests and _can_be_asked(requests, context):
            texts.append(f"Call {result} to ask the user its questions.")
        elif requests:
            texts.append("It must ask the user a question, but this client cannot be asked.")
        elif not view.status.is_terminal:
            texts.append(f"Call {result} to wait for its result.")
        elif view.status is Status.COMPLETED:
            texts.append(f"Call {result} for its result.")
        text = "\n\n".join(texts)
        structured = {"taskId": task_id, "status": view.status.value, "instructions": text}
        return self._results.tool(ToolResult([text], structured_content=structured))


def _can_be_asked(requests: Mapping[str, Any], context: RequestContext) -> bool:
    """Return whether the client itself can be asked all these questions."""
    return context.inbound.meta.capabilities.has_declared(required_capabilities(requests))
