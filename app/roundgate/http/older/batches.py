"""A POST of several messages, which revision 2025-03-26 has: its requests run at the
same time, in one answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from roundgate.errors import AuthError, GatewayError, InvalidRequest
from roundgate.http.exchange import Element, Exchange
from roundgate.http.head import EVENT_STREAM
from roundgate.http.older.caller import Caller
from roundgate.http.older.calls import SessionCalls, name_of
from roundgate.http.older.stream import SessionStream
from roundgate.http.responder import State
from roundgate.protocol import Notification, Request, Response, jsonrpc, messages
from roundgate.protocol.v2025 import wire_errors


class Batches:
    """Answers batches.

    Args:
        calls: runs what is asked of tools, prompts and resources.
        of_session: the result of a request about the session itself; `None` for all others.
        take: takes what wants no result.
    """

    def __init__(
        self,
        calls: SessionCalls,
        of_session: Callable[[Request, Caller], Awaitable[bytes | None]],
        take: Callable[[Notification | Response, Caller], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._of_session = of_session
        self._take = take

    async def answer(
        self, body: list[Any], caller: Caller, stream: SessionStream, exchange: Exchange
    ) -> None:
        """Answer a batch.

        Args:
            body: its messages.
            caller: who sent it.
            stream: of the request that it came in.
            exchange: that request.

        Raises:
            InvalidRequest: it is none, or the revision has none.
        """
        if not caller.revision.has_batches:
            raise InvalidRequest(
                f"Batches are not part of revision {caller.session.revision}: send each message as "
                "a POST of its own"
            )
        found = messages.batch_of(body)
        answers = await asyncio.gather(*(self._one(one, caller, stream, exchange) for one in found))
        await _send([one for one in answers if one is not None], stream, exchange)

    async def _one(
        self,
        message: messages.Message | InvalidRequest,
        caller: Caller,
        stream: SessionStream,
        exchange: Exchange,
    ) -> bytes | None:
        """The response to one element, if it wants one. The log has a line for each request."""
        if not isinstance(message, Request):
            return await self._answer(message, caller, stream, Element())
        element, started = Element(message.method, name_of(message)), time.perf_counter()
        try:
            return await self._answer(message, caller, stream, element)
        finally:
            exchange.write_element(element, (time.perf_counter() - started) * 1000)

    async def _answer(
        self,
        message: messages.Message | InvalidRequest,
        caller: Caller,
        stream: SessionStream,
        element: Element,
    ) -> bytes | None:
        request_id = message.id if isinstance(message, Request) else None
        try:
            match message:
                case InvalidRequest():
                    raise message
                case Request(method="initialize"):
                    raise InvalidRequest("initialize must not be part of a batch")
                case Request():
                    own = await self._of_session(message, caller)
                    if own is not None:
                        return jsonrpc.result_response(message.id, own)
                    ids = element.correlation
                    responded = await self._calls.respond(message, caller, stream, ids)
                    element.label, element.reason = responded.label, responded.reason
                    return responded.response
                case _:
                    await self._take(message, caller)
                    return None
        except AuthError as error:  # the status is one for all of them
            element.label, element.error = "unauthorized", str(error)
            return jsonrpc.error_response(request_id, -32600, str(error))
        except GatewayError as error:
            element.label, element.error = "error", str(error)
            element.code = wire_errors.look_up(error).code
            return wire_errors.render(error, request_id)[1]


async def _send(responses: Sequence[bytes], stream: SessionStream, exchange: Exchange) -> None:
    responder = exchange.responder
    if not responses:
        await responder.accepted()
    elif responder.state is State.STREAMING:
        for response in responses:
            await stream.message(response)
        await responder.end()
    else:
        as_event = exchange.accepted == {EVENT_STREAM}
        await responder.answer(200, b"[%b]" % b",".join(responses), as_event=as_event)
