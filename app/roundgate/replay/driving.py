"""Driving: the resumption of a branch's coroutine.

Every resumption of a branch passes through this module. So it can record the events that no call of
ctx sees: a branch that resumes by itself (`Owner.resumed`), and a cancelled wait outside of ctx
(`cuts`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import anyio

from roundgate.errors import Suspend
from roundgate.replay.branches import END, Branch, Owner, here, inside
from roundgate.replay.cuts import cut_wait, was_cut_here
from roundgate.replay.insides import waits_alone

if TYPE_CHECKING:
    from roundgate.replay.run import Run

T = TypeVar("T")


_given_up: Final[deque[Any]] = deque(maxlen=64)
"""Handlers that are no longer resumed. Python would close a released one, and such a handler
refuses to be closed."""


@atexit.register
def _never_close_them() -> None:
    """Keep abandoned handlers alive beyond the end of the process, if there are any.

    At exit Python empties the modules and closes the remaining coroutines. Every call of such a
    handler would then fail, the handler would catch the error, and the process would never end.
    """
    if _given_up:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_given_up))


log = logging.getLogger("roundgate.replay")


class Driven(Coroutine[Any, Any, T]):
    """A handler's coroutine, driven so that it cannot end the process.

    `while True: try: await ctx.elicit(…) except BaseException: pass` catches everything that should
    end it: once it awaits `END`, it is never resumed. `sys.exit()` in a task would stop the event
    loop; it becomes an error of the handler.

    The cancellation of a wait outside of ctx is recorded first (`_noting`), then raised.
    """

    __slots__ = ("_cancellation", "_coroutine", "_is_alone", "_noting", "_owner")

    def __init__(self, coroutine: Coroutine[Any, Any, T], owner: Owner) -> None:
        self._coroutine = coroutine
        self._owner = owner
        self._is_alone = True
        """Whether the coroutine is about to begin, or waits for something outside of ctx."""
        self._noting: asyncio.Task[None] | None = None
        """The task that records a cancellation before it is raised."""
        self._cancellation: BaseException | None = None

    def send(self, value: Any = None) -> Any:
        if self._noting is not None:
            return self._raise_once_noted(self._noting)
        return self._resume(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        # anyio cancels repeatedly until the coroutine has seen the cancellation
        if self._noting is not None:
            return self._raise_once_noted(self._noting)
        run = self._owner.run
        if (
            run is not None
            and run.stopped is None
            and self._is_alone
            and isinstance(error[0], asyncio.CancelledError)
            and isinstance(place := here.get(), Branch)
            and (_may_be_a_limit(run, place) or was_cut_here(run, place))
        ):
            with inside(None):
                self._noting = asyncio.ensure_future(cut_wait(run, place))
            self._cancellation = error[0]
            return self._raise_once_noted(self._noting)
        return self._resume(self._coroutine.throw, *error)

    def _resume(self, resume: Callable[..., Any], *given: Any) -> Any:
        """Resume the coroutine; return the object that it awaits next."""
        if self._is_alone:
            self._owner.resumed += 1
        try:
            awaited = resume(*given)
        except (Suspend, SystemExit, KeyboardInterrupt) as error:
            _end(error)
        if awaited is END:
            self._give_up()
        try:
            self._is_alone = waits_alone(self._coroutine)
        except RuntimeError as refusal:
            return self._resume(self._coroutine.throw, refusal)
        return awaited

    def _raise_once_noted(self, noting: asyncio.Task[None]) -> Any:
        """Raise the cancellation in the coroutine once it is recorded; return the object that is
        awaited next."""
        if not noting.done():
            return next(asyncio.shield(noting).__await__())
        failed = None if noting.cancelled() else noting.exception()
        error, self._cancellation, self._noting = failed or self._cancellation, None, None
        return self._resume(self._coroutine.throw, error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Driven[T]:
        return self

    __next__ = send  # saves a call: most handlers end at the first

    def __getattr__(self, name: str) -> Any:
        # its names and cr_frame, for tools that show where a task waits
        return getattr(self._coroutine, name)

    def _give_up(self) -> NoReturn:
        name = getattr(self._coroutine, "__qualname__", "handler")
        log.error("%s went on after its run had ended; it is not resumed any more", name)
        _given_up.append(self._coroutine)
        raise Suspend


def _may_be_a_limit(run: Run, branch: Branch) -> bool:
    """Return whether a cancellation may come from a limit of asyncio or anyio rather than from
    another branch.

    An ordinary call runs in the task of its request, whose cancellations have an unknown source.
    """
    task = asyncio.current_task()
    if run.root_task is task and not run.has_own_task:
        return True
    has_fired = branch.timeouts is not None and branch.timeouts.has_ended_a_wait_of(task)
    return has_fired or -math.inf < anyio.current_effective_deadline() <= anyio.current_time()


def _end(error: BaseException) -> NoReturn:
    """Raise an exception in place of one that would stop the event loop."""
    if isinstance(error, Suspend):
        task = asyncio.current_task()
        # this branch may have no waiter that retrieves its exception
        if task is not None and isinstance(task.get_coro(), Driven):
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise error
    said = (
        f"sys.exit({error.code!r})"
        if isinstance(error, SystemExit)
        else "for the end of the process"
    )
    raise RuntimeError(f"the handler called {said}") from error
