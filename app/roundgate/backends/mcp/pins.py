"""The comparison of a server's definitions with the lock file, as `changes` configures it.

offer          a definition that differs is announced, or quarantined, which leaves it out
before a call  the server's current definition of the tool is compared again, in quarantine only:
               a server could list one tool and run another
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.lock import KINDS, Lock
from roundgate.backends.mcp.snapshot import Snapshot
from roundgate.backends.mcp.tools import MAX_NAME
from roundgate.clock import Clock
from roundgate.errors import BackendError, ConfigError
from roundgate.protocol import without_none
from roundgate.settings import Origin

COMPARED_S: Final = 10.0
"""Seconds for which calls reuse a comparison with the lock file: a list costs the server more than
most calls do."""
MAX_LOGGED_NAMES: Final = 20
"""The maximum number of names in one log record."""

log = logging.getLogger("roundgate.backends")


class Pins:
    """The accepted definitions of one server.

    Args:
        config: the configuration of the back end.
        origin: its place in gateway.yaml.
        clock: the clock of the process.
        poll: reads the server's lists. Raises BackendError.
    """

    def __init__(
        self,
        config: McpBackendConfig,
        origin: Origin,
        clock: Clock,
        poll: Callable[[], Awaitable[Snapshot]],
    ) -> None:
        self._config = config
        self._origin = origin
        self._clock = clock
        self._poll = poll
        self._lock: Lock | None = None
        self._comparison: Snapshot | None = None
        """The last snapshot with which a call was compared."""
        self._comparison_ms = 0.0
        self._comparing = asyncio.Lock()
        self.differing: Sequence[str] = ()
        """The names of definitions that differ from the lock file."""

    @property
    def quarantines(self) -> bool:
        """Whether definitions that differ from the lock file are not served."""
        return self._config.changes == "quarantine"

    @property
    def files(self) -> frozenset[Path]:
        """The lock file, if definitions are compared with it."""
        return frozenset() if self._config.changes == "take" else frozenset({self.path})

    @property
    def path(self) -> Path:
        """The path of the lock file."""
        return self._origin.base_dir / self._config.lock_file

    def read(self) -> None:
        """Read the lock file, unless every change is accepted (`changes: take`).

        Raises:
            ConfigError: the file cannot be read.
        """
        if self._config.changes == "take":
            return
        try:
            self._lock = Lock.read(self.path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            remedy = "run `roundgate compile`, review the pinned definitions, and commit the file"
            problem = self._place.problem(f"the lock file {self.path}: {reason}", remedy)
            raise ConfigError([problem]) from None

    def quarantined(self, snapshot: Snapshot) -> Mapping[str, Mapping[str, str]]:
        """Compare a snapshot with the lock file, and log new differences. Return the reasons for
        the quarantined definitions by kind and name."""
        none: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        if self._lock is None:
            return none
        differences = {
            kind: self._lock.differences(kind, definitions)
            for kind, definitions in snapshot.pinned.items()
        }
        names = sorted({name[:MAX_NAME] for reasons in differences.values() for name in reasons})
        quarantines = self.quarantines
        if names and names != self.differing:
            fields = {"backend": self._config.name, "n": len(names)}
            fields |= {"names": names[:MAX_LOGGED_NAMES], "are_served": not quarantines}
            log.warning(
                "definitions of a server differ from its lock file", extra={"fields": fields}
            )
        self.differing = names
        return differences if quarantines else none

    def accepts_skill(self, definition: Mapping[str, Any]) -> bool:
        """Return whether the lock file has a skill as the server describes it now."""
        return self._lock is None or not self._lock.differences("skills", [definition])

    async def require_accepted(self, name: str) -> None:
        """Compare the server's current definition of a tool with the lock file.

        Raises:
            BackendError: the definition is quarantined, the server does not list the tool, or its
                list cannot be read.
        """
        if self._lock is None or not self.quarantines:
            return
        async with self._comparing:
            now_ms = self._clock.monotonic_ms()
            if self._comparison is None or now_ms - self._comparison_ms > COMPARED_S * 1000:
                self._comparison = await self._poll()
                self._comparison_ms = now_ms
            snapshot = self._comparison
        listed = [raw for raw in snapshot.definitions if raw.get("name") == name]
        if not listed or self._lock.differences("tools", listed):
            raise BackendError(
                f"{self._config.name} has changed the definition of {name}; the gateway does not "
                "call the tool until an operator accepts the change with `roundgate compile`",
                reason="quarantined",
            )

    def write(self, snapshot: Snapshot) -> str:
        """Write the definitions of a snapshot to the lock file; return a summary.

        Raises:
            ConfigError: a list could not be read, or the file cannot be written.
        """
        faults = {**snapshot.lists.faults, **without_none(**{"skills/list": snapshot.skills.fault})}
        if faults:
            method, reason = next(iter(faults.items()))
            remedy = (
                "correct it at the server; definitions that are not pinned would be quarantined"
            )
            raise ConfigError([self._origin.problem(f"{method}: {reason}", remedy)])
        lock = Lock.from_definitions(snapshot.pinned)
        before: Lock | None = None
        with suppress(OSError, ValueError):
            before = Lock.read(self.path)
        try:
            lock.write(self.path)
        except OSError as error:
            remedy = "choose a file in a writable directory"
            text = f"{self.path} cannot be written: {error.strerror}"
            raise ConfigError([self._place.problem(text, remedy)]) from None
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in lock.digests.items())
        lines = [] if before is None else before.changes_to(lock)
        return "\n".join([*lines, f"{self._config.name}: {counts} pinned: {self.path}"])

    @property
    def _place(self) -> Origin:
        return self._origin.at("lock" if self._config.lock else "changes")
