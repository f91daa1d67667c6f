"""A job whose service answers each request about it: the same for HTTP services and functions.

A transport says how the start, a poll, a fetch and a cancel are sent; what their answers mean is
decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from roundgate.backends.config import JobConfig
from roundgate.backends.exchange import Kept, is_in_doubt, is_none_left, is_passing
from roundgate.backends.http.messages import Answer
from roundgate.errors import (
    BackendError,
    FunctionAway,
    FunctionFailed,
    NoAnswer,
    NotNow,
    ParseError,
)

Values: TypeAlias = Mapping[str, str]
Ask: TypeAlias = Callable[[Values], Awaitable[Answer]]
"""Sends a request about the job with these values. Raises NotNow if a later one may succeed, and
BackendError."""


@dataclass(frozen=True, slots=True)
class AnsweredJob:
    """A job that a request starts (`roundgate.backends.exchange.Job`)."""

    config: JobConfig
    by: str
    """The one that answers, in messages: "service" or "function"."""
    begin: Callable[[], Awaitable[Answer]]
    """Sends the start."""
    look: Ask
    result: Ask | None
    """`None`: the last look has the result."""
    end: Ask | None
    """`None`: the job cannot be cancelled."""
    starts_once: bool

    @property
    def has_result(self) -> bool:
        """Whether the result is fetched."""
        return self.result is not None

    @property
    def is_cancellable(self) -> bool:
        """Whether a request cancels it."""
        return self.end is not None

    async def start(self) -> Any:
        """Send the start.

        Raises:
            NotNow: the job may have been started, but no answer confirms it.
            BackendError: the start was refused, or its answer is not JSON.
        """
        try:
            answer = await self.begin()
        except FunctionFailed as error:
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
                f"The {self.by} started a job but did not say where to follow it"
            ) from None

    async def poll(self, values: Values) -> tuple[Any, Kept]:
        """Ask how the job is.

        Raises:
            NotNow: the job cannot be asked for just now.
            BackendError: the job is unknown, or the answer is not JSON.
        """
        answer = await self._asked(self.look, values)
        try:
            return self._good(answer, "following the job").value(), answer.kept()
        except ParseError:
            raise BackendError(
                f"The {self.by} told of the job in something that is not JSON"
            ) from None

    async def fetch(self, values: Values) -> Kept:
        """Ask for the result.

        Raises:
            NotNow: the result cannot be had just now.
            UnexpectedAnswer: the result is too long, or elsewhere.
        """
        answer = await self._asked(self.result or self.look, values)
        return answer.kept()

    async def cancel(self, values: Values) -> bool:
        """Ask to end the job; return `False` if there is no job to end.

        Raises:
            NotNow, BackendError: the job cannot be cancelled just now, or the cancel was refused.
        """
        assert self.end is not None, "only what is cancellable is cancelled"
        answer = await self.end(values)
        if is_none_left(answer.status):
            return False
        self._good(answer, "cancelling the job")
        return True

    async def _asked(self, ask: Ask, values: Values) -> Answer:
        answer = await ask(values)
        if is_passing(answer.status):
            raise NotNow(answer.status_line)
        return answer

    def _good(self, answer: Answer, doing: str) -> Answer:
        if answer.status >= 300:
            raise BackendError(
                f"The {self.by} answered {answer.status_line} to {doing}",
                reason=f"upstream {answer.status}",
            )
        return answer
