"""Suspects run alone: a task whose worker died or stalled is run where its
next crash ends nothing else.

When a process dies, everything that ran there may have been the cause. The store then gives
these tasks only to a claim with `alone=True`. A pool puts them into its quarantine, and from
there they are run one at a time:

    claim: SUSPECT ──▶ quarantine ──▶ a process of its own: claims it alone, runs one turn, takes the next
                                          │ dies with it: that is one death of this task, and of no other
                                          ▼
                                      after `tasks.max_deaths` of them the task fails

Where no process can be begun (AWS Lambda, an app in a test) a suspect is run when all other turns
have ended, and no other begins meanwhile. A task stops being a suspect with its first progress.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage import Claimed, TaskRef, TaskStore
from roundgate.tasks.heartbeat import Heartbeat
from roundgate.tasks.worker import Worker

MAX_WAITING: Final = 100
"""Suspects that a process remembers. Of the others the sweep reminds somebody."""
IDLE_S: Final = 20.0
"""How long a process for suspects is kept when there is none."""
PARENT_EVERY_S: Final = 1.0
"""How often such a process looks whether the one that has begun it is still there."""
END_GRACE_S: Final = 5.0
"""How long a process that was told to stop at once may take."""
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
    """The command that starts this program again, with the same modules and environment."""
    return [sys.executable, "-c", _COMMAND, json.dumps(sys.path), "worker"]


class Child:
    """A process that runs suspects, one after another. Lines between the two:

    parent   OWNER.ID ──▶            the next suspect; the end of the stream is the end of the child's work
    child            ◀── fence 7     claimed, under this fence
                     ◀── over        and done with, for this time
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.is_outdated = False
        """Whether what it serves is no longer what is served."""
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls, command: Sequence[str]) -> Child:
        """Start a process."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--parent", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return cls(process, *await asyncio.open_unix_connection(sock=ours))

    async def run(self, ref: TaskRef) -> tuple[bool, int | None]:
        """Run one turn of a suspect there; returns whether the process survived, and the
        fence of the claim, if any."""
        fence = None
        with suppress(ConnectionError):
            self._writer.write(f"{ref}\n".encode())
            async for line in self._reader:
                if line == b"over\n":
                    return True, fence
                fence = int(line.split()[1])
        return False, fence

    def dismiss(self) -> None:
        """Tell it that nothing more comes, so that it ends."""
        self._writer.close()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class Children:
    """Runs suspects in processes of their own, which are kept for a while."""

    def __init__(self, command: Sequence[str], store: TaskStore, clock: Clock) -> None:
        self._command = command
        self._store = store
        self._clock = clock
        self._busy: set[Child] = set()
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._ending: dict[asyncio.Task[int], Child] = {}
        self._stop_requested = False

    async def run(self, ref: TaskRef) -> bool:
        """Run one turn of a suspect; returns whether its process died, so that
        another turn is needed."""
        child = self._take() or await Child.begin(self._command)
        self._busy.add(child)
        if self._stop_requested:
            child.send(signal.SIGTERM)
        try:
            is_well, fence = await child.run(ref)
        finally:
            self._busy.discard(child)
        if is_well:
            self._keep(child)
            return False
        return await self._died(ref, fence, await self._end(child))

    def _take(self) -> Child | None:
        """An idle process, if there is one."""
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if child.process.returncode is None:
                return child
        return None

    def _keep(self, child: Child) -> None:
        if self._stop_requested or child.is_outdated:
            self._end(child)
        else:
            self._idle[child] = asyncio.get_running_loop().call_later(IDLE_S, self._dismiss, child)

    def renew(self) -> None:
        """Replace the processes that serve the old catalog: idle ones end now, the
        others after their turn."""
        for child in self._busy:
            child.is_outdated = True
        self._end_idle()

    def _end_idle(self) -> None:
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            self._end(child)

    def _dismiss(self, child: Child) -> None:
        self._idle.pop(child, None)
        self._end(child)

    def _end(self, child: Child) -> asyncio.Task[int]:
        """Let a process end by itself; returns its exit status."""
        child.dismiss()
        ending = asyncio.create_task(child.process.wait())
        self._ending[ending] = child
        ending.add_done_callback(self._ending.pop)
        return ending

    async def _died(self, ref: TaskRef, fence: int | None, status: int) -> bool:
        fields = {"task": str(ref), "status": status}
        if fence is None:
            if not self._stop_requested:
                log.error(
                    "the process for a suspect ended before it had claimed it",
                    extra={"fields": fields},
                )
            return False
        log.warning("a process ended while it ran nothing but one task", extra={"fields": fields})
        now_ms = self._clock.now_ms()
        try:  # nobody has to wait for the lease to run out
            await self._store.let_go(ref, fence, now_ms, now_ms, blame=not self._stop_requested)
        except Unavailable as error:
            log.warning("a lease has to run out", extra={"fields": {**fields, "error": str(error)}})
        return not self._stop_requested

    def request_stop(self) -> None:
        """Ask each process to free its task at its next step, and to end."""
        self._stop_requested = True
        self._end_idle()
        for child in self._busy:
            child.send(signal.SIGTERM)

    async def aclose(self, within_s: float = END_GRACE_S) -> None:
        """Let them end, and kill those that have not ended by then."""
        self.request_stop()
        for child in self._busy:
            child.send(signal.SIGKILL)
        if self._ending:
            await asyncio.wait(self._ending, timeout=within_s)
        for ending, child in list(self._ending.items()):
            child.send(signal.SIGKILL)
            await ending


class Lone:
    """The loop of such a process: one suspect after another, until there are no more
    or it is told to stop."""

    def __init__(self, worker: Worker, stop: asyncio.Event, grace_s: float) -> None:
        self._worker = worker
        self._stop = stop
        self._grace_s = grace_s

    async def work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run until the stream ends."""
        async with Heartbeat(PARENT_EVERY_S, lambda: self._look_after(reader)):
            await self._go_on(reader, writer)
        writer.close()

    async def _look_after(self, reader: asyncio.StreamReader) -> None:
        """Also during a turn: if the parent is gone, free the task at its next step."""
        if reader.at_eof():
            self._stop.set()

    async def _go_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._stop.is_set() and not self._worker.has_abandoned:
            line = await self._unless_stopped(reader.readline())
            if not line:
                break
            try:
                await self._turn(TaskRef.parse(line.decode().strip()), writer)
            except Exception as error:
                log.error("a suspect failed", exc_info=error)
            writer.write(b"over\n")

    async def _unless_stopped(self, work: Coroutine[Any, Any, bytes]) -> bytes | None:
        reading, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([reading, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if reading.done():
            return reading.result()
        reading.cancel()
        return None

    async def _turn(self, ref: TaskRef, writer: asyncio.StreamWriter) -> None:
        claimed = await self._worker.claim(ref, alone=True)
        if not isinstance(claimed, Claimed):
            return
        writer.write(b"fence %d\n" % claimed.lease.fence)
        turn, stopped = (
            asyncio.create_task(self._worker.run(claimed)),
            asyncio.create_task(self._stop.wait()),
        )
        await asyncio.wait([turn, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not turn.done():
            self._worker.request_stop()
            await asyncio.wait([turn], timeout=self._grace_s)
            turn.cancel()
            await asyncio.wait([turn], timeout=END_GRACE_S)
        if turn.done() and not turn.cancelled():
            turn.result()
