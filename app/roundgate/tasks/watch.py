"""The watch over tasks: it polls tasks and reports changes that any process made.

The watch reads each task once per interval, however many streams of this process follow it, and
never again after its end. The store, and each back end with tasks of a service, has a polling loop
of its own, so that a slow source delays no other.

**Glances.** The watch first glances at all due tasks of the store, in a few calls. A glance may be
out of date (`StoredTasks.glance`), so it only decides whether to read the task:

    same as at the last read, or earlier      no read: the next glance follows after the pause
    any other result, or none                 a strongly consistent read, whose state is reported

A later glance shows a change that this one misses.

**Pauses.** The watch glances less often at unchanged tasks of the store: the pause is the poll
interval, or a tenth of the time since the last change, if that is longer, up to `QUIET_INTERVALS`
intervals. If this process makes the change itself, or a service reports one, the watch reads the
task immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from msgspec import Struct, field

from roundgate.background import detached
from roundgate.errors import InternalError, TaskNotFound, Unavailable
from roundgate.protocol import TaskView
from roundgate.storage import TaskRef
from roundgate.tasks.service import NamedTask
from roundgate.tasks.stored import Glimpse

AT_ONCE: Final = 8
"""The maximum number of concurrent reads of tasks of one back end, or of the store."""
SLOWEST_S: Final = 60.0
"""The longest pause in seconds before a failing source is polled again; the pause doubles with each
failure."""
LEAST_PAUSE_S: Final = 0.1
"""The shortest pause in seconds between two polls of a source, even if it reports changes all the
time."""
QUIET_PART: Final = 0.1
"""The pause between two glances, as a part of the time since the task last changed."""
QUIET_INTERVALS: Final = 10
"""The longest pause between two glances at a task, in poll intervals."""

Tell: TypeAlias = Callable[[TaskView], None]
GlanceAt: TypeAlias = Callable[[Sequence[TaskRef]], Awaitable[Mapping[TaskRef, Glimpse]]]
"""Returns a `Glimpse` of each task of the store; see `StoredTasks.glance`."""

log = logging.getLogger("roundgate.tasks")


class Watch:
    """The tasks that streams of this process watch."""

    def __init__(self, every_s: float, glance_at: GlanceAt) -> None:
        """Make a watch. `every_s` is the poll interval in seconds; a source may request a longer
        one."""
        self._every_s = every_s
        self._glance_at = glance_at
        self._pollers: dict[str, _Poller] = {}

    def begin(self, task: NamedTask, view: TaskView | None, tell: Tell) -> Callable[[], None]:
        """Call `tell` with later states of a task, of which some may be skipped, until the returned
        function is called. `tell` must not block. `view` is the last state that the caller knows;
        with `None`, the first read follows at once, and its state is reported in any case."""
        if view is not None and view.status.is_terminal:
            return lambda: None
        poller = self._pollers.get(task.backend)
        if poller is None:
            slowest_s = max(SLOWEST_S, self._every_s) if task.backend else self._every_s
            poller = _Poller(self._every_s, slowest_s, None if task.backend else self._glance_at)
            self._pollers[task.backend] = poller
        return poller.begin(task, view, tell)

    async def aclose(self) -> None:
        """Stop all polling."""
        await asyncio.gather(*(poller.aclose() for poller in self._pollers.values()))


class _Watched(Struct):
    task: NamedTask
    seen: int | None
    """The `_stands_for` of the state that was reported last."""
    due_s: float
    since_s: float
    """When a change was last reported, or the watch began, in seconds on the event loop's clock."""
    tell: list[Tell] = field(default_factory=list)
    end_news: Callable[[], None] = lambda: None
    has_news: bool = False
    """Whether to read the task without a glance."""
    glimpse: Glimpse | None = None
    """The result of the last glance before a read."""


class _Poller:
    """The watched tasks of one back end, or of the store, and their polling loop."""

    def __init__(self, every_s: float, slowest_s: float, glance_at: GlanceAt | None) -> None:
        self._every_s = every_s
        self._slowest_s = slowest_s
        self._glance_at = glance_at
        self._watched: dict[Hashable, _Watched] = {}
        self._looking: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._failures = 0

    def begin(self, task: NamedTask, view: TaskView | None, tell: Tell) -> Callable[[], None]:
        seen, key = None if view is None else _stands_for(view), task.key
        now_s = asyncio.get_running_loop().time()
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(task, seen, now_s, now_s)
            if view is not None:
                watched.due_s = self._due_s(watched, view)
            watched.end_news = task.watch(lambda: self._look_soon(key))
        elif watched.seen != seen:
            # the new listener knows an older state: report the current one again
            watched.seen, watched.due_s, watched.has_news = None, now_s, True
        watched.tell.append(tell)
        if view is None:
            self._hurry.set()
        if self._looking is None or self._looking.done():
            self._looking = detached(asyncio.create_task, self._keep_looking())
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
        """Read a task soon, because its source reports that it may have changed."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.due_s, watched.has_news = 0.0, True
            self._hurry.set()

    def _due_s(self, watched: _Watched, view: TaskView | None = None) -> float:
        """Return when to read a task again, in seconds on the loop's clock: shortly before the
        polling round that reads it."""
        now_s = asyncio.get_running_loop().time()
        pause_s = self._every_s
        if self._glance_at is not None:
            quiet_s = QUIET_PART * (now_s - watched.since_s)
            pause_s = max(pause_s, min(quiet_s, QUIET_INTERVALS * self._every_s))
        elif view is not None:
            pause_s = max(pause_s, (view.poll_interval_ms or 0) / 1000)
        return now_s + pause_s - LEAST_PAUSE_S / 2

    async def _keep_looking(self) -> None:
        while self._watched:
            await self._pause()
            now_s = asyncio.get_running_loop().time()
            due = [watched for watched in self._watched.values() if watched.due_s <= now_s]
            if due:
                self._failures = 0 if await self._look_at(due) else self._failures + 1

    async def _look_at(self, due: Sequence[_Watched]) -> bool:
        """Read due tasks. Return `False` if no read succeeded."""
        glimpses: Mapping[TaskRef, Glimpse] = {}
        if self._glance_at is not None:
            refs = [
                watched.task.ref for watched in due if watched.task.ref and not watched.has_news
            ]
            try:
                glimpses = await self._glance_at(refs) if refs else {}
            except Exception as error:  # a later round reports the change
                fields = {"count": len(refs), "error": str(error)}
                is_away = isinstance(error, Unavailable)
                level, cause = (logging.WARNING, None) if is_away else (logging.ERROR, error)
                message = "cannot read watched tasks, trying again"
                log.log(level, message, exc_info=cause, extra={"fields": fields})
                return False
        changed = [watched for watched in due if not self._is_quiet(watched, glimpses)]
        looked: list[bool] = []
        for start in range(0, len(changed), AT_ONCE):
            some = changed[start : start + AT_ONCE]
            looked += await asyncio.gather(*(self._look(watched, glimpses) for watched in some))
        return any(looked) or len(changed) < len(due)

    def _is_quiet(self, watched: _Watched, glimpses: Mapping[TaskRef, Glimpse]) -> bool:
        """Return whether a glance shows no change since the last read, and set the next due time if
        so."""
        before, now = watched.glimpse, _find_glimpse(watched, glimpses)
        if watched.has_news or before is None or now is None:
            return False
        if now != before and not now.is_before(before):
            return False
        watched.due_s = self._due_s(watched)
        return True

    async def _pause(self) -> None:
        """Wait for the next polling round. A task that is due at once shortens the wait, unless
        reads fail."""
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

    async def _look(self, watched: _Watched, glimpses: Mapping[TaskRef, Glimpse]) -> bool:
        """Read a task; return whether the read succeeded."""
        task = watched.task
        watched.has_news, had_news = False, watched.has_news
        try:
            view = await task.look()
        except TaskNotFound:
            self._forget(watched)
            return True
        except (Unavailable, InternalError) as error:  # a later round reports the change
            watched.has_news |= had_news
            fields = {"task": task.log_id, "error": str(error)}
            log.warning("cannot read a watched task, trying again", extra={"fields": fields})
            return False
        except Exception as error:  # continue with the other tasks
            watched.has_news |= had_news
            log.error(
                "cannot read a watched task, trying again",
                exc_info=error,
                extra={"fields": {"task": task.log_id}},
            )
            return False
        if self._watched.get(task.key) is not watched:
            return True
        watched.glimpse = _find_glimpse(watched, glimpses) or watched.glimpse
        state = _stands_for(view)
        if state != watched.seen:
            watched.seen, watched.since_s = state, asyncio.get_running_loop().time()
            _tell_all(watched.tell, view)
        if not watched.has_news:
            watched.due_s = self._due_s(watched, view)
        if view.status.is_terminal:
            self._forget(watched)  # a listener may already have ended it
        return True


def _find_glimpse(watched: _Watched, glimpses: Mapping[TaskRef, Glimpse]) -> Glimpse | None:
    return None if watched.task.ref is None else glimpses.get(watched.task.ref)


def _tell_all(tells: Iterable[Tell], view: TaskView) -> None:
    for tell in list(tells):
        tell(view)


def _stands_for(view: TaskView) -> int:
    """Return a number that identifies a state, so that long watches do not keep whole views."""
    return hash(
        (
            view.status,
            view.status_message,
            view.updated_ms,
            view.expires_ms,
            tuple(view.requests.items()),
        )
    )
