"""Watching tasks: a change that any process makes is told here within the poll interval,
because the task is looked at.

One look per task and interval, however many streams of this process watch it; a terminal task is
not looked at again. Our store, and each back end that has tasks of a service, is polled by a
loop of its own, so that a slow one delays no other. A service may say that a task has changed;
then it is looked at sooner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from roundgate.errors import InternalError, TaskNotFound, Unavailable
from roundgate.protocol import TaskView
from roundgate.tasks.named import NamedTask

AT_ONCE: Final = 8
"""Tasks of one back end, or of our store, that are looked at at the same time."""
SLOWEST_S: Final = 60.0
"""A source that fails is asked after twice the pause each time, up to this."""
LEAST_PAUSE_S: Final = 0.1
"""A source that says all the time that something has changed is asked no more often than this."""

Tell: TypeAlias = Callable[[TaskView], None]

log = logging.getLogger("roundgate.tasks")


class Watch:
    """The tasks that somebody in this process watches."""

    def __init__(self, every_s: float) -> None:
        """Make the watch. `every_s` is the pause between looks at a task, in seconds; a source may
        ask for a longer one."""
        self._every_s = every_s
        self._pollers: dict[str, _Poller] = {}

    def begin(self, task: NamedTask, view: TaskView | None, tell: Tell) -> Callable[[], None]:
        """Call `tell` with each later state of a task, perhaps not with every
        one; returns what ends that.

        Args:
            task: what is watched.
            view: what is known of it; `None` for nothing: the first look is told in
                any case, and comes at once.
            tell: must not block.
        """
        if view is not None and view.status.is_terminal:
            return lambda: None
        poller = self._pollers.get(task.backend)
        if poller is None:
            slowest_s = max(SLOWEST_S, self._every_s) if task.backend else self._every_s
            poller = self._pollers[task.backend] = _Poller(self._every_s, slowest_s)
        return poller.begin(task, view, tell)

    async def aclose(self) -> None:
        """Stop looking."""
        await asyncio.gather(*(poller.aclose() for poller in self._pollers.values()))


@dataclass(slots=True)
class _Watched:
    task: NamedTask
    seen: int | None
    """What stands for the state that was told last."""
    due_s: float
    tell: list[Tell] = field(default_factory=list)
    end_news: Callable[[], None] = lambda: None


class _Poller:
    """The watched tasks of one back end, or of our store, and the loop that looks at them."""

    def __init__(self, every_s: float, slowest_s: float) -> None:
        self._every_s = every_s
        self._slowest_s = slowest_s
        self._watched: dict[Hashable, _Watched] = {}
        self._looking: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._failures = 0

    def begin(self, task: NamedTask, view: TaskView | None, tell: Tell) -> Callable[[], None]:
        seen, key = None if view is None else _stands_for(view), task.key
        now_s = asyncio.get_running_loop().time()
        watched = self._watched.get(key)
        if watched is None:
            due_s = now_s if view is None else self._due_s(view)
            watched = self._watched[key] = _Watched(task, seen, due_s)
            watched.end_news = task.watch(lambda: self._look_soon(key))
        elif watched.seen != seen:
            watched.seen, watched.due_s = None, now_s  # who knows less is told again
        watched.tell.append(tell)
        if view is None:
            self._hurry.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking())
        return lambda: self._end(key, tell)

    async def aclose(self) -> None:
        for watched in list(self._watched.values()):
            self._forget(watched)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _end(self, key: Hashable, tell: Tell) -> None:
        watched = self._watched.get(key)
        if watched is not None and tell in watched.tell:
            watched.tell.remove(tell)
            if not watched.tell:
                self._forget(watched)

    def _forget(self, watched: _Watched) -> None:
        if self._watched.pop(watched.task.key, None) is not None:
            watched.end_news()

    def _look_soon(self, key: Hashable) -> None:
        """Look soon, because a source says that a task may have changed."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.due_s = 0.0
            self._hurry.set()

    def _due_s(self, view: TaskView) -> float:
        """Return when to look again, on the loop's clock: shortly before the round of looks that
        does it."""
        pause_s = max(self._every_s, (view.poll_interval_ms or 0) / 1000)
        return asyncio.get_running_loop().time() + pause_s - LEAST_PAUSE_S / 2

    async def _keep_looking(self) -> None:
        while self._watched:
            await self._pause()
            now_s = asyncio.get_running_loop().time()
            due = [watched for watched in self._watched.values() if watched.due_s <= now_s]
            looked: list[bool] = []
            for start in range(0, len(due), AT_ONCE):
                looked += await asyncio.gather(*map(self._look, due[start : start + AT_ONCE]))
            if looked:
                self._failures = 0 if any(looked) else self._failures + 1

    async def _pause(self) -> None:
        """Wait until the next round of looks, or less if a task is due at once, unless looks fail
        now."""
        pause_s = min(self._every_s * 2 ** min(self._failures, 16), self._slowest_s)
        if self._failures:
            await asyncio.sleep(pause_s)
        else:
            least_s = min(LEAST_PAUSE_S, pause_s)
            await asyncio.sleep(least_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause_s - least_s)):
                    await self._hurry.wait()
        self._hurry.clear()

    async def _look(self, watched: _Watched) -> bool:
        """Look at a task, and return whether that was possible."""
        task = watched.task
        try:
            view = await task.look()
        except TaskNotFound:
            self._forget(watched)
            return True
        except (Unavailable, InternalError) as error:  # told later
            fields = {"task": task.log_id, "error": str(error)}
            log.warning("a watched task could not be read", extra={"fields": fields})
            return False
        except Exception as error:  # the others are looked at all the same
            log.error(
                "a watched task could not be read",
                exc_info=error,
                extra={"fields": {"task": task.log_id}},
            )
            return False
        if self._watched.get(task.key) is not watched:
            return True
        watched.due_s = self._due_s(view)
        seen = _stands_for(view)
        if seen != watched.seen:
            watched.seen = seen
            _tell_all(watched.tell, view)
        if view.status.is_terminal:
            self._forget(watched)  # whoever was told may have ended it
        return True


def _tell_all(tells: Iterable[Tell], view: TaskView) -> None:
    for tell in list(tells):
        tell(view)


def _stands_for(view: TaskView) -> int:
    """Return a number that differs for another state: tasks that are watched for days are not kept
    whole."""
    return hash(
        (
            view.status,
            view.status_message,
            view.updated_ms,
            view.expires_ms,
            tuple(view.requests.items()),
        )
    )
