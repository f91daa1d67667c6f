"""Says so when something keeps the event loop from going on: while it stands still, nobody is
served.

A blocking call in an `async` handler (`time.sleep`, `requests.get`, a long computation) stops every
other call, every deadline and every health check of its process. A thread looks whether the loop
still moves, and writes where it is:

    {"msg": "the event loop is blocked", "seconds": 1.2, "at": "reports.py:41 in build", "stack":
    […]}

It ends nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STALL_S: Final = 1.0
LOOK_EVERY_S: Final = 0.25
_FRAMES_SHOWN: Final = 6

log = logging.getLogger("roundgate.stalls")


@contextmanager
def telling_of_stalls(loop: AbstractEventLoop) -> Iterator[None]:
    """Within the block, the log tells when the loop of this thread stands still for
    longer than `STALL_S`."""
    watch = _Watch(loop)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _Watch:
    """The beat of a loop and the thread that listens to it."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._beat_s = time.monotonic()
        self._timer: TimerHandle | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stalls", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._beat)

    def _listen(self) -> None:
        told_s: float | None = None
        looked_s = time.monotonic()
        while not self._is_over.wait(LOOK_EVERY_S):
            now_s, beat_s = time.monotonic(), self._beat_s
            # all of the process did, as under SIGSTOP
            stood_still = now_s - looked_s > 2 * LOOK_EVERY_S
            looked_s = now_s
            if told_s is not None and beat_s > told_s:
                log.warning(
                    "the event loop goes on",
                    extra={"fields": {"seconds": round(beat_s - told_s, 1)}},
                )
                told_s = None
            if told_s is None and not stood_still and now_s - beat_s > STALL_S:
                told_s = beat_s
                self._tell(now_s - beat_s)

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = traceback.extract_stack(frame, limit=50) if frame is not None else []
        shown = [f"{Path(one.filename).name}:{one.lineno} in {one.name}" for one in stack][
            -_FRAMES_SHOWN:
        ]
        fields = {"seconds": round(seconds, 1), "at": shown[-1] if shown else None, "stack": shown}
        log.warning("the event loop is blocked", extra={"fields": fields})
