"""What a client of a session is told on the stream of one request, before its response.

notification, question, …                       a stream opens with the first of them
id: <token>.0                                   where streams can be resumed, this comes before everything else
data:
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from starlette.requests import ClientDisconnect

from roundgate.errors import Unavailable
from roundgate.http.exchange import Responder, State
from roundgate.http.older.one_run import OneRun
from roundgate.http.older.unheard import UnheardWatch
from roundgate.protocol import jsonrpc, sse

RETRY_MS: Final = 500
"""How long a client waits before it asks for the rest of a stream that has ended."""
AWAY_RETRY_MS: Final = 2_000
"""The same where the store is away."""

Token: TypeAlias = Callable[["SessionStream"], Awaitable[str]]
"""Makes the id after which the request of a stream can be gone on with."""


class SessionStream:
    """The stream of one request. Several handlers may write at once.

    `can_tell` says whether the client takes a stream; `holds` whether the platform can keep one
    open for as long as a user thinks; `resumes` whether the client comes back for the rest of one
    that ended, and `last_event_id` is what it just has come back with. `watch` knows whether it has
    hung up.
    """

    def __init__(
        self,
        responder: Responder,
        watch: UnheardWatch,
        *,
        can_tell: bool,
        holds: bool,
        resumes: bool,
        last_event_id: str | None = None,
    ) -> None:
        self.responder = responder
        self.working = watch.working
        """Within it, what is done goes on when the client hangs up."""
        self._watch = watch
        self.is_resumed = last_event_id is not None
        self.can_tell = can_tell
        self.holds = holds
        self.resumes = resumes
        self.token: Token | None = None
        """For the first event, where the stream can be resumed before anything was asked."""
        self.first: OneRun | None = None
        """The first round, once the client was told how to come back to it."""
        self.last_event_id = last_event_id
        """The last that the client has."""
        self._writing: asyncio.Lock | None = None

    @property
    def is_finite(self) -> bool:
        """Whether there is nothing of it but what comes at once: the client calls
        again for what comes later."""
        return not self.holds and not self.resumes

    @property
    def is_unheard(self) -> bool:
        """Whether the client has hung up."""
        return self._watch.disconnected

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless the response has been sent."""
        try:
            await self._write(sse.event(jsonrpc.notification(method, params)))
        except ClientDisconnect:
            if self.responder.give_up is not None:
                self.responder.give_up()

    async def message(self, message: bytes, event_id: str | None = None) -> None:
        """Send one message.

        Args:
            message: JSON.
            event_id: from which any replica can continue; `None` if nothing
                can be continued from here.

        Raises:
            ClientDisconnect: the client does not read.
        """
        if event_id is None:
            await self._write(sse.event(message))
        else:
            retry_ms = RETRY_MS if self.resumes else None
            await self._write(sse.event_with_id(message, event_id, retry_ms))
            self.last_event_id = event_id

    async def keep_alive(self) -> None:
        """Send a comment. Raises as `message`."""
        await self._write(sse.KEEP_ALIVE)

    async def leave(self, event_id: str) -> None:
        """End the stream for now: the client comes back for the rest."""
        await self.message(b"", event_id)
        await self.responder.end()

    async def come_again(self) -> None:
        """End the stream: the client comes back with the last id that it has. Raises as `message`."""
        assert self.last_event_id is not None
        await self._write(sse.event_with_id(b"", self.last_event_id, AWAY_RETRY_MS))
        await self.responder.end()

    async def _write(self, event: bytes) -> None:
        if self._writing is None:  # most calls tell nothing
            self._writing = asyncio.Lock()
        async with self._writing:
            if self.responder.state is State.DONE:
                return
            if (
                self.responder.state is State.NOTHING_SENT
                and self.resumes
                and self.token is not None
            ):
                event = await self._with_id_before(self.token) + event
            await self.responder.raw(event)

    async def _with_id_before(self, token: Token) -> bytes:
        """What a stream begins with that can be resumed."""
        try:
            self.last_event_id = await token(self)
        except Unavailable:  # a report is not worth the call; what asks has an id of its own
            return b""
        return sse.event_with_id(b"", self.last_event_id, RETRY_MS)
