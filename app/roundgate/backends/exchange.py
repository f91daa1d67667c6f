"""Talking with what is behind a tool, whatever carries the words: it may ask back,
and it may only start a job.

    dialogue   exchange 1 ──▶ asks ──▶ the client answers ──▶ exchange 2 … ──▶ the last answer
    follow     start ──▶ values     poll … (no worker is held) … poll ──▶ over     fetch ──▶ the result
                                      └ the task ends early: cancel

Each exchange is a step, so none is repeated in a later round or by another worker; what asks back
has its own state travel in ours, sealed, and the client never sees it. An answer is kept as JSON,
in whatever form who carries it likes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from roundgate import json
from roundgate.backends.config import JobConfig
from roundgate.backends.input_requests import check_request
from roundgate.backends.json_pointer import point
from roundgate.errors import BackendError, CleanedUp, NotNow
from roundgate.replay import NAME, Cleanup, Context, Raw, run_of
from roundgate.values import dataclass

Kept: TypeAlias = Mapping[str, Any]
"""An answer, as JSON: what a step returns."""

_NOT_OVER: Final[Kept] = {"over": False}

log = logging.getLogger("roundgate.backends")


@dataclass(frozen=True, slots=True)
class Answering:
    """What the second exchange and later ones bring: answers of the client by key, and the state
    that came with the questions."""

    responses: Mapping[str, Any]
    state: Any


Exchange: TypeAlias = Callable[[int, Answering | None], Awaitable[Kept]]
"""The nth exchange, from 1: what `asked` returns if there are questions, else the last answer,
which has no member `inputRequests`. Raises BackendError."""


async def dialogue(exchange: Exchange, context: Context) -> Kept:
    """Exchange requests and answers until there are no more questions.

    Raises:
        BackendError: whatever the exchange raises.
    """
    answering: Answering | None = None
    for number in count(1):
        said: Kept = await context.step("exchange", _exchanging(exchange, number, answering))
        if "inputRequests" not in said:
            break
        answers = await context.ask(
            {key: Raw(request) for key, request in said["inputRequests"].items()}
        )
        answering = Answering({key: answer.value for key, answer in answers.items()}, said["state"])
    return said


def _exchanging(
    exchange: Exchange, number: int, answering: Answering | None
) -> Callable[[], Awaitable[Kept]]:
    """One exchange as a step without arguments: a credential or an endpoint may
    change between two rounds."""
    return lambda: exchange(number, answering)


def asked(envelope: Any) -> Kept:
    """The questions of an envelope (`roundgate docs rounds`): `{"inputRequests": {key:
    InputRequest}, "state": anything}`.

    Raises:
        BackendError: it is another, or asks for something that no client could show.
    """
    try:
        requests: Mapping[str, Any] = envelope["inputRequests"]
        for key, request in requests.items():
            if not NAME.fullmatch(key):
                raise ValueError(key)
            check_request(request)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackendError(
            "The service asked for input in a form that the gateway does not know"
        ) from None
    if not requests:
        raise BackendError("The service asked for input but had no question")
    return {"inputRequests": dict(requests), "state": envelope.get("state")}


class Job(Protocol):
    """A job of a service, as who carries the words knows it. Every method raises BackendError where
    there is no sense in going on."""

    @property
    def config(self) -> JobConfig:
        """What an answer means."""

    @property
    def has_result(self) -> bool:
        """Whether the result is to be fetched; else the last poll's answer is it."""

    async def start(self) -> Any:
        """What the service answers to the start, as JSON."""

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        """What it answers about the job with these values, as JSON, and the
        whole answer as it is kept.

        Raises:
            NotNow
        """

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        """The result.

        Raises:
            NotNow: what took hours is not given up for a gateway's 503.
        """

    @property
    def is_cancellable(self) -> bool:
        """Whether the service can be told that nobody wants the job any more."""

    @property
    def starts_once(self) -> bool:
        """Whether the service knows the start of this call again, so that to send
        it twice starts one job."""

    async def cancel(self, values: Mapping[str, str]) -> None:
        """Tell it so. It may have been told before, and the job may be over: that is as good.

        Raises:
            NotNow, BackendError: it was not taken.
        """


async def follow(job: Job, context: Context) -> Kept:
    """The answer that has the job's result. As a task this survives any process; as an ordinary
    call it lasts as long as a call may, and sheds.

    Raises:
        BackendError: the job could not be started, or failed.
        CleanedUp, NotNow: the call is there to cancel the job.
    """
    if (cleanup := run_of(context).call.cleanup) is not None:
        await _cancel(job, context, cleanup)
    values = await context.step("start", lambda: _start(job))
    # steps without arguments: a credential or an endpoint may change while the job runs
    over: Kept = await context.poll("poll", lambda: _poll(job, values), every_s=job.config.every_s)
    if not job.has_result:
        return over
    result: Kept = await context.poll(
        "fetch", lambda: _fetch(job, values), every_s=job.config.every_s
    )
    return result


async def _cancel(job: Job, context: Context, cleanup: Cleanup) -> NoReturn:
    """Cancel the job, if there is one. The steps are those of `follow`: what they
    had come to is known again.

    Raises:
        CleanedUp: it is cancelled, or there is none.
        BackendError, NotNow: it could not be cancelled.
    """
    values = await context.step("start", lambda: _start_again(job, cleanup))
    if values is None and cleanup is Cleanup.IN_DOUBT:
        raise CleanedUp("no job is known; one may have been started whose answer was lost")
    if values is None:
        raise CleanedUp("no job had been started")
    over: Kept = await context.poll("poll", lambda: _not_over(), every_s=job.config.every_s)
    if over != _NOT_OVER:
        raise CleanedUp("the job was over")
    if not job.is_cancellable:
        raise CleanedUp("the tool does not say any more how its jobs are cancelled")
    await job.cancel(values)
    raise CleanedUp("the job was cancelled")


async def _start_again(job: Job, cleanup: Cleanup) -> dict[str, str] | None:
    """What names the job whose start may have been sent and its answer lost; `None` where
    that cannot be found out."""
    may_ask = cleanup is Cleanup.IN_DOUBT and job.starts_once and job.is_cancellable
    return await _start(job) if may_ask else None


async def _not_over() -> Kept:
    """In the place of the polls that nobody makes any more."""
    return _NOT_OVER


async def _start(job: Job) -> dict[str, str]:
    """The values of the variables, from the answer of the start."""
    answer = await job.start()
    try:
        found = {name: point(answer, pointer) for name, pointer in job.config.variables.items()}
    except LookupError:
        raise BackendError("The service started a job but did not say where to follow it") from None
    return {name: _text(value) for name, value in found.items()}


async def _poll(job: Job, values: Mapping[str, str]) -> Kept | None:
    """The answer of a poll that found the job over and well; `None` while it
    runs, or cannot be asked."""
    try:
        told, kept = await job.poll(values)
    except NotNow as reason:
        _note(reason)
        return None
    return kept if _is_over(job.config, told) else None


def _is_over(config: JobConfig, told: Any) -> bool:
    """Whether the job has succeeded.

    Raises:
        BackendError: it has failed, or nobody can tell.
    """
    try:
        status = point(told, config.status)
    except LookupError:
        raise BackendError(
            f"The service's answer about the job has nothing at {config.status}"
        ) from None
    if _text(status) in config.failed:
        raise BackendError(f"The job ended as {_text(status)[:100]}{_reason(config, told)}")
    return _text(status) in config.succeeded


def _reason(config: JobConfig, told: Any) -> str:
    """Of a failure, if the service gives one."""
    try:
        reason = None if config.error is None else point(told, config.error)
    except LookupError:
        return ""
    return "" if reason is None else f": {_text(reason)[:500]}"


async def _fetch(job: Job, values: Mapping[str, str]) -> Kept | None:
    try:
        return await job.fetch(values)
    except NotNow as reason:
        _note(reason)
        return None


def _note(reason: NotNow) -> None:
    """A job goes on while its service cannot be asked."""
    log.warning(
        "a job could not be polled, trying again later", extra={"fields": {"error": str(reason)}}
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.encode(value).decode()
