"""Watching tasks: a change that any process makes is told here within the poll interval, because the row is looked at.

One look per task and interval, however many streams of this process watch it; a terminal task is not looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage import TaskRecord, TaskRef, TaskStore

AT_ONCE: Final = 8
"""Rows that are read at the same time."""

Tell: TypeAlias = Callable[[TaskRecord], None]

log = logging.getLogger("roundgate.tasks")


@dataclass(slots=True)
class _Watched:
    revision: int
    tell: list[Tell] = field(default_factory=list)


class Watch:
    """The tasks that somebody in this process watches."""

    def __init__(self, store: TaskStore, clock: Clock, every_s: float) -> None:
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._watched: dict[TaskRef, _Watched] = {}
        self._looking: asyncio.Task[None] | None = None

    def begin(self, record: TaskRecord, tell: Tell) -> Callable[[], None]:
        """Call `tell` with each later state of a task, perhaps not with every one; returns what ends that."""
        if record.status.is_terminal:
            return lambda: None
        watched = self._watched.setdefault(record.ref, _Watched(record.revision))
        watched.revision = min(watched.revision, record.revision)  # who knows less is told again
        watched.tell.append(tell)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking())
        return lambda: self._end(record.ref, tell)

    async def aclose(self) -> None:
        """Look no more."""
        self._watched.clear()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _end(self, ref: TaskRef, tell: Tell) -> None:
        watched = self._watched.get(ref)
        if watched is not None and tell in watched.tell:
            watched.tell.remove(tell)
            if not watched.tell:
                del self._watched[ref]

    async def _keep_looking(self) -> None:
        while self._watched:
            await asyncio.sleep(self._every_s)
            refs = list(self._watched)
            for start in range(0, len(refs), AT_ONCE):
                await asyncio.gather(*(self._look(ref) for ref in refs[start : start + AT_ONCE]))

    async def _look(self, ref: TaskRef) -> None:
        try:
            record = await self._store.read(ref, self._clock.now_ms())
        except Unavailable as error:  # told later
            log.warning("a watched task could not be read", extra={"fields": {"task": ref.id, "error": str(error)}})
            return
        except Exception as error:  # the others are looked at all the same
            log.error("a watched task could not be read", exc_info=error, extra={"fields": {"task": ref.id}})
            return
        watched = self._watched.get(ref)
        if watched is None:
            return
        if record is not None and record.revision > watched.revision:
            watched.revision = record.revision
            for tell in list(watched.tell):
                tell(record)
        if record is None or record.status.is_terminal:
            self._watched.pop(ref, None)  # whoever was told may have ended it
