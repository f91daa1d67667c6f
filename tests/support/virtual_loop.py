"""An event loop whose time passes only when nothing is left to do: a wait of an hour takes none,
and how long a test waited is exact. For code that waits for nothing outside of its process."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    """Lets time pass instead of waiting."""

    def __init__(self, let_pass: Callable[[float], None]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self._let_pass(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Skipping(self._skip))

    def time(self) -> float:
        return self._now_s

    def _skip(self, seconds: float) -> None:
        self._now_s += seconds


def passed_s(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run a coroutine to its end; returns its value, and how many seconds passed meanwhile."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        value = runner.run(coroutine)
        return value, runner.get_loop().time()
