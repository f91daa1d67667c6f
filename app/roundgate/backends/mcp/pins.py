"""The comparison of a server's definitions with the lock file, as `changes` configures it.

offer          a definition that differs is announced, or quarantined, which leaves it out
page read      its contents are compared, because only a read shows them
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

from roundgate.backends.mcp.apps import is_page, page_definition
from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.lock import KINDS, LockFile
from roundgate.backends.mcp.server import McpServer
from roundgate.backends.mcp.snapshot import ServerSnapshot
from roundgate.backends.mcp.tools import MAX_NAME
from roundgate.client.types import Json, is_object_list
from roundgate.clock import Clock
from roundgate.errors import BackendError, ConfigError, InvalidParams, Unavailable
from roundgate.protocol.apps import DECLARED
from roundgate.settings import Origin

COMPARED_S: Final = 10.0
"""Seconds for which calls reuse a comparison with the lock file: a list costs the server more than
most calls do."""
PAGE_S: Final = 20.0
"""Seconds within which a server must return a page for the lock file."""
MAX_PAGES: Final = 500
"""The maximum number of pages in a lock file: `roundgate compile` reads each of them."""
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
        poll: Callable[[], Awaitable[ServerSnapshot]],
    ) -> None:
        self._config = config
        self._origin = origin
        self._clock = clock
        self._poll = poll
        self._lock: LockFile | None = None
        self._comparison: ServerSnapshot | None = None
        """The last snapshot with which a call was compared."""
        self._comparison_ms = 0.0
        self._comparing = asyncio.Lock()
        self._differing: Sequence[str] = ()
        """The names of the listed definitions that differ from the lock file."""
        self._differing_pages: set[str] = set()
        """The URIs of pages in the lock file whose last read differed from it."""

    @property
    def differing(self) -> Sequence[str]:
        """The names of definitions that differ from the lock file."""
        return sorted({*self._differing, *(uri[:MAX_NAME] for uri in self._differing_pages)})

    @property
    def quarantines(self) -> bool:
        """Return whether definitions that differ from the lock file are not served."""
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
        before = self._lock
        try:
            self._lock = LockFile.read(self.path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            remedy = "run `roundgate compile`, review the pinned definitions, and commit the file"
            problem = self._place.problem(f"the lock file {self.path}: {reason}", remedy)
            raise ConfigError([problem]) from None
        if self._lock != before:
            self._differing_pages.clear()

    def quarantined(self, snapshot: ServerSnapshot) -> Mapping[str, Mapping[str, str]]:
        """Compare a snapshot with the lock file, and log new differences. Return the reasons for
        the quarantined definitions by kind and name."""
        none: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        if self._lock is None:
            return none
        differences = {
            kind: self._lock.differences(kind, definitions)
            for kind, definitions in snapshot.pinned.items()
        }
        differences["pages"] = {
            uri: "it is not in the lock file"
            for uri in snapshot.pages
            if self._config.pins_page(uri) and uri not in self._lock.digests["pages"]
        }
        names = sorted({name[:MAX_NAME] for reasons in differences.values() for name in reasons})
        if names and names != self._differing:
            self._log(names)
        self._differing = names
        return differences if self.quarantines else none

    def _log(self, names: Sequence[str]) -> None:
        fields = {"backend": self._config.name, "n": len(names)}
        fields |= {"names": names[:MAX_LOGGED_NAMES], "are_served": not self.quarantines}
        log.warning("definitions of a server differ from its lock file", extra={"fields": fields})

    def require_accepted_page(self, uri: str, contents: Sequence[Json]) -> None:
        """Compare the contents that the server sent for a URI with the lock file, if it is the URI
        of a page. Report a page that has changed.

        Raises:
            InvalidParams: the page is quarantined.
        """
        if self._lock is None or not is_page(uri) or not self._config.pins_page(uri):
            return
        if not self._lock.differences("pages", [page_definition(uri, contents)]):
            self._differing_pages.discard(uri)
            return
        if uri in self._lock.digests["pages"] and uri not in self._differing_pages:
            self._differing_pages.add(uri)
            self._log([uri[:MAX_NAME]])
        if self.quarantines:
            raise InvalidParams(
                f"{self._config.name} has changed the page {uri[:MAX_NAME]}, or added it; the gateway "
                "does not serve the page until an operator accepts it with `roundgate compile`"
            )

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

    async def write(self, snapshot: ServerSnapshot, server: McpServer) -> str:
        """Write the definitions of a snapshot and its pages to the lock file; return a summary.

        Raises:
            ConfigError: a list or page could not be read, or the file cannot be written.
        """
        for method, reason in snapshot.faults.items():
            remedy = (
                "correct it at the server; definitions that are not pinned would be quarantined"
            )
            raise ConfigError([self._origin.problem(f"{method}: {reason}", remedy)])
        pages = await self._read_pages(snapshot, server)
        lock = LockFile.from_definitions({**snapshot.pinned, "pages": pages})
        before: LockFile | None = None
        with suppress(OSError, ValueError):
            before = LockFile.read(self.path)
        try:
            lock.write(self.path)
        except OSError as error:
            remedy = "choose a file in a writable directory"
            text = f"{self.path} cannot be written: {error.strerror}"
            raise ConfigError([self._place.problem(text, remedy)]) from None
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in lock.digests.items())
        lines = [] if before is None else before.changes_to(lock)
        return "\n".join([*lines, f"{self._config.name}: {counts} pinned: {self.path}"])

    async def _read_pages(self, snapshot: ServerSnapshot, server: McpServer) -> Sequence[Json]:
        """Return the definitions of a server's pages. Raise ConfigError if a page cannot be read."""
        uris = [uri for uri in snapshot.pages if self._config.pins_page(uri)]
        if len(uris) > MAX_PAGES:
            remedy = "name pages in resources.exclude, or in dynamic_pages if they need no pin"
            text = f"the server has {len(uris)} pages; {MAX_PAGES} can be pinned"
            raise ConfigError([self._origin.problem(text, remedy)])
        return [await self._read_page(uri, server) for uri in uris]

    async def _read_page(self, uri: str, server: McpServer) -> Json:
        capabilities = dict(DECLARED)
        try:
            answer = await server.ask(
                "resources/read", {"uri": uri}, PAGE_S, capabilities=capabilities
            )
            contents = answer.get("contents")
            if is_object_list(contents):
                return page_definition(uri, contents or ())
            reason = f"{self._config.name} answered without contents"
        except (BackendError, Unavailable) as error:
            reason = str(error)
        remedy = "correct it at the server, or name the page in resources.exclude or dynamic_pages"
        raise ConfigError([self._origin.problem(f"page {uri[:MAX_NAME]}: {reason}", remedy)])

    @property
    def _place(self) -> Origin:
        return self._origin.at("lock" if self._config.lock else "changes")
