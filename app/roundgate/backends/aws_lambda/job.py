"""Jobs that functions start: further invocations follow them and fetch their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from roundgate import json
from roundgate.backends.aws_lambda.config import LambdaJobConfig
from roundgate.backends.exchange import Kept
from roundgate.backends.http.arguments import PATH_VARIABLE
from roundgate.backends.http.messages import Answer
from roundgate.errors import BackendError, FunctionAway, FunctionFailed, NotNow, ParseError
from roundgate.values import dataclass

Start: TypeAlias = Callable[[], Awaitable[Answer]]
Look: TypeAlias = Callable[[Any], Awaitable[Answer]]
"""Invokes the function that knows of jobs with a payload; again, if need be."""


def check_job(job: LambdaJobConfig) -> None:
    """Whether its payloads can be made.

    Raises:
        ValueError: a payload has a variable that nothing gives a value.
    """
    named = {name for one in (job.poll, job.fetch) for name in _variables(one)}
    if unknown := sorted(named - job.variables.keys()):
        raise ValueError(f"job needs {', '.join(unknown)}, which job.variables does not have")


@dataclass(frozen=True, slots=True)
class LambdaJob:
    """A job that an invocation starts (`roundgate.backends.exchange.Job`)."""

    config: LambdaJobConfig
    begin: Start
    look: Look

    @property
    def has_result(self) -> bool:
        """Whether there is a payload to fetch it with."""
        return self.config.fetch is not None

    async def start(self) -> Any:
        """Invoke the function.

        Raises:
            BackendError: it failed, or did not answer with JSON.
        """
        return _json(_good(await self.begin(), "starting the job"))

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

    async def _ask(self, template: Mapping[str, Any], values: Mapping[str, str]) -> Answer:
        try:
            answer = await self.look(filled(template, values))
        except (FunctionAway, FunctionFailed) as error:
            raise NotNow(str(error)) from None
        if answer.status >= 500 or answer.status == 429:
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
