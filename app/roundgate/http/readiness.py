"""Readiness: whether a load balancer should send requests to this process.

`/healthz` answers while the event loop runs, so a failure means that the process must be restarted.
`/readyz` also fails for reasons that a restart does not remove:

    draining              SIGTERM has come; the process stops within `GATEWAY_DRAIN_S` seconds
    audit log unwritable  calls are refused (`audit.on_failure: refuse`)
    keys never read       the issuer's keys could not be read, so every caller gets 503
    store unreachable     the store did not answer within `CHECK_S` seconds
                          (`http.ready_needs_store`)

All replicas share the store, so by default its outage takes none out: calls that need no store go
on.

Nothing listens before the back ends are loaded, so a probe of a starting process fails to connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from roundgate.errors import Unavailable
from roundgate.storage import SessionStore

if TYPE_CHECKING:  # loaded only if tokens are verified
    from roundgate.auth.jwks import KeySet

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
    AUDIT_UNWRITABLE = "audit log unwritable"
    KEYS_UNREAD = "keys never read"
    STORE_UNREACHABLE = "store unreachable"


class Readiness:
    """The readiness of this process.

    Args:
        sessions: the store to read from; `None` if its outage does not count.
        refuses: returns whether calls are refused because the audit log cannot be written.
        keys: the keys of the issuer; `None` if no token is verified.
    """

    def __init__(
        self,
        sessions: SessionStore | None,
        refuses: Callable[[], bool],
        keys: KeySet | None = None,
    ) -> None:
        self.is_draining = False
        """Whether the process has received SIGTERM and will stop soon."""
        self._sessions = sessions
        self._refuses = refuses
        self._keys = keys
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
        if self._keys is not None and not await self._keys.are_read():
            return ReadinessStatus.KEYS_UNREAD
        if self._sessions is None:
            return ReadinessStatus.READY
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._checked_s is None or now_s - self._checked_s >= KEPT_S:
                self._is_reachable = await _reach(self._sessions)
                self._checked_s = asyncio.get_running_loop().time()
            return (
                ReadinessStatus.READY if self._is_reachable else ReadinessStatus.STORE_UNREACHABLE
            )


async def _reach(sessions: SessionStore) -> bool:
    try:
        async with asyncio.timeout(CHECK_S):
            await sessions.read(KEY)
    except (Unavailable, TimeoutError):
        return False
    return True
