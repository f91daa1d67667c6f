"""Ends a process whose event loop stands still, before the leases that it holds run out.

A handler that blocks the loop (`time.sleep`, an endless computation) stops everything else in its
process: no lease is renewed, and after a while other workers take up all its tasks. A thread beside
the loop notices that long before. It lets go of the leases, writes down where the loop's thread
stands, and ends the process with `EXIT_STATUS`; whatever runs the process starts another.

    loop     beat  beat  beat  (blocked by the handler of task 7) ──────────────────────────┐
    thread    ask   ask   ask   ask   ask   ask   ask    limit: let go of all, blame 7, log, end the process

The thread counts its own ticks and not the clock: in a process that was stopped as a whole
(SIGSTOP, a laptop that slept) the loop gets its turn before the count goes on.

A handler that holds the interpreter's lock (a regular expression that never ends) stops the thread
too. For that there is a timer of the operating system that counts the processor time of this
process. It is set where a handler begins (`attend`), and the thread sets it back with each tick;
when it runs out, the system ends the process (SIGVTALRM) and the leases run out.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, ContextVar
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

EXIT_STATUS: Final = 70
"""How a process ends that its watchdog ended: `EX_SOFTWARE` of sysexits.h."""
TICKS: Final = 20
"""How often the thread looks before the limit is reached."""
LONGEST_TICK_S: Final = 1.0
FRAMES: Final = 12
"""How many lines of the stack the log shows: the innermost."""

log = logging.getLogger("roundgate.watchdog")


class Held(Protocol):
    """Something that this process has a lease of; told apart by identity."""

    def facts(self) -> dict[str, Any]:
        """Return the fields for the log."""


RUNNING: ContextVar[Held | None] = ContextVar("RUNNING", default=None)
"""What the code that runs belongs to; the asyncio tasks and threads that it begins inherit it."""

LetGo: TypeAlias = Callable[[Sequence[Held], Held | None], Coroutine[Any, Any, None]]
"""Ends leases, in another event loop than the one that stands still; the second argument is who is
to blame, `None` if that is not known."""


class Exit(Protocol):
    """`os._exit`."""

    def __call__(self, status: int, /) -> Any: ...


class Watchdog:
    """Watches one event loop, between `start` and `stop`.

    `limit_s` is how long the loop may stand still, `bound_s` for how long letting go may take.
    """

    def __init__(
        self,
        limit_s: float,
        held: Callable[[], Sequence[Held]],
        let_go: LetGo,
        *,
        bound_s: float,
        end: Exit = os._exit,
    ) -> None:
        self._limit_s = limit_s
        self._tick_s = min(LONGEST_TICK_S, limit_s / TICKS)
        self._held = held
        self._let_go = let_go
        self._bound_s = bound_s
        self._end = end
        self._beaten = True
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the running event loop, which is that of the calling thread."""
        global _allowed_s
        _allowed_s = 2 * self._limit_s + self._bound_s
        loop, watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, watched), name="watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        global _allowed_s
        _allowed_s = 0.0
        self._over.set()
        _count_processor_time(0)

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        stood_s = 0.0
        while not self._over.wait(self._tick_s):
            held = self._held()
            _count_processor_time(_allowed_s if held else 0)
            if not self._beaten:
                stood_s += self._tick_s
            elif self._ask(loop):
                stood_s = 0.0
            else:
                break
            if held and stood_s >= self._limit_s:
                self._bite(loop, watched, held)
                break

    def _ask(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Make the loop answer with its next turn; return `False` if the loop is closed."""
        self._beaten = False
        try:
            loop.call_soon_threadsafe(self._beat)
        except RuntimeError:
            return False
        return True

    def _beat(self) -> None:
        self._beaten = True

    def _bite(self, loop: asyncio.AbstractEventLoop, watched: int, held: Sequence[Held]) -> None:
        """Release the tasks, log, and end the process, in bounded time, whatever locks the blocked
        thread has."""
        last = threading.Timer(self._bound_s, self._end, (EXIT_STATUS,))
        last.daemon = True
        last.start()
        frame = sys._current_frames().get(watched)
        guilty = _who_is_running(loop, held)
        try:
            asyncio.run(self._let_go(held, guilty))
        except Exception as error:  # the leases run out by themselves
            log.error("leases could not be released", exc_info=error)
        log.error(
            "the event loop is blocked, ending the process",
            extra={"fields": self._facts(frame, guilty, held)},
        )
        self._end(EXIT_STATUS)

    def _facts(
        self, frame: FrameType | None, guilty: Held | None, held: Sequence[Held]
    ) -> dict[str, Any]:
        where = (
            [line.rstrip() for line in traceback.format_stack(frame)] if frame is not None else []
        )
        known = {} if guilty is None else guilty.facts()
        return {
            **known,
            "seconds": round(self._limit_s, 3),
            "leases": len(held),
            "stands_at": where[-FRAMES:],
        }


_allowed_s = 0.0
"""How much processor time may pass between two ticks of the watchdog of this process; 0 where there
is none. The timer is the process's too."""


def attend() -> None:
    """Note that a handler begins. The thread may not run again before the handler takes the
    interpreter's lock for good."""
    if _allowed_s:
        _count_processor_time(_allowed_s)


def _count_processor_time(seconds: float) -> None:
    """End the process after so much processor time; 0 never. Nothing happens where
    there is no such timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)


def _who_is_running(loop: asyncio.AbstractEventLoop, held: Sequence[Held]) -> Held | None:
    """Return the task whose code the loop runs now, if it is known and one of this process's."""
    task = asyncio.current_task(loop)
    found = {context.get(RUNNING) for context in _contexts_of(task)} - {None}
    return found.pop() if len(found) == 1 and found <= {*held} else None


def _contexts_of(task: asyncio.Task[Any] | None) -> Sequence[Context]:
    if task is None:
        return []
    if sys.version_info >= (3, 12):
        return [task.get_context()]
    # Python 3.11 has no such method; the garbage collector knows the context all the same, and
    # perhaps that of whoever waits for the task
    return [one for one in gc.get_referents(task) if isinstance(one, Context)]
