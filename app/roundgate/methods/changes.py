"""A change that a handler tells of at one replica is told on the streams of all:
lists that changed, resources.

    replica A   await ctx.resource_updated(uri) ─▶ its own streams, and the row of the latest changes
    replica B   has a stream open: looks at the row every second ─▶ its streams

There is one row. Each change in it has a number; who has seen one tells of those after it. Only the
latest are in it, as many as a read costs next to nothing for: who has missed more than these tells
every stream of everything that it listens to, because "it has changed" said once too often makes a
client look once too often, and said too seldom leaves it with what is old. What a client listens
to, and that it does, is in no row.

A replica on which nobody listens reads nothing; a handler that tells of nothing costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import ParseError, Unavailable
from roundgate.methods.hub import Hub, Subscription
from roundgate.protocol import notifications
from roundgate.storage import SessionRow, SessionStore

MAX_CHARS: Final = 3_500
"""Of the changes in the row together: a strongly consistent read of DynamoDB
costs the same up to 4 KB."""
MAX_PENDING: Final = 1_000
"""Changes that wait for a store that cannot be reached; of more it is only
said that there were some."""
KEEP_MS: Final = 3_600_000
"""For how long the row is kept after the last change: far longer than
anybody takes to look again."""
PAUSE_S: Final = 0.005
"""After a write that another replica's came before; twice that after the second, and so on."""
RETRY_S: Final = 5.0
"""How long after a failure it is tried again to tell the others."""
SLOWEST_S: Final = 60.0
"""A store that cannot be read is asked after twice the pause each time, up to this."""
_KEY: Final = "changes"
_TRIES: Final = 20
_EVERYTHING: Final = "*"
_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        notifications.TOOLS_CHANGED: "t",
        notifications.PROMPTS_CHANGED: "p",
        notifications.RESOURCES_CHANGED: "r",
        notifications.RESOURCE_UPDATED: "u",
    }
)
_METHODS: Final = {letter: method for method, letter in _LETTERS.items()}

log = logging.getLogger("roundgate.subscriptions")


@dataclass(frozen=True, slots=True)
class _Latest:
    """What the row says."""

    epoch: str
    """Another one means that the row is another, and counts from 1 again."""
    last: int
    """The number of the last change."""
    changes: Sequence[str]
    """The latest changes, as `_written` has them; the last one last."""

    def after(self, seen: _Latest | None) -> Sequence[str] | None:
        """The changes after those that have been seen; `None` if some of them are
        not in the row any more."""
        known = seen.last if seen is not None and seen.epoch == self.epoch else 0
        missed = self.last - known
        if missed > len(self.changes):
            return None
        return self.changes[len(self.changes) - missed :] if missed > 0 else ()

    def with_more(self, more: Sequence[str]) -> _Latest:
        """As it is once these have changed too."""
        changes, chars = [*self.changes, *more], 0
        for place in range(len(changes) - 1, -1, -1):
            chars += len(changes[place]) + 3  # quotes and a comma
            if chars > MAX_CHARS:
                changes = changes[place + 1 :]
                break
        return _Latest(self.epoch, self.last + len(more), changes)


class Changes:
    """Tells of changes at all replicas.

    Args:
        hub: the streams of this process.
        rows: what all replicas share.
        clock: of the process.
        every_s: seconds between two looks at what has changed elsewhere.
        shares: whether others are told: not where nobody can hold a stream.
    """

    def __init__(
        self, hub: Hub, rows: SessionStore, clock: Clock, *, every_s: float, shares: bool
    ) -> None:
        self.hub = hub
        self._rows = rows
        self._clock = clock
        self._every_s = every_s
        self._shares = shares
        self._pending: dict[str, None] = {}
        self._own: dict[int, str] = {}
        """Numbers of changes that this process has told of already, in which epoch."""
        self._turn = asyncio.Lock()
        self._retry: asyncio.Task[None] | None = None
        self._seen: _Latest | None = None
        self._following = 0
        self._looking: asyncio.Task[None] | None = None

    async def publish(self, method: str, uri: str | None = None) -> None:
        """Tell every stream that wants to know, here at once, and have the other replicas know when
        this returns; if the store cannot be reached, soon after it can.

        Args:
            method: the notification.
            uri: of the resource that it is about, if it is about one.
        """
        self.hub.publish(method, uri)
        if not self._shares:
            return
        self._note(_written(method, uri))
        try:
            await self._is_flushed()
        finally:  # also when its call is cancelled: what has changed has changed
            if self._pending and (self._retry is None or self._retry.done()):
                log.warning("a change is not told elsewhere yet")
                self._retry = asyncio.create_task(self._keep_writing())

    async def ready(self) -> None:
        """Find out what has changed before the first stream opens here: all
        after that is told on it."""
        if self._looking is None and self._shares:
            try:
                seen = await self._read()
            except Unavailable:
                seen = None  # told once too often, then
            if self._looking is None:
                self._seen = seen

    def follow(self, subscription: Subscription) -> None:
        """Tell a stream of what changes elsewhere, until it ends; nothing may be
        waited for since `ready`."""
        if not self._shares:
            return
        self._following += 1
        subscription.ends.append(self._unfollow)
        if self._looking is None:
            self._looking = asyncio.create_task(self._keep_looking())

    async def aclose(self) -> None:
        """Look no more; what could not be written is tried once more."""
        tasks = [task for task in (self._retry, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._is_flushed()

    def _unfollow(self) -> None:
        self._following -= 1
        if not self._following and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _note(self, change: str) -> None:
        if len(self._pending) >= MAX_PENDING or len(change) > MAX_CHARS:
            self._pending.clear()
            change = _EVERYTHING
        self._pending[change] = None

    async def _keep_writing(self) -> None:
        while self._pending:
            await asyncio.sleep(RETRY_S)
            await self._is_flushed()

    async def _is_flushed(self) -> bool:
        """Write what is pending; whether it could be done. Who waits for a turn finds it
        done, most of the time."""
        async with self._turn:
            # what is told of from here on is told again, though it be the same
            more, self._pending = self._pending, {}
            try:
                for tried in range(_TRIES if more else 0):
                    if await self._is_written(tuple(more)):
                        more = {}
                        break
                    await asyncio.sleep(PAUSE_S * (tried + 1))
            except Unavailable:
                pass  # the caller says so, and tries again
            except Exception as error:  # and so it is with what nobody has thought of
                log.error("changes could not be told elsewhere", exc_info=error)
            finally:
                self._pending = more | self._pending
        return not more

    async def _is_written(self, more: Sequence[str]) -> bool:
        row, forget_ms = await self._rows.read(_KEY), self._clock.now_ms() + KEEP_MS
        before = _opened(row) or _Latest(self._clock.new_id(), 0, ())
        after = before.with_more(more)
        value = json.encode([after.epoch, after.last, after.changes])
        if row is None:
            done = await self._rows.put_new(_KEY, value, forget_ms)
        else:
            done = await self._rows.replace(_KEY, value, row.version, forget_ms)
        if done:
            self._remember(range(before.last + 1, after.last + 1), after.epoch)
        return done

    def _remember(self, numbers: range, epoch: str) -> None:
        """These are our own: the streams here have been told."""
        if self._following and len(self._own) < MAX_PENDING:
            self._own |= dict.fromkeys(numbers, epoch)

    async def _read(self) -> _Latest | None:
        return _opened(await self._rows.read(_KEY))

    async def _keep_looking(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(min(self._every_s * 2 ** min(failures, 16), SLOWEST_S))
            try:
                async with self._turn:  # or what is written just now would be taken for another's
                    self._tell(await self._read())
                failures = 0
            except (
                Exception
            ) as error:  # whatever it is: nobody would look again until the last stream has ended
                if not failures:
                    fields = {"error": str(error) or type(error).__name__}
                    log.warning(
                        "changes elsewhere could not be read",
                        extra={"fields": fields},
                        exc_info=None if isinstance(error, Unavailable) else error,
                    )
                failures += 1

    def _tell(self, latest: _Latest | None) -> None:
        if latest is None:
            return
        changes, self._seen = latest.after(self._seen), latest
        own, self._own = self._own, {}
        if changes is None or _EVERYTHING in changes:
            self.hub.publish_everything()
            return
        for number, change in enumerate(changes, latest.last - len(changes) + 1):
            if own.get(number) != latest.epoch and (method := _METHODS.get(change[:1])):
                self.hub.publish(method, change[1:] or None)


def _written(method: str, uri: str | None) -> str:
    """A change as the row has it: a letter, and what it is about."""
    return f"{_LETTERS[method]}{uri or ''}"


def _opened(row: SessionRow | None) -> _Latest | None:
    """What a row says; `None` of none, and of one that another version wrote."""
    try:
        value: Any = None if row is None else json.decode(row.value)
    except ParseError:
        return None
    match value:
        case [str(epoch), int(last), [*changes]] if all(isinstance(one, str) for one in changes):
            return _Latest(epoch, last, changes)
    return None
