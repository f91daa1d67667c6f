"""subscriptions/listen: who wants to hear of which changes, and the messages
each gets (basic/patterns/subscriptions).

The hub reaches the streams of this process; `changes` has it told of what other replicas say. A
stream holds at most one pending message per (method, uri or task), so a slow reader costs no more
than what it subscribed to, and nothing that it must know is dropped: "the list changed" said twice
means what it means said once, and the later state of a task replaces the earlier one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from roundgate.auth import Principal
from roundgate.errors import Unavailable
from roundgate.protocol import RequestId, SubscriptionFilter, jsonrpc, notifications

Topic: TypeAlias = tuple[str, str | None]
"""A method and, for `notifications/resources/updated`, the URI; for
`notifications/tasks`, the id."""

MAX_OTHERS: Final = 200

_Caller: TypeAlias = tuple[str, str, str]
"""Issuer, subject, client."""


@dataclass(eq=False, slots=True)
class Subscription:
    """One open stream: what it wants, what it has not been told yet."""

    id: RequestId
    topics: frozenset[Topic]
    acknowledged: dict[str, Any]
    caller: Principal
    view: str = ""
    """The view at which it was opened."""
    learns: bool = False
    """Whether what it wants is found out now and then (`listen_to`): what changed
    until then is told as well."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when it has ended."""
    _pending: dict[Topic, bytes | None] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: bool = False
    _others: set[Topic] = field(default_factory=set)
    """What has changed that is not wanted as far as is known: more than
    `MAX_OTHERS` stand for everything."""

    def offer(self, topic: Topic, params: bytes | None = None) -> None:
        """Note a change, if it is wanted; `params` is a JSON object with what
        there is to say of it."""
        if topic in self.topics:
            self._pending[topic] = params
            self._wake.set()
        elif self.learns and len(self._others) <= MAX_OTHERS:
            self._others.add(topic)

    def offer_everything(self) -> None:
        """Note that all of what it listens to may have changed, but for tasks."""
        for topic in self.topics:
            if topic[0] != notifications.TASK:
                self.offer(topic)
        if self.learns:
            self._others.update(
                (notifications.RESOURCE_UPDATED, str(n)) for n in range(MAX_OTHERS + 1)
            )

    def listen_to(self, topics: frozenset[Topic]) -> None:
        """Tell of these from now on, and of those of them that have changed since the
        last time this was said."""
        known, self.topics = self.topics, topics
        others, self._others = self._others, set()
        for topic in topics - known:
            if topic in others or len(others) > MAX_OTHERS:
                self.offer(topic)

    def close(self) -> None:
        """End the stream gracefully once what is pending is told."""
        self._closing = True
        self._wake.set()

    async def messages(self, keep_alive_s: float) -> AsyncGenerator[bytes | None, None]:
        """The acknowledgement, then each change; `None` when nothing happened for
        `keep_alive_s`. Ends on `close`."""
        yield self._tell(notifications.ACKNOWLEDGED, notifications=self.acknowledged)
        async with aclosing(self.changes(keep_alive_s)) as changes:
            async for change in changes:
                yield None if change is None else self._message(*change)

    async def changes(
        self, keep_alive_s: float
    ) -> AsyncGenerator[tuple[Topic, bytes | None] | None, None]:
        """Each change with what there is to say of it; `None` and the end as in `messages`."""
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
            return jsonrpc.notification_of(
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
        max_streams: open at once; one more is refused.
        max_per_caller: of these, how many one caller may have.
    """

    def __init__(self, max_streams: int, max_per_caller: int) -> None:
        self._open: set[Subscription] = set()
        self._of_caller: Counter[_Caller] = Counter()
        self._max_streams = max_streams
        self._max_per_caller = max_per_caller
        self._closing = False

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._open)

    def subscribe(
        self,
        request_id: RequestId,
        principal: Principal,
        wanted: SubscriptionFilter,
        features: frozenset[str],
        task_ids: Sequence[str] = (),
        view: str = "",
    ) -> Subscription:
        """Open a stream for what is both wanted and served.

        Args:
            request_id: of the request, which is the stream's id.
            principal: who is told.
            wanted: what the client asked for.
            features: what there is to be told of.
            task_ids: of the caller's own tasks.
            view: of whose lists it is told; that of everything has no name.

        Raises:
            Unavailable: there are too many, or the server is shutting down.
        """
        if reason := self._why_not(principal.identity):
            raise Unavailable(f"subscriptions/listen is not possible now: {reason}")
        topics, acknowledged = _topics(wanted, features)
        if task_ids:
            topics |= {(notifications.TASK, task_id) for task_id in task_ids}
            acknowledged["taskIds"] = list(task_ids)
        subscription = Subscription(request_id, topics, acknowledged, principal, view)
        self._open.add(subscription)
        self._of_caller[principal.identity] += 1
        return subscription

    def _why_not(self, caller: _Caller) -> str | None:
        if self._closing:
            return "the server is shutting down"
        if len(self._open) >= self._max_streams:
            return "too many open streams (http.max_streams)"
        if self._of_caller[caller] >= self._max_per_caller:
            return "you have too many open streams (http.max_streams_per_caller)"
        return None

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget a stream that has ended."""
        if subscription in self._open:
            self._open.discard(subscription)
            self._forget(subscription.caller.identity)
        while subscription.ends:
            subscription.ends.pop()()

    def _forget(self, caller: _Caller) -> None:
        self._of_caller[caller] -= 1
        if self._of_caller[caller] <= 0:
            del self._of_caller[caller]

    def publish(self, method: str, uri: str | None = None) -> None:
        """Tell every stream that wants to know.

        Args:
            method: the notification.
            uri: of the resource that it is about, if it is about one.
        """
        for subscription in self._open:
            subscription.offer((method, uri))

    def publish_everything(self) -> None:
        """Tell every stream that all of what it listens to may have changed, but for tasks."""
        for subscription in self._open:
            subscription.offer_everything()

    def publish_list(self, method: str, view: str) -> None:
        """Tell every stream of a view that wants to know that a list of it has changed."""
        for subscription in self._open:
            if subscription.view == view:
                subscription.offer((method, None))

    def close(self) -> None:
        """End every stream with its closing result, and open no more."""
        self._closing = True
        for subscription in self._open:
            subscription.close()


def _topics(
    wanted: SubscriptionFilter, features: frozenset[str]
) -> tuple[frozenset[Topic], dict[str, Any]]:
    """What is watched, and the filter as it is acknowledged: only what is served,
    only what was asked for."""
    topics: set[Topic] = set()
    acknowledged: dict[str, Any] = {}
    for feature, asked, name, method in (
        ("tools", wanted.tools_list_changed, "toolsListChanged", notifications.TOOLS_CHANGED),
        (
            "prompts",
            wanted.prompts_list_changed,
            "promptsListChanged",
            notifications.PROMPTS_CHANGED,
        ),
        (
            "resources",
            wanted.resources_list_changed,
            "resourcesListChanged",
            notifications.RESOURCES_CHANGED,
        ),
    ):
        if asked and feature in features:
            topics.add((method, None))
            acknowledged[name] = True
    if wanted.resource_subscriptions and "resources" in features:
        topics.update(
            (notifications.RESOURCE_UPDATED, uri) for uri in wanted.resource_subscriptions
        )
        acknowledged["resourceSubscriptions"] = wanted.resource_subscriptions
    return frozenset(topics), acknowledged
