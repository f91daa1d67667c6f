"""Ending open streams when the server is told to stop.

An ASGI server waits for open responses before it runs lifespan shutdown, and a listening stream
never ends by itself. So the signal that starts the shutdown is what has to end the streams: its
handler is wrapped while the app lives.
"""

from __future__ import annotations

import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop_signal(loop: AbstractEventLoop, action: Callable[[], None]) -> Iterator[None]:
    """Within the block, `action` runs in the loop when the process is told to stop, beside
    the server's own handler."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a test's server thread, or an embedding that owns the signals
        return
    before: dict[signal.Signals, Any] = {}
    for number in SIGNALS:
        before[number] = signal.getsignal(number)
        signal.signal(number, _chain(loop, action, before[number]))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _chain(
    loop: AbstractEventLoop, action: Callable[[], None], then: Any
) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(action)
        if callable(then):
            then(number, frame)
        elif then == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle
