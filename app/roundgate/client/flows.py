"""The protocol logic of the client as generators without I/O. They yield effects and receive the
outcomes:

    Send      a JSON-RPC request         receives its result, or its error as an exception
    Tell      a notification             receives `None`
    Ask       questions                  receives the responses by key
    Pause     milliseconds to wait       receives `None`
    Show      the state of a task        receives `None`

A driver performs the I/O: `Connection.drive` over HTTP, or a test from a list of replies.

Revision 2025-11-25 has experimental tasks of its own (basic/utilities/tasks):

    tools/call {…, "task": {}}   ──▶  {"task": {"taskId": …, "status": "working", "ttl": …, …}}
    tasks/get {"taskId": …}      ──▶  {"taskId": …, "status": …}
    tasks/result {"taskId": …}   ──▶  the result of the call; until then, questions on its stream
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from roundgate import errors
from roundgate.client.questions import Question
from roundgate.client.transport import Limits
from roundgate.client.types import Json, ServerInfo, TaskState, Tool, is_modern, member
from roundgate.json import bounded_integer, encode

LATEST: Final = "2026-07-28"
LEGACY: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
VERSIONS: Final = (LATEST, *LEGACY)
"""The revisions that this client speaks, newest first, all over Streamable HTTP."""


class Send(Struct, frozen=True):
    """A request to send. `may_repeat` is true if sending it twice is safe; `version` overrides the
    connection's revision."""

    method: str
    params: Json
    may_repeat: bool
    version: str | None = None


class Tell(Struct, frozen=True):
    """A notification to send."""

    method: str
    version: str


class Ask(Struct, frozen=True):
    """Questions to answer. `request_state` is the state with which the call continues."""

    questions: Sequence[Question]
    request_state: str | None


class Pause(Struct, frozen=True):
    """A wait of `ms` milliseconds."""

    ms: float


class Show(Struct, frozen=True):
    """The latest state of a task, for `on_task`."""

    task: TaskState


Effect: TypeAlias = Send | Tell | Ask | Pause | Show
T = TypeVar("T")
Flow: TypeAlias = Generator[Effect, Any, T]


class FinishedCall(Struct, frozen=True):
    """A finished call: its result, the number of its rounds, and its task, if any."""

    result: Json
    rounds: int
    task: TaskState | None = None


# -- calls -----------------------------------------------------------------------------------------


class AskingResult(Struct, frozen=True):
    """A result that asks for input."""

    requests: Mapping[str, Any]
    request_state: str | None


def read_input_required(result: Json, limits: Limits) -> AskingResult | None:
    """Return the questions and the state in a result, or `None` if it does not ask for input. Raise
    `BadAnswer` if both are missing, or if one is malformed or exceeds a limit."""
    if result.get("resultType", "complete") != "input_required":
        return None
    requests, state = result.get("inputRequests"), result.get("requestState")
    if not isinstance(requests, dict | None) or not isinstance(state, str | None):
        problem = (
            "for input with inputRequests that is not an object, or a requestState that is not text"
        )
    elif not requests and state is None:
        problem = "for input with neither questions (inputRequests) nor a state (requestState)"
    elif len(requests or ()) > limits.max_questions:
        problem = f"more than {limits.max_questions} questions at once (limit max_questions)"
    elif state is not None and len(state) > limits.max_state:
        problem = (
            f"with a requestState of more than {limits.max_state} characters (limit max_state)"
        )
    else:
        return AskingResult(requests or {}, state)
    raise errors.BadAnswer(f"The server asks {problem}")


def call(
    method: str,
    params: Json,
    target: str,
    limits: Limits,
    *,
    may_repeat: bool,
    max_rounds: int | None = None,
    detach: bool = False,
) -> Flow[FinishedCall]:
    """Send a request, with all its rounds (basic/patterns/mrtr), and follow its task if it becomes
    a task.

    Each round sends the original params, with the answers and the state of the last round only.
    With `detach`, a task is returned immediately, with an empty result.

    Raises:
        TooManyRounds: the server still asks after `max_rounds` rounds.
        TaskEnded, BadAnswer: see `follow`.
    """
    rounds = max_rounds or limits.max_rounds
    round_params: Json = params
    for number in range(1, rounds + 1):
        # Repeating a state is safe: servers must accept the same state and answers twice, because
        # the response may have been lost.
        is_repeatable = may_repeat or "requestState" in round_params
        result: Json = yield Send(method, round_params, is_repeatable)
        kind = result.get("resultType", "complete")
        if kind == "task":
            task = TaskState.read(result)
            outcome = {} if detach else (yield from follow(task.task_id, limits, task, target))
            return FinishedCall(outcome, number, task)
        if (required := read_input_required(result, limits)) is None:
            if kind != "complete":
                raise errors.BadAnswer(
                    f"The server sent a result of the unknown type {str(kind)[:40]!r}"
                )
            return FinishedCall(result, number)
        round_params = dict(params)
        if required.requests:
            questions = [
                Question.read(key, request, target, number)
                for key, request in required.requests.items()
            ]
            round_params["inputResponses"] = yield Ask(questions, required.request_state)
        if required.request_state is not None:
            round_params["requestState"] = required.request_state
    raise errors.TooManyRounds(rounds)


# -- tasks -----------------------------------------------------------------------------------------

_SHORTEST_POLL_MS: Final = 20
_USUAL_POLL_MS: Final = 1_000
_PATIENCE_MS: Final = 120_000
"""The milliseconds for which a task may repeat answered questions, because a server may acknowledge
answers before it processes them."""


def poll_ms(task: TaskState, limits: Limits) -> float:
    """Return the milliseconds until a task's next poll: the server's interval, within bounds."""
    interval_ms = _USUAL_POLL_MS if task.poll_interval_ms is None else task.poll_interval_ms
    return min(max(interval_ms, _SHORTEST_POLL_MS), limits.max_poll_s * 1_000)


def follow(
    task_id: str, limits: Limits, known: TaskState | None = None, target: str = ""
) -> Flow[Json]:
    """Poll a task until it ends, answer its questions, and return the result of its call.

    Raises:
        TaskEnded: the task failed or was cancelled.
        BadAnswer: the server violated the protocol, or ignores answers.
    """
    answered: set[str] = set()
    ignored_ms = 0.0
    task = known
    if task is None or task.lacks_outcome:
        task = TaskState.read((yield Send("tasks/get", {"taskId": task_id}, True)), task_id)
    while True:
        yield Show(task)
        if task.is_over:
            return _outcome(task)
        new = {key: request for key, request in task.requests.items() if key not in answered}
        if task.status != "input_required":
            ignored_ms = 0.0
        elif not new:
            ignored_ms += poll_ms(task, limits)
            if ignored_ms > _PATIENCE_MS:
                raise errors.BadAnswer(_ignored_answers(task))
        else:
            most = limits.max_questions
            if len(new) > most or len(answered) > most * limits.max_rounds:
                raise errors.BadAnswer(
                    f"The task asks more than {most} questions at once (limit max_questions)"
                )
            questions = [Question.read(key, request, target) for key, request in new.items()]
            responses = yield Ask(questions, None)
            # Repeating the answers is safe: the server ignores keys that are already answered.
            yield Send("tasks/update", {"taskId": task_id, "inputResponses": responses}, True)
            answered |= new.keys()
            ignored_ms = 0.0
        yield Pause(poll_ms(task, limits))
        task = TaskState.read((yield Send("tasks/get", {"taskId": task_id}, True)), task_id)


def _ignored_answers(task: TaskState) -> str:
    if not task.requests:
        return "The task waits for input (input_required), but the server names no question"
    keys = ", ".join(key[:80] for key in list(task.requests)[:5])
    return f"The task repeats questions that were answered ({keys})"


def _outcome(task: TaskState) -> Json:
    """Return the result of a task that is over.

    Raises:
        TaskEnded: the task failed or was cancelled.
        BadAnswer: the task completed without a result.
    """
    if task.status == "completed":
        if task.result is None:
            raise errors.BadAnswer("The server reports a completed task without a result")
        return task.result
    if task.status == "cancelled":
        raise _cancelled(task)
    error = None if task.error is None else rpc_error(task.error)
    reason = error or task.message
    raise errors.TaskEnded("failed", f"The task failed{f': {reason}' if reason else ''}", error)


def _cancelled(task: TaskState) -> errors.TaskEnded:
    reason = f": {task.message}" if task.message else ""
    return errors.TaskEnded("cancelled", f"The task was cancelled{reason}")


def rpc_error(error: Any) -> errors.RpcError:
    """Return the exception for a JSON-RPC error object. Raise `BadAnswer` if it is malformed."""
    if is_error(error):
        return errors.RpcError(error["code"], error["message"][:2_000], error.get("data"))
    raise errors.BadAnswer("The server sent an error without a code and a message")


def is_error(error: Any) -> bool:
    """Return whether a value is a valid `error` of a JSON-RPC response."""
    return (
        isinstance(error, dict)
        and type(error.get("code")) is int
        and isinstance(error.get("message"), str)
    )


# -- tasks of 2025-11-25 ---------------------------------------------------------------------------


def has_older_tasks(server: ServerInfo) -> bool:
    """Return whether a server can run tool calls as tasks of revision 2025-11-25."""
    capability: object = server.capabilities
    for name in ("tasks", "requests", "tools", "call"):
        capability = capability.get(name) if isinstance(capability, dict) else None
    return not server.is_modern and isinstance(capability, dict)


def wants_older_task(tool: Tool | None, *, detach: bool) -> bool:
    """Return whether to call a tool as a task: the tool requires it, or it allows it and the caller
    does not wait (`detach`)."""
    execution = tool.raw.get("execution") if tool is not None else None
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return support == "required" or (support == "optional" and detach)


def read_older_task(raw: Json, task_id: str | None = None) -> TaskState:
    """Read the `task` of a created task, or the result of `tasks/get`. Raise `BadAnswer` if it is
    malformed or its id is not `task_id`."""
    renamed = {"pollIntervalMs": raw.get("pollInterval"), "ttlMs": raw.get("ttl")}
    state = {key: value for key, value in raw.items() if key not in ("result", "error")}
    return TaskState.read({**state, **renamed, "inputRequests": None}, task_id)


def call_as_older_task(params: Json, limits: Limits, *, detach: bool) -> Flow[FinishedCall]:
    """Call a tool as a task and follow the task to its end. With `detach`, return the task
    immediately. See `follow_older` for the errors raised."""
    created: Json = yield Send("tools/call", {**params, "task": {}}, False)
    task = read_older_task(member(created, "task", dict, "a task that was created"))
    outcome = {} if detach else (yield from follow_older(task.task_id, limits, task))
    return FinishedCall(outcome, 1, task)


def follow_older(task_id: str, limits: Limits, known: TaskState | None = None) -> Flow[Json]:
    """Poll a task until it ends or asks a question, and return the result of its call.

    Raises:
        TaskEnded: the task failed or was cancelled.
        BadAnswer: the server violated the protocol.
    """
    params = {"taskId": task_id}
    task = known or read_older_task((yield Send("tasks/get", params, True)), task_id)
    while True:
        yield Show(task)
        if task.status == "cancelled":
            raise _cancelled(task)
        # The server asks on the stream of `tasks/result`, so request the result now.
        if task.is_over or task.status == "input_required":
            break
        yield Pause(poll_ms(task, limits))
        task = read_older_task((yield Send("tasks/get", params, True)), task_id)
    try:
        result: Json = yield Send("tasks/result", params, True)
    except errors.RpcError as error:
        if task.status != "failed":
            raise
        raise errors.TaskEnded("failed", f"The task failed: {error}", error) from None
    return result


# -- the revision ----------------------------------------------------------------------------------

_UNSUPPORTED: Final = -32022
_MODERN_ERRORS: Final = frozenset({-32020, -32021, _UNSUPPORTED})
_MAX_PROBES: Final = 3


def negotiate(
    info: Json,
    capabilities: Json,
    versions: Sequence[str] = VERSIONS,
    *,
    silent_is_older: bool = False,
) -> Flow[ServerInfo]:
    """Negotiate the revision by `server/discover`, then by `initialize` (basic/versioning); return
    the server's description. Raise `NoCommonVersion` if the server speaks none of `versions`.

    `silent_is_older` continues with `initialize` if `server/discover` is not answered in time, as
    the stdio transport specifies ("Backward Compatibility").
    """
    modern = [version for version in versions if is_modern(version)]
    legacy = [version for version in versions if not is_modern(version)]
    supported: Sequence[str] = ()
    for probe in range(1, _MAX_PROBES + 1 if modern else 1):
        version = next((known for known in modern if known in supported), modern[0])
        try:
            result: Json = yield Send("server/discover", {}, True, version)
        except errors.RpcError as error:
            if error.code == _UNSUPPORTED:
                supported = _versions(error.details, "supported")
                if any(known in supported for known in modern) and probe < _MAX_PROBES:
                    continue
            elif error.code in _MODERN_ERRORS:
                raise
        except errors.HttpRefused as error:
            if not _is_of_older_servers(error.status):
                raise
        except errors.BadAnswer:
            pass  # not a message of this revision; the older handshake reports a better error
        except errors.TimedOut as error:  # an older server may not answer an unknown request
            if not error.was_sent:
                raise
            if not silent_is_older:
                raise errors.TimedOut(str(error), errors.Remedy.REVISION) from None
        else:
            if offered := _versions(result, "supportedVersions"):
                if (
                    chosen := next((known for known in modern if known in offered), None)
                ) is not None:
                    return ServerInfo.read(result, chosen, offered)
                supported = offered
        break
    if not legacy or (supported and not any(version in supported for version in legacy)):
        raise _no_common(versions, supported)
    return (yield from _initialize(info, capabilities, legacy, supported))


def _is_of_older_servers(status: int) -> bool:
    """Return whether an HTTP status may come from an older server that does not know the
    request."""
    return status == 501 or (400 <= status < 500 and status not in (401, 403, 407, 408, 429))


def _initialize(
    info: Json, capabilities: Json, legacy: Sequence[str], supported: Sequence[str]
) -> Flow[ServerInfo]:
    version = next((known for known in legacy if known in supported), legacy[0])
    params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
    try:
        result: Json = yield Send("initialize", params, True, version)
    except errors.RpcError as error:
        raise errors.NoCommonVersion(
            f"The server speaks neither revision {LATEST} nor an older one: its answer to initialize "
            f"was {error}",
            _versions(error.details, "supported"),
        ) from None
    chosen = result.get("protocolVersion")
    if not isinstance(chosen, str) or chosen not in legacy:
        raise _no_common(legacy, [] if chosen is None else [str(chosen)])
    yield Tell("notifications/initialized", chosen)
    return ServerInfo.read(result, chosen, [chosen])


def _versions(holder: Any, name: str) -> list[str]:
    versions = holder.get(name) if isinstance(holder, dict) else None
    first = versions[:50] if isinstance(versions, list) else []
    return [version for version in first if isinstance(version, str)]


def _no_common(ours: Sequence[str], theirs: Sequence[str]) -> errors.NoCommonVersion:
    theirs = [version[:40] for version in theirs]
    listed = ", ".join(theirs) or "none that it names"
    return errors.NoCommonVersion(
        f"No common revision: this client speaks {', '.join(ours)}, the server {listed}", theirs
    )


# -- lists -----------------------------------------------------------------------------------------

_LONGEST_CURSOR: Final = 64 * 1024


class WholeList(Struct, frozen=True):
    """A whole list, and the caching hints of its pages."""

    items: list[Json]
    ttl_ms: int | None
    """The shortest time in milliseconds for which a page is fresh; `None` if the server states
    none."""
    is_private: bool = False
    """Whether a page is for the authorization of this client alone (`cacheScope: private`)."""
    error: errors.ClientError | None = None
    """The reason why the pages after `items` could not be read."""


def whole_list(method: str, name: str, limits: Limits) -> Flow[WholeList]:
    """Return all pages of a list (server/utilities/pagination). If a page after the first cannot be
    read, return the pages before it with the error. An entry that is not an object counts as one
    without members. Raise `BadAnswer` if the first page is malformed."""
    items: list[Json] = []
    ttls: list[int] = []
    is_private = False
    cursors: set[str] = set()
    params: Json = {}
    error: errors.ClientError | None = None
    size = 0
    while True:
        try:
            result: Json = yield Send(method, params, True)
            page, cursor = _page(result, method, name, cursors)
            size += len(encode(page)) if cursors or cursor else 0  # one message is bounded itself
            _check_size(name, limits, len(items) + len(page), size)
        except (errors.BadAnswer, errors.HttpRefused, errors.RpcError) as failure:
            if not cursors:
                raise
            error = failure
            break
        items += page
        if (ttl_ms := bounded_integer(result.get("ttlMs"))) is not None:
            ttls.append(ttl_ms)
        is_private = is_private or result.get("cacheScope") == "private"
        if not cursor:
            break
        cursors.add(cursor)
        if len(cursors) == limits.max_pages:
            error = errors.BadAnswer(
                f"The server's {method} has more than {limits.max_pages} pages (limit max_pages)"
            )
            break
        params = {"cursor": cursor}
    return WholeList(items, min(ttls, default=None), is_private, error)


def _page(result: Json, method: str, name: str, cursors: set[str]) -> tuple[list[Json], str | None]:
    """Return the entries of a page, and the cursor of the next page. An empty cursor ends the list,
    as it does for clients that use the official SDKs."""
    page = result.get(name)
    if not isinstance(page, list):
        raise errors.BadAnswer(f"The server answered {method} without a list of {name}")
    cursor = result.get("nextCursor")
    if not isinstance(cursor, str | None) or len(cursor or "") > _LONGEST_CURSOR:
        raise errors.BadAnswer(f"The server answered {method} with an invalid cursor")
    if cursor in cursors:
        raise errors.BadAnswer(f"The server answered {method} with a cursor that it sent before")
    return [item if isinstance(item, dict) else {} for item in page], cursor


def _check_size(name: str, limits: Limits, items: int, size: int) -> None:
    if items > limits.max_items:
        raise errors.BadAnswer(
            f"The server lists more than {limits.max_items} {name} (limit max_items)"
        )
    if size > limits.max_message:
        raise errors.BadAnswer(
            f"The server's list of {name} has more than {limits.max_message} bytes (limit "
            "max_message)"
        )
