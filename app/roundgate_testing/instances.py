"""The parts that the instances of a test's gateway share: configuration, stores and clock.

The stores are the SQLite stores on a database in memory. The clock advances on request of the test,
or when all code waits.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from roundgate import config
from roundgate.audit import Trail
from roundgate.audit.digests import Digests
from roundgate.audit.sinks import Sink
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.json import decode
from roundgate.replay import here
from roundgate.runtime import checks
from roundgate.runtime.startup import Loaded, Stores, load
from roundgate.settings import AuditConfig, Origin, Settings, yaml_file
from roundgate.storage import Mark, sqlite
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.stored import StoredTasks
from roundgate.tokens import Key, keys

T = TypeVar("T")

Source: TypeAlias = str | Path | ModuleType | Callable[..., Any]
"""A gateway.yaml, a Python file, a module, or a function with a decorator such as `@tool`."""

ORIGIN: Final = "http://127.0.0.1"
"""The URL of a test's gateway, without the path."""
_numbers = count()
_LOOK_S: Final = 0.01


class Setup(Struct, frozen=True):
    """The configuration of a test's gateway: sources, environment variables and sections of
    gateway.yaml."""

    sources: Sequence[Source]
    environ: Mapping[str, str]
    sections: Mapping[str, Any]

    def load(self) -> ConfigFile:
        """Return the configuration.

        Raises:
            ConfigError: the gateway.yaml or a section is invalid.
            TypeError: a gateway.yaml is combined with other sources or sections.
        """
        first = self.sources[0]
        if isinstance(first, str | Path) and Path(first).suffix != ".py":
            if len(self.sources) > 1 or self.sections:
                raise TypeError(
                    "a gateway.yaml must be the only source: put tools and sections into it"
                )
            return config.load(Path(first), {**os.environ, **self.environ})
        functions: list[Callable[..., Any]] = []
        backends: list[dict[str, Any]] = []
        for source in self.sources:
            if isinstance(source, ModuleType):
                backends.append({"module": source.__name__})
            elif isinstance(source, str | Path):
                backends.append({"path": str(Path(source).resolve())})
            else:
                functions.append(source)
        if functions:
            backends.append({"module": _module_with(functions)})
        named = [
            {"kind": "python", "name": f"python{number or ''}", "prefix": "", **backend}
            for number, backend in enumerate(backends)
        ]
        origin = Origin(yaml_file.Located(Path("gateway.yaml"), {}, {}))
        return config.validated({"backends": named, **self.sections}, origin)


def _module_with(functions: Sequence[Callable[..., Any]]) -> str:
    module = ModuleType(f"roundgate_functions_of_a_test_{next(_numbers)}")
    for function in functions:
        setattr(module, getattr(function, "__name__", f"function_{next(_numbers)}"), function)
    sys.modules[module.__name__] = module
    return module.__name__


class Loads:
    """The configurations of a test, each loaded once: what dies with an instance is its part of the
    gateway, not the user's modules and the back ends. The audit log is kept nowhere."""

    def __init__(self) -> None:
        self.using = Settings(worker="off", state_keys=keys.new_key(), public_url=ORIGIN)
        """The settings of all instances."""
        self._loaded: list[tuple[ConfigFile, Loaded]] = []

    def of(self, file: ConfigFile) -> Loaded:
        """Return the loaded configuration.

        Raises:
            ConfigError: as for `build_app`.
        """
        for known, loaded in self._loaded:
            if known is file:
                return loaded
        checks.require(checks.problems(file, self.using, has_verifier=True))
        loaded = load(file, self.using, _make_trail(file.config.audit))
        self._loaded.append((file, loaded))
        return loaded

    async def aclose(self) -> None:
        """Close all back ends and audit logs."""
        for _, loaded in self._loaded:
            await loaded.snapshot.aclose()
            if loaded.trail is not None:
                await loaded.trail.aclose()


def _make_trail(config: AuditConfig | None) -> Trail | None:
    if config is None:
        return None
    return Trail(config, lambda chain: _Nowhere(), Digests(Key(os.urandom(32))), Clock())


class _Nowhere(Sink):
    """A destination of audit logs that drops the records."""

    def write(self, line: bytes) -> None: ...

    def mark(self, checkpoint: bytes) -> None: ...

    def close(self) -> None: ...

    def flusher(self) -> Callable[[], None]:
        return lambda: None


class Memory:
    """The database that all instances share, until it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: sqlite3.Connection | None = None

    def stores(self, life: InstanceLife) -> Stores:
        """Return the stores of one instance, which block once the instance is dead."""
        database = _MemoryDatabase(self, life)
        queue = sqlite.SqliteQueue(database, self._clock)
        return Stores(
            StoredTasks(sqlite.SqliteTasks(database), queue),
            queue,
            sqlite.SqliteSessions(database, self._clock),
        )

    def next_ms(self) -> int | None:
        """Return when the next message arrives or a task is due, in milliseconds since the epoch;
        `None` if never. Expiry times of tasks do not count."""
        select = (
            "select min(at) from (select min(visible_ms) as at from waiting where turn is null"
            " union all select min(due_ms) from tasks where due_ms < expires_ms)"
        )
        at_ms: int | None = self.connection.execute(select).fetchone()[0]
        return at_ms

    def marks(self) -> dict[TaskRef, list[Mark]]:
        """Return the external events of all tasks."""
        select = "select owner, id, events from tasks where events is not null"
        return {
            TaskRef(owner, task_id): [Mark.parse(text) for text in decode(events.encode())]
            for owner, task_id, events in self.connection.execute(select)
        }

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the only connection to the database. A second connection would open another
        database."""
        if self._connection is None:
            self._connection = sqlite.connect_in_memory()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class InstanceLife:
    """The life of one instance: a gateway or a worker. A dead instance cannot use the stores."""

    def __init__(self) -> None:
        self.died = asyncio.Event()
        self._is_buried = asyncio.Event()

    async def die(self) -> None:
        """Mark the instance as dead, and never return."""
        self.died.set()
        await asyncio.Future[None]()

    async def reach(self) -> None:
        """Return if the instance is alive. Otherwise wait for `bury` and raise `CancelledError`, so
        that the remaining work ends."""
        if self.died.is_set():
            await self._is_buried.wait()
            raise asyncio.CancelledError

    def bury(self) -> None:
        """End the remaining work of a dead instance."""
        self._is_buried.set()


class _MemoryDatabase(sqlite.SqliteDatabase):
    """The database of one instance, without threads, so that tests have no races."""

    def __init__(self, memory: Memory, life: InstanceLife) -> None:
        super().__init__(Path(":memory:"), durable=False)
        self._memory = memory
        self._life = life

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        await self._life.reach()
        return work(self._memory.connection)

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        return await self.read(lambda db: sqlite.transacted(db, work))

    async def aclose(self) -> None:
        """Do nothing, because the memory outlives the instance."""


class VirtualClock(Clock):
    """A clock that advances only while all code waits, so an hour of `ctx.sleep` takes no time.

    The clock starts at the current time. Code that reads another clock (`time.time()`,
    `datetime.now()`) sees real time.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        """Start the clock at `now_ms`, in milliseconds since the epoch; by default at the current
        time."""
        self._now_ms = super().now_ms() if now_ms is None else now_ms
        self._begun_ms = self._now_ms
        self._timers: list[tuple[int, int, _Timer]] = []
        self.at_work: Callable[[], int] = lambda: 0
        """Returns the number of instances that are working now."""
        self._numbers = count()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return float(self._now_ms - self._begun_ms)

    def skip(self, seconds: float) -> None:
        """Advance the clock, and fire the timers that become due, earliest first."""
        until_ms = self._now_ms + round(seconds * 1000)
        while (due_ms := self._next_ms()) is not None and due_ms <= until_ms:
            self._fire()
        self._now_ms = until_ms

    def move_to(self, at_ms: int) -> None:
        """Advance the clock to `at_ms`, in milliseconds since the epoch, unless that time has
        passed."""
        if at_ms > self._now_ms:
            self.skip((at_ms - self._now_ms) / 1000)

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds of this clock.

        In a handler, the clock advances once the whole handler waits; in other code it advances at
        once. If another instance is working, whose result the caller may need, `sleep` takes at
        most 10 ms of real time instead.
        """
        if here.get() is None and seconds > 0:
            if self.at_work() > 1:
                await asyncio.sleep(min(seconds, _LOOK_S))
            else:
                self.skip(seconds)
        if here.get() is None or seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        due_ms = self._now_ms + max(0, -int(-seconds * 1000 // 1))  # rounded up
        heapq.heappush(self._timers, (due_ms, next(self._numbers), timer))
        return timer

    def pass_time(self) -> bool:
        """Advance to the next timer and fire it; return whether there was one."""
        if self._next_ms() is None:
            return False
        self._fire()
        return True

    def _next_ms(self) -> int | None:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _fire(self) -> None:
        due_ms, _, timer = heapq.heappop(self._timers)
        self._now_ms = max(self._now_ms, due_ms)
        timer.fire()


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def fire(self) -> None:
        self._callback()
