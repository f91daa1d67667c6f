"""Tasks that a back end's service keeps, which the gateway names and reads but does not store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from roundgate.auth import Principal
from roundgate.errors import BackendError
from roundgate.json import bounded_integer, encode
from roundgate.protocol import NEWEST, REQUIRED, Status, TaskView, without_none
from roundgate.replay import MAX_STATUS_CHARS, AnyContext, Url, call_of, form_schema

MAX_ID_CHARS: Final = 512
"""The maximum length of a service's task id, in characters."""
MAX_REQUESTS: Final = 100
"""The maximum number of open questions of one task."""
_MAX_KEY_CHARS: Final = 256
_MAX_TTL_MS: Final = 2**53
"""The largest number up to which every reader of JSON is exact."""
_MAX_POLL_MS: Final = 3_600_000
"""An hour. The gateway polls at this interval, too, for streams that follow the task."""
_ERROR_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})
"""The protocol's codes; a service's other codes are replaced."""
_INTERNAL_ERROR: Final = -32603


class TaskSource(Protocol):
    """The tasks of one service, by the service's ids.

    A tool whose service makes a task of a call returns a view of that task in place of a result.
    The client then asks the gateway, under an id that seals the service's id, and the gateway asks
    the source in the back end's offering. The gateway keeps neither row nor journal:

        tools/call ──▶ tool ──▶ service: "task 17"     the client gets an id that is 17, sealed
        tasks/get {our id} ──▶ source.get("17")        on any replica

    Each method may raise `TaskNotFound`, `Unavailable` (the service does not answer) and
    `BackendError` (the service's answer is invalid). The gateway cancels a method after
    `tasks.service.SOURCE_S` seconds.
    """

    async def get(self, task_id: str, principal: Principal) -> TaskView:
        """Return the current state of the task (`task_view`)."""

    async def update(
        self, task_id: str, responses: Mapping[str, Any], principal: Principal
    ) -> None:
        """Answer questions of a task by their keys; ignore other keys."""

    async def cancel(self, task_id: str, principal: Principal) -> None:
        """Cancel the task, unless it has ended."""

    def watch(
        self, task_id: str, principal: Principal, changed: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Call `changed` in this event loop whenever the task may have changed, until the returned
        function is called. Additional calls do no harm.

        Return `None` if the service reports no changes. The task is also polled, so a lost change
        is only late.
        """


def may_hand_over(context: AnyContext) -> bool:
    """Return whether the tool may return a task of its service. True if the call is not itself a
    task, the client supports tasks, and no setting changes the result."""
    call = call_of(context)
    return call.task_id is None and not call.shapes_result and call.capabilities.has(REQUIRED)


def task_view(task: Any) -> TaskView:
    """Return the view of a `Task` or `DetailedTask` in JSON; raise BackendError if `task` is
    neither."""
    try:
        return _task_view(task)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        raise BackendError(
            "The service described its task in a form that the gateway does not know"
        ) from None


def _task_view(task: Any) -> TaskView:
    status, message = Status(task["status"]), task.get("statusMessage")
    created_ms, ttl_ms = _ms(task["createdAt"]), _duration_ms(task["ttlMs"], _MAX_TTL_MS)
    return TaskView(
        task_id=_text(task["taskId"], MAX_ID_CHARS),
        status=status,
        status_message=None if message is None else str(message)[:MAX_STATUS_CHARS],
        created_ms=created_ms,
        updated_ms=_ms(task["lastUpdatedAt"]),
        expires_ms=None if ttl_ms is None else created_ms + ttl_ms,
        requests=_requests(task["inputRequests"]) if "inputRequests" in task else {},
        outcome=_outcome(status, task),
        poll_interval_ms=_duration_ms(task.get("pollIntervalMs"), _MAX_POLL_MS),
    )


def _ms(moment: str) -> int:
    parsed = datetime.fromisoformat(moment)
    if parsed.tzinfo is None:
        raise ValueError("a time has no time zone")
    return int(parsed.timestamp() * 1000)


def _duration_ms(value: Any, most: int) -> int | None:
    """Return a duration of at most `most` milliseconds; `None` for a missing value, and for one
    beyond 64 bits."""
    duration_ms = None if value is None else bounded_integer(int(value))
    return None if duration_ms is None else min(max(0, duration_ms), most)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise ValueError("a text is empty or too long")
    return value


def _requests(requests: Mapping[str, Any]) -> Mapping[str, bytes]:
    if len(requests) > MAX_REQUESTS:
        raise ValueError("too many questions")
    for request in requests.values():
        check_request(request)
    return {_text(key, _MAX_KEY_CHARS): encode(request) for key, request in requests.items()}


def _outcome(status: Status, task: Mapping[str, Any]) -> bytes | None:
    """Return the outcome of a completed or failed task, or `None`. Unknown error codes become
    internal errors. Raise ValueError if a result has no content."""
    if status is Status.COMPLETED and "result" in task:
        result = task["result"]
        if not isinstance(result["content"], list):
            raise ValueError("the result has no list `content`")
        return NEWEST.kept_result(result)
    if status is Status.FAILED and "error" in task:
        error = task["error"]
        code = error["code"] if error["code"] in _ERROR_CODES else _INTERNAL_ERROR
        return encode(
            {"code": code, "message": str(error["message"]), **without_none(data=error.get("data"))}
        )
    return None


MAX_URL: Final = 2_048
"""The maximum length of a URL in a service's question, in characters."""


def check_request(request: Any) -> None:
    """Raise ValueError unless a service's question is an `InputRequest` that a client can show."""
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
                raise ValueError("the mode of an elicitation is neither form nor url")
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
