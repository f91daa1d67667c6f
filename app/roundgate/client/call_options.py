"""What one call wants to hear: its progress, its logs, and the questions of an older server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate.client.answers import AnswersLike
from roundgate.client.connection import Connection
from roundgate.client.link import Listener
from roundgate.client.questions import Kind, Question
from roundgate.client.types import Json, Log, Progress, TaskState
from roundgate.clock import Clock
from roundgate.errors import BadAnswer, Unanswered

_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a caller wants of one call."""

    answers: AnswersLike = None
    max_rounds: int | None = None
    timeout_s: float | None = None
    on_progress: Callable[[Progress], Any] | None = None
    on_log: Callable[[Log], Any] | None = None
    log_level: str = "info"
    on_task: Callable[[TaskState], Any] | None = None


def listener_of(
    connection: Connection,
    options: CallOptions,
    target: str,
    *,
    clock: Clock,
    headers: Sequence[tuple[str, str]] = (),
) -> Listener:
    """What the requests of a call listen to.

    Args:
        connection: whose answers and cache are used.
        options: what the caller wants.
        target: what is called, for the questions about it.
        clock: makes the token that progress of this call is told under.
        headers: that mirror its arguments.
    """
    on_progress, on_log = options.on_progress, options.on_log
    meta: Json = {}
    token = clock.new_id() if on_progress is not None else None
    if token is not None:
        meta["progressToken"] = token
    if on_log is not None:
        meta[_LOG_LEVEL] = options.log_level

    def heard(method: str, params: Json) -> Any:
        if (
            method == "notifications/progress"
            and on_progress is not None
            and params.get("progressToken") == token
        ):
            return on_progress(_progress(params))
        if method == "notifications/message" and on_log is not None:
            return on_log(Log(str(params.get("level")), params.get("logger"), params.get("data")))
        connection.cache.heard(method, params)
        return None

    async def asked(request_id: Any, method: str, params: Json) -> Json:
        if method == "ping":
            return {"result": {}}
        try:
            question = Question.read(str(request_id), {"method": method, "params": params}, target)
            connection.refuse_undeclared(question)
        except BadAnswer as error:
            return {"error": {"code": -32601, "message": str(error)}}
        try:
            responses = await connection.answer([question], options.answers)
        except Unanswered:
            if question.kind is not Kind.ROOTS:
                raise
            # Some servers ask everybody, whatever is called: a client that was given none has none.
            return {"result": {"roots": []}}
        return {"result": responses[question.key]}

    return Listener(heard, asked, meta or None, headers)


def _progress(params: Json) -> Progress:
    numbers = [params.get(name) for name in ("progress", "total")]
    done, total = [
        one if isinstance(one, (int, float)) and not isinstance(one, bool) else None
        for one in numbers
    ]
    message = params.get("message")
    return Progress(done or 0, total, message if isinstance(message, str) else None)
