"""Ending leases from outside a blocked event loop: what the watchdog does
before it ends its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from roundgate.clock import Clock
from roundgate.storage import TaskStore
from roundgate.tasks.turn import Running
from roundgate.tasks.watchdog import Held, LetGo, Watchdog
from roundgate.tasks.worker import Worker


def watchdog_of(
    worker: Worker, make_store: Callable[[], TaskStore], clock: Clock, **limits: float
) -> Watchdog:
    """A watchdog over the leases of a worker. `make_store` makes a store for another event loop."""
    return Watchdog(
        limits["limit_s"], worker.held, _let_go_with(make_store, clock), bound_s=limits["bound_s"]
    )


def _let_go_with(make_store: Callable[[], TaskStore], clock: Clock) -> LetGo:
    async def let_go(held: Sequence[Held], guilty: Held | None) -> None:
        store, now_ms = make_store(), clock.now_ms()

        async def one(running: Running) -> Any:
            lease = running.checkpointer.lease
            # whose fault it is may not be known: then each of them is run alone
            blame = guilty is None or guilty is running
            return await store.let_go(lease.ref, lease.fence, now_ms, now_ms, blame=blame)

        await asyncio.gather(
            *(one(running) for running in held if isinstance(running, Running)),
            return_exceptions=True,
        )
        await store.aclose()

    return let_go
