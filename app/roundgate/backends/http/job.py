"""Jobs of HTTP services: a request starts one, polls follow it, and its result is fetched when it is over.

    step start ──▶ poll … (no worker is held) … poll ──succeeded──▶ step fetch ──▶ result
                                                  └────failed─────▶ tool error

As a task this survives any process; as an ordinary call it lasts as long as a call may, and sheds.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from roundgate.backends.http.config import HttpJobConfig
from roundgate.backends.http.dialogue import KEY, Answer, Outgoing, Send
from roundgate.backends.http.paths import path_text
from roundgate.backends.json_pointer import point
from roundgate.errors import BackendError, ParseError
from roundgate.protocol import jsonrpc
from roundgate.replay.context import Context

_NOT_NOW: Final = (429, 502, 503, 504)
_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")

log = logging.getLogger("roundgate.backends")


def check_job(job: HttpJobConfig) -> None:
    """Whether its paths can be made.

    Raises:
        ValueError: a path has a variable that nothing gives a value.
    """
    for path in filter(None, (job.poll, job.fetch)):
        if unknown := sorted(set(_VARIABLE.findall(path)) - job.variables.keys()):
            raise ValueError(f"job path {path!r} needs {', '.join(unknown)}, which job.variables does not have")


async def follow(job: HttpJobConfig, send: Send, outgoing: Outgoing, context: Context) -> Answer:
    """The answer that has the job's result.

    Raises:
        BackendError: the job could not be started, or failed.
    """
    values = await context.step("start", lambda: _start(job, send, outgoing))
    # steps without arguments: a credential or an endpoint may change while the job runs
    polled = _get(job.poll, values, outgoing)
    over = await context.poll("poll", lambda: _poll(job, send, polled), every_s=job.every_s)
    if job.fetch is None:
        return _revived(over)
    fetched = _get(job.fetch, values, outgoing)
    return _revived(await context.poll("fetch", lambda: _fetch(send, fetched), every_s=job.every_s))


async def _start(job: HttpJobConfig, send: Send, outgoing: Outgoing) -> dict[str, str]:
    """The values of the variables, from the answer of the start."""
    answer = _good(await send(outgoing), "starting the job")
    try:
        found = {name: point(jsonrpc.decode(answer.body), pointer) for name, pointer in job.variables.items()}
    except (ParseError, LookupError):
        raise BackendError("The service started a job but did not say where to follow it") from None
    return {name: value if isinstance(value, str) else jsonrpc.encode(value).decode() for name, value in found.items()}


async def _poll(job: HttpJobConfig, send: Send, outgoing: Outgoing) -> dict[str, Any] | None:
    """The answer of a poll that found the job over and well; `None` while it runs, or cannot be asked."""
    try:
        answer = await send(outgoing)
    except BackendError as error:
        _note(str(error))
        return None
    if answer.status >= 500 or answer.status == 429:
        _note(answer.status_line)
        return None
    try:
        told = jsonrpc.decode(_good(answer, "following the job").body)
        status = point(told, job.status)
        reason = None if job.error is None else point(told, job.error)
    except ParseError:
        raise BackendError("The service told of the job in something that is not JSON") from None
    except LookupError:
        status, reason = _status_alone(told, job), None
    text = status if isinstance(status, str) else jsonrpc.encode(status).decode()
    if text in job.failed:
        raise BackendError(f"The job ended as {text[:100]}" + ("" if reason is None else f": {_short(reason)}"))
    return _kept(answer) if text in job.succeeded else None


def _status_alone(told: Any, job: HttpJobConfig) -> Any:
    """The status where there is no reason beside it, which there only is of a failure."""
    try:
        return point(told, job.status)
    except LookupError:
        raise BackendError(f"The service's answer about the job has nothing at {job.status}") from None


async def _fetch(send: Send, outgoing: Outgoing) -> dict[str, Any] | None:
    """The result; `None` while it cannot be had, because what took hours is not given up for a gateway's 503."""
    try:
        answer = await send(outgoing)
    except BackendError as error:
        _note(str(error))
        return None
    if answer.status in _NOT_NOW:
        _note(answer.status_line)
        return None
    return _kept(answer)


def _note(reason: str) -> None:
    """A job goes on while its service cannot be asked."""
    log.warning("a job could not be polled, trying again later", extra={"fields": {"error": reason}})


def _good(answer: Answer, doing: str) -> Answer:
    if answer.status >= 300:
        raise BackendError(f"The service answered {answer.status_line} to {doing}")
    return answer


def _get(template: str, values: Mapping[str, str], started: Outgoing) -> Outgoing:
    path = template
    for name, value in values.items():
        try:
            path = path.replace(f"{{{name}}}", path_text(value))
        except ValueError:  # would be another endpoint
            shown = repr(value[:100])
            raise BackendError(
                f"The service started a job with {name} = {shown}, which cannot be part of a path"
            ) from None
    headers = {name: value for name, value in started.headers.items() if name.lower() not in ("content-type", KEY)}
    return Outgoing("GET", path, [], headers, None)


def _short(reason: Any) -> str:
    return (reason if isinstance(reason, str) else jsonrpc.encode(reason).decode())[:500]


def _kept(answer: Answer) -> dict[str, Any]:
    body = base64.b64encode(answer.body).decode()
    return {"status": answer.status, "reason": answer.reason, "content_type": answer.content_type, "body": body}


def _revived(kept: Mapping[str, Any]) -> Answer:
    return Answer(kept["status"], kept["reason"], kept["content_type"], base64.b64decode(kept["body"]))
