"""POSTs with several messages, a feature of revision 2025-03-26. Requests are served in order, as
if each had arrived alone on the same connection, so limits on requests or connections count each
element. Answers are kept until all are complete, so their total size is limited; requests beyond
the limit are not run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from roundgate.errors import AuthError, GatewayError, InvalidRequest, Unavailable
from roundgate.http.exchange import Element, Exchange
from roundgate.http.head import EVENT_STREAM
from roundgate.http.older.caller import Caller
from roundgate.http.older.calls import SessionCalls, name_of
from roundgate.http.older.stream import SessionStream
from roundgate.http.responder import State
from roundgate.protocol import Notification, Request, Response, jsonrpc, messages
from roundgate.protocol.v2025 import wire_errors


class Batches:
    """A server of batches.

    Args:
        calls: runs requests for tools, prompts and resources.
        of_session: returns the result of a request about the session itself; `None` for others.
        take: takes notifications and responses.
        max_bytes: the limit on the answers to one batch, in bytes; the last answer may exceed it.
    """

    def __init__(
        self,
        calls: SessionCalls,
        of_session: Callable[[Request, Caller], Awaitable[bytes | None]],
        take: Callable[[Notification | Response, Caller], Awaitable[None]],
        *,
        max_bytes: int,
    ) -> None:
        self._calls = calls
        self._of_session = of_session
        self._take = take
        self._max_bytes = max_bytes

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
        answers: list[bytes] = []
        left = self._max_bytes
        for message in messages.batch_of(body):
            if stream.is_unheard:
                return
            if left > 0:
                answer = await self._one(message, caller, stream, exchange)
            else:
                answer = _without_room(message)
            if answer is not None:
                answers.append(answer)
                left -= len(answer)
        await _send(answers, stream, exchange)

    async def _one(
        self,
        message: messages.Message | InvalidRequest,
        caller: Caller,
        stream: SessionStream,
        exchange: Exchange,
    ) -> bytes | None:
        """Return the response to one element, or `None` if it needs none. Each request gets a log
        line."""
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


def _without_room(message: messages.Message | InvalidRequest) -> bytes | None:
    """Return the error for a request that is not run because the answers are too large; `None` for
    other messages."""
    if not isinstance(message, Request):
        return None
    error = Unavailable(
        "The answers before this one in the batch are too large (http.max_body_bytes); it was not run: send it again,"
        " in a POST of its own"
    )
    return wire_errors.render(error, message.id)[1]


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
