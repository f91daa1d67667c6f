"""Costs inside the gateway's process, in microseconds: sealing and opening states, rounds compared
with a call, one call in two revisions, with limits, with a hundred tools, in a view, through search,
with a JWT.

Run with the gateway's own Python (`python -m bench.inside`). Prints one JSON object, case → µs.
Calls pass through the whole ASGI app but not through sockets, so network noise does not hide the
differences.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from roundgate import config
from roundgate import observability as logs
from roundgate.auth import Principal
from roundgate.auth.jwks import KeySet
from roundgate.auth.verifier import JwtVerifier
from roundgate.client import envelope, headers_of, message
from roundgate.clock import Clock
from roundgate.main import build_app
from roundgate.settings import CallLimits, JwtAuthConfig, RateConfig
from roundgate.settings import process as settings
from roundgate.tokens import Binding, KeyRing, StateSealer, keys

CAPABILITIES: dict[str, Any] = {"elicitation": {}}
META = envelope("2026-07-28", {"name": "bench", "version": "1"}, CAPABILITIES)
OLDER = "2025-11-25"
OWNER = Principal("https://issuer.example", "somebody", "some-client")


def main() -> None:
    """Print all measurements."""
    logs.configure("warning")
    measured = dict(sealing())
    for measure in (rounds, revisions, limits, catalogues, verifying):
        measured |= asyncio.run(measure())
    json.dump(measured, sys.stdout)


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


async def revisions() -> dict[str, float]:
    """Measure the same call in both revisions, alternately, so noise affects both alike."""
    with tempfile.TemporaryDirectory() as directory:
        using = settings.Settings(
            state_keys=keys.new_key(), store=f"sqlite:///{directory}/store.sqlite3"
        )
        app = build_app(config.load(Path("bench/gateway.yaml")), using)
        client = {"protocolVersion": OLDER, "capabilities": CAPABILITIES, "clientInfo": {}}
        opened, _ = await send(app, "initialize", client, {})
        session = {
            "mcp-protocol-version": OLDER,
            "mcp-session-id": dict(opened["headers"])[b"mcp-session-id"].decode(),
        }
        params = {"name": "add", "arguments": {"a": 1, "b": 2}}

        async def of_session() -> None:
            _, answer = await send(app, "tools/call", params, session)
            assert b'"text":"3"' in answer, answer

        best = {"call, 2026-07-28": float("inf"), f"call, {OLDER}": float("inf")}
        for _ in range(150):
            for case, work in zip(
                best, (lambda: post(app, "add", params["arguments"]), of_session), strict=True
            ):
                best[case] = min(best[case], await fastest_async(work, times=20, batches=1))
        return best


async def limits() -> dict[str, float]:
    """Measure the same call without limits, and with limits of its caller and its tool, alternately,
    so noise affects both alike."""
    with tempfile.TemporaryDirectory() as directory:
        using = settings.Settings(
            state_keys=keys.new_key(), store=f"sqlite:///{directory}/store.sqlite3"
        )
        file = config.load(Path("bench/gateway.yaml"))
        most = CallLimits(calls_per_minute=1_000_000, concurrent=1_000)
        rate = RateConfig(**most.model_dump(), tools={"add": most})
        limited = replace(file, config=file.config.model_copy(update={"rate": rate}))
        apps = {
            "call, without limits": build_app(file, using),
            "call, with limits of caller and tool": build_app(limited, using),
        }
        best = dict.fromkeys(apps, float("inf"))
        for _ in range(150):
            for case, app in apps.items():
                work = partial(post, app, "add", {"a": 1, "b": 2})
                best[case] = min(best[case], await fastest_async(work, times=20, batches=1))
        return best


async def catalogues() -> dict[str, float]:
    """Measure a call among a hundred tools: plain, with a JWT, in a view with search, and through
    its search."""
    with tempfile.TemporaryDirectory() as directory:
        using = settings.Settings(
            state_keys=keys.new_key(), store=f"sqlite:///{directory}/store.sqlite3"
        )
        hundred = config.load(Path("bench/gateway-hundred-tools.yaml"))
        searching = config.load(Path("bench/gateway-search-in-a-view.yaml"))
        verifier, header = _verifier("ES256")
        plain, in_view = build_app(hundred, using), build_app(searching, using)
        verified = build_app(hundred, using, verifier=verifier)
        order = {"order_id": "AB12345678"}
        through = {"name": "get_order", "arguments": order}
        return {
            "call of 100 tools": await fastest_async(lambda: post(plain, "get_order", order)),
            "call with a JWT": await fastest_async(
                lambda: post(verified, "get_order", order, authorization=header.decode())
            ),
            "call in a view": await fastest_async(lambda: post(in_view, "get_order", order)),
            "call through search": await fastest_async(lambda: post(in_view, "call_tool", through)),
        }


async def verifying() -> dict[str, float]:
    """Measure the verification of a bearer token with a warm key set."""
    measured: dict[str, float] = {}
    for algorithm in ("RS256", "ES256"):
        verifier, header = _verifier(algorithm)
        measured[f"verify {algorithm}"] = await fastest_async(partial(verifier.principal, header))
    return measured


def _verifier(algorithm: str) -> tuple[JwtVerifier, bytes]:
    """Return a verifier with a single key, and an Authorization header that it accepts."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm

    key: Any
    kind: Any
    if algorithm == "RS256":
        key, kind = rsa.generate_private_key(65537, 2048), RSAAlgorithm
    else:
        key, kind = ec.generate_private_key(ec.SECP256R1()), ECAlgorithm
    public = json.loads(kind.to_jwk(key.public_key())) | {"kid": "k", "alg": algorithm}

    async def fetch(url: str) -> bytes:
        return json.dumps({"keys": [public]}).encode()

    auth = JwtAuthConfig(
        issuer="https://i", audience="a", jwks_url="https://i/jwks", algorithms=["RS256", "ES256"]
    )
    claims = {
        "iss": "https://i",
        "aud": "a",
        "sub": "s",
        "exp": int(time.time()) + 3600,
        "scope": "read write",
    }
    token = jwt.encode(claims, key, algorithm, headers={"kid": "k"})
    verifier = JwtVerifier(auth, "a", KeySet(auth.jwks_url, Clock(), fetch))
    return verifier, b"Bearer " + token.encode()


async def post(
    app: Any, tool: str, arguments: Any, authorization: str | None = None, **more: Any
) -> bytes:
    """Send a `tools/call` of 2026-07-28 through the app; return the body of the response."""
    request = message("tools/call", {"name": tool, "arguments": arguments, **more}, 1, META)
    headers = dict(headers_of(request))
    if authorization is not None:
        headers["authorization"] = authorization
    body = (await send(app, "tools/call", request["params"], headers))[1]
    assert b'"isError":true' not in body, body
    return body


async def send(
    app: Any, method: str, params: Any, headers: Mapping[str, str]
) -> tuple[MutableMapping[str, Any], bytes]:
    """Send a request through the app; return the head and the body of the response."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    named = {
        "host": "localhost",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **{name.lower(): value for name, value in headers.items()},
    }
    sent: list[MutableMapping[str, Any]] = []

    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await asyncio.Future()

    async def take(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "headers": raw,
    }
    await app(scope | {"http_version": "1.1", "scheme": "http", "root_path": ""}, receive, take)
    assert sent[0]["status"] == 200, sent
    answer: bytes = sent[1]["body"]
    return sent[0], answer


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
