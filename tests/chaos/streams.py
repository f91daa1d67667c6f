"""`scripts/chaos streams`: thousands of half-open requests of one caller,
beside another who is honest.

The hostile one opens streams of every kind and reads none of them to its end:
`subscriptions/listen`, GET of a session, calls that ask and are not answered, bodies of which half
is sent. It holds on to every connection. Its bounds (`http.max_streams_per_caller`,
`http.body_timeout_s`) are those of a small gateway.

Must hold: it has as many streams as one caller may have, and every other request of it is
answered with why not; no call of the honest caller is lost, calls with questions and its own
stream of changes included; the process never has more than 512 MB; and when the hostile one has
gone, it may open as many again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from roundgate_aws.machine import reserved_port
from tests.chaos.edge import _memory_mb as memory_mb
from tests.chaos.fleet import ROOT
from tests.chaos.orders import table
from tests.support import wire
from tests.support.issuer import ISSUER, PUBLIC_URL, jwks, token
from tests.support.rounds import accept
from tests.support.services import answer, service
from tests.support.sessions import BOTH, calling, opening

MEMORY_MB = 512
PER_CALLER = 50
CONNECTIONS = 12_000
BODY_S = 20
PATIENCE_S = 60
KINDS = ("listen", "changes", "asks", "half a body")


@dataclass
class Told:
    """What became of the requests of both."""

    answers: dict[str, Counter[str]] = field(default_factory=lambda: {k: Counter() for k in KINDS})
    calls: int = 0
    asked: int = 0
    heard: int = 0
    lost: list[str] = field(default_factory=list)


class Hostile:
    """Opens requests and keeps them open."""

    def __init__(self, port: int, told: Told) -> None:
        self._port = port
        self._told = told
        self._open: list[asyncio.StreamWriter] = []
        self._token = token(sub="mallory")
        self._session = ""

    async def begin(self) -> None:
        """Open the one session whose streams are left open."""
        head = {"accept": BOTH, "content-type": "application/json"}
        async with client(self._port, self._token) as http:
            opened = await http.post("/mcp", json=opening(), headers=head)
        self._session = opened.headers["mcp-session-id"]

    async def open(self, number: int) -> None:
        """One more request; what the answer's first line says is counted."""
        kind = KINDS[number % len(KINDS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open.append(writer)
        writer.write(self._request(kind, number))
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = (await reader.readuntil(b"\r\n")).split()[1].decode()
                await reader.readuntil(b"\r\n\r\n")
                said = await reader.read(4_000)
        except (OSError, TimeoutError, EOFError, IndexError) as error:
            status, said = type(error).__name__, b""
        self._told.answers[kind][_outcome(status, said)] += 1

    def close(self) -> None:
        """Go away."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def _request(self, kind: str, number: int) -> bytes:
        headers = {"host": "mcp.example.com", "authorization": f"Bearer {self._token}"}
        listen = wire.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        if kind == "listen":
            return _post({**headers, **wire.headers(listen)}, json.dumps(listen).encode())
        headers |= {"accept": BOTH, "mcp-session-id": self._session}
        if kind == "changes":
            return _head("GET", headers) + b"\r\n"
        body = json.dumps(calling("journey", number, log="/dev/null")).encode()
        headers["content-type"] = "application/json"
        if kind == "asks":
            return _post(headers, body)
        return _post(headers, body)[: -len(body) // 2]


def _outcome(status: str, said: bytes) -> str:
    if status == "200" and b'"error":' in said:
        return "refused under its id"
    if status == "200" and b"Too many calls wait for answers" in said:
        return "refused when it asked"  # there was room when it began
    return "open" if status == "200" else status


def _head(method: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} /mcp HTTP/1.1\r\n{lines}".encode()


def _post(headers: dict[str, str], body: bytes) -> bytes:
    return _head("POST", {**headers, "content-length": str(len(body))}) + b"\r\n" + body


def client(port: int, bearer: str) -> httpx.AsyncClient:
    """An HTTP client of a caller."""
    headers = {"authorization": f"Bearer {bearer}", "host": "mcp.example.com"}
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE_S, trust_env=False
    )


class Honest:
    """Calls, is asked and answers, listens."""

    def __init__(self, http: httpx.AsyncClient, told: Told) -> None:
        self._http = http
        self._told = told
        self._headers = {"accept": BOTH, "content-type": "application/json"}

    async def until(self, done: asyncio.Event) -> None:
        """Go on until the attack is over."""
        opened = await self._http.post("/mcp", json=opening(), headers=self._headers)
        self._headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        listening = asyncio.create_task(self._listen())
        while not done.is_set():
            for one in (self._call, self._ask):
                try:
                    await one()
                except (httpx.HTTPError, AssertionError, StopAsyncIteration) as error:
                    self._told.lost.append(f"{one.__name__}: {type(error).__name__}: {error}")
            await asyncio.sleep(0.05)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    async def _call(self) -> None:
        asked = wire.message("tools/call", {"name": "change", "arguments": {}})
        response = await self._http.post("/mcp", json=asked, headers=wire.headers(asked))
        assert "result" in response.json(), response.text
        self._told.calls += 1

    async def _ask(self) -> None:
        """A call with two questions, in a session."""
        body = calling("journey", 1, log="/dev/null")
        async with self._http.stream("POST", "/mcp", json=body, headers=self._headers) as stream:
            async for message in _messages(stream):
                if "method" not in message:
                    assert message["result"]["content"][0]["text"] == "Ann in Ann", message
                    self._told.asked += 1
                    return
                said = {"jsonrpc": "2.0", "id": message["id"], "result": accept(name="Ann")}
                answered = await self._http.post("/mcp", json=said, headers=self._headers)
                assert answered.status_code == 202, answered.text
        raise AssertionError("a stream ended without a result")

    async def _listen(self) -> None:
        asked = wire.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        async with self._http.stream(
            "POST", "/mcp", json=asked, headers=wire.headers(asked)
        ) as stream:
            async for _ in _messages(stream):
                self._told.heard += 1


async def _messages(stream: httpx.Response) -> Any:
    assert stream.status_code == 200, await stream.aread()
    async for line in stream.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def configuration(directory: Path, keys_url: str) -> Path:
    """The gateway's."""
    path = directory / "gateway.json"
    http = {
        "max_streams": 1_000,
        "max_streams_per_caller": PER_CALLER,
        "max_connections": CONNECTIONS,
        "body_timeout_s": BODY_S,
    }
    tools = str(ROOT / "tests/fleet/served/fleet_tools.py")
    backend = {"kind": "python", "name": "fleet", "prefix": "", "path": tools}
    auth = {"issuer": ISSUER, "jwks_url": f"{keys_url}/jwks"}
    path.write_text(json.dumps({"backends": [backend], "http": http, "auth": auth}))
    return path


async def run(count: int) -> bool:
    """One run; whether everything held."""
    told, again = Told(), Told()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        directory, port = Path(place), stack.enter_context(reserved_port())
        async with service(answer(jwks("ec"))) as keys:
            config = configuration(directory, keys.url)
            process = stack.enter_context(_serving(directory, config, port))
            try:
                await _until_it_answers(port)
                before_mb = memory_mb(process.pid, "VmRSS")
                await _attacked(port, count, told)
                during_mb = memory_mb(process.pid, "VmRSS")
                await _attacked(port, len(KINDS) * (PER_CALLER + 10), again)
                peak_mb = memory_mb(process.pid, "VmHWM")
            finally:
                process.kill()
        log = (directory / "gateway.log").read_text()
    errors = [line for line in log.splitlines() if '"level":"error"' in line]
    return _report(count, told, again, (before_mb, during_mb, peak_mb), errors)


async def _attacked(port: int, count: int, told: Told) -> None:
    """An attack from its beginning until the last of its requests is answered or open."""
    hostile, done = Hostile(port, told), asyncio.Event()
    await hostile.begin()
    async with client(port, token(sub="ann")) as http:
        honest = asyncio.create_task(Honest(http, told).until(done))
        await asyncio.gather(*(hostile.open(number) for number in range(count)))
        await asyncio.sleep(2)
        done.set()
        await honest
    hostile.close()
    await asyncio.sleep(2)


def _serving(directory: Path, config: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "roundgate.cli", "serve", str(config), "--port", str(port)]
    environment = {
        **os.environ,
        "GATEWAY_STORE": f"sqlite:///{directory}/gateway.sqlite3",
        "GATEWAY_PUBLIC_URL": PUBLIC_URL,
    }
    with (directory / "gateway.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--log-level", "warning"],
            cwd=directory,
            stdout=log,
            stderr=log,
            env=environment,
        )


async def _until_it_answers(port: int) -> None:
    until = time.monotonic() + PATIENCE_S
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        while time.monotonic() < until:
            try:
                await http.get(f"http://127.0.0.1:{port}/healthz")
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return
    raise TimeoutError("the server did not start")


def _report(
    count: int, told: Told, again: Told, mb: tuple[float, float, float], errors: list[str]
) -> bool:
    held = {kind: told.answers[kind]["open"] for kind in KINDS}
    streams = held["listen"] + held["changes"]
    checks = {
        "streams of one caller are bounded": 0 < streams <= PER_CALLER,
        "calls of one caller that ask are bounded": 0 < held["asks"] <= PER_CALLER,
        "half a body ends": set(told.answers["half a body"]) == {"408"},
        "room is given back": again.answers["asks"]["open"] == held["asks"]
        and again.answers["listen"]["open"] + again.answers["changes"]["open"] == streams,
        "honest calls": not told.lost + again.lost and min(told.calls, told.asked, told.heard) > 0,
        "memory": mb[2] < MEMORY_MB,
        "errors in the log": not errors,
    }
    rows: dict[str, Any] = {
        f"hostile: {kind}": ", ".join(f"{n} {what}" for what, n in told.answers[kind].items())
        for kind in KINDS
    }
    rows |= {
        "hostile requests in all": count,
        "honest calls / with questions / changes heard": f"{told.calls} / {told.asked} / {told.heard}",
        "honest calls lost": len(told.lost) + len(again.lost),
        "resident MB before / under attack / at most": "{:.0f} / {:.0f} / {:.0f}".format(*mb),
        "errors in the log": len(errors),
    }
    table("thousands of half-open requests of one caller", rows)
    for what, holds in checks.items():
        if not holds:
            print(f"  DOES NOT HOLD: {what}")
    for line in (*told.lost[:5], *again.lost[:5], *errors[:5]):
        print(f"  {line[:600]}")
    return all(checks.values())


def main(arguments: argparse.Namespace) -> bool:
    """The run, on a system whose kernel tells of memory."""
    if not Path("/proc/self/status").exists():
        print("\nskipped: chaos streams needs /proc")
        return True
    return asyncio.run(run(arguments.count))
