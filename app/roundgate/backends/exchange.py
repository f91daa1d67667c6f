"""Jobs of back ends, independent of the transport.

    start ──▶ values     poll … (no worker is held) … poll ──▶ ended     fetch ──▶ the result
      └ no answer          └ an unusable answer, or the task ends early: cancel

Each request is a step, so another worker does not repeat it. Answers are recorded as JSON in a form
that the transport chooses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from msgspec import Struct

from roundgate import json
from roundgate.backends.config import JobConfig
from roundgate.backends.dialogue import Kept
from roundgate.backends.http.messages import ServiceAnswer
from roundgate.background import detached
from roundgate.errors import (
    BackendBusy,
    BackendError,
    CleanedUp,
    FunctionAway,
    FunctionFailed,
    Inside,
    JobLeft,
    NoAnswer,
    NotCancelled,
    OutcomeUnknown,
    ParseError,
)
from roundgate.json import at_pointer
from roundgate.replay import Cleanup, Context, Run, run_of

LEFT_PAUSES_S: Final = (0, 1, 5, 30)
"""The pauses in seconds before the attempts to cancel a job whose call was cancelled."""

log = logging.getLogger("roundgate.backends")


class NotNow(Inside):
    """A request about a job failed for now; a later request may succeed. The text gives the
    reason."""


def is_passing(status: int) -> bool:
    """Return whether the status of a poll, fetch or cancel is temporary, so that a retry may
    succeed."""
    return status >= 500 or status in (408, 425, 429)


def is_in_doubt(status: int) -> bool:
    """Return whether the status of a start leaves open whether a job was started. A service, or a
    proxy in front, answers 408 to a slow request whether or not the work was done."""
    return status >= 500 or status == 408


def is_none_left(status: int) -> bool:
    """Return whether the status of a cancel means that there is nothing to cancel. Some services
    use the same status for "not now" or an unknown address, so the caller polls the job to
    check."""
    return status in (404, 409, 410)


class Job(Protocol):
    """A job of a service. Methods raise BackendError for errors that a retry cannot fix."""

    @property
    def config(self) -> JobConfig:
        """The rules for interpreting the service's answers."""

    @property
    def has_result(self) -> bool:
        """Return whether the result must be fetched; otherwise the last poll's answer holds it."""

    async def start(self) -> Any:
        """Start the job; return the service's answer as JSON.

        Raises:
            NotNow: it is unknown whether a job was started.
        """

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        """Return the service's answer about the job as JSON, and the recorded answer; raise NotNow
        if the job cannot be polled now."""

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        """Return the job's result; raise NotNow if a retry may succeed."""

    @property
    def is_cancellable(self) -> bool:
        """Return whether the service can cancel the job."""

    @property
    def starts_once(self) -> bool:
        """Return whether the service recognizes a repeated start, so that two starts make only one
        job."""

    async def cancel(self, values: Mapping[str, str]) -> bool:
        """Cancel the job; safe to repeat. Return `False` if there is nothing to cancel.

        Raises:
            NotNow, BackendError: the service did not accept the cancel.
        """


async def follow(job: Job, context: Context, *, at_most_once: bool = False) -> Kept:
    """Start the job, poll until it ends, and return the answer that holds its result.

    A task continues to follow the job after a restart of the process. An ordinary call ends with
    its timeout, and can be shed; if it is cancelled, because its client hung up or its time is over,
    the job is cancelled too. With `at_most_once`, a worker that dies while the job starts
    leaves an unknown outcome, and the job is not started again.

    Raises:
        OutcomeUnknown: an `at_most_once` start was begun by a worker that died.
        BackendError: the job could not be started, or failed.
        JobLeft: the job may still be running, but is no longer followed.
        CleanedUp, NotCancelled: this run was started to cancel the job.
    """
    run = run_of(context)
    if (cleanup := run.call.cleanup) is not None:
        await _cancel(job, context, cleanup)
    progress = _Progress()
    try:
        return await _followed(job, context, progress, at_most_once=at_most_once)
    except asyncio.CancelledError:
        is_left = run.call.task_id is None and run.stopped is None  # a task has a cleanup
        if is_left and progress.is_running and job.is_cancellable:
            cancelling = detached(asyncio.create_task, _cancel_left(job, progress.values))
            _cancelling.add(cancelling)
            cancelling.add_done_callback(_cancelling.discard)
        raise


class _Progress(Struct):
    """The progress of a job in this run."""

    is_running: bool = False
    values: dict[str, str] | None = None
    """The values of the job's variables; `None` until the service has sent them."""


_cancelling: Final[set[asyncio.Task[None]]] = set()
"""The cancels of jobs whose calls have ended."""


async def _followed(job: Job, context: Context, progress: _Progress, *, at_most_once: bool) -> Kept:
    run = run_of(context)
    started = await context.step(
        "start", lambda: _begin(run, job, progress), at_most_once=at_most_once
    )
    values = _good(started)["values"]
    progress.is_running, progress.values = True, values
    # steps without arguments: a credential or an endpoint may change while the job runs
    over = await context.poll("poll", lambda: _poll(job, values), every_s=job.config.every_s)
    progress.is_running = False
    answer: Kept = _good(over)["answer"]
    if not job.has_result:
        return answer
    result: Kept = await context.poll(
        "fetch", lambda: _fetch(job, values), every_s=job.config.every_s
    )
    return result


def _good(outcome: Kept) -> Kept:
    """Return the recorded result of a step of `follow`.

    Raises:
        BackendError: the job was not started, or failed.
        JobLeft: the job may still be running.
    """
    if "error" not in outcome:
        return outcome
    message: str = outcome["error"]
    raise JobLeft(message) if outcome["is_left"] else BackendError(message)


async def _cancel(job: Job, context: Context, cleanup: Cleanup) -> NoReturn:
    """Cancel the job, if there is one, in the steps of `follow`, so a replay restores their
    results.

    Raises:
        CleanedUp: the job is cancelled, has ended, was never started, or cannot be cancelled.
        NotCancelled: the cancel failed.
    """
    try:
        started = await context.step("start", lambda: _unknown_start(cleanup))
    except OutcomeUnknown:  # of an `at_most_once` start
        started = await _unknown_start(Cleanup.IN_DOUBT)
    over = await context.poll("poll", lambda: _not_over(), every_s=job.config.every_s)
    if not started.get("is_left", True):
        raise CleanedUp("no job had been started")
    if not over.get("is_left", False):
        raise CleanedUp("the job was over")
    if not job.is_cancellable:
        raise CleanedUp("the tool no longer declares how to cancel its jobs")
    values = started.get("values") or await _recover_values(job)
    named = _named(values)
    try:
        if not await job.cancel(values):
            await _check_ended(job, values)
            raise CleanedUp(f"the job was over ({named})")
    except (NotNow, BackendError) as error:
        raise NotCancelled(str(error), named) from error
    raise CleanedUp(f"the job was cancelled ({named})")


async def _cancel_left(job: Job, values: dict[str, str] | None) -> None:
    """Cancel the job of a call that was cancelled; `values` as in `_Progress`."""
    named, reason = _named(values or {}), ""
    for pause_s in LEFT_PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            values = values or await _recover_values(job)
            if not await job.cancel(values):
                await _check_ended(job, values)
            return
        except CleanedUp:  # no job is known
            return
        except (NotNow, BackendError, NotCancelled) as error:
            reason = str(error)[:500]
    log.error(
        "cannot cancel a job, which continues", extra={"fields": {"job": named, "reason": reason}}
    )


async def _recover_values(job: Job) -> dict[str, str]:
    """Return the values of a job whose answer to the start was lost, by starting it again.

    Raises:
        CleanedUp: the service does not recognize a repeated start.
        NotCancelled: the repeated start failed; the job may still be running.
    """
    if not job.starts_once:
        raise CleanedUp("no job is known; a job may have started, but its answer was lost")
    try:
        return await _started(job)
    except (NotNow, BackendError) as error:
        raise NotCancelled(str(error)) from error


async def _check_ended(job: Job, values: Mapping[str, str]) -> None:
    """Raise NotNow if the job still runs or cannot be polled; return if it has ended or is
    unknown."""
    try:
        state, _ = await job.poll(values)
        status = _text(at_pointer(state, job.config.status))
    except (BackendError, LookupError):
        return
    if status not in (*job.config.succeeded, *job.config.failed):
        raise NotNow(f"the service found nothing to cancel, but the job is {status[:100]}")


def _named(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())[:200]


async def _unknown_start(cleanup: Cleanup) -> Kept:
    return {"error": "", "is_left": cleanup is Cleanup.IN_DOUBT}


async def _not_over() -> Kept:
    return {"error": "", "is_left": True}


async def _begin(run: Run, job: Job, progress: _Progress) -> Kept:
    """Start the job. Defer cancellation until the answer arrives, because only the answer
    identifies the job."""
    progress.is_running = True
    with run.beginning():
        begun = await _start(job)
    progress.values = begun.get("values")
    return begun


async def _start(job: Job) -> Kept:
    try:
        return {"values": await _started(job)}
    except NotNow as error:
        return _failed(error, is_left=True)
    except BackendBusy:  # not recorded: the start was not sent
        raise
    except BackendError as error:
        return _failed(error)


async def _started(job: Job) -> dict[str, str]:
    """Start the job and return the values of its variables; raise the errors of `Job.start`, and
    BackendError if the answer lacks a variable."""
    answer, values = await job.start(), {}
    for name, pointer in job.config.variables.items():
        try:
            if (value := at_pointer(answer, pointer)) is None:
                raise LookupError
        except LookupError:
            raise BackendError(
                f"The service started a job, but its answer has nothing at {pointer},"
                f" the job's variable {name}"
            ) from None
        values[name] = _text(value)
    return values


async def _poll(job: Job, values: Mapping[str, str]) -> Kept | None:
    """Return the answer or the failure that ends the job; `None` while the job runs or cannot be
    polled."""
    try:
        state, outcome = await job.poll(values)
        status = _text(at_pointer(state, job.config.status))
    except NotNow as reason:
        _note(reason)
        return None
    except LookupError:
        where = job.config.status
        return _failed(
            BackendError(f"The service's answer about the job has nothing at {where}"), is_left=True
        )
    except BackendError as error:
        return _failed(error, is_left=True)
    if status in job.config.failed:
        return _failed(BackendError(f"The job ended as {status[:100]}{_reason(job.config, state)}"))
    return {"answer": outcome} if status in job.config.succeeded else None


def _failed(error: Exception, *, is_left: bool = False) -> Kept:
    """Return a failure as JSON; `is_left` says whether the job may still be running."""
    return {"error": str(error), "is_left": is_left}


def _reason(config: JobConfig, status: Any) -> str:
    try:
        reason = None if config.error is None else at_pointer(status, config.error)
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
    log.warning(
        "a job could not be polled, trying again later", extra={"fields": {"error": str(reason)}}
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.encode(value).decode()


Values: TypeAlias = Mapping[str, str]
Ask: TypeAlias = Callable[[Values], Awaitable[ServiceAnswer]]
"""A function that sends a request about the job with these values. It raises NotNow or
BackendError."""


class AnsweredJob(Struct, frozen=True):
    """A job whose service answers each request about it; shared by HTTP services and functions.

    A transport provides the functions that send the start, a poll, a fetch and a cancel.
    """

    config: JobConfig
    by: str
    """The word for the service in messages: "service" or "function"."""
    begin: Callable[[], Awaitable[ServiceAnswer]]
    look: Ask
    result: Ask | None
    """The function that fetches the result; `None` if the last poll's answer holds it."""
    end: Ask | None
    """The function that cancels the job; `None` if the service cannot cancel it."""
    starts_once: bool

    @property
    def has_result(self) -> bool:
        return self.result is not None

    @property
    def is_cancellable(self) -> bool:
        return self.end is not None

    async def start(self) -> Any:
        try:
            answer = await self.begin()
        except FunctionFailed as error:  # may have started a job
            raise NotNow(str(error)) from None
        except (NoAnswer, FunctionAway) as error:
            if error.reached:
                raise NotNow(str(error)) from None
            raise
        if is_in_doubt(answer.status):
            raise NotNow(f"The {self.by} answered {answer.status_line} to starting the job")
        try:
            return self._good(answer, "starting the job").value()
        except ParseError:
            raise BackendError(
                f"The {self.by} started a job, but its answer is not JSON,"
                " and the job's variables are members of it"
            ) from None

    async def poll(self, values: Values) -> tuple[Any, Kept]:
        answer = await self._ask(self.look, values)
        try:
            return self._good(answer, "following the job").value(), answer.kept()
        except ParseError:
            raise BackendError(f"The {self.by} sent a status of the job that is not JSON") from None

    async def fetch(self, values: Values) -> Kept:
        answer = await self._ask(self.result or self.look, values)
        return answer.kept()

    async def cancel(self, values: Values) -> bool:
        assert self.end is not None, "only cancellable jobs are cancelled"
        answer = await self.end(values)
        if is_none_left(answer.status):
            return False
        self._good(answer, "cancelling the job")
        return True

    async def _ask(self, ask: Ask, values: Values) -> ServiceAnswer:
        answer = await ask(values)
        if is_passing(answer.status):
            raise NotNow(answer.status_line)
        return answer

    def _good(self, answer: ServiceAnswer, doing: str) -> ServiceAnswer:
        if answer.status >= 300:
            raise BackendError(
                f"The {self.by} answered {answer.status_line} to {doing}",
                reason=f"upstream {answer.status}",
            )
        return answer
