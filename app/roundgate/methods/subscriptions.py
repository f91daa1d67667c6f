"""subscriptions/listen: opens a stream of changes (basic/patterns/subscriptions);
`hub` has the streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from roundgate.auth import Principal
from roundgate.backends import Catalog
from roundgate.errors import InsufficientScope, TaskNotFound
from roundgate.methods.hub import Subscription
from roundgate.methods.parts import Kit
from roundgate.methods.results import Stream
from roundgate.methods.rounds import RequestContext
from roundgate.protocol import (
    REQUIRED,
    ListenParams,
    SubscriptionFilter,
    TaskView,
    notifications,
)
from roundgate.tasks import NamedTask

MAX_STREAM_S: Final = 30 * 86_400
"""How long a stream lives whose token holds for longer than anybody should hold one."""


def wanted_of(view: str, catalog: Catalog, asked: ListenParams) -> SubscriptionFilter:
    """What a client wants to be told of, as far as the view that it asks has it."""
    wanted = asked.notifications
    if not view or not wanted.resource_subscriptions:
        return wanted
    own = [uri for uri in wanted.resource_subscriptions if catalog.has_resource(uri)]
    return wanted.model_copy(update={"resource_subscriptions": own})


class SubscriptionMethods:
    """Streams of what changes, of lists, of resources and of the caller's
    tasks, at whatever replica."""

    def __init__(self, kit: Kit) -> None:
        self._changes = kit.parts.changes
        self._catalog = kit.catalog
        self._view = kit.parts.view
        self._features = kit.features
        self._tasks = kit.parts.tasks
        self._watch = kit.parts.watch
        self._scopes = kit.scopes
        self._results = kit.results
        self._clock = kit.parts.clock

    async def listen(self, context: RequestContext, asked: ListenParams) -> Stream:
        """subscriptions/listen"""
        wanted, inbound = wanted_of(self._view, self._catalog, asked), context.inbound
        closing = self._results.write({"_meta": {notifications.SUBSCRIPTION_ID: inbound.id}})
        known = await self._known(context, wanted.task_ids)
        task_ids = [task.id for task, _ in known]
        await self._changes.ready()
        subscription = self._changes.hub.subscribe(
            inbound.id, context.principal, wanted, self._features, task_ids, self._view
        )
        if any(method != notifications.TASK for method, _ in subscription.topics):
            self._changes.follow(subscription)
        for task, view in known:
            self._follow(subscription, task, view)
        self._end_with_token(subscription, context.principal)
        return Stream(subscription, closing)

    def _end_with_token(self, subscription: Subscription, principal: Principal) -> None:
        """Close a stream when the token that opened it expires: from then on nobody may
        be told anything on it."""
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
        """Those of the tasks that there are, that are the caller's, and whose tools it may
        call, with how they are now.

        Who has a task that is not ours is asked later: a stream does not wait for services.
        """
        if not task_ids:
            return []
        context.inbound.meta.capabilities.require(
            REQUIRED, "listening to tasks", has_substitute=False
        )
        if "tasks" not in self._features:
            return []
        known: list[tuple[NamedTask, TaskView | None]] = []
        for task_id in dict.fromkeys(task_ids):
            with suppress(TaskNotFound, InsufficientScope):
                task = self._tasks.find(context.principal, task_id)
                self._scopes.check(await task.tool(), context.principal)
                known.append((task, None if task.backend else await task.look()))
        return known

    def _follow(self, subscription: Subscription, task: NamedTask, view: TaskView | None) -> None:
        """Tell a stream how a task is now, and each time that changes."""

        def tell(view: TaskView) -> None:
            subscription.offer((notifications.TASK, task.id), self._tasks.detailed(view))

        if view is not None:
            tell(view)  # what happened between the client's last look and this is not lost
        subscription.ends.append(self._watch.begin(task, view, tell))
