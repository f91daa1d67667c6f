"""A client that answers: it repeats a call with what it was asked for, each round to the
next of several gateways."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_types import _v2026_07_28 as official
from pydantic import BaseModel

from tests.support import wire
from tests.support.asgi import Client

KEYS = base64.b64encode(b"thirty-two bytes, known to a few").decode()
"""GATEWAY_STATE_KEYS of gateways that belong together."""

CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}

REFUSAL = "requestState is not valid for this request; start the call again without it"


class Name(BaseModel):
    """A form with one field."""

    name: str


def accept(**content: Any) -> dict[str, Any]:
    """A form, filled in."""
    return {"action": "accept", "content": content}


def sampled(text: str) -> dict[str, Any]:
    """What a model said."""
    return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "parrot"}


def tool(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A tools/call, for `ask` and `Conversation`."""
    return "tools/call", {"name": name, "arguments": arguments}


def retry(params: dict[str, Any], asked: Mapping[str, Any], **responses: Any) -> dict[str, Any]:
    """The parameters of the round after one that asked."""
    return {**params, "requestState": asked["requestState"]} | (
        {"inputResponses": responses} if responses else {}
    )


def names_in(directory: Path) -> list[str]:
    """The files of a directory."""
    return sorted(path.name for path in directory.iterdir())


async def ask(
    mcp: Client, method: str, params: dict[str, Any], **capabilities: Any
) -> dict[str, Any]:
    """The result of a round that ends with questions or with state alone, checked against the official model."""
    response = await mcp.post(method, params, clientCapabilities=capabilities or CAPABILITIES)
    return valid_input_required(response.json())


def valid_input_required(body: dict[str, Any]) -> dict[str, Any]:
    """An `InputRequiredResult` that the official model takes."""
    result: dict[str, Any] = body["result"]
    assert result["resultType"] == "input_required", result
    official.InputRequiredResult.model_validate(result)
    assert wire.SERVER_INFO in result["_meta"]
    return result


@dataclass
class Conversation:
    """One call until its end: answers by the key they are asked under, whatever the attempt."""

    answers: Mapping[str, Any]
    asked: list[list[str]] = field(default_factory=list)
    """The keys of each round that did not end the call."""

    async def have(
        self, gateways: Iterable[Client], method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """The result of the call; round n goes to the nth gateway."""
        sent = params
        for mcp in gateways:
            body = (await mcp.post(method, sent, clientCapabilities=CAPABILITIES)).json()
            if body.get("result", {}).get("resultType") != "input_required":
                return wire.valid_result(method, body)
            result = valid_input_required(body)
            self.asked.append(list(result.get("inputRequests", {})))
            sent = retry(
                params,
                result,
                **{key: self.answers[re.split("[~#]", key)[0]] for key in self.asked[-1]},
            )
        raise AssertionError(f"no result after {len(self.asked)} rounds: {self.asked}")
