"""The reload of the configuration without a restart: on SIGHUP, and with `serve --reload` when a
file has changed.

    trigger ──▶ gateway.yaml ──▶ modules ──▶ offers ──▶ swap         running calls keep the old catalog
                     └───────────────┴──────────┴─▶ a problem        logged; the old catalog stays served

The reloader polls the files every `POLL_S`. The sections in `RESTART` cannot
change while a process runs; the reloader logs and ignores changes of them.

A half-written file may be valid and protect less, because approvals, scopes or limits at its end
are missing. So the gateway serves a change of what protects calls only after the files have been
unchanged for `CONFIRM_S` and a second read changes the same. A further SIGHUP is a second read, too:

    a write ──▶ read: changes protection ──▶ a warning ──▶ CONFIRM_S without a write ──▶ read again ──▶ served
                                                       └─▶ another write ──▶ from the start
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace
from pydantic import BaseModel

from roundgate import config
from roundgate.backends import Catalog, Serving, Snapshot
from roundgate.backends.base import LiveBackend
from roundgate.backends.modules import Modules
from roundgate.backends.serving import core_of
from roundgate.background import detached
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ConfigError, Inside
from roundgate.observability.metrics import Metrics
from roundgate.runtime import loading
from roundgate.settings import Origin
from roundgate.settings.files import Stamp, stamp
from roundgate.starting import HeldHangup, terminal_watch
from roundgate.storage import SessionStore

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

POLL_S: Final = 0.25
"""The time in seconds between two checks of the files."""
HEAL_S: Final = 5.0
"""The time in seconds before the first retry of a missing back end; the pause doubles up to
`HEAL_AT_MOST_S`."""
HEAL_AT_MOST_S: Final = 300.0
"""The longest pause in seconds between two retries."""
SETTLE_S: Final = 0.1
"""The time in seconds without a write before files are read, because editors write in several
steps."""
CONFIRM_S: Final = 2.0
"""The time in seconds without a write before a change of protection is served."""
MAX_NAMED: Final = 20
"""The maximum number of tools that one log line names as added, removed or changed."""
RESTART: Final = ("http", "auth", "state", "tasks", "audit", "console", "env")
"""The sections that only a restart changes. The names, paths and scopes of `views` also need a
restart."""

Swap: TypeAlias = Callable[[GatewayConfig, Snapshot], None]
"""Serves a snapshot from now on. The function runs in the event loop and never waits."""

log = logging.getLogger("roundgate.reload")


class Unconfirmed(Inside):
    """A configuration changes the protection and has been read only once. `changed` names each
    change."""

    def __init__(self, changed: list[str]) -> None:
        super().__init__()
        self.changed = changed


class Reloader:
    """The reload of the configuration on request and, with `watches`, when a file has changed. The
    reloader also retries missing back ends."""

    def __init__(
        self,
        file: ConfigFile,
        serving: Serving,
        modules: Modules,
        swap: Swap,
        rows: SessionStore,
        *,
        watches: bool = False,
        trail: Trail | None = None,
    ) -> None:
        self._trail = trail
        self._path = file.origin.located.file
        self._file = file
        self._serving = serving
        self._modules = modules
        self._swap = swap
        self._rows = rows
        """The store of limits that replicas share."""
        self._watches = watches
        self._has_failed = False
        self._unconfirmed: list[str] = []
        """The changes of the protection that are not confirmed yet."""
        self._heals = False
        self._stale: set[str] = set()
        """The back ends whose servers list other tools than the gateway serves."""
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def trouble(self) -> str | None:
        """The failure of the last reload, for operators."""
        return (
            "the last reload failed; the version before it is served" if self._has_failed else None
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reload on SIGHUP while the block runs and, with `watches`, when files have changed."""
        with on_hangup(asyncio.get_running_loop(), self.soon):
            if self._watches:
                self._begin(self._watch())
            self._heal_if_needed()
            self._follow_servers()
            try:
                yield
            finally:
                for task in self._running:
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)

    def soon(self) -> None:
        """Start a reload in this event loop without waiting for it. A change of protection is
        served after a second read."""
        self._begin(self._reload_until_confirmed())

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task = detached(asyncio.create_task, work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def reload(self, *, confirms: bool = False) -> bool:
        """Serve the current content of the files.

        Args:
            confirms: whether a change of protection must be read twice.

        Returns:
            True if the content is served. Otherwise the old catalog stays, because the files cannot
                be served or must be read again.
        """
        async with self._one_at_a_time:
            try:
                with self._modules.renewed():
                    read = config.load(self._path)
                    usable = self._without_restart(read)
                    now = self._serving.now
                    snapshot = await loading.load_again(
                        usable, self._modules, now.catalog.missing.keys(), now, self._rows
                    )
                    changed = self._changes(usable, snapshot)
                    if confirms and changed and changed != self._unconfirmed:
                        await snapshot.aclose([now])
                        raise Unconfirmed(changed)
                    self._swap(usable.config, snapshot)
            except Unconfirmed as unconfirmed:
                self._has_failed, self._unconfirmed = False, unconfirmed.changed
                self._tell_unconfirmed()
                return False
            except Exception as error:
                self._has_failed, self._unconfirmed = True, []
                _tell_failure(self._path, error)
                return False
            self._has_failed, self._unconfirmed = False, []
            self._tell_reloaded(read, usable, snapshot.catalog, changed)
            self._record("reload", changed)
            self._file = usable
            self._note_missing(snapshot)
            self._heal_if_needed()
            self._follow_servers()
            return True

    def _changes(self, file: ConfigFile, snapshot: Snapshot) -> list[str]:
        """Return the changes of the protection if `snapshot` is served."""
        # a process that never reloads needs none of this
        from roundgate.runtime.protection import changes, protection

        before = protection(self._file, self._serving.catalog)
        return list(changes(before, protection(file, snapshot.catalog)))

    def _record(self, cause: str, changed: list[str]) -> None:
        """Record a change of the protection in the audit log."""
        if self._trail is not None and changed:
            self._trail.reloaded(cause, self._path, changed)

    def _tell_unconfirmed(self) -> None:
        log.warning(
            "a change of %s would change protection; it is served if the file stays unchanged for %s s",
            self._path,
            f"{CONFIRM_S:g}",
            extra={"fields": {"changed": self._unconfirmed}},
        )

    def _tell_reloaded(
        self, read: ConfigFile, usable: ConfigFile, catalog: Catalog, changed: list[str]
    ) -> None:
        needing = RESTART if usable.config.views is read.config.views else (*RESTART, "views")
        for name in _differences(self._file.config, read.config):
            if name.partition(".")[0] in needing:
                place = read.origin.at(*name.split("."))
                log.warning("%s needs a restart", name, extra={"fields": {"at": _place(place)}})
        if changed:
            fields: dict[str, Any] = {"changed": changed}
            log.warning("a change of %s changes protection", self._path, extra={"fields": fields})
        fields = {"tools": len(catalog.tools), "prompts": len(catalog.prompts)}
        fields["resources"] = len(catalog.resources) + len(catalog.templates)
        log.info("reloaded %s", self._path, extra={"fields": fields})

    def _note_missing(self, snapshot: Snapshot, before: Catalog | None = None) -> None:
        loading.tell_missing(snapshot.catalog, None if before is None else before.missing)
        loading.tell_uncovered(snapshot.catalog)
        Metrics().missing(len(snapshot.catalog.missing))

    def _follow_servers(self) -> None:
        """Keep the offers of servers up to date."""
        for backend in self._serving.now.backends:
            core = core_of(backend)
            if isinstance(core, LiveBackend):
                core.follow(partial(self._offer_changed, backend.name))

    def _offer_changed(self, name: str) -> None:
        if not self._stale:
            self._begin(self._refresh())
        self._stale.add(name)

    async def _refresh(self) -> None:
        """Serve the current tools of servers, once for all changes within `SETTLE_S`."""
        await asyncio.sleep(SETTLE_S)
        async with self._one_at_a_time:
            names, self._stale = self._stale, set()
            before = self._serving.catalog
            try:
                snapshot = await loading.refreshed(self._file, self._serving.now, names)
                changed = self._changes(self._file, snapshot) if self._trail else []
                self._swap(self._file.config, snapshot)
                self._record("tools of a server have changed", changed)
            except Exception as error:
                log.error(
                    "the changed tools of servers cannot be served; the old ones stay served",
                    exc_info=None if isinstance(error, ConfigError) else error,
                    extra={
                        "fields": {"backends": sorted(names), "problems": _problem_lines(error)}
                    },
                )
                return
            _tell_refreshed(names, before, snapshot.catalog)
            self._note_missing(snapshot, before)

    def _is_missing(self) -> bool:
        """Return whether back ends are missing that do not recover by themselves."""
        missing = self._serving.catalog.missing.values()
        return any(not backend.heals_itself for backend in missing)

    def _heal_if_needed(self) -> None:
        if self._is_missing() and not self._heals:
            self._heals = True
            self._begin(self._heal())

    async def _heal(self) -> None:
        """Retry missing back ends, with growing pauses, until none is missing."""
        pause_s = HEAL_S
        while self._is_missing():
            await asyncio.sleep(pause_s)
            pause_s = HEAL_S if await self._healed() else min(2 * pause_s, HEAL_AT_MOST_S)
        self._heals = False

    async def _healed(self) -> bool:
        """Serve back ends that failed before, provided that all others are still served. Return
        whether any is served again.

        Loaded modules stay loaded even if their files have changed, because only a reload may
        change other back ends or the protection.
        """
        async with self._one_at_a_time:
            missing = self._serving.catalog.missing
            importlib.invalidate_caches()  # a missing module may have appeared
            try:
                now = self._serving.now
                snapshot = await loading.load_again(
                    self._file, self._modules, missing.keys(), now, self._rows
                )
                if snapshot.catalog.missing.keys() == missing.keys():
                    await snapshot.aclose([now])
                    absent = snapshot.catalog.missing.values()
                    raise ConfigError(
                        [problem for backend in absent for problem in backend.problems]
                    )
                changed = self._changes(self._file, snapshot)
                if changed:
                    await snapshot.aclose([now])
                    raise Unconfirmed(changed)
                self._swap(self._file.config, snapshot)
                self._record("a back end is served again", changed)
            except Unconfirmed as unconfirmed:
                log.warning(
                    "missing back ends stay missing: serving them would change protection; reload to accept that",
                    extra={"fields": {"changed": unconfirmed.changed}},
                )
                return False
            except Exception as error:
                log.debug("back ends are still missing", exc_info=error)
                return False
            again = sorted(missing.keys() - snapshot.catalog.missing.keys())
            log.info("back ends are served again", extra={"fields": {"backends": again}})
            self._note_missing(snapshot, now.catalog)
            self._follow_servers()
            return True

    def _without_restart(self, read: ConfigFile) -> ConfigFile:
        """Return the configuration `read` with the current values of the sections in `RESTART`."""
        unchanged = {name: getattr(self._file.config, name) for name in RESTART}
        if _addresses(read.config) != _addresses(self._file.config):
            unchanged["views"] = self._file.config.views
        return replace(read, config=read.config.model_copy(update=unchanged))

    async def _reload_until_confirmed(self) -> None:
        """Reload. Read files that are written meanwhile, until a change of protection is confirmed."""
        while True:
            before = self._look(whatever_may_mend=True)
            await self.reload(confirms=True)
            await self._confirm(before)
            if not self._unconfirmed:
                return
            self._unconfirmed = []  # what has been written since then is a first read

    async def _confirm(self, before: Mapping[Path, Stamp]) -> None:
        """Read a change of protection again, until it is served or a file is written."""
        while self._unconfirmed and await self._is_left_alone(before):
            if self._unconfirmed:  # SIGHUP may have served the change meanwhile
                await self.reload(confirms=True)

    async def _watch(self) -> None:
        last_stamps = self._look()
        while True:
            await asyncio.sleep(POLL_S)
            stamps = self._look()
            if stamps == last_stamps and (self._has_failed or not self._modules.changed()):
                continue
            settled: Mapping[Path, Stamp] = {}
            while settled != stamps:
                settled = stamps
                await asyncio.sleep(SETTLE_S)
                stamps = self._look()
            before = self._look(whatever_may_mend=True)
            await self.reload(confirms=True)
            await self._confirm(before)
            self._unconfirmed = []
            # Compare with the states before the reload, so that a change during it is noticed. A
            # file that was not checked before keeps its current state. After a failure it counts
            # as new instead, because it may be the module that was missing.
            last_stamps = (
                before
                if self._has_failed
                else {file: before.get(file, now) for file, now in self._look().items()}
            )

    async def _is_left_alone(self, before: Mapping[Path, Stamp]) -> bool:
        """Wait for `CONFIRM_S`, and return True if no file was written meanwhile."""
        for _ in range(round(CONFIRM_S / POLL_S)):
            await asyncio.sleep(POLL_S)
            if any(before.get(file, now) != now for file, now in self._look().items()):
                return False
        return True

    def _look(self, whatever_may_mend: bool = False) -> dict[Path, Stamp]:
        """Return the states of the loaded files and, after a failure or with `whatever_may_mend`,
        of Python files beside them."""
        files = {
            self._path,
            *self._file.references,
            *self._serving.catalog.files,
            *self._modules.files(),
        }
        if self._has_failed or whatever_may_mend:
            for directory in {self._path.resolve().parent, *self._modules.directories}:
                with suppress(OSError):
                    files.update(directory.glob("*.py"))
        return {file: stamp(file) for file in files}


def _addresses(config: GatewayConfig) -> list[tuple[str, str, list[str]]]:
    """Return the parts of views that are fixed when a process starts."""
    return [(view.name, view.effective_path, view.scopes) for view in config.views]


def _tell_failure(path: Path, error: Exception) -> None:
    message = "%s was not reloaded; the previous configuration stays served"
    if isinstance(error, ConfigError):
        log.error(
            message,
            path,
            extra={"fields": {"problems": [str(problem) for problem in error.problems]}},
        )
    else:
        log.error(message, path, exc_info=error)


def _problem_lines(error: Exception) -> list[str]:
    return [str(problem) for problem in error.problems] if isinstance(error, ConfigError) else []


def _tell_refreshed(names: Collection[str], before: Catalog, now: Catalog) -> None:
    """Log which tools of servers were added, removed or changed; at most `MAX_NAMED` of each."""
    was, has = (
        {name: served for name, served in catalog.tools.items() if served.backend in names}
        for catalog in (before, now)
    )
    changed = [
        name
        for name in was.keys() & has.keys()
        if was[name].tool.definition != has[name].tool.definition
    ]
    fields = {
        "backends": sorted(names),
        "tools": len(has),
        "added": sorted(has.keys() - was.keys())[:MAX_NAMED],
        "removed": sorted(was.keys() - has.keys())[:MAX_NAMED],
        "changed": sorted(changed)[:MAX_NAMED],
    }
    log.info("servers list other tools", extra={"fields": fields})


def _place(origin: Origin) -> str:
    line = origin.located.line(origin.loc)
    return f"{origin.located.file}:{line}" if line else str(origin.located.file)


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Yield the names of settings that differ, such as `tasks.lease_s`. A list counts as one
    setting."""
    if isinstance(old, BaseModel) and type(old) is type(new):
        for member in type(old).model_fields:
            yield from _differences(
                getattr(old, member), getattr(new, member), f"{name}.{member}".lstrip(".")
            )
    elif old != new:
        yield name


@contextmanager
def on_hangup(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> Iterator[None]:
    """Run `action` in the loop on SIGHUP while the block runs. After the terminal was closed,
    SIGHUP ends the process as SIGTERM does."""
    number = getattr(signal, "SIGHUP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield  # on Windows, and in a thread other than the main one, which cannot set handlers
        return
    before = signal.getsignal(number)
    is_gone = before.is_gone if isinstance(before, HeldHangup) else terminal_watch()

    def handle() -> None:
        if is_gone():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            action()

    loop.add_signal_handler(number, handle)
    if isinstance(before, HeldHangup) and before.has_come:
        handle()
    try:
        yield
    finally:
        loop.remove_signal_handler(number)
        signal.signal(number, before)
