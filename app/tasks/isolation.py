"""Suspects run alone: whoever's worker died or stalled is run where its end hurts nobody else.

When a process dies, everything that ran there may have been the cause. The store then gives these tasks only to a claim
with `alone=True`. A pool puts them into its quarantine, and from there they are run one at a time:

    claim: SUSPECT ──▶ quarantine ──▶ a process of its own: claims it alone, runs one turn, ends
                                          │ dies with it: that is one death of this task, and of no other
                                          ▼
                                      after `tasks.max_deaths` of them the task fails

Where no process can be begun (AWS Lambda, an app in a test) a suspect is run when all other turns have ended, and no
other begins meanwhile. With its first progress a task is no suspect any more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from app.clock import Clock
from app.errors import Unavailable
from app.storage.tasks import Claimed, TaskRef, TaskStore
from app.tasks.worker import Worker

MAX_WAITING: Final = 100
"""Suspects that a process remembers. Of the others the sweep reminds somebody."""
END_GRACE_S: Final = 5.0
"""How long a process that was told to stop at once may take."""
_COMMAND: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from app.cli import main; sys.exit(main())"
)

log = logging.getLogger("app.tasks")


class Quarantine:
    """Suspects that wait, each once, first come first served."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[TaskRef, None] = OrderedDict()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, ref: TaskRef) -> None:
        """Let a suspect wait, if there is room."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.setdefault(ref)
            self._some.set()

    def take(self) -> TaskRef:
        """The one that has waited longest.

        Raises:
            KeyError: none waits.
        """
        ref, _ = self._waiting.popitem(last=False)
        if not self._waiting:
            self._some.clear()
        return ref

    async def get(self) -> TaskRef:
        """The same, as soon as there is one."""
        await self._some.wait()
        return self.take()


def child_command() -> list[str]:
    """What runs this program again, with the modules and the environment that this process has."""
    return [sys.executable, "-c", _COMMAND, json.dumps(sys.path), "worker"]


class Children:
    """Runs suspects in processes of their own."""

    def __init__(self, command: Sequence[str], store: TaskStore, clock: Clock) -> None:
        self._command = command
        self._store = store
        self._clock = clock
        self._processes: set[asyncio.subprocess.Process] = set()
        self._is_stopping = False

    async def run(self, ref: TaskRef) -> bool:
        """One turn of a suspect; whether its process died with it, so that there should be another."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *("--only", str(ref), "--parent", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            self._processes.add(process)
            try:
                fence = await _told_fence(ours)
                status = await process.wait()
            finally:
                self._processes.discard(process)
        return status != 0 and await self._died(ref, fence, status)

    async def _died(self, ref: TaskRef, fence: int | None, status: int) -> bool:
        fields = {"task": ref.id, "status": status}
        if fence is None:
            log.error("the process for a suspect ended before it had claimed it", extra={"fields": fields})
            return False
        log.warning("a process ended while it ran nothing but one task", extra={"fields": fields})
        now_ms = self._clock.now_ms()
        try:  # nobody has to wait for the lease to run out
            await self._store.let_go(ref, fence, now_ms, now_ms, blame=not self._is_stopping)
        except Unavailable as error:
            log.warning("a lease has to run out", extra={"fields": {**fields, "error": str(error)}})
        return not self._is_stopping

    def stop_soon(self) -> None:
        """Have each let go of its task at its next step."""
        self._is_stopping = True
        for process in self._processes:
            _send(process, signal.SIGTERM)

    def kill(self) -> None:
        """End them now."""
        self._is_stopping = True
        for process in self._processes:
            _send(process, signal.SIGKILL)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


async def _told_fence(ours: socket.socket) -> int | None:
    """The fence of the child's claim, once it has told; `None` if it ended without one."""
    ours.setblocking(False)
    loop, line = asyncio.get_running_loop(), b""
    while not line.endswith(b"\n"):
        try:
            more = await loop.sock_recv(ours, 64)
        except ConnectionError:
            return None
        if not more:
            return None
        line += more
    return int(line)


async def run_alone(
    worker: Worker, ref: TaskRef, stop: asyncio.Event, grace_s: float, tell: Callable[[int], Awaitable[Any]]
) -> None:
    """What such a process does: one turn at one task. `tell` is told the fence of the claim.

    Raises:
        Unavailable
    """
    claimed = await worker.claim(ref, alone=True)
    if not isinstance(claimed, Claimed):
        return
    await tell(claimed.lease.fence)
    turn, stopped = asyncio.create_task(worker.run(claimed)), asyncio.create_task(stop.wait())
    await asyncio.wait([turn, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not turn.done():
        worker.stop_soon()
        await asyncio.wait([turn], timeout=grace_s)
        turn.cancel()
        await asyncio.wait([turn], timeout=END_GRACE_S)
    if turn.done() and not turn.cancelled():
        turn.result()
