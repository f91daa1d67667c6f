"""One carrier for a call, from the edge to the handler: who calls, what the
client can do, until when.

It does not change while the call runs. What a run finds out is in `run.Run`, what is
remembered in `journal.Journal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.protocol import ClientCapabilities, Meta, ResourceContents


class Cleanup(StrEnum):
    """A call that only ends what an earlier run of it has begun elsewhere:
    its task has ended early."""

    OF_WHAT_IS_KNOWN = "of what is known"
    """Nobody can have begun anything that the journal does not know."""
    IN_DOUBT = "in doubt"
    """A worker had the task: it may have begun something and died before it was remembered."""


Notify: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification (method, params) on the stream of this request."""

PageDone: TypeAlias = Callable[[str], Awaitable[None]]
"""Tells the client that its user has finished with a page. Takes the wire key of the question that
sent the user there."""

Publish: TypeAlias = Callable[[str, str | None], Awaitable[None]]
"""Tells every open `subscriptions/listen` stream that wants it of a change (method, uri)."""


Read: TypeAlias = Callable[[Any, str], Awaitable[Sequence[ResourceContents]]]
"""Reads a resource, by its URI, in a handler's context, as the caller of the handler
could; raises ResourceNotFound."""


async def publish_nowhere(method: str, uri: str | None) -> None:
    """Where nobody can listen."""


class Idempotency(Protocol):
    """A round of a call, as far as it stays the same however often it is sent."""

    @property
    def task_id(self) -> str:
        """The id of the task that the call becomes in this round, if it does. It is made when it is
        asked for: that costs a microsecond, and few calls need it."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a long text."""

    text: str
    start: int
    total: int
    """Characters of the whole."""
    next_cursor: str | None
    """Where the rest is; `None` at the end, and where the rest could not be kept."""


class Texts(Protocol):
    """Keeps long texts for their owners, for a time, where any process can read them."""

    async def keep(
        self,
        text: str,
        size: int,
        scopes: frozenset[str],
        owner: Principal,
        *,
        of_task: bool = False,
    ) -> str:
        """Keep a text that is read in parts of `size` characters: the cursor of the second part.
        One `of_task` is kept for as long as the result of a task can be had.

        Raises:
            Unavailable: the store cannot be reached.
        """

    async def part(self, cursor: str, owner: Principal) -> TextPart | None:
        """The part that a cursor stands for; `None` if the owner has none
        under it, or lacks a scope.

        Raises:
            ToolError: it was there, and newer texts of the owner took its place.
            Unavailable: as `keep`.
        """


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """The facts of one call, gathered by the dispatcher or by a task's worker.

    Nobody changes one. That is not enforced: a frozen one takes five times as long to
    make, a tenth of a whole call.
    """

    principal: Principal
    meta: Meta
    """The request's `_meta`; in a task, that of the request which became the task."""
    deadline: Deadline
    """When this round, or this turn of a worker, has to be over."""
    notify: Notify | None = None
    """`None` where the client cannot be told things."""
    page_done: PageDone | None = None
    """`None` if the client cannot be told that its user has finished with a page."""
    publish: Publish = publish_nowhere
    task_id: str | None = None
    """The task that this call has become, if it has."""
    may_become_task: bool = False
    """Whether what is still an ordinary call may go on as a task: its tool and its
    client both want that."""
    needs_row: bool = False
    """Whether it has to be a task before its first step: the tool says `task="required"`."""
    takes_unasked: bool = False
    """Whether its handler takes answers that come without a question having been asked."""
    round: Idempotency | None = None
    """The round that this is, in an ordinary call."""
    texts: Texts | None = None
    """Keeps what is too long for a result."""
    read: Read | None = None
    """Reads what is served beside the handler; `None`: nothing is."""
    cleanup: Cleanup | None = None
    """Set where nothing more is begun, and what was begun is ended."""
    step_threads: Threads | None = field(default=None, compare=False)
    """Bounds the threads of steps that are plain functions; `None`: the event
    loop's own bound of 40."""

    @property
    def capabilities(self) -> ClientCapabilities:
        """What the client declared on this request: what may be asked of it."""
        return self.meta.capabilities

    @property
    def idempotency(self) -> str | None:
        """What stays the same however often this round is sent, if there is such a
        thing: for keys of services."""
        if self.task_id is None and self.round is not None:
            return self.round.task_id
        return self.task_id
