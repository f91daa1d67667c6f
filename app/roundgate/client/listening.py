"""What changes at a server, told on a stream that is opened again when it breaks
(basic/patterns/subscriptions).

    async with client.listen(tools=True) as changes:
        async for change in changes:
            print(change.method, change.params)

On an older server it is the stream of the session, and resources are subscribed to one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final

from roundgate.client.cache import Cache
from roundgate.client.flows import rpc_error
from roundgate.client.link import Link
from roundgate.client.types import Json, TaskState
from roundgate.errors import BadAnswer, ConnectionLost, HttpRefused, TimedOut, TryLater

if TYPE_CHECKING:
    from roundgate.client.session import Client

_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0
_MAX_WAITING: Final = 1_000
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """One notification. `was_interrupted` says that the stream broke before it, so
    something may have been missed."""

    method: str
    params: Json
    was_interrupted: bool

    @property
    def task(self) -> TaskState | None:
        """The task in a `notifications/tasks`."""
        return TaskState.read(self.params) if self.method == "notifications/tasks" else None


class Subscription:
    """A stream of changes. `acknowledged` is what the server agreed to tell, once it has."""

    def __init__(self, client: Client, link: Link, cache: Cache, wanted: Json) -> None:
        self._client = client
        self._link = link
        self._cache = cache
        self._wanted = wanted
        self.acknowledged: Json = {}

    async def __aenter__(self) -> Subscription:
        server = await self._client.connect()
        self._changes = self._modern() if server.is_modern else self._older()
        if server.is_modern:
            try:
                await self._acknowledgement()
            except BaseException:
                await self._changes.aclose()
                raise
        return self

    async def _acknowledgement(self) -> None:
        """Wait for the first message, which is no change."""
        limit = self._link.limits.request_s
        try:
            async with asyncio.timeout(limit):
                first = await anext(self._changes, None)
        except TimeoutError:
            raise TimedOut(
                f"The server did not say within {limit:g} s which changes it tells (limit "
                "request_s)"
            ) from None
        if first is not None and first.method != _ACKNOWLEDGED:
            raise BadAnswer("The server tells changes before it says which it will tell")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._changes.aclose()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Change:
        """The next change; the iteration ends when the server ends the subscription on its own."""
        async for change in self._changes:
            if change.method != _ACKNOWLEDGED:
                self._cache.heard(change.method, change.params)
                return change
        raise StopAsyncIteration

    async def _modern(self) -> AsyncGenerator[Change, None]:
        wait = _FIRST_WAIT_S
        opened_once = interrupted = False
        while True:
            try:
                async with aclosing(
                    self._link.stream("subscriptions/listen", {"notifications": self._wanted})
                ) as messages:
                    async for message in messages:
                        if "method" not in message:
                            if "error" in message:
                                raise rpc_error(message["error"])
                            return
                        change = self._change(message, interrupted)
                        if change.method == _ACKNOWLEDGED:
                            if not opened_once:
                                yield change
                            opened_once, wait = True, _FIRST_WAIT_S
                        else:
                            interrupted = False
                            yield change
            except (ConnectionLost, TimedOut):
                if not opened_once:
                    raise
            except TryLater as error:  # as behind a proxy while the server is deployed anew
                if not opened_once:
                    raise HttpRefused(error.status, str(error)) from None
            if not opened_once:
                raise ConnectionLost(
                    "The stream of changes ended before the server said which it tells",
                    was_sent=True,
                )
            interrupted = True
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _change(self, message: Json, interrupted: bool) -> Change:
        params = message.get("params", {})
        if not isinstance(params, dict) or "id" in message:
            raise BadAnswer(
                "The server sent something else than notifications on the stream of a subscription"
            )
        if message["method"] == _ACKNOWLEDGED:
            agreed = params.get("notifications")
            self.acknowledged = agreed if isinstance(agreed, dict) else {}
        return Change(str(message["method"]), params, interrupted)

    async def _older(self) -> AsyncGenerator[Change, None]:
        tap: asyncio.Queue[Json] = asyncio.Queue(_MAX_WAITING)
        self._link.session_stream.taps.add(tap)
        try:
            for uri in self._wanted.get("resourceSubscriptions", ()):
                await self._client.request("resources/subscribe", {"uri": uri})
            self.acknowledged = {
                key: value for key, value in self._wanted.items() if key != "taskIds"
            }
            while self._link.session_stream.is_open:
                try:
                    async with asyncio.timeout(_LOOK_S):
                        message = await tap.get()
                except TimeoutError:
                    continue
                yield self._change(message, interrupted=False)
            raise HttpRefused(405, "The server has no stream on which it would tell changes")
        finally:
            self._link.session_stream.taps.discard(tap)
