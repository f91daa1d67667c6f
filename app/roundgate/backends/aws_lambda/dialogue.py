"""The exchange in which a function asks for input and receives its own state back (`roundgate docs
rounds`).

function → gateway   {"inputRequests": {"size": {"method": "elicitation/create", "params": {…}}}, "state": anything}
gateway → function   {"payload": that of the first exchange, "inputResponses": {"size": {"action": …}}, "state": …}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from roundgate import json
from roundgate.backends.aws_lambda.payload import RESPONSES
from roundgate.backends.exchange import Answering, Exchange, Kept, asked
from roundgate.backends.http.messages import Answer
from roundgate.errors import ParseError, ToolError

Say: TypeAlias = Callable[[Any, int], Awaitable[Answer]]
"""Invokes the function with a payload, as the nth exchange from 1."""


def exchange_of(say: Say, payload: Mapping[str, Any]) -> Exchange:
    """The exchanges that a call with this first payload consists of.

    Raises:
        ToolError: the payload looks like that of a later one: an argument must not pass
            for what the user answered.
    """
    if RESPONSES in payload:
        raise ToolError(f"{RESPONSES}: is the gateway's own; leave it out")

    async def exchange(number: int, answering: Answering | None) -> Kept:
        sent = payload if answering is None else _answering(payload, answering)
        answer = await say(sent, number)
        envelope = _envelope(answer)
        return answer.kept() if envelope is None else asked(envelope)

    return exchange


def _answering(payload: Mapping[str, Any], answering: Answering) -> dict[str, Any]:
    return {
        "payload": dict(payload),
        RESPONSES: dict(answering.responses),
        "state": answering.state,
    }


def _envelope(answer: Answer) -> Any:
    """What asks, if the answer does."""
    if b'"inputRequests"' not in answer.body:
        return None
    try:
        value = json.decode(answer.body)
    except ParseError:
        return None
    return value if isinstance(value, dict) and "inputRequests" in value else None
