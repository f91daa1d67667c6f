"""Changes of lists and resources, on the streams of all replicas (basic/patterns/subscriptions).

    replica A   await ctx.resource_updated(uri) ─▶ its own streams, and the row of the latest changes
    replica B   has a stream open: reads the row every second ─▶ its streams

`Hub` holds the streams of this process. A stream holds at most one pending message per method and
URI or task. So a slow reader costs no more memory than its subscription: repeated changes become
one message.

`Changes` shares changes through one row. Each change in the row has a number, and a replica publishes
the changes after the last one that it has read. The row has only the latest changes, as many as fit a
cheap read. A replica that has missed more notifies every stream of all its topics: a notification too
many costs the client a read, a missing one leaves it with an old state. The row does not record the
subscriptions of clients. A replica without streams reads nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.background import detached
from roundgate.clock import Clock
from roundgate.errors import ParseError, Unavailable
from roundgate.protocol import RequestId, SubscriptionFilter, jsonrpc, notifications
from roundgate.storage import SessionRow, SessionStore, write_row

Topic: TypeAlias = tuple[str, str | None]
"""A method, with the URI for `notifications/resources/updated` and the id for `notifications/tasks`."""
_Caller: TypeAlias = tuple[str, str, str]
"""The issuer, subject and client of a caller."""

MAX_CHARS: Final = 3_500
"""The maximum number of characters of all changes in the row. A consistent read of DynamoDB costs
the same up to 4 KB."""
MAX_PENDING: Final = 1_000
"""The limit on changes that wait for a store that is down. Beyond it, one change of everything
replaces them."""
KEEP_MS: Final = 3_600_000
"""Milliseconds that the row is kept after the last change."""
PAUSE_S: Final = 0.005
"""Seconds before the retry of a write that conflicted with another replica's write. Each further
pause is longer by the same amount."""
RETRY_S: Final = 5.0
"""Seconds before a failed write is tried again."""
SLOWEST_S: Final = 60.0
"""The maximum pause between reads of a failing store, in seconds. Each pause doubles the previous
pause."""
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

MAX_OTHERS: Final = 200
"""The limit on changes that are remembered for topics that a stream may add."""

log = logging.getLogger("roundgate.subscriptions")


class OpenSubscription(Struct, eq=False):
    """An open stream, and its pending messages."""

    id: RequestId
    topics: frozenset[Topic]
    acknowledged: dict[str, Any]
    caller: Principal
    view: str = ""
    """The view of the stream."""
    tools: dict[str, str] = field(default_factory=dict)
    """The tool of each task, by the task's id."""
    learns: bool = False
    """Whether the topics are updated from time to time (`listen_to`). The stream then remembers
    other changes for topics that are added later."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call when the stream has ended."""
    on_topics: Callable[[frozenset[Topic], frozenset[Topic]], None] | None = None
    """A function that `listen_to` calls with the previous and the new topics."""
    _pending: dict[Topic, bytes | None] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: bool = False
    _others: set[Topic] = field(default_factory=set)
    """Changes of topics that may be added later. More than `MAX_OTHERS` mean that everything
    changed."""

    def offer(self, topic: Topic, params: bytes | None = None) -> None:
        """Record a change of one of the topics; `params` is a JSON object with its details."""
        if topic in self.topics:
            self._pending[topic] = params
            self._wake.set()
        elif self.learns and len(self._others) <= MAX_OTHERS:
            self._others.add(topic)

    def offer_everything(self) -> None:
        """Record that everything but tasks may have changed."""
        for topic in self.topics:
            if topic[0] != notifications.TASK:
                self.offer(topic)
        if self.learns:
            self._others.update(
                (notifications.RESOURCE_UPDATED, str(n)) for n in range(MAX_OTHERS + 1)
            )

    def listen_to(self, topics: frozenset[Topic]) -> None:
        """Replace the topics, and record the new topics that have changed since the last call."""
        known, self.topics = self.topics, topics
        others, self._others = self._others, set()
        for topic in topics - known:
            if topic in others or len(others) > MAX_OTHERS:
                self.offer(topic)
        if topics != known and self.on_topics is not None:
            self.on_topics(known, topics)

    def close(self) -> None:
        """End the stream after its pending messages."""
        self._closing = True
        self._wake.set()

    async def messages(
        self,
        keep_alive_s: float,
        may_learn: Callable[[str], bool] = lambda uri: True,
        may_follow: Callable[[str], bool] = lambda tool: True,
    ) -> AsyncGenerator[bytes | None, None]:
        """Yield the acknowledgement, then each change; `None` after `keep_alive_s` seconds without
        a change. End on `close`, and at a change of a task that the caller may no longer read.

        Args:
            keep_alive_s: the time in seconds.
            may_learn: returns whether the caller may learn now of changes at a URI.
            may_follow: returns whether the caller may read tasks of a tool now.
        """
        yield self._tell(notifications.ACKNOWLEDGED, notifications=self.acknowledged)
        async with aclosing(self.changes(keep_alive_s)) as changes:
            async for change in changes:
                if change is None:
                    yield None
                    continue
                method, name = change[0]
                if method == notifications.TASK and not may_follow(self.tools[name or ""]):
                    return
                if method != notifications.RESOURCE_UPDATED or may_learn(name or ""):
                    yield self._message(*change)

    async def changes(
        self, keep_alive_s: float
    ) -> AsyncGenerator[tuple[Topic, bytes | None] | None, None]:
        """Yield each change with its details; `None` and the end as in `messages`."""
        while True:
            while self._pending:
                topic = next(iter(self._pending))
                yield topic, self._pending.pop(topic)
            if self._closing:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(keep_alive_s):
                    await self._wake.wait()
            except TimeoutError:
                yield None

    def _message(self, topic: Topic, params: bytes | None) -> bytes:
        method, uri = topic
        if params is not None:
            return jsonrpc.encode_notification(
                method, {"_meta": {notifications.SUBSCRIPTION_ID: self.id}}, params
            )
        return self._tell(method) if uri is None else self._tell(method, uri=uri)

    def _tell(self, method: str, **params: Any) -> bytes:
        return jsonrpc.notification(
            method, {"_meta": {notifications.SUBSCRIPTION_ID: self.id}, **params}
        )


class Hub:
    """The open streams of this process.

    Args:
        max_streams: the limit on open streams.
        max_per_caller: the limit on open streams of one caller.
    """

    def __init__(self, max_streams: int, max_per_caller: int) -> None:
        self._open: set[OpenSubscription] = set()
        self._of_caller: Counter[_Caller] = Counter()
        self._max_streams = max_streams
        self._max_per_caller = max_per_caller
        self._closing = False
        self.uris: Counter[str] = Counter()
        """The URIs of resources that streams listen to, with the number of streams."""
        self.on_uris: Callable[[], None] = _nothing
        """Called when `uris` has changed."""

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._open)

    def subscribe(
        self,
        request_id: RequestId,
        principal: Principal,
        requested: SubscriptionFilter,
        features: frozenset[str],
        task_ids: Sequence[str] = (),
        view: str = "",
    ) -> OpenSubscription:
        """Open a stream for the changes that are both requested and served.

        Args:
            request_id: the id of the request, and of the stream.
            principal: the caller.
            requested: the client's filter.
            features: the features that are served.
            task_ids: tasks of the caller.
            view: the view whose lists the client follows; empty for all tools.

        Raises:
            Unavailable: too many streams are open, or the server is shutting down.
        """
        if reason := self._why_not(principal.identity):
            raise Unavailable(f"subscriptions/listen is not possible now: {reason}")
        topics, acknowledged = _topics(requested, features)
        if task_ids:
            topics |= {(notifications.TASK, task_id) for task_id in task_ids}
            acknowledged["taskIds"] = list(task_ids)
        subscription = OpenSubscription(request_id, topics, acknowledged, principal, view)
        subscription.on_topics = self._count
        self._open.add(subscription)
        self._of_caller[principal.identity] += 1
        self._count(frozenset(), topics)
        return subscription

    def _count(self, before: frozenset[Topic], now: frozenset[Topic]) -> None:
        """Count the URIs of a stream whose topics have changed."""
        new, old = _uris(now - before), _uris(before - now)
        self.uris.update(new)
        self.uris.subtract(old)
        for uri in old:
            if self.uris[uri] <= 0:
                del self.uris[uri]
        if new or old:
            self.on_uris()

    def _why_not(self, caller: _Caller) -> str | None:
        if self._closing:
            return "the server is shutting down"
        if len(self._open) >= self._max_streams:
            return "too many open streams (http.max_streams)"
        if self._of_caller[caller] >= self._max_per_caller:
            return "you have too many open streams (http.max_streams_per_caller)"
        return None

    def unsubscribe(self, subscription: OpenSubscription) -> None:
        """Forget a stream that has ended."""
        if subscription in self._open:
            self._open.discard(subscription)
            self._forget(subscription.caller.identity)
            subscription.on_topics = None
            self._count(subscription.topics, frozenset())
        while subscription.ends:
            subscription.ends.pop()()

    def _forget(self, caller: _Caller) -> None:
        self._of_caller[caller] -= 1
        if self._of_caller[caller] <= 0:
            del self._of_caller[caller]

    def publish(self, method: str, uri: str | None = None) -> None:
        """Notify each stream that listens to a change; `uri` names the changed resource, if any."""
        for subscription in self._open:
            subscription.offer((method, uri))

    def publish_everything(self) -> None:
        """Notify every stream that everything but tasks may have changed."""
        for subscription in self._open:
            subscription.offer_everything()

    def publish_list(self, method: str, view: str) -> None:
        """Notify each stream of a view that listens to one of its lists."""
        for subscription in self._open:
            if subscription.view == view:
                subscription.offer((method, None))

    def close(self) -> None:
        """End every stream with its closing result, and open no more."""
        self._closing = True
        for subscription in self._open:
            subscription.close()


def _uris(topics: frozenset[Topic]) -> list[str]:
    """Return the URIs of the resources among topics."""
    return [uri for method, uri in topics if method == notifications.RESOURCE_UPDATED and uri]


def _nothing() -> None:
    """Do nothing."""


def _topics(
    requested: SubscriptionFilter, features: frozenset[str]
) -> tuple[frozenset[Topic], dict[str, Any]]:
    """Return the topics that are both requested and served, and the acknowledged filter."""
    lists = {
        "tools": (requested.tools_list_changed, notifications.TOOLS_CHANGED),
        "prompts": (requested.prompts_list_changed, notifications.PROMPTS_CHANGED),
        "resources": (requested.resources_list_changed, notifications.RESOURCES_CHANGED),
    }
    topics: set[Topic] = set()
    acknowledged: dict[str, Any] = {}
    for feature, (is_wanted, method) in lists.items():
        if is_wanted and feature in features:
            topics.add((method, None))
            acknowledged[f"{feature}ListChanged"] = True
    if requested.resource_subscriptions and "resources" in features:
        topics.update(
            (notifications.RESOURCE_UPDATED, uri) for uri in requested.resource_subscriptions
        )
        acknowledged["resourceSubscriptions"] = requested.resource_subscriptions
    return frozenset(topics), acknowledged


class _Latest(Struct, frozen=True):
    """The content of the row."""

    epoch: str
    """The id of the row: a new row has another epoch, and counts from 1 again."""
    last: int
    """The number of the last change."""
    changes: Sequence[str]
    """The latest changes in the format of `_written`, oldest first."""

    def after(self, seen: _Latest | None) -> Sequence[str] | None:
        """Return the changes after `seen`; `None` if the row no longer has all of them."""
        known = seen.last if seen is not None and seen.epoch == self.epoch else 0
        missed = self.last - known
        if missed > len(self.changes):
            return None
        return self.changes[len(self.changes) - missed :] if missed > 0 else ()

    def with_more(self, more: Sequence[str]) -> _Latest:
        """Return the content of the row with `more` changes added."""
        changes, chars = [*self.changes, *more], 0
        for place in range(len(changes) - 1, -1, -1):
            chars += len(changes[place]) + 3  # quotes and a comma
            if chars > MAX_CHARS:
                changes = changes[place + 1 :]
                break
        return _Latest(self.epoch, self.last + len(more), changes)


class Changes:
    """Publishes changes at all replicas.

    Args:
        hub: the streams of this process.
        rows: the store that all replicas share.
        clock: the clock of the process.
        every_s: seconds between two reads of the row.
        shares: whether other replicas are notified; False if the platform holds no streams.
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
        """The epochs of changes that this process has published, by number."""
        self._turn = asyncio.Lock()
        self._retry: asyncio.Task[None] | None = None
        self._seen: _Latest | None = None
        self._following = 0
        self._looking: asyncio.Task[None] | None = None

    async def publish(self, method: str, uri: str | None = None) -> None:
        """Notify local streams immediately, and other replicas before returning. If the store is
        down, notify them once it recovers. `uri` is the URI of a changed resource."""
        self.hub.publish(method, uri)
        if not self._shares:
            return
        self._note(_written(method, uri))
        try:
            await self._flush()
        finally:  # also when the call is cancelled
            if self._pending and (self._retry is None or self._retry.done()):
                log.warning("other processes have not been notified of a change yet")
                self._retry = detached(asyncio.create_task, self._keep_writing())

    async def ready(self) -> None:
        """Read the row before the first stream opens in this process, so that the stream gets all
        later changes."""
        if self._looking is None and self._shares:
            try:
                seen = await self._read()
            except Unavailable:
                seen = None  # old changes are then published again, which does no harm
            if self._looking is None:
                self._seen = seen

    def follow(self, subscription: OpenSubscription) -> None:
        """Notify a stream of changes at other replicas until it ends. Call this method after
        `ready`, without an await in between."""
        if not self._shares:
            return
        self._following += 1
        subscription.ends.append(self._unfollow)
        if self._looking is None:
            self._looking = detached(asyncio.create_task, self._keep_looking())

    async def aclose(self) -> None:
        """Stop reading, and try once more to write pending changes."""
        tasks = [task for task in (self._retry, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._flush()

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
            await self._flush()

    async def _flush(self) -> bool:
        """Write pending changes; return whether the write succeeded."""
        async with self._turn:
            # a change noted from here on is written again, even if it is the same change
            more, self._pending = self._pending, {}
            try:
                for tried in range(_TRIES if more else 0):
                    if await self._try_write(tuple(more)):
                        more = {}
                        break
                    await asyncio.sleep(PAUSE_S * (tried + 1))
            except Unavailable:
                pass  # the caller logs the failure and tries again
            except Exception as error:
                log.error("other processes could not be notified of changes", exc_info=error)
            finally:
                self._pending = more | self._pending
        return not more

    async def _try_write(self, more: Sequence[str]) -> bool:
        row, forget_ms = await self._rows.read(_KEY), self._clock.now_ms() + KEEP_MS
        before = _opened(row) or _Latest(self._clock.new_id(), 0, ())
        after = before.with_more(more)
        value = json.encode([after.epoch, after.last, after.changes])
        done = await write_row(self._rows, _KEY, value, row, forget_ms)
        if done:
            self._remember(range(before.last + 1, after.last + 1), after.epoch)
        return done

    def _remember(self, numbers: range, epoch: str) -> None:
        """Remember changes that the streams of this process already have."""
        if self._following and len(self._own) < MAX_PENDING:
            self._own |= dict.fromkeys(numbers, epoch)

    async def _read(self) -> _Latest | None:
        return _opened(await self._rows.read(_KEY))

    async def _keep_looking(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(min(self._every_s * 2 ** min(failures, 16), SLOWEST_S))
            try:
                async with (
                    self._turn
                ):  # not during a write, which would look like another replica's
                    self._tell(await self._read())
                failures = 0
            except Exception as error:  # the loop must continue
                if not failures:
                    fields = {"error": str(error) or type(error).__name__}
                    log.warning(
                        "changes of other processes could not be read",
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
    """Return a change in the format of the row: a letter and the URI."""
    return f"{_LETTERS[method]}{uri or ''}"


def _opened(row: SessionRow | None) -> _Latest | None:
    """Return the content of a row, or `None` if there is no row or another version wrote it."""
    try:
        value: Any = None if row is None else json.decode(row.value)
    except ParseError:
        return None
    match value:
        case [str(epoch), int(last), [*changes]] if all(isinstance(text, str) for text in changes):
            return _Latest(epoch, last, changes)
    return None
