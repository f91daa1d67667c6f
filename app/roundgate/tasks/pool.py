"""The workers of one process: they receive messages, run turns of tasks, run suspects alone, and
sweep.

When a process dies, any task that ran there may be the cause. Only claims with `alone=True` then
succeed for these tasks. A pool puts them into its quarantine and runs them one at a time:

    claim: SUSPECT ──▶ quarantine ──▶ a process of its own: claims the task alone, runs one turn, ends
                                          │ if it dies, only this task counts a death
                                          ▼
                                      when the lease lapses, the sweep sends the task again;
                                      after `tasks.max_deaths` deaths the task fails

Where the pool cannot start processes (AWS Lambda, an app in a test), it runs a suspect after all
other turns have ended, and begins no other meanwhile. A task stops being a suspect with its first
progress.
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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.observability.metrics import Metrics, instruments
from roundgate.settings import TasksConfig
from roundgate.storage import Message, TaskQueue, TaskRef
from roundgate.tasks import events
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.sweep import Sweep
from roundgate.tasks.turn import Turn, TurnResult
from roundgate.tasks.watchdog import Held, Watchdog
from roundgate.tasks.worker import Worker

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

WAIT_MS: Final = 10_000
SHORT_WAIT_MS: Final = 1_000
"""The longest wait for messages in milliseconds if suspects run between messages."""
COUNT_EVERY_S: Final = 60
PAUSE_AFTER_FAULT_S: Final = 1.0
PUT_BACK_MS: Final = 1_000
"""The delay in milliseconds until a message is delivered again whose owner has its share of
turns."""
MAX_CHILDREN: Final = 4
"""The maximum number of concurrent processes of suspects. Another process starts only after the
previous one took longer than `PATIENT_LEASES` leases."""
PATIENT_LEASES: Final = 2
HANGING_S: Final = 5.0
"""The time in seconds after which a process is ended whose handlers do not end."""

MAX_COUNTS: Final = 65_536
"""The maximum size of the counts of one suspect in bytes, which the pipe keeps."""
MAX_WAITING: Final = 100
"""The maximum number of suspects in the quarantine. The sweep sends further suspects again."""
END_GRACE_S: Final = 5.0
"""The time in seconds that a turn may take to end after it was cancelled."""
_COMMAND: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from roundgate.cli import main; sys.exit(main())"
)

log = logging.getLogger("roundgate.tasks")


class Quarantine:
    """The waiting suspects without duplicates, in the order of arrival."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[TaskRef, None] = OrderedDict()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, ref: TaskRef) -> None:
        """Add a suspect, unless the quarantine is full."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.setdefault(ref)
            self._some.set()

    def take(self) -> TaskRef:
        """Remove and return the suspect that has waited longest.

        Raises:
            KeyError: the quarantine is empty.
        """
        ref, _ = self._waiting.popitem(last=False)
        if not self._waiting:
            self._some.clear()
        return ref

    async def get(self) -> TaskRef:
        """Wait for a suspect, then remove and return it."""
        await self._some.wait()
        return self.take()


def child_command() -> list[str]:
    """Return the command that starts this program again, with the same modules and environment."""
    return [sys.executable, "-c", _COMMAND, json.dumps(sys.path), "worker"]


class Children:
    """Runs each suspect in a process of its own.

    The standard input of each process is an empty pipe that closes when this process ends. The
    process exports no metrics, because its port would be this process's; it reports what it counts
    on another pipe.
    """

    def __init__(self, command: Sequence[str], metrics: Metrics | None = None) -> None:
        self._command = command
        self._metrics = metrics or Metrics()
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def run(self, ref: TaskRef) -> None:
        """Run one turn of a suspect.

        Raises:
            OSError: no process can be started; the sweep finds the task again.
        """
        if self._stopping.is_set():
            return
        reports, end = os.pipe()
        with os.fdopen(reports, "rb", buffering=0) as counts:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(*self._command, "--suspect", str(ref), "--counts", str(end)),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=[end],
                    env={**os.environ, "OTEL_METRICS_EXPORTER": "none"},
                )
            finally:
                os.close(end)
            self._running.add(process)
            if self._stopping.is_set():
                self._send(signal.SIGTERM)
            try:
                status = await process.wait()
            finally:
                self._running.discard(process)
            os.set_blocking(reports, False)  # a process that it left behind may hold the pipe
            self._metrics.record_forwarded(counts.read(MAX_COUNTS) or b"")
        if status:
            fields = {"task": str(ref), "status": status}
            log.warning(
                "a process died while it ran a suspect task alone", extra={"fields": fields}
            )

    def request_stop(self) -> None:
        """Start no more processes, and ask each process to release its task at the next step."""
        self._stopping.set()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the processes that have not ended by themselves."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.send_signal(number)


async def run_suspect(worker: Worker, ref: TaskRef, stop: asyncio.Event, grace_s: float) -> None:
    """Run one turn of a suspect in this process, which runs nothing else. After `stop`, release the
    task at its next step, or after `grace_s` seconds."""
    turn = asyncio.create_task(worker.work(ref, alone=True))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([turn, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not turn.done():
        worker.request_stop()
        await asyncio.wait([turn], timeout=grace_s)
        turn.cancel()
        await asyncio.wait([turn], timeout=END_GRACE_S)
    if turn.done() and not turn.cancelled() and isinstance(error := turn.exception(), Exception):
        _trouble("a suspect", error)


@dataclass(eq=False)
class Pool:
    """A loop that runs up to `tasks.concurrency` turns at once; further messages stay in the queue
    for other processes."""

    worker: Worker
    sweep: Sweep
    queue: TaskQueue
    config: TasksConfig
    metrics: Metrics = field(default_factory=Metrics)
    stop_grace_s: float = 5.0
    """Seconds for a turn to reach its next step after a request to stop, unless
    `tasks.stop_grace_s` is set."""
    share: int | None = None
    """The maximum number of concurrent turns of one owner; `None` for all."""
    children: Children | None = None
    """Runs suspects in processes; only for a process of the gateway's own."""
    watchdog: Watchdog | None = None
    """Ends a blocked process; only for a process of the gateway's own."""

    def __post_init__(self) -> None:
        self._most = self.share or self.config.concurrency
        self._free = asyncio.Semaphore(self.config.concurrency)
        self._running_of: Counter[str] = Counter()
        self._quarantine = Quarantine()
        self._turns: set[asyncio.Task[None]] = set()
        self._isolated: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._stop_requested = False
        self._stops_s = 0.0
        """The end of the grace on the event loop's clock, once a stop is requested."""

    def start(self) -> None:
        """Start the loops of the pool in this event loop."""
        loops = [self._receive, self._keep_sweeping, self._keep_counting]
        if self.children is not None:
            loops.append(self._keep_isolating)
        self._loops = [asyncio.create_task(loop()) for loop in loops]
        if self.watchdog is not None:
            self.watchdog.start()

    def request_stop(self) -> None:
        """Receive no more messages, and ask the runs to release their tasks at the next step."""
        if not self._stop_requested:
            self._stop_requested = True
            grace_s = self.config.stop_grace_s
            grace_s = self.stop_grace_s if grace_s is None else grace_s
            self._stops_s = asyncio.get_running_loop().time() + grace_s
        for loop in self._loops:
            loop.cancel()
        self.worker.request_stop()
        if self.children is not None:
            self.children.request_stop()

    @property
    def trouble(self) -> str | None:
        """Return the reason why the sweep is inactive: this process does not trust its clock.
        Otherwise return `None`."""
        return self.sweep.trouble

    async def stop(self) -> None:
        """Give runs time to reach their next step, then release the remaining tasks."""
        if self.children is not None:
            self.children.request_stop()
        if not self._is_crashing:
            self.request_stop()
            await asyncio.gather(*self._loops, return_exceptions=True)
            left_s = self._stops_s - asyncio.get_running_loop().time()
            await _over(self._turns | self._isolated, max(0.0, left_s))
            for turn in self._turns:
                turn.cancel()
        await _over(self._turns | self._isolated, END_GRACE_S)
        if self.children is not None:
            self.children.kill()
        await _over(self._isolated, END_GRACE_S)
        if self.watchdog is not None:
            self.watchdog.stop()
            end_soon()

    @property
    def _is_crashing(self) -> bool:
        """Return whether the event loop is cancelling all its tasks, as after `sys.exit` in a
        handler.

        The turns then release their tasks as suspects. The cancellation of a single loop does not
        count, because a time limit of its own may cause it.
        """
        if self._stop_requested or not self._loops:
            return False
        return all(loop.cancelling() for loop in self._loops)

    # messages

    async def _receive(self) -> None:
        wait_ms = SHORT_WAIT_MS if self.children is None else WAIT_MS
        while True:
            if self.sweep.is_outvoted:  # other processes do the work
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)
                continue
            if self.children is None and self._quarantine:
                await self._run_alone(self._quarantine.take())
            await self._free.acquire()
            self._free.release()
            room = self.config.concurrency - len(self._turns)
            try:
                messages = await self.queue.receive(
                    max(1, min(10, room)), wait_ms, skip=self._busy()
                )
            except Exception as error:
                _trouble("the queue", error)
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)
                continue
            busy = {*self._busy()}
            for message in messages:
                await self._free.acquire()
                self._start_turn(message)
            if messages and all(message.ref.owner in busy for message in messages):
                # a queue that cannot skip owners would deliver their next messages at once
                await asyncio.sleep(PUT_BACK_MS / 1000)

    def _busy(self) -> Sequence[str]:
        """Return the owners that already have as many turns as one owner may have."""
        return [owner for owner, running in self._running_of.items() if running >= self._most]

    def _start_turn(self, message: Message) -> None:
        turn = asyncio.create_task(self._turn(message))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)

    async def _turn(self, message: Message) -> None:
        owner = message.ref.owner
        self._running_of[owner] += 1
        try:
            if self._running_of[owner] > self._most:
                await self.queue.put_back([message], PUT_BACK_MS)
            else:
                await self._work(message)
        except Unavailable as error:
            # the queue redelivers the message, or the sweep finds the task
            fields = {"task": str(message.ref), "error": str(error)}
            log.warning("a task waits for the store or the queue", extra={"fields": fields})
        except Exception as error:  # other turns continue
            log.error("a turn failed", exc_info=error, extra={"fields": {"task": str(message.ref)}})
        finally:
            self._running_of -= Counter([owner])
            self._free.release()

    async def _work(self, message: Message) -> None:
        claimed = await self.worker.claim(message.ref)
        # the row now has the due time of the task, so the message can be deleted
        try:
            await self.queue.delete([message])
        except Exception as error:  # a second delivery has no effect
            _trouble("a message", error)
        if await self.worker.act_on(claimed, message.ref) is TurnResult.SUSPECT:
            self._quarantine.put(message.ref)
            await self.worker.remind(message.ref)

    # suspects

    async def _run_alone(self, ref: TaskRef) -> None:
        """Run a suspect after all other turns have ended. No other turn begins meanwhile, because
        this method blocks the loop that begins them."""
        while self._turns:
            await asyncio.wait(self._turns)
        turn = asyncio.create_task(self._alone(ref))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        await asyncio.wait([turn])

    async def _alone(self, ref: TaskRef) -> None:
        try:
            await self.worker.work(ref, alone=True)
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
            await asyncio.wait([child], timeout=PATIENT_LEASES * self.config.lease_s)

    async def _isolate(self, ref: TaskRef) -> None:
        assert self.children is not None, "only a pool with children isolates suspects"
        try:
            await self.children.run(ref)
        except Exception as error:
            _trouble("a suspect", error)

    # loops beside the turns

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                await self.sweep.sweep()
            except Exception as error:
                _trouble("the sweep", error)
            await asyncio.sleep(self.config.sweep_every_s)

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(COUNT_EVERY_S)
            try:
                overdue_s = await self.sweep.overdue_s()
                fields = {**self.metrics.take_flow(), "overdue_s": overdue_s}
                log.info("tasks", extra={"fields": fields})
                queued = None if instruments() is None else await self.queue.depth()
                self.metrics.overdue(overdue_s, queued)
            except Exception as error:
                _trouble("the count of tasks", error)


async def _over(turns: set[asyncio.Task[None]], within_s: float) -> None:
    """Wait until these turns have ended, for at most `within_s` seconds."""
    if turns:
        await asyncio.wait({*turns}, timeout=within_s)


def end_soon() -> None:
    """End the process after `HANGING_S` if it has not ended by itself, because a thread of a
    handler may keep it alive."""
    last = threading.Timer(HANGING_S, os._exit, (0,))
    last.daemon = True
    last.start()


def _trouble(what: str, error: Exception) -> None:
    """Log an error of a loop, which then continues. If the loop ended, the process would look healthy
    and do nothing."""
    if isinstance(error, Unavailable):
        log.warning(
            "%s waits for the store or the queue", what, extra={"fields": {"error": str(error)}}
        )
    else:
        log.error("%s failed", what, exc_info=error)


def make_watchdog(
    worker: Worker,
    make_store: Callable[[], StoredTasks],
    clock: Clock,
    trail: Trail | None = None,
    *,
    limit_s: float,
    bound_s: float,
) -> Watchdog:
    """Return a watchdog over the leases of a worker. Before the watchdog ends the process, it
    releases the leases in an event loop of its own, with a store from `make_store`, and records the
    ends of the turns in the audit log."""

    async def let_go(held: Sequence[Held], guilty: Held | None) -> None:
        store, now_ms = make_store(), clock.now_ms()
        turns = [turn for turn in held if isinstance(turn, Turn)]

        async def release(turn: Turn) -> None:
            # if the guilty task is unknown, each task becomes a suspect
            blame = guilty is None or guilty is turn
            event = events.LetGo(now_ms, blame, fence=turn.lease.fence)
            await store.apply(turn.ref, event, now_ms)

        await asyncio.gather(*map(release, turns), return_exceptions=True)
        await store.aclose()
        if trail is not None:
            # after the release, because the lock of `trail` may belong to the blocked thread
            for turn in turns:
                trail.record("turn_ended", {**turn.ids(), "outcome": "stalled"})

    return Watchdog(limit_s, worker.held, let_go, bound_s=bound_s)
