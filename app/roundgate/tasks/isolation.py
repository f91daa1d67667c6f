"""Suspects run alone: a task whose worker died or stalled is run where its
next crash ends nothing else.

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
import signal
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from roundgate.storage import TaskRef
from roundgate.tasks.worker import Worker

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
    """The command that starts this program again, with the same modules and environment."""
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
        log.error("a suspect failed", exc_info=error)
