"""Scopes: the durable time limits (`ctx.timeout`) around what a handler does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from roundgate.errors import Suspend
from roundgate.replay.branches import Branch

if TYPE_CHECKING:
    from roundgate.replay.run import Run


class Scope(Protocol):
    """A durable time limit around a part of a handler; over at `until_ms`, in
    milliseconds since the epoch."""

    @property
    def until_ms(self) -> int:
        """Return when the limit passes, in milliseconds since the epoch."""

    @property
    def is_left(self) -> bool:
        """Return whether the block has ended."""

    @property
    def is_pending(self) -> bool:
        """Return whether the limit may still end the block."""

    @property
    def has_fired(self) -> bool:
        """Return whether the limit has ended the block, or is about to."""

    def fire(self) -> None:
        """End that part."""

    async def wait_until_left(self) -> None:
        """Return once that part has ended."""


def around(branch: Branch) -> list[Scope]:
    """The limits around a branch. A task may outlive the block in which it was created."""
    return [scope for scope in branch.scopes if not scope.is_left]


async def within_scopes(run: Run, branch: Branch) -> None:
    """Return if every durable time limit around the branch has time left; else wait to be
    cancelled by the one that is over.

    Raises:
        Suspend: the run has ended meanwhile.
        TimeoutError: one is over, and the branch is a thread, which cannot be cancelled.
    """
    while over := fire_scopes(run, branch):
        if branch.is_thread:  # which nobody can cancel
            raise TimeoutError("the time limit around it is over")
        if run.stopped is not None:
            raise Suspend
        with run.quiescence.moving():
            await over[0].wait_until_left()
        if not over[0].is_left:
            raise Suspend


def fire_scopes(run: Run, branch: Branch) -> list[Scope]:
    over = [scope for scope in around(branch) if scope.until_ms <= run.clock.now_ms()]
    for scope in over:
        scope.fire()
    return over
