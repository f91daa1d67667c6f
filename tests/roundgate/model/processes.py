"""Processes: workers and clients with the real code in them, their clocks, their
deaths and their stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, Final

from roundgate.backends.catalog import Catalog
from roundgate.clock import Clock
from roundgate.settings import TasksConfig
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.tasks.external import Deliveries, EventSource
from roundgate.tasks.pool import Pool
from roundgate.tasks.service import Tasks
from roundgate.tasks.stored import Lease
from roundgate.tasks.sweep import Sweep
from roundgate.tasks.turn import Means
from roundgate.tasks.worker import Worker
from tests.roundgate.model.network import Post, Queue, Remote, ToldTasks, Weather, database, request
from tests.roundgate.model.witness import Witness
from tests.roundgate.model.world import ProcessLoop, World, drain
from tests.support.tasks import nobody_listens

BEGIN_MS: Final = 1_800_000_000_000
RESPAWN_S: Final = (0.5, 3.0)
CALM: Final = Weather()


class _Tokens:
    """Tokens that nobody opens: services of the model know the task. A seal would be another at each telling."""

    def seal(self, place: Any) -> str:
        return f"token of {place.name}"


TOKENS: Final[Any] = _Tokens()


class ModelClock(Clock):
    """The clocks of one process: the wall clock is off by a little, the monotonic one may stop while it sleeps."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._ids = 0
        self.off_s = 0.0
        self.most_off_s = -1_000.0
        self.slept_s = 0.0

    def set(self, off_s: float) -> None:
        """Be off by so much from now on."""
        self.off_s, self.most_off_s = off_s, max(off_s, self.most_off_s)

    def true_s(self, wall_ms: int) -> float:
        """When at the earliest this clock showed, or will show, a time."""
        return (wall_ms - BEGIN_MS) / 1000 - self.most_off_s

    def now_ms(self) -> int:
        return BEGIN_MS + int((self._world.now_s + self.off_s) * 1000)

    def monotonic_ms(self) -> float:
        return (self._world.now_s - self.slept_s) * 1000

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._name}-{self._ids}"


class Process:
    """One process: an event loop, clocks, and its own objects on what all share."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.shared = shared
        self.world = shared.world
        self.name = name
        self.is_dead = False
        self.is_draining = False
        self.is_stopped = False
        self.told_to_end_s: float | None = None
        self.loop = ProcessLoop(self.world)
        self.clock = ModelClock(self.world, name)
        self.clock.set(shared.any_offset_s())
        self.queue = Queue(self, shared.post)
        self.store = ToldTasks(SqliteTasks(Remote(self, shared.db)), self.queue)
        self.tasks = Tasks(self.store, self.clock, shared.config)
        self.deliveries = Deliveries(self.store, self.clock, shared.config)
        self.world.loops.append(self.loop)

    @property
    def weather(self) -> Weather:
        return self.shared.weather

    def begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have it run something; nothing is begun if it dies before."""
        context = Context()
        self.loop.call_soon(lambda: context.run(self._keep, work), context=Context())

    def _keep(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.main = asyncio.create_task(work())
        self.main.add_done_callback(self._main_ended)

    def _main_ended(self, main: asyncio.Task[Any]) -> None:
        if (
            not main.cancelled()
            and not self.is_draining
            and (error := main.exception()) is not None
        ):
            self.world.wrong(f"{self.name} ended with {error!r}")

    async def request(self, what: str, work: Callable[[], Any], lease: Lease | None = None) -> Any:
        """Ask what is shared for something."""
        return await request(self, what, work, lease)

    def kill(self) -> None:
        """It is gone, in the middle of whatever it did."""
        self.world.tell(f"{self.name} dies")
        self.is_dead = True
        if self.loop in self.world.loops:
            self.world.loops.remove(self.loop)

    def stop(self, seconds: float, *, sleeps: bool = False) -> None:
        """It stands still, as after SIGSTOP, or with `sleeps` as a machine does whose monotonic clock stops too."""
        if self.is_dead or self.is_stopped:
            return
        self.world.tell(f"{self.name} stands still for {seconds:.1f} s")
        self.is_stopped = True
        self.world.loops.remove(self.loop)
        self.world.after(seconds, lambda: self._go_on(seconds if sleeps else 0.0))

    def _go_on(self, slept_s: float) -> None:
        self.is_stopped = False
        self.clock.slept_s += slept_s
        if not self.is_dead:
            self.world.tell(f"{self.name} goes on")
            self.world.loops.append(self.loop)

    def drain(self) -> None:
        """End what is left of it."""
        self.is_draining = True
        drain(self.loop, self.world)


class InOrder(set[Any]):
    """A set that is gone through in the order of its making, so that a seed tells the same story again."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[Any, None] = {}

    def add(self, one: Any) -> None:
        super().add(one)
        self._order[one] = None

    def discard(self, one: Any) -> None:
        super().discard(one)
        self._order.pop(one, None)

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._order])


class WorkerProcess(Process):
    """A worker: the real pool, with the real sweep beside it."""

    def __init__(self, shared: Shared, name: str, catalog: Catalog) -> None:
        super().__init__(shared, name)
        config = shared.config
        source = EventSource(lambda: TOKENS, "https://model", config)
        means = Means(
            *(catalog, self.store, self.clock, config, nobody_listens),
            external=source,
        )
        self.worker = Worker(means)
        rows = SqliteSessions(Remote(self, shared.db), self.clock)
        sweep = Sweep(self.store, self.queue, rows, self.clock, config)
        self.pool = Pool(self.worker, sweep, self.queue, config)
        self.pool._turns = InOrder()
        self.begin(self._work)

    async def _work(self) -> None:
        self.pool.start()

    def terminate(self) -> None:
        """SIGTERM."""
        if self.told_to_end_s is None and not self.is_dead:
            self.world.tell(f"{self.name} is told to end")
            self.told_to_end_s = self.world.now_s
            self.begin(self._end)

    async def _end(self) -> None:
        await self.pool.stop()
        self.world.tell(f"{self.name} has ended")
        self.shared.ended(self)


class Shared:
    """What all processes share, and what happens to them."""

    def __init__(self, world: World, config: TasksConfig, weather: Weather, budget: int) -> None:
        self.world = world
        self.config = config
        self.weather = weather
        self.budget = budget
        """How many more processes are killed, stopped or told to end, or requests hang."""
        self.db = database()
        self.post = Post()
        self.witness = Witness(self)
        self.workers: list[WorkerProcess] = []
        self.all: list[Process] = []
        self._made = 0
        self._catalog: Catalog | None = None
        self.harm = 0.0
        """How likely a process is disturbed at each moment of a request."""
        world.before_step = self._before_step

    def any_offset_s(self) -> float:
        """By how much a clock is off: two of them differ by no more than they may."""
        skew_s = self.config.clock_skew_s or 0.0
        return self.world.chance.choice([-0.5, 0.5, self.world.chance.uniform(-0.5, 0.5)]) * (
            skew_s - 0.002
        )

    def serve(self, catalog: Catalog, workers: int) -> None:
        """Begin so many workers."""
        self._catalog = catalog
        for _ in range(workers):
            self.spawn()

    def spawn(self) -> None:
        """One more worker."""
        assert self._catalog is not None
        self._made += 1
        process = WorkerProcess(self, f"worker {self._made}", self._catalog)
        self.workers.append(process)
        self.all.append(process)

    def perform(
        self,
        process: Process,
        what: str,
        work: Callable[[], Any],
        lease: Lease | None,
        sent_s: float,
    ) -> Any:
        """A request has arrived."""
        before = self.db.total_changes
        try:
            return work()
        finally:
            if self.db.total_changes != before:
                self.witness.look(process, lease, sent_s)

    # what happens to processes

    def running(self) -> Process | None:
        """Whose loop runs just now."""
        loop = asyncio._get_running_loop()
        return next((process for process in self.all if process.loop is loop), None)

    def ended(self, process: WorkerProcess) -> None:
        """A worker is gone; another one comes."""
        if process in self.workers:
            if not process.is_dead:
                process.kill()
            self.workers.remove(process)
            self.world.after(self.world.chance.uniform(*RESPAWN_S), self.spawn)

    def kill(self, process: WorkerProcess) -> None:
        """As by SIGKILL."""
        process.kill()
        self.ended(process)

    def may_disturb(self, process: Process) -> bool:
        """Not what would rightly make an innocent fail: it has died alone too often."""
        return self.budget > 0 and not process.is_dead and not self.witness.is_at_its_last(process)

    def disturb(self, process: Process) -> None:
        """Perhaps something happens to a worker now."""
        if (
            self.harm
            and isinstance(process, WorkerProcess)
            and self.world.chance.random() < self.harm
        ):
            self.harm_now(process)

    def harm_now(self, process: WorkerProcess) -> None:
        """It dies, stands still, is told to end, or its clock is set."""
        if process.is_stopped or not self.may_disturb(process):
            return
        self.budget -= 1
        chance, lease_s = self.world.chance, self.config.lease_s
        match chance.choice(["kill", "stop", "stop", "end", "clock"]):
            case "kill":
                self.kill(process)
            case "stop":
                process.stop(chance.uniform(0.2, 4.0) * lease_s, sleeps=chance.random() < 0.3)
            case "end":
                process.terminate()
            case "clock":
                process.clock.set(self.any_offset_s())
                self.world.tell(
                    f"{process.name}: its clock is off by {process.clock.off_s:.1f} s now"
                )

    def _before_step(self, loop: ProcessLoop) -> bool:
        """Between any two callbacks something may happen; whether the loop still runs."""
        if self.harm and self.world.chance.random() < self.harm / 20:
            process = next((one for one in self.workers if one.loop is loop), None)
            if process is not None:
                self.harm_now(process)
                return not (process.is_dead or process.is_stopped)
        return True

    def calm_down(self) -> None:
        """No more faults from here on."""
        self.world.tell("no more faults")
        self.weather, self.harm, self.budget = CALM, 0.0, 0

    def close(self) -> None:
        """End every process."""
        for process in self.all:
            process.drain()
        self.db.close()
