"""The method subscriptions/listen, which opens a stream of changes
(basic/patterns/subscriptions)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from roundgate.auth import Principal
from roundgate.errors import CallRefused, InsufficientScope, TaskNotFound
from roundgate.methods.access import Access
from roundgate.methods.changes import OpenSubscription
from roundgate.methods.parts import Kit
from roundgate.methods.rounds import RequestContext, Stream
from roundgate.protocol import (
    REQUIRED,
    ListenParams,
    SubscriptionFilter,
    TaskView,
    notifications,
)
from roundgate.tasks import NamedTask

MAX_STREAM_S: Final = 30 * 86_400
"""The maximum life of a stream whose token expires later, in seconds."""


def served_filter(
    view: str, access: Access, principal: Principal, params: ListenParams
) -> SubscriptionFilter:
    """Return the client's filter, limited to the resources of the view that the caller may read."""
    requested = params.notifications
    uris = requested.resource_subscriptions
    own = [uri for uri in uris if access.may_subscribe(uri, principal, view)]
    return requested if own == uris else replace(requested, resource_subscriptions=own)


class SubscriptionMethods:
    """The method that opens streams of changes of lists, resources and the caller's tasks, at any
    replica."""

    def __init__(self, kit: Kit) -> None:
        self._changes = kit.parts.changes
        self._view = kit.parts.view
        self._features = kit.features
        self._tasks = kit.parts.tasks
        self._watch = kit.parts.watch
        self._access = kit.access
        self._results = kit.results
        self._clock = kit.parts.clock

    async def listen(self, context: RequestContext, params: ListenParams) -> Stream:
        """Serve subscriptions/listen.

        Raises:
            Unavailable: there are too many streams, or a store cannot be reached.
            MissingCapability: the client listens to tasks without the tasks extension.
        """
        inbound, principal = context.inbound, context.principal
        requested = served_filter(self._view, self._access, principal, params)
        closing = self._results.write({"_meta": {notifications.SUBSCRIPTION_ID: inbound.id}})
        known = await self._known(context, requested.task_ids)
        task_ids = [task.id for task, _ in known]
        await self._changes.ready()
        subscription = self._changes.hub.subscribe(
            inbound.id, principal, requested, self._features, task_ids, self._view
        )
        if any(method != notifications.TASK for method, _ in subscription.topics):
            self._changes.follow(subscription)
        for task, view in known:
            self._follow(subscription, task, view)
        self._end_with_token(subscription, principal)
        return Stream(subscription, closing)

    def _end_with_token(self, subscription: OpenSubscription, principal: Principal) -> None:
        """Close a stream when the token that opened it expires."""
        if principal.expires_at_s is None:
            return
        left_s = principal.expires_at_s - self._clock.now_ms() / 1000
        timer = asyncio.get_running_loop().call_later(
            min(max(0.0, left_s), MAX_STREAM_S), subscription.close
        )
        subscription.ends.append(timer.cancel)

    async def _known(
        self, context: RequestContext, task_ids: Sequence[str]
    ) -> list[tuple[NamedTask, TaskView | None]]:
        """Return the caller's tasks whose tools it may call, with their views. The task of a
        service has no view, because a stream does not wait for services."""
        if not task_ids:
            return []
        context.inbound.meta.capabilities.require(
            REQUIRED, "listening to tasks", has_substitute=False
        )
        if "tasks" not in self._features:
            return []
        known: list[tuple[NamedTask, TaskView | None]] = []
        for task_id in dict.fromkeys(task_ids):
            with suppress(TaskNotFound, InsufficientScope, CallRefused):
                task = self._tasks.find(context.principal, task_id)
                self._access.check(await task.tool(), context.principal)
                known.append((task, None if task.backend else await task.look()))
        return known

    def _follow(
        self, subscription: OpenSubscription, task: NamedTask, view: TaskView | None
    ) -> None:
        """Send the view of a task to a stream, now and after each change."""

        def tell(view: TaskView) -> None:
            subscription.offer((notifications.TASK, task.id), self._tasks.detailed(view))

        if view is not None:
            tell(view)  # so that no change since the client's last read is lost
        subscription.ends.append(self._watch.begin(task, view, tell))
