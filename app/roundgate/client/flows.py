"""What a client does next, as generators without I/O: they yield what is wanted, and
are sent what came of it.

    Send      a JSON-RPC request         is sent its result; an error is thrown in
    Ask       questions                  is sent the responses by key
    Pause     milliseconds to wait       is sent `None`
    Show      what is known of a task    is sent `None`

Whoever drives one does all I/O: the session over HTTP, a test with a list of replies, a
cassette with what it recorded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from roundgate.client.limits import Limits
from roundgate.client.questions import Question
from roundgate.client.types import Json, ServerInfo, TaskState, is_modern
from roundgate.errors import (
    BadAnswer,
    HttpRefused,
    NoCommonVersion,
    Remedy,
    RpcError,
    TaskEnded,
    TimedOut,
    TooManyRounds,
)
from roundgate.json import encode

LATEST: Final = "2026-07-28"
LEGACY: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
VERSIONS: Final = (LATEST, *LEGACY)
"""The revisions that this client speaks, newest first."""


@dataclass(frozen=True, slots=True)
class Send:
    """A request. `may_repeat` says that sending it twice does no harm; `version` overrides
    the session's revision."""

    method: str
    params: Json
    may_repeat: bool
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """A notification; it has no result."""

    method: str
    version: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Questions to be answered; `request_state` is what continues the call once they are."""

    questions: Sequence[Question]
    request_state: str | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long."""

    ms: float


@dataclass(frozen=True, slots=True)
class Show:
    """The state of a task has been seen."""

    task: TaskState


Effect: TypeAlias = Send | Tell | Ask | Pause | Show
T = TypeVar("T")
Flow: TypeAlias = Generator[Effect, Any, T]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a call ended: its result, the requests it took, and the task it became, if it did."""

    result: Json
    rounds: int
    task: TaskState | None = None


@dataclass(frozen=True, slots=True)
class InputRequired:
    """A result that asks for more."""

    requests: Mapping[str, Any]
    request_state: str | None


def read_input_required(result: Json, limits: Limits) -> InputRequired | None:
    """The questions in a result, `None` if it is another result.

    Raises:
        BadAnswer: it says that it asks, and asks nothing, or too much.
    """
    if result.get("resultType", "complete") != "input_required":
        return None
    requests, state = result.get("inputRequests"), result.get("requestState")
    if not isinstance(requests, dict | None) or not isinstance(state, str | None):
        raise BadAnswer(
            "The server asks for input with inputRequests that is no object, or a requestState "
            "that is no text"
        )
    if not requests and state is None:
        raise BadAnswer(
            "The server asks for input and says neither which (inputRequests) nor how to go on "
            "(requestState)"
        )
    if len(requests or ()) > limits.max_questions:
        raise BadAnswer(
            f"The server asks more than {limits.max_questions} questions at once (limit "
            "max_questions)"
        )
    if state is not None and len(state) > limits.max_state:
        raise BadAnswer(
            f"The server sent a requestState of more than {limits.max_state} characters (limit "
            "max_state)"
        )
    return InputRequired(requests or {}, state)


def call(
    method: str,
    params: Json,
    target: str,
    limits: Limits,
    *,
    may_repeat: bool,
    max_rounds: int | None = None,
    detach: bool = False,
) -> Flow[Finished]:
    """A request through all its rounds (basic/patterns/mrtr), and through
    its task if it becomes one.

    Each round sends the original params with the answers and the state of the last one,
    and nothing of earlier rounds. With `detach` a task is handed over as it was
    created, and the result is empty.

    Raises:
        TooManyRounds, BadAnswer, and what is thrown in.
    """
    rounds = max_rounds or limits.max_rounds
    asked: Json = params
    for number in range(1, rounds + 1):
        # The response of a round that carries a state may be lost: the same state and answers are
        # the same round.
        result: Json = yield Send(method, asked, may_repeat or "requestState" in asked)
        kind = result.get("resultType", "complete")
        if kind == "task":
            task = TaskState.read(result)
            if detach:
                return Finished({}, number, task)
            done = yield from follow(task.task_id, limits, task, target)
            return Finished(done, number, task)
        if (required := read_input_required(result, limits)) is None:
            if kind != "complete":
                raise BadAnswer(f"The server sent a result of the unknown type {str(kind)[:40]!r}")
            return Finished(result, number)
        asked = dict(params)
        if required.requests:
            questions = [
                Question.read(key, one, target, number) for key, one in required.requests.items()
            ]
            asked["inputResponses"] = yield Ask(questions, required.request_state)
        if required.request_state is not None:
            asked["requestState"] = required.request_state
    raise TooManyRounds(rounds)


_SHORTEST_POLL_MS: Final = 20
_USUAL_POLL_MS: Final = 1_000
_PATIENCE_MS: Final = 120_000
"""How long a task may go on to ask what it has been answered: a server may act on answers
after it has taken them."""
_LONGEST_CURSOR: Final = 64 * 1024


def poll_ms(task: TaskState, limits: Limits) -> float:
    """How long to wait before a task is looked at again: what the server
    asks for, within bounds."""
    asked = _USUAL_POLL_MS if task.poll_interval_ms is None else task.poll_interval_ms
    return min(max(asked, _SHORTEST_POLL_MS), limits.max_poll_s * 1_000)


def follow(
    task_id: str, limits: Limits, known: TaskState | None = None, target: str = ""
) -> Flow[Json]:
    """A task to its end, its questions answered on the way. Returns the result of
    the call that it came from.

    Raises:
        TaskEnded: it failed or was cancelled.
        BadAnswer, and what is thrown in.
    """
    answered: set[str] = set()
    deaf_ms = 0.0
    task = known
    if task is None or task.lacks_its_end:
        task = TaskState.read((yield Send("tasks/get", {"taskId": task_id}, True)), task_id)
    while True:
        yield Show(task)
        if task.is_over:
            return outcome(task)
        asked = {key: one for key, one in task.requests.items() if key not in answered}
        if task.status == "input_required" and asked:
            if (
                len(asked) > limits.max_questions
                or len(answered) > limits.max_questions * limits.max_rounds
            ):
                raise BadAnswer(
                    f"The task asks more than {limits.max_questions} questions at once (limit "
                    "max_questions)"
                )
            questions = [Question.read(key, one, target) for key, one in asked.items()]
            responses = yield Ask(questions, None)
            # Sent again after a lost acknowledgement it does no harm: answered keys are ignored.
            yield Send("tasks/update", {"taskId": task_id, "inputResponses": responses}, True)
            answered |= asked.keys()
            deaf_ms = 0.0
        elif task.status == "input_required":
            deaf_ms += poll_ms(task, limits)
            if deaf_ms > _PATIENCE_MS:
                raise BadAnswer(_deaf(task))
        else:
            deaf_ms = 0.0
        yield Pause(poll_ms(task, limits))
        task = TaskState.read((yield Send("tasks/get", {"taskId": task_id}, True)), task_id)


def _deaf(task: TaskState) -> str:
    if not task.requests:
        return "The task waits for input (input_required), and the server does not say which"
    keys = ", ".join(key[:80] for key in list(task.requests)[:5])
    return f"The task goes on to ask what it has been answered ({keys})"


def outcome(task: TaskState) -> Json:
    """The result of a task that is over.

    Raises:
        TaskEnded: it has none.
        BadAnswer: it says that it completed, and has none either.
    """
    if task.status == "completed":
        if task.result is None:
            raise BadAnswer("The server says that the task completed, and sends no result")
        return task.result
    said = f": {task.message}" if task.message else ""
    if task.status == "cancelled":
        raise TaskEnded("cancelled", f"The task was cancelled{said}")
    error = None if task.error is None else rpc_error(task.error)
    raise TaskEnded(
        "failed", f"The task failed: {error}" if error else f"The task failed{said}", error
    )


def rpc_error(error: Any) -> RpcError:
    """A JSON-RPC error object as an exception.

    Raises:
        BadAnswer: it is none.
    """
    if is_error(error):
        return RpcError(error["code"], error["message"][:2_000], error.get("data"))
    raise BadAnswer("The server sent an error without a code and a message")


def is_error(error: Any) -> bool:
    """Return whether this is the `error` of a JSON-RPC response."""
    return (
        isinstance(error, dict)
        and isinstance(error.get("code"), int)
        and isinstance(error.get("message"), str)
    )


_UNSUPPORTED: Final = -32022
_MODERN_ERRORS: Final = frozenset({-32020, -32021, _UNSUPPORTED})


def negotiate(
    info: Json, capabilities: Json, versions: Sequence[str] = VERSIONS
) -> Flow[ServerInfo]:
    """Which revision to speak (basic/versioning): `server/discover` first,
    `initialize` where that is not known.

    Raises:
        NoCommonVersion: there is none in `versions` that the server speaks, too.
    """
    modern = [version for version in versions if is_modern(version)]
    legacy = [version for version in versions if not is_modern(version)]
    supported: Sequence[str] = ()
    tried: list[str] = []
    while modern and len(tried) < 3:
        version = next((one for one in modern if one in supported), modern[0])
        tried.append(version)
        try:
            result: Json = yield Send("server/discover", {}, True, version)
        except RpcError as error:
            if error.code == _UNSUPPORTED:
                supported = _versions(error.details, "supported")
                if any(one in supported for one in modern) and len(tried) < 3:
                    continue
            elif error.code in _MODERN_ERRORS:
                raise
        except HttpRefused as error:
            if not _is_of_older_servers(error.status):
                raise
        except BadAnswer:
            pass  # not a message of this revision; the handshake's error is more helpful
        except TimedOut as error:
            if not error.was_sent:
                raise
            raise TimedOut(str(error), Remedy.REVISION) from None
        else:
            if offered := _versions(result, "supportedVersions"):
                if (chosen := next((one for one in modern if one in offered), None)) is not None:
                    return ServerInfo.read(result, chosen, offered)
                supported = offered
        break
    if not legacy or (supported and not any(one in supported for one in legacy)):
        raise _no_common(versions, supported)
    return (yield from _initialize(info, capabilities, legacy, supported))


def _is_of_older_servers(status: int) -> bool:
    """Return whether an older server answers unknown requests with this status, rather than because
    of the caller or its own health."""
    return status == 501 or (400 <= status < 500 and status not in (401, 403, 407, 408, 429))


def _initialize(
    info: Json, capabilities: Json, legacy: Sequence[str], supported: Sequence[str]
) -> Flow[ServerInfo]:
    version = next((one for one in legacy if one in supported), legacy[0])
    params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
    try:
        result: Json = yield Send("initialize", params, True, version)
    except RpcError as error:
        raise NoCommonVersion(
            f"The server speaks neither revision {LATEST} nor takes part in an older handshake: it "
            f"answered {error}",
            _versions(error.details, "supported"),
        ) from None
    chosen = result.get("protocolVersion")
    if not isinstance(chosen, str) or chosen not in legacy:
        offered = [str(chosen)[:40]] if chosen is not None else []
        raise _no_common(legacy, offered)
    yield Tell("notifications/initialized", chosen)
    return ServerInfo.read(result, chosen, [chosen])


def _versions(holder: Any, name: str) -> list[str]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return [one for one in found[:50] if isinstance(one, str)] if isinstance(found, list) else []


def _no_common(ours: Sequence[str], theirs: Sequence[str]) -> NoCommonVersion:
    said = ", ".join(one[:40] for one in theirs) or "none that it names"
    return NoCommonVersion(
        f"No common revision: this client speaks {', '.join(ours)}, the server {said}", theirs
    )


def every_page(method: str, name: str, limits: Limits) -> Flow[list[Json]]:
    """All items of a list, page after page (server/utilities/pagination).

    Raises:
        BadAnswer: a page is malformed, a cursor repeats, or there is no end.
    """
    items: list[Json] = []
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    for _ in range(limits.max_pages):
        result: Json = yield Send(method, {} if cursor is None else {"cursor": cursor}, True)
        page = result.get(name)
        if not isinstance(page, list) or not all(isinstance(one, dict) for one in page):
            raise BadAnswer(f"The server answered {method} without a list of {name}")
        items += page
        if len(items) > limits.max_items:
            raise BadAnswer(
                f"The server lists more than {limits.max_items} {name} (limit max_items)"
            )
        cursor = result.get("nextCursor")
        if cursor is None and not seen:
            return items  # as most lists are: one page, which is one message
        size += len(encode(page))
        if size > limits.max_message:
            raise BadAnswer(
                f"The server's list of {name} has more than {limits.max_message} bytes (limit "
                "max_message)"
            )
        if cursor is None:
            return items
        if not isinstance(cursor, str) or len(cursor) > _LONGEST_CURSOR:
            raise BadAnswer(f"The server answered {method} with a cursor that cannot be one")
        if cursor in seen:
            raise BadAnswer(f"The server answered {method} with a cursor that leads in a circle")
        seen.add(cursor)
    raise BadAnswer(
        f"The server's {method} has more than {limits.max_pages} pages (limit max_pages)"
    )
