"""Calls that continue when their client calls again: for clients that cannot resume a stream, on a
platform that cannot hold a stream open.

    POST  tools/call X           ─▶ question; result: PENDING T           one body
    POST  the answer             ─▶ 202
    POST  tools/call continue T  ─▶ the answers' rows ─▶ replay ─▶ result, or PENDING T

T is the id of an event (`open_calls`).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from roundgate import json
from roundgate.errors import InvalidRequest, ToolError
from roundgate.http.older.caller import SessionCaller
from roundgate.http.older.open_calls import OpenCall, OpenCalls
from roundgate.http.older.stream import RequestStream
from roundgate.methods.rounds import Reply
from roundgate.protocol import Request, ToolResult
from roundgate.protocol.v2025 import Results

PENDING: Final = "PENDING"
"""The first word of a result that stands for an unfinished call."""
_DEFINITION: Final = {
    "description": f"Return the result of a call that was answered with {PENDING}, by the token that "
    "follows that word.",
    "inputSchema": {
        "type": "object",
        "properties": {"token": {"type": "string", "description": "The token, copied exactly."}},
        "required": ["token"],
    },
}


class ContinueTool:
    """The tool that accepts the token of an unfinished call.

    Args:
        name: the name of the tool.
        calls: the maker and reader of the tokens.
    """

    def __init__(self, name: str, calls: OpenCalls) -> None:
        self._name = name
        self._calls = calls

    def is_called(self, request: Request, stream: RequestStream) -> bool:
        """Return whether a request calls this tool, from a client to which the tool is offered."""
        return (
            stream.is_finite
            and request.method == "tools/call"
            and request.params.get("name") == self._name
        )

    async def reopened_call(self, request: Request, caller: SessionCaller) -> OpenCall:
        """Return the call that a request continues by its token, under the id of the request.

        Raises:
            ToolError: the token does not belong to this session, or has expired.
            Unavailable: the call cannot be read now.
        """
        arguments = request.params.get("arguments")
        token = arguments.get("token") if isinstance(arguments, dict) else None
        text = token if isinstance(token, str) else ""
        event_id = text.strip().removeprefix(f"{PENDING} ")
        try:
            call = await self._calls.reopened(event_id, caller)
        except InvalidRequest:
            raise ToolError(
                "This token is not valid: it is too old, belongs to another session, or was not copied exactly."
                " Call the first tool again"
            ) from None
        return replace(call, request=replace(call.request, id=request.id))

    def pending(
        self, token: str, request: Request, caller: SessionCaller, *, asks: bool, is_error: bool
    ) -> Reply:
        """Return the result of a call that continues when its client calls again.

        Args:
            token: the id of an event of the call.
            request: the call's request.
            caller: the caller.
            asks: whether the user is being asked.
            is_error: whether the tool has an output schema: clients validate every result against
                it except errors.
        """
        why = "The user is being asked." if asks else "The call takes longer than one request may."
        text = (
            f"{PENDING} {token}\n{why} Call the tool {self._name} with this token for the result,"
            f" and again for as long as it says {PENDING}. Do not call "
            f"{request.params.get('name')} again."
        )
        written = Results(caller.revision).write(ToolResult([text], is_error=is_error).to_wire())
        return Reply(written, "input_required")

    def listed(self, reply: Reply) -> Reply:
        """Return a page of tools/list, with this tool added to the last page."""
        if not reply.result.endswith(b"]}"):
            return reply
        definition = json.encode({"name": self._name, **_DEFINITION})
        comma = b"" if reply.result.endswith(b"[]}") else b","
        return Reply(
            b"%b%b%b]}" % (reply.result[:-2], comma, definition), reply.label, reply.reason
        )
