"""Floor: a raw ASGI callable that reads the body, parses it, and answers. `tools/list` returns
bytes made in advance."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from bench.catalogue import hundred_tools as catalogue

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


def one_tool() -> Application:
    return _application(_call_add)


def hundred_tools() -> Application:
    tools = {"resultType": "complete", "tools": [tool.as_json() for tool in catalogue()]}
    listed = json.dumps(tools, separators=(",", ":")).encode()
    return _application(lambda message: listed)


def _call_add(message: dict[str, Any]) -> bytes:
    arguments = message["params"]["arguments"]
    total = arguments["a"] + arguments["b"]
    content = [{"type": "text", "text": str(total)}]
    result = {"resultType": "complete", "content": content, "structuredContent": {"result": total}}
    return json.dumps(result, separators=(",", ":")).encode()


def _application(answer: Callable[[dict[str, Any]], bytes]) -> Application:
    async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # lifespan: uvicorn treats this as "not supported"
        body, is_more = b"", True
        while is_more:
            event = await receive()
            body, is_more = body + event["body"], event.get("more_body", False)
        message = json.loads(body)
        reply = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], answer(message))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    return application
