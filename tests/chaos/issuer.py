"""`scripts/chaos issuer`: the issuer of the callers' tokens is away, twice.

    away at the start ─ back ─ live traffic ─ silent, then refuses; meanwhile it rotates its key ─ back

Must hold: without keys the gateway is not ready, and calls get 503; with the keys that it remembers,
0 calls fail; a token of the new key gets 503 while the keys cannot be read, not 401; each time the
gateway recovers by itself within `RECOVERS_S` and `/healthz` is `ok` again; a key that the issuer does
not have gets 401; `roundgate.auth.refused` counts each reason.
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
from typing import Any, Final

import httpx

from roundgate.auth.jwks import RETRY_MS
from tests.chaos.traffic import TOOLS, Clients, Told, connections
from tests.support.issuer import ISSUER, PUBLIC_URL, jwks, token
from tests.support.proxy import Proxy, Way
from tests.support.rounds import KEYS
from tests.support.server import running
from tests.support.services import answer, service

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

    async def get(self, path: str, kid: str = "ec") -> httpx.Response:
        return await self._http.get(f"{self._url}{path}", headers=headers(kid, scope="operate"))

    async def status(self, kid: str) -> int:
        """Return the status of a request with a token of a key."""
        post = self._http.post(f"{self._url}/mcp", headers=headers(kid), json={})
        return (await post).status_code

    async def recovers(self, status: int, kid: str) -> float:
        """Return the seconds until a request with a token of a key is no longer answered so."""
        began = time.monotonic()
        while await self.status(kid) == status:
            assert time.monotonic() < began + RECOVERS_S, f"{kid} still gets {status}"
            await asyncio.sleep(0.2)
        return round(time.monotonic() - began, 1)


def headers(kid: str, **claims: Any) -> dict[str, str]:
    """Return the headers of a caller with a token of a key."""
    return {"host": "mcp.example.com", "authorization": f"Bearer {token(kid, **claims)}"}


async def outlasted(
    directory: Path, seconds: float, at_once: int, dice: random.Random
) -> tuple[Told, dict[str, float]]:
    """Take the issuer away at the start, and once under load."""
    told, figures = Told(), dict[str, float]()
    (directory / "tools.py").write_text(TOOLS)
    async with service(answer(jwks("ec"))) as issuer, connections() as http:
        with ExitStack() as stack:
            network = stack.enter_context(Proxy(issuer.url))
            network.turn(Way.SHUT)
            (directory / "gateway.yaml").write_text(CONFIG % (ISSUER, network.url))
            environment = {
                "GATEWAY_PUBLIC_URL": PUBLIC_URL,
                "GATEWAY_STATE_KEYS": KEYS,
                "GATEWAY_STORE": f"sqlite:///{directory}/store.sqlite3",
            }
            server = stack.enter_context(running(directory / "gateway.yaml", environment))
            gateway = _Gateway(http, server.url)

            ready = await gateway.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "keys never read")
            assert await gateway.status("ec") == 503
            network.turn(Way.OPEN)
            figures["s until calls are served after the start"] = await gateway.recovers(503, "ec")
            assert (await gateway.get("/readyz")).status_code == 200

            clients = Clients(http, f"{server.url}/mcp", told, dice, 1, {})
            clients.headers = headers("ec")
            async with clients.calling(KINDS, at_once):
                await asyncio.sleep(RETRY_MS / 1000)  # until an unknown key is looked for again
                issuer.answers = (answer(jwks("ec", "ec-next")),)  # a rotation meanwhile
                for way in (Way.SILENT, Way.SHUT):
                    network.turn(way)
                    assert await gateway.status("ec-next") == 503, "the key may be a new one"
                    await asyncio.sleep(seconds / 2)
                health = (await gateway.get("/healthz")).json()
                assert any("keys cannot be read" in one for one in health["troubles"]), health
                network.turn(Way.OPEN)
                took = await gateway.recovers(503, "ec-next")
                figures["s until the new key is known"] = took
            assert await gateway.status("ec-stranger") == 401
            health = (await gateway.get("/healthz", "ec-next")).json()
            assert health["status"] == "ok", health
            metrics = (await gateway.get("/metrics", "ec-next")).text
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
