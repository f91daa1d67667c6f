"""The watchdog, which ends a process with a blocked event loop before its leases expire.

A handler that blocks the loop (`time.sleep`, an endless computation) stops the whole process: no
lease is renewed, and other workers eventually take over all its tasks. A thread notices the
blockage well before that. The thread releases the leases, logs the stack of the loop's thread, and
ends the process with `EXIT_STATUS`; the supervisor of the process starts another.

    loop     beat  beat  beat  (blocked by the handler of task 7) ───────────────────────────────────────┐
    thread    ask   ask   ask   ask   ask   ask   ask    limit: release all, blame 7, log, end the process

The thread counts its own ticks instead of reading a clock: after the whole process was stopped
(SIGSTOP, a sleeping laptop), the loop runs before the count continues.

A handler that holds the interpreter's lock (an endless regular expression) also stops the thread.
For that case, a timer of the operating system counts the processor time of the process. `attend`
sets the timer when a handler begins, and the thread resets it with each tick; if it expires, the
system ends the process (SIGVTALRM) and the leases expire.
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
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

EXIT_STATUS: Final = 70
"""The exit status of a process that its watchdog ended: `EX_SOFTWARE` of sysexits.h."""
TICKS: Final = 20
"""The number of checks of the thread within the limit."""
LONGEST_TICK_S: Final = 1.0
FRAMES: Final = 12
"""The maximum number of stack entries in the log, counted from the innermost."""

log = logging.getLogger("roundgate.watchdog")


class Held(Protocol):
    """An object whose task this process has leased; compared by identity."""

    def facts(self) -> dict[str, Any]:
        """Return the fields for the log."""


RUNNING: ContextVar[Held | None] = ContextVar("RUNNING", default=None)
"""The leased task to which the running code belongs. New asyncio tasks and threads inherit the
value."""

LetGo: TypeAlias = Callable[[Sequence[Held], Held | None], Coroutine[Any, Any, None]]
"""Ends leases, in another event loop than the blocked one. The second argument is the task to
blame, or `None` if it is unknown."""


class Exit(Protocol):
    """The type of `os._exit`."""

    def __call__(self, status: int, /) -> Any: ...


@dataclass(eq=False)
class Watchdog:
    """Watches one event loop, between `start` and `stop`."""

    limit_s: float
    """The time in seconds for which the loop may be blocked."""
    held: Callable[[], Sequence[Held]]
    """Returns the leased tasks."""
    let_go: LetGo
    bound_s: float
    """The time limit for releasing the leases, in seconds."""
    end: Exit = os._exit
    _beaten: bool = True
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._tick_s = min(LONGEST_TICK_S, self.limit_s / TICKS)

    def start(self) -> None:
        """Start watching the running event loop of the calling thread."""
        global _allowed_s
        _allowed_s = 2 * self.limit_s + self.bound_s
        loop, watched = asyncio.get_running_loop(), threading.get_ident()
        args = loop, watched
        threading.Thread(target=self._watch, args=args, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        global _allowed_s
        _allowed_s = 0.0
        self._over.set()
        _count_processor_time(0)

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        stood_s = 0.0
        while not self._over.wait(self._tick_s):
            held = self.held()
            _count_processor_time(_allowed_s if held else 0)
            if not self._beaten:
                stood_s += self._tick_s
            elif self._ask(loop):
                stood_s = 0.0
            else:
                break
            if held and stood_s >= self.limit_s:
                self._end_process(loop, watched, held)
                break

    def _ask(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Ask the loop to run `_beat` in its next turn; return `False` if the loop is closed."""
        self._beaten = False
        try:
            loop.call_soon_threadsafe(self._beat)
        except RuntimeError:
            return False
        return True

    def _beat(self) -> None:
        self._beaten = True

    def _end_process(
        self, loop: asyncio.AbstractEventLoop, watched: int, held: Sequence[Held]
    ) -> None:
        """Release the leases, log, and end the process within `bound_s`, even if the blocked thread
        holds locks."""
        last = threading.Timer(self.bound_s, self.end, (EXIT_STATUS,))
        last.daemon = True
        last.start()
        frame = sys._current_frames().get(watched)
        guilty = _who_is_running(loop, held)
        try:
            asyncio.run(self.let_go(held, guilty))
        except Exception as error:  # the leases expire by themselves
            log.error("cannot release leases", exc_info=error)
        log.error(
            "the event loop is blocked, ending the process",
            extra={"fields": self._facts(frame, guilty, held)},
        )
        self.end(EXIT_STATUS)

    def _facts(
        self, frame: FrameType | None, guilty: Held | None, held: Sequence[Held]
    ) -> dict[str, Any]:
        where = (
            [line.rstrip() for line in traceback.format_stack(frame)] if frame is not None else []
        )
        facts = {} if guilty is None else guilty.facts()
        return {
            **facts,
            "seconds": round(self.limit_s, 3),
            "leases": len(held),
            "stands_at": where[-FRAMES:],
        }


_allowed_s = 0.0
"""The processor time in seconds that the process may use between two ticks of its watchdog; 0
without a watchdog. The timer belongs to the process."""


def attend() -> None:
    """Set the timer for a handler that begins. The handler may hold the interpreter's lock, so
    that the watchdog's thread cannot run."""
    if _allowed_s:
        _count_processor_time(_allowed_s)


def _count_processor_time(seconds: float) -> None:
    """End the process after an amount of processor time in seconds; 0 means never. Do nothing on
    systems without such a timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)


def _who_is_running(loop: asyncio.AbstractEventLoop, held: Sequence[Held]) -> Held | None:
    """Return the leased task whose code the loop runs now, or `None` if it is unknown."""
    task = asyncio.current_task(loop)
    running = {context.get(RUNNING) for context in _task_contexts(task)} - {None}
    return running.pop() if len(running) == 1 and running <= {*held} else None


def _task_contexts(task: asyncio.Task[Any] | None) -> Sequence[Context]:
    if task is None:
        return []
    if sys.version_info >= (3, 12):
        return [task.get_context()]
    # Python 3.11 has no such method; the garbage collector finds the context, and perhaps
    # the context of a waiter of the task
    return [referent for referent in gc.get_referents(task) if isinstance(referent, Context)]
