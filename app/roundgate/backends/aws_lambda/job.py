"""Jobs that functions start, and executions of durable functions, which are followed as jobs.

Further invocations follow a job, fetch its result or cancel it. Of an execution AWS Lambda tells
itself (API `Invoke`, `GetDurableExecution`):

    Invoke, Event, under a name ──▶ ARN of the execution     GetDurableExecution … RUNNING … SUCCEEDED ──▶ its result
                                                             └ the task ends early: StopDurableExecution

The name follows from the call: however often it is started, there is one execution.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from roundgate.backends.aws_lambda.config import DurableConfig, LambdaJobConfig
from roundgate.backends.aws_lambda.invoking import Invoked
from roundgate.backends.aws_lambda.results import answer_of, line
from roundgate.backends.config import JobConfig
from roundgate.backends.exchange import AnsweredJob, Kept
from roundgate.backends.http.bodies import Template
from roundgate.backends.http.endpoint import PATH_VARIABLE
from roundgate.backends.http.messages import Answer
from roundgate.errors import BackendError, FunctionAway, FunctionFailed, NotNow

Start: TypeAlias = Callable[[], Awaitable[Answer]]
Look: TypeAlias = Callable[[Any], Awaitable[Answer]]
"""Invokes the function that knows of jobs with a payload; again, if need be."""


def check_job(job: LambdaJobConfig, arguments: Collection[str]) -> None:
    """Whether its payloads can be made.

    Raises:
        ValueError: a payload has a variable that nothing gives a value.
    """
    named = {name for one in (job.poll, job.fetch) for name in _variables(one)}
    if unknown := sorted(named - job.variables.keys()):
        raise ValueError(f"job needs {', '.join(unknown)}, which job.variables does not have")
    known = {*job.variables, *arguments}
    if unknown := sorted(Template(job.cancel or {}).names - known):
        raise ValueError(
            f"job.cancel needs {', '.join(unknown)}, which neither job.variables nor input_schema has"
        )


def lambda_job(
    config: LambdaJobConfig,
    begin: Start,
    look: Look,
    arguments: Mapping[str, Any],
    *,
    starts_once: bool,
) -> AnsweredJob:
    """Return a job that an invocation starts.

    Args:
        config: the payloads of further invocations.
        begin: invokes the function.
        look: invokes the function that knows of jobs.
        arguments: those of the call, for the payload of a cancel.
        starts_once: whether the configuration declares the function idempotent. An idempotent
            function receives the call's key; other functions may ignore a key.
    """

    async def ask(template: Any, values: Mapping[str, str]) -> Answer:
        return await said(filled(template, values))

    async def cancel(values: Mapping[str, str]) -> Answer:
        return await said(Template(config.cancel or {}).filled({**arguments, **values}))

    async def said(payload: Any) -> Answer:
        try:
            return await look(payload)
        except (FunctionAway, FunctionFailed) as error:
            raise NotNow(str(error)) from None

    return AnsweredJob(
        config,
        "function",
        begin,
        look=partial(ask, config.poll),
        result=None if config.fetch is None else partial(ask, config.fetch),
        end=None if config.cancel is None else cancel,
        starts_once=starts_once,
    )


def filled(template: Any, values: Mapping[str, str]) -> Any:
    """A payload, with the values of its variables; what stands in a value is no variable."""
    match template:
        case str():
            return PATH_VARIABLE.sub(lambda found: values.get(found[1], found[0]), template)
        case Mapping():
            return {name: filled(inner, values) for name, inner in template.items()}
        case list():
            return [filled(inner, values) for inner in template]
    return template


def _variables(template: Any) -> set[str]:
    match template:
        case str():
            return set(PATH_VARIABLE.findall(template))
        case Mapping():
            return set().union(*map(_variables, template.values()))
        case list():
            return set().union(*map(_variables, template))
    return set()


_ENDED_BADLY: Final = ["FAILED", "TIMED_OUT", "STOPPED", "DELETING"]

Begin: TypeAlias = Callable[[], Awaitable[Invoked]]
LookAt: TypeAlias = Callable[[str], Awaitable[Mapping[str, Any]]]
"""What AWS Lambda says of the execution with an ARN."""
End: TypeAlias = Callable[[str], Awaitable[None]]
"""Stops the execution with an ARN; one that is over or gone is left alone."""
Cleaned: TypeAlias = Callable[[bytes], bytes]


def config_of(durable: DurableConfig) -> JobConfig:
    """What AWS Lambda's words mean."""
    return JobConfig(
        variables={"execution": "/execution"},
        every_s=durable.every_s,
        status="/status",
        succeeded=["SUCCEEDED"],
        failed=_ENDED_BADLY,
        error="/reason",
    )


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution as a job (`roundgate.backends.exchange.Job`)."""

    config: JobConfig
    begin: Begin
    look: LookAt
    cleaned: Cleaned
    """Takes secrets out of what a function says."""
    end: End | None = None
    """`None`: executions go on whatever becomes of their tasks."""

    @property
    def has_result(self) -> bool:
        """The last look has it."""
        return False

    async def start(self) -> Any:
        """Start the execution, or find the one already started; return its ARN.

        Raises:
            NotNow: AWS Lambda has not answered; the execution may have been started.
            BackendError: the function is not durable, or cannot be invoked.
        """
        try:
            invoked = await self.begin()
        except FunctionAway as error:
            if error.reached:
                raise NotNow(str(error)) from None
            raise
        if invoked.execution_arn is None:
            raise BackendError(
                "AWS Lambda started no durable execution: the function has to be a durable one, and named with a"
                " version or an alias"
            )
        return {"execution": invoked.execution_arn}

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        """Look at it.

        Raises:
            NotNow: AWS Lambda cannot be asked just now.
            BackendError: there is no such execution, or the gateway may not look.
        """
        try:
            said = await self.look(values["execution"])
        except FunctionAway as error:
            raise NotNow(str(error)) from None
        answer = self._result(said)
        reason = self.cleaned(_reason(said).encode("utf-8", "replace")).decode()
        return {"status": said.get("Status"), "reason": reason or None}, answer.kept()

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        """The last look has it."""
        raise AssertionError("an execution has no result but that of the last look")

    @property
    def is_cancellable(self) -> bool:
        """Whether executions are stopped."""
        return self.end is not None

    @property
    def starts_once(self) -> bool:
        """There is one execution under a name."""
        return True

    async def cancel(self, values: Mapping[str, str]) -> bool:
        """Stop the execution; succeed if it has ended or no longer exists.

        Raises:
            FunctionAway: AWS Lambda cannot be asked just now.
            BackendError: the gateway lacks permission to stop the execution.
        """
        assert self.end is not None, "only what is cancellable is cancelled"
        arn = values["execution"]
        try:
            await self.end(arn)
        except FunctionAway:
            raise
        except BackendError:
            status = (await self.look(arn)).get("Status")
            if status not in (*self.config.succeeded, *self.config.failed):
                raise
        return True

    def _result(self, said: Mapping[str, Any]) -> Answer:
        if said.get("Status") != "SUCCEEDED":
            return Answer(200, "OK", "application/json", b"null")
        return answer_of(self.cleaned(str(said.get("Result") or "null").encode()))


def _reason(said: Mapping[str, Any]) -> str:
    """Of a failure: type and message, not the stack."""
    error = said.get("Error") or {}
    told = [str(error[name]) for name in ("ErrorType", "ErrorMessage") if error.get(name)]
    return line(": ".join(told))
