"""The exchange in which an HTTP service that knows the gateway asks for input and receives its own
state back (`roundgate docs rounds`).

service → gateway   200, Content-Type: application/vnd.roundgate.input-required+json
                    {"inputRequests": {"size": {"method": "elicitation/create", "params": {…}}}, "state": anything}
gateway → service   the same method and path, Content-Type: application/vnd.roundgate.input-responses+json
                    {"body": that of the first request, "inputResponses": {"size": {"action": …}}, "state": …}
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from roundgate import json
from roundgate.backends.exchange import Answering, Exchange, Kept, asked
from roundgate.backends.http.keys import Key, with_key
from roundgate.backends.http.messages import Answer, Outgoing, Send
from roundgate.errors import BackendError, ParseError

INPUT_REQUIRED: Final = "application/vnd.roundgate.input-required+json"
INPUT_RESPONSES: Final = "application/vnd.roundgate.input-responses+json"


def exchange_of(send: Send, outgoing: Outgoing, key: Key | None) -> Exchange:
    """The exchanges that a call of a tool with this first request consists of."""

    async def exchange(number: int, answering: Answering | None) -> Kept:
        request = outgoing if answering is None else _answering(outgoing, answering)
        answer = await send(with_key(request, key, number))
        return _asked(answer) if answer.media_type == INPUT_REQUIRED else answer.kept()

    return exchange


def _asked(answer: Answer) -> Kept:
    if answer.status != 200:  # as an ordinary answer it would show its state
        raise BackendError(
            f"The service asked for input with the status {answer.status}, which has to be 200"
        )
    try:
        return asked(answer.value())
    except ParseError:
        raise BackendError(
            "The service asked for input in a form that the gateway does not know"
        ) from None


def _answering(outgoing: Outgoing, answering: Answering) -> Outgoing:
    body = None if outgoing.body is None else json.decode(outgoing.body)
    envelope = {"body": body, "inputResponses": dict(answering.responses), "state": answering.state}
    headers = outgoing.headers | {"content-type": INPUT_RESPONSES}
    return replace(outgoing, headers=headers, body=json.encode(envelope))
