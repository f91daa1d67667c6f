"""The port of tasks that are somebody else's: a service behind a back end runs them, we
pass on what is said of them.

A tool whose service made a task of a call returns a view of that task in place of a result.
From then on the client asks us, under an id of ours, and we ask the source that its back end
has put into its offering:

    tools/call ──▶ tool ──▶ service: "task 17"     the client is told of a task, by an id that is 17, sealed
    tasks/get {our id} ──▶ source.get("17")        … on any replica: nothing of it is kept here

Unlike a task of ours it has no row, no worker and no journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from roundgate.auth import Principal
from roundgate.errors import BackendError
from roundgate.json import encode
from roundgate.protocol import NEWEST, REQUIRED, Status, TaskView, without_none
from roundgate.replay import MAX_STATUS_CHARS, Context, Url, form_schema

MAX_ID_CHARS: Final = 512
"""Of the id of a task, as its service has it."""
MAX_REQUESTS: Final = 100
"""Questions of one task that wait at once."""
_MAX_KEY_CHARS: Final = 256
_ERROR_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})
"""Those that the protocol has; a service may use others, and what we pass on does not."""
_INTERNAL_ERROR: Final = -32603


class TaskSource(Protocol):
    """The tasks of one service. Ids are those of the service; `principal` is whose task it is.

    Each method may raise `TaskNotFound` (the service has no such task, or no more), `Unavailable`
    (it cannot be asked just now) and `BackendError` (what it says makes no sense). It is given some
    seconds; then it is cancelled.
    """

    async def get(self, task_id: str, principal: Principal) -> TaskView:
        """The task as it is now. `read` makes a view of what the protocol
        calls a `DetailedTask`."""

    async def update(
        self, task_id: str, responses: Mapping[str, Any], principal: Principal
    ) -> None:
        """Answer questions of a task, by the keys under which it asked them; others are ignored."""

    async def cancel(self, task_id: str, principal: Principal) -> None:
        """Have it end, if it has not ended."""

    def watch(
        self, task_id: str, principal: Principal, changed: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Call `changed` whenever the task may have changed, until the function
        that is returned is called.

        `None` if the service tells nobody of changes. Either way the task is looked at from time to
        time: what is lost here comes later.

        Args:
            task_id: as the service has it.
            principal: whose task it is.
            changed: called in this event loop; more often than needed does no harm.
        """


def may_hand_over(context: Context) -> bool:
    """Whether a tool may return a task of its service: to a client that knows tasks, from a
    call that is none yet."""
    return context.task_id is None and context.supports(REQUIRED)


def read(task: Any) -> TaskView:
    """A view of what a service says of a task, in the words of the protocol: a `Task` or
    a `DetailedTask`, as JSON.

    Raises:
        BackendError: it is neither.
    """
    try:
        return _read(task)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        raise BackendError(
            "The service described its task in a form that the gateway does not know"
        ) from None


def _read(task: Any) -> TaskView:
    status, message = Status(task["status"]), task.get("statusMessage")
    created_ms, ttl_ms, interval_ms = (
        _ms(task["createdAt"]),
        task["ttlMs"],
        task.get("pollIntervalMs"),
    )
    return TaskView(
        task_id=_text(task["taskId"], MAX_ID_CHARS),
        status=status,
        status_message=None if message is None else str(message)[:MAX_STATUS_CHARS],
        created_ms=created_ms,
        updated_ms=_ms(task["lastUpdatedAt"]),
        expires_ms=None if ttl_ms is None else created_ms + int(ttl_ms),
        requests=_requests(task["inputRequests"]) if "inputRequests" in task else {},
        outcome=_outcome(status, task),
        poll_interval_ms=None if interval_ms is None else max(0, int(interval_ms)),
    )


def _ms(moment: str) -> int:
    parsed = datetime.fromisoformat(moment)
    if parsed.tzinfo is None:
        raise ValueError("a time without a zone")
    return int(parsed.timestamp() * 1000)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise ValueError("not a text of a usable length")
    return value


def _requests(requests: Mapping[str, Any]) -> Mapping[str, bytes]:
    if len(requests) > MAX_REQUESTS:
        raise ValueError("too many questions")
    for request in requests.values():
        check_request(request)
    return {_text(key, _MAX_KEY_CHARS): encode(request) for key, request in requests.items()}


def _outcome(status: Status, task: Mapping[str, Any]) -> bytes | None:
    """What the view of a terminal task keeps: absent from what creation
    answers, which is a `Task`."""
    if status is Status.COMPLETED and "result" in task:
        result = task["result"]
        if not isinstance(result["content"], list):
            raise ValueError("a result of a tool has content")
        return NEWEST.kept_result(result)
    if status is Status.FAILED and "error" in task:
        error = task["error"]
        code = error["code"] if error["code"] in _ERROR_CODES else _INTERNAL_ERROR
        return encode(
            {"code": code, "message": str(error["message"]), **without_none(data=error.get("data"))}
        )
    return None


MAX_URL: Final = 2_048
"""Characters of the address of a page that a service sends a user to."""


def check_request(request: Any) -> None:
    """Find a question that no client could show, before it is passed on to one.

    Raises:
        ValueError: it is not an `InputRequest` of the schema, or its form is none.
    """
    match request:
        case {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": str(message), "url": str(url)},
        }:
            Url(message, url)
            if len(url) > MAX_URL:
                raise ValueError("too long to be shown")
        case {
            "method": "elicitation/create",
            "params": {"message": str(), "requestedSchema": dict(fields), **others},
        }:
            if others.get("mode", "form") != "form":
                raise ValueError("elicitation has the modes form and url")
            form_schema(fields)
        case {
            "method": "sampling/createMessage",
            "params": {"messages": list(), "maxTokens": int()},
        }:
            pass
        case {"method": "roots/list"} if isinstance(request.get("params", {}), dict):
            pass
        case _:
            raise ValueError("not an input request")
