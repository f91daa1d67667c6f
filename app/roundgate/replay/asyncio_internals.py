"""The engine's uses of undocumented details of asyncio and anyio.

The module patches nothing. Each function has a test in tests/roundgate/replay/test_asyncio_internals.py for
every supported Python:

    state              reads whether a timer has fired from its `repr`
    entered_timeout    recognizes `asyncio.timeout` by the code object of the frame that enters it
    creator            recognizes `wait_for` and `as_completed` by the code objects of the frames
                       that create a task, and reads their arguments from these frames
    function_name      reads the function that anyio's task groups wrap from the wrapper's frame
    active_timeout     looks for an `asyncio.Timeout` among the objects that a coroutine refers to
    waits_alone        follows `cr_await`, `gi_yieldfrom` and `ag_await` to the object that a
                       coroutine awaits (`gc.get_referents` leads past objects that only delegate)
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from msgspec import Struct

from roundgate.errors import Unrepeatable

F = TypeVar("F", bound=Callable[..., Any])


class WaitTimer(Protocol):
    """A timer that ends a wait of a handler: an `asyncio.Timeout`, or the timer of `wait_for`."""

    def when(self) -> float | None:
        """Return the deadline on the loop's clock in seconds; `None` without a deadline."""


def state(timer: WaitTimer) -> str:
    """Return `active`, `expiring` once the timer has fired, or another word after the end of its
    block."""
    return repr(timer).partition("[")[2].partition("]")[0]


class WaitForTimer:
    """The timer of `asyncio.wait_for` in Python 3.11, which makes no `asyncio.Timeout`."""

    def __init__(self, handle: asyncio.TimerHandle) -> None:
        self._handle = handle

    def when(self) -> float | None:
        return self._handle.when()

    def __repr__(self) -> str:
        if self._handle.cancelled():
            return "[finished]"
        return (
            "[active]" if self._handle.when() > asyncio.get_running_loop().time() else "[expiring]"
        )


_ENTERS_TIMEOUT: Final = asyncio.Timeout.__aenter__.__code__


def entered_timeout() -> WaitTimer | None:
    """Return the `asyncio.timeout` whose `__aenter__` called the caller, or `None`."""
    frame = sys._getframe(2)
    timer: WaitTimer | None = frame.f_locals["self"] if frame.f_code is _ENTERS_TIMEOUT else None
    return timer


# The creator of a task

_WAIT_FOR: Final = asyncio.wait_for.__code__
_MAKES_A_TASK: Final = sys.version_info < (3, 12)
"""Whether `asyncio.wait_for` runs its awaitable in a task of its own (Python 3.11)."""
_AS_COMPLETED: Final = (
    asyncio.as_completed
    if sys.version_info < (3, 13)
    else vars(asyncio.tasks)["_AsCompletedIterator"].__init__
).__code__
_FRAMES: Final = 12
"""The maximum number of frames between the creation of a task and the asyncio function that
requested it."""
_IS_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class ByWaitFor(Struct, frozen=True):
    """A task that `asyncio.wait_for` creates for its awaitable (Python 3.11), and the timer of its
    timeout."""

    timer: WaitTimer | None


class ByAsCompleted(Struct, frozen=True):
    """A task that `asyncio.as_completed` creates, and all awaitables of that call."""

    awaitables: Any


def creator() -> ByWaitFor | ByAsCompleted | None:
    """Return the asyncio function that is creating a task, or `None` if the handler creates it.
    Only task factories may call this function, because it examines the frames above its caller.

    Raises:
        RuntimeError: `as_completed` has a timeout, whose end no later run could repeat.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code is _WAIT_FOR and _MAKES_A_TASK:
            handle = frame.f_locals.get("timeout_handle")
            return ByWaitFor(None if handle is None else WaitForTimer(handle))
        if frame.f_code is _AS_COMPLETED:
            _refuse_limit(frame)
            return ByAsCompleted(frame.f_locals.get("fs", frame.f_locals.get("aws")))
        if frame.f_code.co_flags & _IS_ASYNC:
            return None  # frames further up only await this coroutine
        frame = frame.f_back
    return None


_OF_ANYIO: Final = frozenset({"_run_coro", "_run_wrapped_task"})
"""The names of the coroutines in which anyio's task groups wrap every coroutine. The frame of such
a wrapper contains the wrapped coroutine."""


def function_name(coroutine: object) -> str:
    """Return the name of a coroutine's function, or of the function that anyio has wrapped."""
    function = _last_name(coroutine)
    if function not in _OF_ANYIO:
        return function
    frame_locals = getattr(getattr(coroutine, "cr_frame", None), "f_locals", {})
    return _last_name(
        frame_locals.get("coro") or getattr(frame_locals.get("self"), "_coro", coroutine)
    )


def _last_name(coroutine: object) -> str:
    qualified: str = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
    return qualified.rpartition(".")[2]


def refuse_as_completed() -> None:
    """Raise `RuntimeError` if `asyncio.as_completed` with a timeout called the caller."""
    _refuse_limit(sys._getframe(2))


def _refuse_limit(frame: FrameType) -> None:
    if frame.f_code is _AS_COMPLETED and frame.f_locals.get("timeout") is not None:
        raise _refusal("asyncio.as_completed(timeout=…)")


# The position of a suspended coroutine

_calls: Final[set[int]] = set()
made_by_wait_for: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()
"""The tasks that `asyncio.wait_for` has created for coroutines. The engine sees their
cancellation."""
_WAIT: Final = asyncio.wait.__code__
_LIMITED: Final = frozenset({id(_WAIT), id(_WAIT_FOR)})


def engine_call(function: F) -> F:
    """Mark a coroutine function as a call of ctx, whose results have a place in the order."""
    _calls.add(id(inspect.unwrap(function).__code__))
    return function


NEVER_ENDS: Final = (
    "an asyncio.timeout (or wait_for) around a question or an event cannot end it, because no process "
    "waits meanwhile: use `async with ctx.timeout(seconds):`"
)


def active_timeout(coroutine: Any) -> bool:
    """Return whether a suspended coroutine is in the block of an `asyncio.timeout` with a deadline.

    The exit of an open `async with` is among the objects that the coroutine refers to.
    """
    while isinstance(coroutine, CoroutineType):
        for referent in gc.get_referents(coroutine):
            timer = getattr(referent, "__self__", referent)
            if isinstance(timer, asyncio.Timeout) and timer.when() is not None:
                return True
        if id(coroutine.cr_code) in _calls:
            return False
        coroutine = coroutine.cr_await
    return False


def waits_alone(coroutine: Any) -> bool:
    """Return whether a suspended coroutine waits outside of ctx.

    Raises:
        RuntimeError: the wait has a limit that ends it without a cancellation, which no later run
            could repeat.
    """
    awaited = coroutine
    while awaited is not None:
        match awaited:
            case CoroutineType():
                code = id(awaited.cr_code)
                if code in _calls:
                    return False
                if code in _LIMITED:
                    _refuse(awaited)
                awaited = awaited.cr_await
            case GeneratorType():
                awaited = awaited.gi_yieldfrom
            case AsyncGeneratorType():
                awaited = awaited.ag_await
            case _:
                awaited = _behind(awaited)
    return True


def _behind(awaited: object) -> Any:
    """Return the coroutine behind an object that only delegates to it, such as `__anext__`."""
    kinds = (CoroutineType, GeneratorType, AsyncGeneratorType)
    if isinstance(awaited, asyncio.Future):
        return None
    return next(
        (referent for referent in gc.get_referents(awaited) if isinstance(referent, kinds)), None
    )


def _refuse(waiting: CoroutineType[Any, Any, Any]) -> None:
    frame_locals = inspect.getcoroutinelocals(waiting)
    if frame_locals.get("timeout") is None:
        return
    if waiting.cr_code is _WAIT:
        raise _refusal("asyncio.wait(timeout=…)")
    waited_for = frame_locals.get("fut")
    if isinstance(waited_for, asyncio.Future) and waited_for not in made_by_wait_for:
        raise _refusal("asyncio.wait_for(…) around a task or future")


def _refusal(what: str) -> Unrepeatable:
    return Unrepeatable(
        f"{what} ends a wait at a moment that later runs of the handler cannot repeat: wait without "
        "a limit inside `async with ctx.timeout(seconds):`"
    )
