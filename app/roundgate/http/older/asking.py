"""Questions to clients of a session: JSON-RPC requests on the stream of a call, and their answers,
which arrive at any replica.

The replica that receives an answer does not know the call. The sealed id of the question proves
that this session was asked, and names the hidden task that stores the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate import json
from roundgate.errors import ToolError
from roundgate.http.older.caller import SessionCaller
from roundgate.http.older.open_calls import CallState
from roundgate.http.older.stream import RequestStream
from roundgate.protocol import Response
from roundgate.protocol.v2025 import OlderRevision
from roundgate.protocol.v2025.asking import answer_from_result, request_params

MAX_MESSAGE: Final = 500
"""The maximum length of the shown reason of a client that cannot answer, in characters."""


def check_askable(method: str, stream: RequestStream) -> None:
    """Raise ToolError if the client cannot be asked on this stream."""
    if not stream.can_tell or (stream.is_finite and method != "tools/call"):
        raise ToolError(
            "This call must ask the user a question, but this client cannot be asked: it must accept "
            "event streams and resume them, as clients of revision 2025-11-25 do"
        )


def question(
    question_id: str, request: Mapping[str, Any], caller: SessionCaller, page: str | None
) -> bytes:
    """Return a question as a JSON-RPC request to the client. `page` is the `elicitationId` of a
    page to open."""
    params = request_params(caller.revision, request["method"], request.get("params", {}), page)
    message = {"jsonrpc": "2.0", "id": question_id, "method": request["method"]}
    return json.encode({**message, "params": params} if params else message)


def answer_bytes(response: Response) -> bytes:
    """Encode a client's response for its task."""
    is_error = response.result is None
    return json.encode({"error": response.error} if is_error else {"result": response.result})


def read_answers(
    state: CallState, stored: Mapping[str, bytes], revision: OlderRevision
) -> dict[str, dict[str, Any]]:
    """Return the answers to the questions of a state by key, in the form of the engine.

    Raises:
        ToolError: the client could not answer one of them.
    """
    answers = {}
    for (key, request), name in zip(state.requests.items(), state.names, strict=True):
        answer = json.decode(stored[name])
        if (error := answer.get("error")) is not None:
            message = error.get("message")
            reason = message[:MAX_MESSAGE] if isinstance(message, str) else "no reason given"
            raise ToolError(f"The client could not answer the question {key!r}: {reason}")
        params = request.get("params", {})
        answers[key] = answer_from_result(revision, request["method"], params, answer["result"])
    return answers
