"""`scripts/chaos issuer`: the provider that issues the callers' tokens is away, three times.

    away at the start ─ back ─ live traffic ─ stopped, then killed; it comes back with a rotated key ─ killed ─ back

The provider is a process of Authlib's (`provider`). Must hold: without keys the gateway is not ready, and calls get
503; with the keys that it remembers, 0 calls fail; a token of the new key gets 503 while the keys cannot be read, not
401; each time the gateway recovers by itself within `RECOVERS_S` and `/healthz` is `ok` again; a key that the provider
does not have gets 401; a replica that starts meanwhile is not ready; `roundgate.auth.refused` counts each reason.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from roundgate.auth.jwks import RETRY_MS
from roundgate_aws.machine import reserved_port
from tests.chaos.provider import Provider
from tests.chaos.traffic import TOOLS, Clients, Told, connections
from tests.support.issuer import ISSUER, PUBLIC_URL, token
from tests.support.rounds import KEYS
from tests.support.server import running

AT_ONCE: Final = 40
KINDS: Final = ("plain", "steps", "stream", "question")
RECOVERS_S: Final = 10
CONFIG: Final = """
http: {metrics: true}
auth: {issuer: "%s", jwks_url: "%s/jwks", operator_scope: operate}
backends: [{kind: python, name: own, prefix: '', path: tools.py}]
"""
REFUSED: Final = ("keys unavailable", "unknown key")


class _Gateway:
    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def get(self, path: str, shown: str) -> httpx.Response:
        return await self._http.get(f"{self._url}{path}", headers=headers(shown))

    async def status(self, shown: str) -> int:
        """Return the status of a request with a token."""
        post = self._http.post(f"{self._url}/mcp", headers=headers(shown), json={})
        return (await post).status_code

    async def recovers(self, shown: str) -> float:
        """Return the seconds until a request with a token is no longer answered with 503."""
        began = time.monotonic()
        while await self.status(shown) == 503:
            assert time.monotonic() < began + RECOVERS_S, "still 503"
            await asyncio.sleep(0.2)
        return round(time.monotonic() - began, 1)

    async def ready(self, shown: str) -> tuple[int, str]:
        """Return the status and the words of the probe."""
        answer = await self.get("/readyz", shown)
        return answer.status_code, answer.json()["status"]


def headers(shown: str) -> dict[str, str]:
    """Return the headers of a caller with a token."""
    return {"host": "mcp.example.com", "authorization": f"Bearer {shown}"}


async def outlasted(
    directory: Path, seconds: float, at_once: int, dice: random.Random
) -> tuple[Told, dict[str, float]]:
    """Take the issuer away at the start, and once under load."""
    told, figures = Told(), dict[str, float]()
    (directory / "tools.py").write_text(TOOLS)
    environment = {
        "GATEWAY_PUBLIC_URL": PUBLIC_URL,
        "GATEWAY_STATE_KEYS": KEYS,
        "GATEWAY_STORE": f"sqlite:///{directory}/store.sqlite3",
    }
    async with connections() as http:
        with ExitStack() as stack:
            port = stack.enter_context(reserved_port())
            provider = Provider(port, directory, ISSUER, f"{PUBLIC_URL}/mcp")
            stack.callback(provider.kill)
            for name in ("gateway.yaml", "late.yaml"):
                (directory / name).write_text(CONFIG % (ISSUER, provider.url))
            await asyncio.to_thread(provider.start)
            first = await provider.token("operate")
            provider.kill()

            server = stack.enter_context(running(directory / "gateway.yaml", environment))
            gateway = _Gateway(http, server.url)
            assert await gateway.ready(first) == (503, "keys never read")
            assert await gateway.status(first) == 503
            await asyncio.to_thread(provider.start)
            figures["s until calls are served after the start"] = await gateway.recovers(first)
            assert await gateway.ready(first) == (200, "ready")

            clients = Clients(http, f"{server.url}/mcp", told, dice, 1, {})
            clients.headers = headers(first)
            async with clients.calling(KINDS, at_once):
                await asyncio.sleep(RETRY_MS / 1000)  # until an unknown key is looked for again
                provider.kill()
                provider.rotate()
                await asyncio.to_thread(provider.start)
                second = await provider.token("operate")
                for away in (provider.stop, provider.kill):
                    away()
                    assert await gateway.status(second) == 503, "the key may be a new one"
                    await asyncio.sleep(seconds / 2)
                health = (await gateway.get("/healthz", first)).json()
                assert any("keys cannot be read" in one for one in health["troubles"]), health
                late = stack.enter_context(running(directory / "late.yaml", environment))
                other = _Gateway(http, late.url)
                assert await other.ready(first) == (503, "keys never read")
                assert await other.status(first) == 503
                await asyncio.to_thread(provider.start)
                figures["s until the new key is known"] = await gateway.recovers(second)
                figures["s until the late replica is ready"] = await other.recovers(first)
            assert await gateway.status(token("ec-stranger")) == 401
            health = (await gateway.get("/healthz", second)).json()
            assert health["status"] == "ok", health
            metrics = (await gateway.get("/metrics", second)).text
            for reason in REFUSED:
                found = re.search(f'auth_refused_total{{reason="{reason}"}} (\\d+)', metrics)
                assert found, f"{reason} is not counted"
                figures[f"refused: {reason}"] = int(found[1])
    return told, figures


async def chaos(arguments: argparse.Namespace) -> bool:
    """One run; whether everything held."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        dice = random.Random(arguments.seed)
        told, figures = await outlasted(Path(place), arguments.count, AT_ONCE, dice)
    before = {
        "seconds away": arguments.count,
    }
    after = {
        **figures,
        "failed": len(told.wrong),
        "seconds": round(time.monotonic() - begun),
    }
    return told.report("an issuer that is away", before, after)


def main(arguments: argparse.Namespace) -> bool:
    """The run."""
    return asyncio.run(chaos(arguments))
