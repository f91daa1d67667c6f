"""Costs inside the gateway's process, in microseconds: sealing and opening states, and rounds
compared with a call. `bench.circumstances` measures other calls over sockets.

Run with the gateway's own Python (`python -m bench.inside`). Prints one JSON object, case → µs.
Calls pass through the whole ASGI app but not through sockets, so network noise does not hide the
differences.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

from roundgate import config
from roundgate import observability as logs
from roundgate.auth import Principal
from roundgate.client import envelope, headers_of, message
from roundgate.clock import Clock
from roundgate.main import build_app
from roundgate.settings import process as settings
from roundgate.tokens import Binding, KeyRing, StateSealer, keys

CAPABILITIES: dict[str, Any] = {"elicitation": {}}
META = envelope("2026-07-28", {"name": "bench", "version": "1"}, CAPABILITIES)
OWNER = Principal("https://issuer.example", "somebody", "some-client")


def main() -> None:
    """Print all measurements."""
    logs.configure("warning")
    json.dump(dict(sealing()) | asyncio.run(rounds()), sys.stdout)


def sealing() -> Iterator[tuple[str, float]]:
    """Measure sealing and opening of states of two sizes."""
    sealer = StateSealer(KeyRing(keys.parse(keys.new_key(), "bench")), Clock(), max_bytes=1_000_000)
    binding = Binding.of("tools/call", "ask", {"n": 1})
    for size in (1024, 16 * 1024):
        payload = [["s", "step", "x" * size], {}]
        token = sealer.seal(payload, OWNER, binding, round_=1, origin={})
        seal = partial(sealer.seal, payload, OWNER, binding, round_=1, origin={})
        yield f"seal {size // 1024} KB", fastest(seal)
        yield f"open {size // 1024} KB", fastest(partial(sealer.open, token, OWNER, binding))


async def rounds() -> dict[str, float]:
    """Measure a call without questions, and both rounds of a call with a question."""
    with tempfile.TemporaryDirectory() as directory:
        using = settings.Settings(
            state_keys=keys.new_key(), store=f"sqlite:///{directory}/store.sqlite3"
        )
        app = build_app(config.load(Path("bench/gateway.yaml")), using)
        first = await post(app, "ask", {"n": 1})
        answer = {"inputResponses": {"go": {"action": "accept", "content": {"ok": True}}}}
        retry = answer | {"requestState": json.loads(first)["result"]["requestState"]}
        assert b'"complete"' in await post(app, "ask", {"n": 1}, **retry)
        return {
            "call without rounds": await fastest_async(lambda: post(app, "add", {"a": 1, "b": 2})),
            "first round": await fastest_async(lambda: post(app, "ask", {"n": 1})),
            "second round": await fastest_async(lambda: post(app, "ask", {"n": 1}, **retry)),
        }


async def post(app: Any, tool: str, arguments: Any, **more: Any) -> bytes:
    """Send a `tools/call` of 2026-07-28 through the app; return the body of the response."""
    request = message("tools/call", {"name": tool, "arguments": arguments, **more}, 1, META)
    named = {"host": "localhost", **{name.lower(): value for name, value in headers_of(request)}}
    messages = [{"type": "http.request", "body": json.dumps(request).encode(), "more_body": False}]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await asyncio.Future()

    async def take(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "root_path": "",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    await app(scope, receive, take)
    body: bytes = sent[1]["body"]
    assert sent[0]["status"] == 200, sent
    assert b'"isError":true' not in body, body
    return body


def fastest(work: Callable[[], object], times: int = 200, batches: int = 15) -> float:
    """Return the microseconds per call in the fastest batch, which has the least noise."""
    best = float("inf")
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / times


async def fastest_async(
    work: Callable[[], Awaitable[object]], times: int = 200, batches: int = 15
) -> float:
    """Return the microseconds per call of a coroutine function. See `fastest`."""
    best = float("inf")
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(times):
            await work()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / times


if __name__ == "__main__":
    main()
