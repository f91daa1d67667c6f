"""The stream of a session's GET: changes of the lists, and of the resources that the session has
subscribed to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from roundgate.clock import Clock
from roundgate.http.exchange import Responder
from roundgate.http.older.caller import SessionCaller
from roundgate.http.older.sessions import Sessions
from roundgate.methods import Changes, OpenSubscription
from roundgate.methods.parts import CurrentMethods
from roundgate.protocol import RESOURCE_UPDATED, SubscriptionFilter, jsonrpc

LOOK_S: Final = 5.0
"""Seconds between two reads of the session's subscriptions."""
_LISTS: Final = SubscriptionFilter.model_validate(
    {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
)


class ChangeStreams:
    """Sends changes to sessions.

    Args:
        changes: the changes at all replicas.
        sessions: the subscriptions of sessions.
        clock: the clock of the process.
        methods: the methods of each revision, by version.
        keep_alive_s: seconds between comments on a quiet stream.
        view: the name of the view; empty for the endpoint of all tools.
    """

    def __init__(
        self,
        changes: Changes,
        sessions: Sessions,
        clock: Clock,
        methods: Mapping[str, CurrentMethods],
        *,
        keep_alive_s: float,
        view: str,
    ) -> None:
        self._changes = changes
        self._sessions = sessions
        self._clock = clock
        self._methods = methods
        self._keep_alive_s = keep_alive_s
        self._view = view

    async def tell(
        self, caller: SessionCaller, responder: Responder, features: frozenset[str]
    ) -> None:
        """Send changes until the client hangs up, its session ends, or its token expires.

        Args:
            caller: the caller, with its session.
            responder: the writer of the stream.
            features: the features that are served.

        Raises:
            Unavailable: there are too many streams, or the store cannot be reached.
            SessionNotFound: the session has been ended.
            ClientDisconnect: the client does not read.
        """
        hub = self._changes.hub
        await self._changes.ready()
        subscription = hub.subscribe(0, caller.principal, _LISTS, features, view=self._view)
        self._changes.follow(subscription)
        subscription.learns = True
        try:
            await self._look(subscription, caller)
            await responder.event(None)
            await self._tell(subscription, caller, responder)
            await responder.end()
        finally:
            hub.unsubscribe(subscription)

    async def _tell(
        self, subscription: OpenSubscription, caller: SessionCaller, responder: Responder
    ) -> None:
        every_s = min(LOOK_S, self._keep_alive_s)
        told_ms = looked_ms = self._clock.monotonic_ms()
        async with aclosing(subscription.changes(every_s)) as changes:
            async for change in changes:
                now_ms = self._clock.monotonic_ms()
                if change is not None:
                    await responder.event(_message(*change[0]))
                    told_ms = now_ms
                elif now_ms - told_ms >= self._keep_alive_s * 1000:
                    await responder.event(None)
                    told_ms = now_ms
                # also while changes arrive without a pause
                if change is None or now_ms - looked_ms >= every_s * 1000:
                    await self._look(subscription, caller)
                    looked_ms = now_ms
                    if self._is_over(caller):
                        return

    async def _look(self, subscription: OpenSubscription, caller: SessionCaller) -> None:
        state = await self._sessions.state(caller.session, caller.principal)
        lists = {topic for topic in subscription.topics if topic[1] is None}
        methods = self._methods[caller.session.revision].now
        may_learn = [uri for uri in state.uris if methods.may_learn(uri, caller.principal)]
        uris = {(RESOURCE_UPDATED, uri) for uri in may_learn}
        subscription.listen_to(frozenset(lists | uris))

    def _is_over(self, caller: SessionCaller) -> bool:
        now_ms, until_s = self._clock.now_ms(), caller.principal.expires_at_s
        return now_ms > caller.session.expires_ms or (
            until_s is not None and now_ms > until_s * 1000
        )


def _message(method: str, uri: str | None) -> bytes:
    return jsonrpc.notification(method, {} if uri is None else {"uri": uri})
