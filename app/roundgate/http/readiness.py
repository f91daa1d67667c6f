"""Readiness: whether a load balancer should send requests to this process.

`/healthz` answers while the event loop runs, so a failure means that the process must be restarted.
`/readyz` also fails for reasons that a restart does not remove:

    draining              SIGTERM has come; the process serves for `GATEWAY_DRAIN_S` seconds more
    store unreachable     the store did not answer within `CHECK_S` seconds
    audit log unwritable  calls are refused (`audit.on_failure: refuse`)

Nothing listens before the back ends are loaded, so a probe of a starting process fails to connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from roundgate.errors import Unavailable
from roundgate.storage import SessionStore

CHECK_S: Final = 3.0
"""Seconds in which the store must answer. Probes should wait longer, such as 5 s."""
KEPT_S: Final = 1.0
"""Seconds for which an answer of the store counts, so that anonymous probes cause at most one read
a second."""
KEY: Final = "readyz"
"""The key that is read. No row has it."""


class ReadinessStatus(StrEnum):
    """The reason why a process should get no requests, or `READY`."""

    READY = "ready"
    DRAINING = "draining"
    STORE_UNREACHABLE = "store unreachable"
    AUDIT_UNWRITABLE = "audit log unwritable"


class Readiness:
    """The readiness of this process.

    Args:
        sessions: the store to read from.
        refuses: returns whether calls are refused because the audit log cannot be written.
    """

    def __init__(self, sessions: SessionStore, refuses: Callable[[], bool]) -> None:
        self.is_draining = False
        """Whether the process has received SIGTERM and will stop soon."""
        self._sessions = sessions
        self._refuses = refuses
        self._lock = asyncio.Lock()
        self._is_reachable = False
        self._checked_s: float | None = None
        """The time of the last answer of the store on the event loop's clock."""

    async def status(self) -> ReadinessStatus:
        """Return the current status; read from the store unless it answered within `KEPT_S`."""
        if self.is_draining:
            return ReadinessStatus.DRAINING
        if self._refuses():
            return ReadinessStatus.AUDIT_UNWRITABLE
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._checked_s is None or now_s - self._checked_s >= KEPT_S:
                self._is_reachable = await self._reach()
                self._checked_s = asyncio.get_running_loop().time()
            return (
                ReadinessStatus.READY if self._is_reachable else ReadinessStatus.STORE_UNREACHABLE
            )

    async def _reach(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_S):
                await self._sessions.read(KEY)
        except (Unavailable, TimeoutError):
            return False
        return True
