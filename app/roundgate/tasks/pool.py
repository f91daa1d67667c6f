"""The workers of one process: they receive messages, take turns at tasks, run
suspects alone, and sweep.

When a process dies, everything that ran there may have been the cause. The store then gives
these tasks only to a claim with `alone=True`. A pool puts them into its quarantine, and from
there they are run one at a time:

    claim: SUSPECT ──▶ quarantine ──▶ a process of its own: claims it alone, runs one turn, ends
                                          │ dies with it: that is one death of this task, and of no other
                                          ▼
                                      when the lease lapses, the sweep sends the task again;
                                      after `tasks.max_deaths` of them the task fails

Where no process can be begun (AWS Lambda, an app in a test) a suspect is run when all other turns
have ended, and no other begins meanwhile. A task stops being a suspect with its first progress.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.observability.metrics import Metrics
from roundgate.settings import TasksConfig
from roundgate.storage import Message, TaskQueue, TaskRef
from roundgate.tasks.events import NotClaimed
from roundgate.tasks.running import Running
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.sweep import Sweep
from roundgate.tasks.watchdog import Held, LetGo, Watchdog
from roundgate.tasks.worker import Worker

WAIT_MS: Final = 10_000
SHORT_WAIT_MS: Final = 1_000
"""The same where suspects are run between messages."""
COUNT_EVERY_S: Final = 60
PAUSE_AFTER_FAULT_S: Final = 1.0
PUT_BACK_MS: Final = 1_000
"""When a message of an owner that has enough running here is delivered again."""
MAX_CHILDREN: Final = 4
"""Processes of suspects at once: one, unless it takes longer than `PATIENT_LEASES`; then
another one beside it."""
PATIENT_LEASES: Final = 2
HANGING_S: Final = 5.0
"""How long a process may take to end in which handlers do not end."""

MAX_WAITING: Final = 100
"""Suspects that a process remembers. The sweep sends the others again."""
END_GRACE_S: Final = 5.0
"""How long a turn may take to end after it was cancelled."""
_COMMAND: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from roundgate.cli import main; sys.exit(main())"
)

log = logging.getLogger("roundgate.tasks")


class Quarantine:
    """Suspects that wait, each once, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[TaskRef, None] = OrderedDict()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, ref: TaskRef) -> None:
        """Add a suspect, if there is room."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.setdefault(ref)
            self._some.set()

    def take(self) -> TaskRef:
        """Remove and return the one that has waited longest.

        Raises:
            KeyError: none waits.
        """
        ref, _ = self._waiting.popitem(last=False)
        if not self._waiting:
            self._some.clear()
        return ref

    async def get(self) -> TaskRef:
        """Wait until there is one, then remove and return it."""
        await self._some.wait()
        return self.take()


def child_command() -> list[str]:
    """Return the command that starts this program again, with the same modules and environment."""
    return [sys.executable, "-c", _COMMAND, json.dumps(sys.path), "worker"]


class Children:
    """Runs each suspect in a process of its own.

    The standard input of such a process is a pipe that nothing is written to: it ends when this
    process does.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def run(self, ref: TaskRef) -> None:
        """Run one turn of a suspect.

        Raises:
            OSError: no process can be started; the sweep finds the task again.
        """
        if self._stopping.is_set():
            return
        process = await asyncio.create_subprocess_exec(
            *self._command, "--suspect", str(ref), stdin=asyncio.subprocess.PIPE
        )
        self._running.add(process)
        if self._stopping.is_set():
            self._send(signal.SIGTERM)
        try:
            status = await process.wait()
        finally:
            self._running.discard(process)
        if status:
            fields = {"task": str(ref), "status": status}
            log.warning(
                "a process ended while it ran nothing but one task", extra={"fields": fields}
            )

    def request_stop(self) -> None:
        """Start no more processes, and ask each to free its task at its next step."""
        self._stopping.set()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the processes that have not ended by themselves."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.send_signal(number)


async def run_suspect(worker: Worker, ref: TaskRef, stop: asyncio.Event, grace_s: float) -> None:
    """Run one turn of a suspect in this process, which runs nothing else. After `stop` the task
    is freed at its next step, or after `grace_s` seconds."""
    turn = asyncio.create_task(worker.work(ref, alone=True))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([turn, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not turn.done():
        worker.request_stop()
        await asyncio.wait([turn], timeout=grace_s)
        turn.cancel()
        await asyncio.wait([turn], timeout=END_GRACE_S)
    if turn.done() and not turn.cancelled() and (error := turn.exception()) is not None:
        log.error("a suspect task failed", exc_info=error)


class Pool:
    """Up to `tasks.concurrency` turns at once; further messages stay in the queue for others."""

    def __init__(
        self,
        worker: Worker,
        sweep: Sweep,
        queue: TaskQueue,
        config: TasksConfig,
        metrics: Metrics | None = None,
        *,
        stop_grace_s: float = 5.0,
        share: int | None = None,
        children: Children | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`stop_grace_s` holds unless the configuration says otherwise; `share` is how many of the
        turns may be at tasks of one owner, all of them if `None`. `children` and `watchdog` are for
        a process that is ours to begin others beside it, and to end it."""
        self._worker = worker
        self._sweep = sweep
        self._queue = queue
        self._metrics = metrics or Metrics()
        self._sweep_every_s = config.sweep_every_s
        self._stop_grace_s = stop_grace_s if config.stop_grace_s is None else config.stop_grace_s
        self._patient_s = PATIENT_LEASES * config.lease_s
        self._free = asyncio.Semaphore(config.concurrency)
        self._concurrency = config.concurrency
        self._share = share or config.concurrency
        self._running_of: Counter[str] = Counter()
        self._quarantine = Quarantine()
        self._children = children
        self._watchdog = watchdog
        self._turns: set[asyncio.Task[None]] = set()
        self._isolated: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._stop_requested = False

    def start(self) -> None:
        """Start the loops in this event loop."""
        loops = [self._take, self._keep_sweeping, self._keep_counting]
        if self._children is not None:
            loops.append(self._keep_isolating)
        self._loops = [asyncio.create_task(loop()) for loop in loops]
        if self._watchdog is not None:
            self._watchdog.start()

    def request_stop(self) -> None:
        """Take no more messages, and ask the runs to free their tasks at their next step."""
        self._stop_requested = True
        for loop in self._loops:
            loop.cancel()
        self._worker.request_stop()
        if self._children is not None:
            self._children.request_stop()

    @property
    def trouble(self) -> str | None:
        """Return why the sweep is inactive, if this process's clock is not trusted."""
        return self._sweep.trouble

    async def stop(self) -> None:
        """Give runs time to come to their next step, then free the tasks of those that have not."""
        if self._children is not None:
            self._children.request_stop()
        if not self._is_crashing:
            self.request_stop()
            await asyncio.gather(*self._loops, return_exceptions=True)
            await _over(self._turns | self._isolated, self._stop_grace_s)
            for turn in self._turns:
                turn.cancel()
        await _over(self._turns | self._isolated, END_GRACE_S)
        if self._children is not None:
            self._children.kill()
        await _over(self._isolated, END_GRACE_S)
        if self._watchdog is not None:
            self._watchdog.stop()
            end_soon()

    @property
    def _is_crashing(self) -> bool:
        """Whether all tasks of the event loop are being cancelled by somebody else.

        That is how a process ends in which something called `sys.exit`. The turns free their tasks
        as suspects. One of the loops alone may be cancelled for a moment: by a time limit of its
        own, which takes that back.
        """
        if self._stop_requested or not self._loops:
            return False
        return all(loop.cancelling() for loop in self._loops)

    # messages

    async def _take(self) -> None:
        wait_ms = SHORT_WAIT_MS if self._children is None else WAIT_MS
        while True:
            if self._sweep.is_outvoted:  # other processes do the work
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)
                continue
            if self._children is None and self._quarantine:
                await self._run_alone(self._quarantine.take())
            await self._free.acquire()
            self._free.release()
            room = self._concurrency - len(self._turns)
            try:
                messages = await self._queue.receive(
                    max(1, min(10, room)), wait_ms, skip=self._busy()
                )
            except Exception as error:
                _trouble("the queue", error)
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)
                continue
            busy = {*self._busy()}
            for message in messages:
                await self._free.acquire()
                self._begin(message)
            if messages and all(message.ref.owner in busy for message in messages):
                # a queue that cannot skip them would give us the next ones
                await asyncio.sleep(PUT_BACK_MS / 1000)

    def _busy(self) -> Sequence[str]:
        """Return the owners that already have as many turns as one owner may have."""
        return [owner for owner, running in self._running_of.items() if running >= self._share]

    def _begin(self, message: Message) -> None:
        turn = asyncio.create_task(self._turn(message))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)

    async def _turn(self, message: Message) -> None:
        owner = message.ref.owner
        self._running_of[owner] += 1
        try:
            if self._running_of[owner] > self._share:
                await self._queue.put_back([message], PUT_BACK_MS)
            else:
                await self._work(message)
        except Unavailable as error:  # the message comes again, or the sweep finds the task
            log.warning(
                "a task has to wait",
                extra={"fields": {"task": str(message.ref), "error": str(error)}},
            )
        except Exception as error:  # one task's trouble is no other's
            log.error("a turn failed", exc_info=error, extra={"fields": {"task": str(message.ref)}})
        finally:
            self._running_of -= Counter([owner])
            self._free.release()

    async def _work(self, message: Message) -> None:
        claimed = await self._worker.claim(message.ref)
        # from here on the row says what is to be done, and by when: the message has served
        try:
            await self._queue.delete([message])
        except Exception as error:  # it comes again, and to nothing
            _trouble("a message", error)
        if claimed is NotClaimed.SUSPECT:
            self._quarantine.put(message.ref)
            await self._worker.remind(message.ref)
        elif claimed is NotClaimed.CLEAN_UP:
            await self._worker.clean_up(message.ref)
        elif isinstance(claimed, Claimed):
            await self._worker.run(claimed)

    # suspects

    async def _run_alone(self, ref: TaskRef) -> None:
        """Run a suspect when all other turns have ended. No other turn begins meanwhile, because
        turns begin here."""
        while self._turns:
            await asyncio.wait(self._turns)
        turn = asyncio.create_task(self._alone(ref))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        await asyncio.wait([turn])

    async def _alone(self, ref: TaskRef) -> None:
        try:
            await self._worker.work(ref, alone=True)
        except Exception as error:
            _trouble("a suspect", error)

    async def _keep_isolating(self) -> None:
        room = asyncio.Semaphore(MAX_CHILDREN)
        while True:
            ref = await self._quarantine.get()
            await room.acquire()
            child = asyncio.create_task(self._isolate(ref))
            self._isolated.add(child)
            child.add_done_callback(self._isolated.discard)
            child.add_done_callback(lambda _: room.release())
            await asyncio.wait([child], timeout=self._patient_s)

    async def _isolate(self, ref: TaskRef) -> None:
        assert self._children is not None, "there is no lane without them"
        try:
            await self._children.run(ref)
        except Exception as error:
            _trouble("a suspect", error)

    # beside them

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                await self._sweep.sweep()
            except Exception as error:
                _trouble("the sweep", error)
            await asyncio.sleep(self._sweep_every_s)

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(COUNT_EVERY_S)
            try:
                overdue_s = await self._sweep.overdue_s()
                self._metrics.overdue(overdue_s)
                fields = {**self._metrics.take_flow(), "overdue_s": overdue_s}
                log.info("tasks", extra={"fields": fields})
            except Exception as error:
                _trouble("the count of tasks", error)


async def _over(turns: set[asyncio.Task[None]], within_s: float) -> None:
    """Wait until they have ended."""
    if turns:
        await asyncio.wait({*turns}, timeout=within_s)


def end_soon() -> None:
    """End the process after a while if it has not ended by itself: a thread that a handler
    left may keep it alive."""
    last = threading.Timer(HANGING_S, os._exit, (0,))
    last.daemon = True
    last.start()


def _trouble(what: str, error: Exception) -> None:
    """Log an error and go on: a loop that ended would leave a process that looks
    healthy and does nothing."""
    if isinstance(error, Unavailable):
        log.warning("%s has to wait", what, extra={"fields": {"error": str(error)}})
    else:
        log.error("%s failed", what, exc_info=error)


def make_watchdog(
    worker: Worker, make_store: Callable[[], StoredTasks], clock: Clock, **limits: float
) -> Watchdog:
    """Return a watchdog over the leases of a worker. Before it ends its process it ends the leases,
    in an event loop of its own, for which `make_store` makes a store."""
    return Watchdog(
        limits["limit_s"], worker.held, _let_go_with(make_store, clock), bound_s=limits["bound_s"]
    )


def _let_go_with(make_store: Callable[[], StoredTasks], clock: Clock) -> LetGo:
    async def let_go(held: Sequence[Held], guilty: Held | None) -> None:
        store, now_ms = make_store(), clock.now_ms()

        async def one(running: Running) -> Any:
            lease = running.carrier.lease
            # whose fault it is may not be known: then each of them is run alone
            blame = guilty is None or guilty is running
            return await store.let_go(lease.ref, lease.fence, now_ms, now_ms, blame=blame)

        await asyncio.gather(
            *(one(running) for running in held if isinstance(running, Running)),
            return_exceptions=True,
        )
        await store.aclose()

    return let_go
