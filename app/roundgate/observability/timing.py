"""The durations of store calls, measured between the gateway and a store of any kind."""

from __future__ import annotations

import functools
import inspect
import time
from typing import Any, Final, TypeVar, cast

from roundgate.observability.metrics import instruments

T = TypeVar("T")

_WAITING: Final = frozenset({"receive", "aclose"})
"""The methods that wait for other processes or connections. Their duration does not measure the
store."""


def timed(port: T, store: str) -> T:
    """Return an object that records the duration of each call of a store or queue; without an SDK,
    return the same object.

    Args:
        port: the store or queue.
        store: its name in the metric: "tasks", "sessions" or "queue".
    """
    return port if instruments() is None else cast("T", _Timed(port, store))


class _Timed:
    """A store or queue whose asynchronous methods are timed."""

    def __init__(self, port: Any, store: str) -> None:
        self._port = port
        self._store = store

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if name in _WAITING or not inspect.iscoroutinefunction(value):
            return value
        facts = {"store": self._store, "operation": name}

        @functools.wraps(value)
        async def call(*args: Any, **kwargs: Any) -> Any:
            began, error = time.perf_counter(), {}
            try:
                return await value(*args, **kwargs)
            except BaseException as raised:
                error = {"error.type": type(raised).__name__}
                raise
            finally:
                if made := instruments():
                    made.store.record(time.perf_counter() - began, {**facts, **error})

        setattr(self, name, call)  # found without `__getattr__` from now on
        return call
