"""Jobs that functions start: further invocations follow them, fetch their
results, or cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from roundgate import json
from roundgate.backends.aws_lambda.config import LambdaJobConfig
from roundgate.backends.exchange import Kept, is_in_doubt, is_none_left, is_passing
from roundgate.backends.http.arguments import PATH_VARIABLE
from roundgate.backends.http.messages import Answer
from roundgate.backends.http.template import Template
from roundgate.errors import BackendError, FunctionAway, FunctionFailed, NotNow, ParseError

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


@dataclass(frozen=True, slots=True)
class LambdaJob:
    """A job that an invocation starts (`roundgate.backends.exchange.Job`)."""

    config: LambdaJobConfig
    begin: Start
    look: Look
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the call, for the payload of a cancel."""
    starts_once: bool = False
    """Whether the configuration declares the function idempotent. An idempotent function receives
    the call's key; other functions may ignore a key."""

    @property
    def has_result(self) -> bool:
        """Whether there is a payload to fetch it with."""
        return self.config.fetch is not None

    async def start(self) -> Any:
        """Invoke the function.

        Raises:
            NotNow: the function may have been invoked, but the response does not confirm it.
            BackendError: the gateway may not invoke the function, or the response is not JSON.
        """
        try:
            answer = await self.begin()
        except FunctionFailed as error:
            raise NotNow(str(error)) from None
        except FunctionAway as error:
            if error.reached:
                raise NotNow(str(error)) from None
            raise
        if is_in_doubt(answer.status):
            raise NotNow(f"The function answered {answer.status_line} to starting the job")
        return _json(_good(answer, "starting the job"))

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        """Ask how it is.

        Raises:
            NotNow: the function cannot be invoked just now, or failed itself.
            BackendError: it may not be invoked, or does not answer with JSON.
        """
        answer = await self._ask(self.config.poll, values)
        return _json(_good(answer, "following the job")), answer.kept()

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        """Ask for the result.

        Raises:
            NotNow: it cannot be had just now.
        """
        answer = await self._ask(self.config.fetch or self.config.poll, values)
        return answer.kept()

    @property
    def is_cancellable(self) -> bool:
        """Whether there is a payload for it."""
        return self.config.cancel is not None

    async def cancel(self, values: Mapping[str, str]) -> bool:
        """Tell the function to end the job; return `False` if there is no job to end.

        Raises:
            NotNow: the function cannot be invoked just now, or failed itself.
            BackendError: the gateway may not invoke the function, or the function refuses.
        """
        payload = Template(self.config.cancel or {}).filled({**self.arguments, **values})
        answer = await self._said(payload)
        if is_none_left(answer.status):
            return False
        _good(answer, "cancelling the job")
        return True

    async def _ask(self, template: Mapping[str, Any], values: Mapping[str, str]) -> Answer:
        return await self._said(filled(template, values))

    async def _said(self, payload: Any) -> Answer:
        try:
            answer = await self.look(payload)
        except (FunctionAway, FunctionFailed) as error:
            raise NotNow(str(error)) from None
        if is_passing(answer.status):
            raise NotNow(answer.status_line)
        return answer


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


def _good(answer: Answer, doing: str) -> Answer:
    if answer.status >= 300:
        raise BackendError(f"The function answered {answer.status_line} to {doing}")
    return answer


def _json(answer: Answer) -> Any:
    try:
        return json.decode(answer.body)
    except ParseError:
        raise BackendError("The function told of the job in something that is not JSON") from None
