"""The HTTP requests of a measurement, and the checks of their answers.

An `Exchange` is a request as bytes, with the check of its answer. A `Workload` makes a number of
different exchanges, so neither a cache nor a confused connection can pass for a correct server. The
protocol is MCP 2026-07-28 over Streamable HTTP; requests have the headers and the `_meta` that the
revision requires.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bench.catalogue import hundred_tools
from bench.http1 import Response
from roundgate.client import envelope, headers_of, message

PROTOCOL_VERSION = "2026-07-28"
OLDER_VERSION = "2025-11-25"
KNOWS_TASKS: Mapping[str, Any] = MappingProxyType(
    {"extensions": {"io.modelcontextprotocol/tasks": {}}}
)
"""The capabilities of a client that accepts a task as the answer."""

FILLED = 10
"""The number of tasks `filled-0`, … that `bench.tasks` polls in every table; the last is open."""
LARGE = 4
"""The number of tasks `large-0`, … with a large result in every table."""
LARGE_RESULT = "x" * 300_000

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class WrongAnswerError(Exception):
    """An answer does not belong to its request, or is incorrect. It fails the whole benchmark."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the check of its answer. `check_result` raises `WrongAnswerError` for any other
    JSON-RPC result."""

    request: bytes
    request_id: int
    check_result: Callable[[dict[str, Any]], None]
    result_type: str | None = "complete"
    """The `resultType` of the result; `None` in older revisions, which lack this member."""

    def sent_with(self, headers: Mapping[str, str]) -> "Exchange":
        """Return a copy of the exchange with additional headers."""
        line, rest = self.request.split(b"\r\n", 1)
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return replace(self, request=b"%b\r\n%b%b" % (line, more.encode(), rest))

    def check(self, response: Response) -> None:
        """Check status, media type, JSON-RPC id and result.

        Raises:
            WrongAnswerError: a part is wrong; the message has the beginning of the body.
        """
        try:
            _require(response.status == 200, f"status {response.status}")
            answer = message_in(response)
            _require(answer.get("jsonrpc") == "2.0", "not a JSON-RPC 2.0 message")
            _require(
                answer.get("id") == self.request_id,
                f"id {answer.get('id')!r} instead of {self.request_id}",
            )
            _require(isinstance(answer.get("result"), dict), "no result")
            _require(
                answer["result"].get("resultType") == self.result_type,
                f"resultType is not {self.result_type}",
            )
            self.check_result(answer["result"])
        except (WrongAnswerError, ValueError, KeyError, TypeError, IndexError) as reason:
            raise WrongAnswerError(
                f"{reason!r} in HTTP {response.status}: {response.body[:300]!r}"
            ) from reason


Workload = Callable[[int], Sequence[Exchange]]


def message_in(response: Response) -> dict[str, Any]:
    """Return the JSON-RPC response in an HTTP response: the JSON body, or the last event of an SSE
    stream. Raise WrongAnswerError if there is none."""
    body = response.body
    if response.media_type == "text/event-stream":
        # Progress and log messages may come first. The answer is the last event of the stream.
        last = body.replace(b"\r\n", b"\n").strip().split(b"\n\n")[-1]
        body = b"\n".join(
            line[5:].strip() for line in last.split(b"\n") if line.startswith(b"data:")
        )
    elif response.media_type != "application/json":
        raise WrongAnswerError(f"media type {response.media_type!r}")
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise WrongAnswerError("the message is not an object")
    return answer


def call_add(count: int) -> Sequence[Exchange]:
    """Return `tools/call` requests of `add`, each with different numbers."""
    return [_call_add(n, 1000 + n, 7 * n, http_request) for n in range(1, count + 1)]


def call_add_with_context(count: int) -> Sequence[Exchange]:
    """Return `tools/call` requests of a tool that takes a context and asks nothing."""
    return [
        _call_add(n, 1000 + n, 7 * n, http_request, tool="add_with_context")
        for n in range(1, count + 1)
    ]


def call_add_in_session(count: int) -> Sequence[Exchange]:
    """Return `tools/call` requests of 2025-11-25. The load adds the session's header."""
    return [
        replace(_call_add(n, 1000 + n, 7 * n, older_request), result_type=None)
        for n in range(1, count + 1)
    ]


def call_one_of_hundred(count: int) -> Sequence[Exchange]:
    """Return `tools/call` requests of a tool of the catalogue."""
    return [_call_get_order(n, "get_order", _order(n)) for n in range(1, count + 1)]


def call_through_search(count: int) -> Sequence[Exchange]:
    """Return `tools/call` requests of `call_tool`, which calls tools that a search has found."""
    return [
        _call_get_order(n, "call_tool", {"name": "get_order", "arguments": _order(n)})
        for n in range(1, count + 1)
    ]


def _order(number: int) -> dict[str, str]:
    return {"order_id": f"AB{number:08}"}


def _call_get_order(request_id: int, name: str, arguments: dict[str, Any]) -> Exchange:
    def check(result: dict[str, Any]) -> None:
        _require(not result.get("isError"), "the tool failed")
        _require(result["content"][0]["text"] == "get_order", "not the tool that was called")

    params = {"name": name, "arguments": arguments}
    return Exchange(http_request("tools/call", params, request_id), request_id, check)


def _call_add(
    request_id: int, a: int, b: int, written: Callable[..., bytes], *, tool: str = "add"
) -> Exchange:
    def check(result: dict[str, Any]) -> None:
        _require(not result.get("isError"), "the tool failed")
        _require(
            len(result["content"]) == 1 and result["content"][0]["type"] == "text",
            "not one text block",
        )
        _require(json.loads(result["content"][0]["text"]) == a + b, "not the sum")
        # Since 2026-07-28 this may be any JSON value; the peers still wrap a bare number in an object.
        # Older revisions allow only objects.
        right = (a + b, {"result": a + b}, *((None,) if written is older_request else ()))
        _require(result.get("structuredContent") in right, "not the sum, structured")

    params = {"name": tool, "arguments": {"a": a, "b": b}}
    return Exchange(written("tools/call", params, request_id), request_id, check)


def list_hundred(count: int) -> Sequence[Exchange]:
    """Return `tools/list` requests for the catalogue. The answer must contain every tool with its
    description and schema."""
    expected = {tool.name: tool.as_json() for tool in hundred_tools()}

    def check(result: dict[str, Any]) -> None:
        _require("nextCursor" not in result, "not everything on one page")
        got = {
            tool["name"]: {key: tool[key] for key in expected[tool["name"]]}
            for tool in result["tools"]
        }
        _require(len(result["tools"]) == len(expected) and got == expected, "not the catalogue")

    return [Exchange(http_request("tools/list", {}, n), n, check) for n in range(1, count + 1)]


def get_task(count: int) -> Sequence[Exchange]:
    """Return `tasks/get` requests of small tasks: nine are completed, and one waits for an
    answer."""
    return [
        _get_task(n, f"filled-{n % FILLED}", is_open=n % FILLED == FILLED - 1)
        for n in range(1, count + 1)
    ]


def get_large_task(count: int) -> Sequence[Exchange]:
    """Return `tasks/get` requests of completed tasks with a large result."""
    return [_get_task(n, f"large-{n % LARGE}", text=LARGE_RESULT) for n in range(1, count + 1)]


def _get_task(
    request_id: int, task_id: str, *, is_open: bool = False, text: str = "done"
) -> Exchange:
    def check(result: dict[str, Any]) -> None:
        _require(result["taskId"] == task_id, "another task")
        if is_open:
            _require(
                result["status"] == "input_required" and len(result["inputRequests"]) == 1,
                "it does not ask",
            )
        else:
            _require(result["status"] == "completed", "not completed")
            _require(result["result"]["content"][0]["text"] == text, "not its result")

    return Exchange(task_request(task_id, request_id), request_id, check)


def task_request(task_id: str, request_id: int) -> bytes:
    """Return the bytes of a `tasks/get` request."""
    return http_request("tasks/get", {"taskId": task_id}, request_id, capabilities=KNOWS_TASKS)


WORKLOADS: MappingProxyType[str, Workload] = MappingProxyType(
    {
        "call_add": call_add,
        "call_add_with_context": call_add_with_context,
        "call_add_in_session": call_add_in_session,
        "call_one_of_hundred": call_one_of_hundred,
        "call_through_search": call_through_search,
        "list_hundred": list_hundred,
        "get_task": get_task,
        "get_large_task": get_large_task,
    }
)


def http_request(
    method: str,
    params: dict[str, Any],
    request_id: int,
    *,
    capabilities: Mapping[str, Any] = _NOTHING,
) -> bytes:
    """Return a complete HTTP/1.1 request."""
    meta = envelope(PROTOCOL_VERSION, {"name": "bench", "version": "1.0.0"}, dict(capabilities))
    request = message(method, params, request_id, meta)
    return _http(request, dict(headers_of(request)))


def older_request(method: str, params: dict[str, Any], request_id: int) -> bytes:
    """Return an HTTP/1.1 request of 2025-11-25, complete except for its session."""
    request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    media = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    return _http(request, {**media, "MCP-Protocol-Version": OLDER_VERSION})


def _http(request: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    body = json.dumps(request, separators=(",", ":")).encode()
    head = [
        "POST /mcp HTTP/1.1",
        "Host: 127.0.0.1",
        "User-Agent: bench",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def _require(is_right: bool, complaint: str) -> None:
    if not is_right:
        raise WrongAnswerError(complaint)
