"""Ids that connect the log lines of one call across processes.

    tools/call   line "request"   call=V1Xq…                     (round 1: asks the user)
    tools/call   line "request"   call=V1Xq…  task=OWNER.ID      (round 2: continues as a task)
    worker       line "a step failed, trying again"   call=V1Xq…  task=OWNER.ID  tool=pay

The id of a call travels sealed in `requestState` and is stored in the row of its task. While a call
is being processed, `CORRELATION` holds its ids, and each line that is logged includes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import Struct

RecordRequest: TypeAlias = Callable[[Mapping[str, str], Any], None]
"""Records a request to a back end in the audit log: its facts, and the content to digest."""


class Correlation(Struct):
    """The ids of one call. They reveal nothing of its arguments, answers or results."""

    tool: str | None = None
    """The name of the tool that runs."""
    through: str | None = None
    """The gateway's own tool through which the client called `tool`."""
    task: str | None = None
    """The call's task in the form of the command line: `OWNER.ID`."""
    make_call_id: Callable[[], str] | None = None
    """A function that makes `call_id` on first use, if it is not known yet."""
    known_call_id: str | None = None
    """The id of the call; `None` until it is made or received."""
    round: int | None = None
    """The number of the round that the audit log has begun; `None` before and without the log."""
    record_request: RecordRequest | None = None
    """A function that records requests to back ends; `None` unless the call is in the audit log."""

    @property
    def call_id(self) -> str | None:
        """The id of the call, the same in all its rounds and in its task; `None` outside of
        calls."""
        if self.known_call_id is None and self.make_call_id is not None:
            self.known_call_id = self.make_call_id()
        return self.known_call_id

    def members(self) -> dict[str, str]:
        """Return the ids as members of a log line."""
        members = {"call": self.call_id, "task": self.task, "tool": self.tool}
        return {name: value for name, value in members.items() if value is not None}


CORRELATION: Final[ContextVar[Correlation | None]] = ContextVar(
    "roundgate_correlation", default=None
)
"""The ids of the call being processed; `None` outside of calls."""


ENVIRONMENT: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "roundgate_environment", default=MappingProxyType({})
)
"""The ids that the environment gave the invocation being processed, such as AWS Lambda's
`lambda_request`; empty in a process that serves by itself."""


@contextmanager
def environment(ids: Mapping[str, str]) -> Iterator[None]:
    """Add the environment's ids to every line that is logged within the block."""
    token = ENVIRONMENT.set(ids)
    try:
        yield
    finally:
        ENVIRONMENT.reset(token)


@contextmanager
def correlated(correlation: Correlation) -> Iterator[None]:
    """Add these ids to every line that is logged within the block."""
    token = CORRELATION.set(correlation)
    try:
        yield
    finally:
        CORRELATION.reset(token)


def members_here() -> dict[str, str]:
    """Return the ids of the invocation and the call being processed, as members of a log line."""
    correlation = CORRELATION.get()
    ids = ENVIRONMENT.get()
    return {**ids} if correlation is None else {**ids, **correlation.members()}
