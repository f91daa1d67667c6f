"""The service behind `proxy`: a raw ASGI callable that adds two integers. Like an issuer, it also
publishes keys."""

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answer `{"a": …, "b": …}` with `{"result": …}`, and a GET with the keys."""
    body, is_more = b"", True
    while is_more:
        event = await receive()
        body, is_more = body + event["body"], event.get("more_body", False)
    if scope["method"] == "GET":
        keys = os.environ["BENCH_KEYS"].encode()
    else:
        numbers = json.loads(body)
        keys = json.dumps({"result": numbers["a"] + numbers["b"]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(keys))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": keys})
