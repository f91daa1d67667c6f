"""`scripts/chaos draining`: two replicas behind a balancer that stop in turn while calls run.

`AT_ONCE` clients call without a pause: plain calls, calls of steps, streams with reports, listeners
and tasks, most of them longer than a replica has left after SIGTERM. The balancer asks `/readyz`.

Must hold: every replica exits with 0; no answer is a bare 500 or another text that is not MCP, none
is cut, and none is missing; a call of steps or a task ends with its result, and repeats at most the
step that ran when its replica stopped; a plain call ends with its result, or is told that it may
have taken effect; listeners get their closing result; no replica logs an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from roundgate_aws.machine import reserved_port
from tests.chaos.orders import table
from tests.support import wire
from tests.support.forked import Forked
from tests.support.round_robin import RoundRobin
from tests.support.rounds import KEYS
from tests.support.server import end, run

AT_ONCE: Final = 200
DRAIN_S: Final = 4
"""Half of it passes until a replica accepts nothing more."""
PATIENCE_S: Final = 60
STEPS: Final = 20
KINDS: Final = ("plain", "steps", "stream", "listen", "task")
TOOLS = '''
import asyncio
from pathlib import Path

from roundgate import Context, tool

RAN = Path(__file__).with_name("ran")


@tool
async def plain(seconds: float) -> str:
    """Works for a while."""
    await asyncio.sleep(seconds)
    return "done"


async def work(call: str, number: int, seconds: float) -> int:
    with RAN.open("a") as file:
        file.write(f"{call} {number}\\n")
    await asyncio.sleep(seconds)
    return number


async def all_steps(call: str, count: int, seconds: float, ctx: Context) -> str:
    done = [await ctx.step(f"s{n}", work, call, n, seconds) for n in range(count)]
    return str(sum(done))


@tool
async def steps(call: str, count: int, seconds: float, ctx: Context) -> str:
    """Takes many steps."""
    return await all_steps(call, count, seconds, ctx)


@tool(task="required")
async def task(call: str, count: int, seconds: float, ctx: Context) -> str:
    """Takes many steps as a task."""
    return await all_steps(call, count, seconds, ctx)


@tool
async def stream(seconds: float, ctx: Context) -> str:
    """Reports while it works."""
    for n in range(10):
        await ctx.progress(n, 10)
        await asyncio.sleep(seconds / 10)
    return "done"
'''


@dataclass
class Told:
    """What the clients were told."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    """The calls of steps that have ended with their result."""
    in_flight: set[str] = field(default_factory=set)
    at_signal: list[int] = field(default_factory=list)


class Clients:
    """Clients that call without a pause, each one kind of call."""

    def __init__(self, http: httpx.AsyncClient, url: str, told: Told, dice: random.Random) -> None:
        self._http = http
        self._url = url
        self._told = told
        self._dice = dice
        self._calls = 0
        self.is_over = False

    async def call(self, number: int) -> None:
        """Call again and again."""
        kind = KINDS[number % len(KINDS)]
        while not self.is_over:
            self._calls += 1
            name = f"{kind}-{self._calls}"
            self._told.in_flight.add(name)
            try:
                outcome = await getattr(self, f"_{kind}")(name)
            except Exception as error:
                self._told.wrong.append(f"{name}: {error!r}"[:600])
            else:
                self._told.outcomes[f"{kind}: {outcome}"] += 1
            finally:
                self._told.in_flight.discard(name)

    async def _ask(
        self, method: str, params: Mapping[str, Any], **meta: Any
    ) -> tuple[dict[str, Any], int]:
        """Return the last message of an answer, and its status."""
        asked = wire.message(method, dict(params), self._calls, **meta)
        async with self._http.stream(
            "POST", self._url, json=asked, headers=wire.headers(asked)
        ) as response:
            body = (await response.aread()).decode()
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            return wire.events(body)[-1], response.status_code
        assert kind.startswith("application/json"), f"{response.status_code} {body[:300]}"
        message: dict[str, Any] = json.loads(body)
        if "error" in message and response.status_code == 503:
            assert response.headers["retry-after"], response.headers
        return message, response.status_code

    async def _tool(self, name: str, arguments: Mapping[str, Any], **meta: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        while True:
            message, _ = await self._ask("tools/call", params, **meta)
            result = message.get("result")
            if result is None:
                assert "may have taken effect" in message["error"]["message"], message
                assert message["error"]["data"] == {"retryAfter": 1}, message
                return {}
            if result["resultType"] != "input_required":
                assert not result.get("isError"), result
                return dict(result)
            self._told.outcomes[f"{name}: shed"] += 1
            params = {**params, "requestState": result["requestState"]}

    async def _plain(self, name: str) -> str:
        result = await self._tool("plain", {"seconds": self._dice.uniform(0.1, 2 * DRAIN_S)})
        return "done" if result else "ended"

    async def _stream(self, name: str) -> str:
        seconds = self._dice.uniform(0.1, 2 * DRAIN_S)
        result = await self._tool("stream", {"seconds": seconds}, progressToken=name)
        return "done" if result else "ended"

    def _work(self, name: str) -> dict[str, Any]:
        seconds = self._dice.uniform(0.1, 2 * DRAIN_S) / STEPS
        return {"call": name, "count": STEPS, "seconds": seconds}

    async def _steps(self, name: str) -> str:
        result = await self._tool("steps", self._work(name))
        assert result, "a call of steps lost its journal"
        self._told.finished.append(name)
        return self._sum(result)

    async def _task(self, name: str) -> str:
        tasks: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        created = await self._tool("task", self._work(name), clientCapabilities=tasks)
        assert created, "a task was not created"
        while True:
            params = {"taskId": created["taskId"]}
            message, status = await self._ask("tasks/get", params, clientCapabilities=tasks)
            if status == 503:
                continue
            assert "result" in message, message
            if message["result"]["status"] != "working":
                self._told.finished.append(name)
                return self._sum(message["result"]["result"])
            await asyncio.sleep(0.2)

    def _sum(self, result: Mapping[str, Any]) -> str:
        assert result["content"][0]["text"] == str(sum(range(STEPS))), result
        return "done"

    async def _listen(self, name: str) -> str:
        params = {"notifications": {"toolsListChanged": True}}
        message, status = await self._ask("subscriptions/listen", params)
        if status == 503:
            assert "shutting down" in message["error"]["message"], message
            await asyncio.sleep(0.2)
            return "again"
        assert "result" in message, message
        return "closed"


@dataclass
class Replica:
    """One replica, in all its lives."""

    config: Path
    port: int
    environment: Mapping[str, str]
    lives: int = 0
    process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def url(self) -> str:
        """The URL of its endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        """Begin another life, with a log of its own."""
        self.lives += 1
        arguments = ["serve", str(self.config), "--port", str(self.port)]
        log = self.config.with_name(f"{self.port}.{self.lives}.log")
        self.process = run(arguments, log, dict(self.environment))

    async def until_ready(self) -> None:
        """Wait until it is ready."""
        assert self.process is not None
        async with httpx.AsyncClient(trust_env=False) as http:
            while self.process.poll() is None:
                try:
                    if (await http.get(self.url.replace("/mcp", "/readyz"))).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)

    def end(self) -> None:
        """Kill the process that runs now."""
        if self.process is not None:
            end(self.process)

    async def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)


async def drained(directory: Path, times: int, at_once: int, dice: random.Random) -> Told:
    """Stop replicas `times` times under the load of `at_once` clients."""
    told = Told()
    (directory / "tools.py").write_text(TOOLS)
    (directory / "gateway.yaml").write_text(
        "backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n"
        "http: {max_streams_per_caller: 1000}\n"
        f"tasks: {{concurrency: {AT_ONCE}, max_open_per_owner: 10000}}\n"
    )
    environment = {
        "GATEWAY_STORE": f"sqlite:///{directory}/store.sqlite3",
        "GATEWAY_STATE_KEYS": KEYS,
        "GATEWAY_DRAIN_S": str(DRAIN_S),
    }
    with ExitStack() as stack:
        replicas = []
        for _ in range(2):
            port = stack.enter_context(reserved_port())
            replica = Replica(directory / "gateway.yaml", port, environment)
            replica.start()
            stack.callback(replica.end)
            replicas.append(replica)
        for replica in replicas:
            await replica.until_ready()
        balancer = stack.enter_context(RoundRobin([one.url for one in replicas], probes_s=0.3))
        # a connection for each request: one that the balancer has just closed would look like a cut
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:
            clients = Clients(http, balancer.url, told, dice)
            running = [asyncio.create_task(clients.call(number)) for number in range(at_once)]
            for time_ in range(times):
                await asyncio.sleep(dice.uniform(1, 3))
                told.at_signal.append(len(told.in_flight))
                replica = replicas[time_ % 2]
                status = await replica.stop()
                if status:
                    told.wrong.append(f"a replica ended with {status}")
                replica.start()
                await replica.until_ready()
                await asyncio.sleep(0.7)  # the balancer notices
            clients.is_over = True
            await _settle(running, told)
        told.wrong += [f"cut: {line}" for line in balancer.seen.cut]
    told.wrong += _wrong_in_logs(directory) + _repeated(directory, told, times)
    return told


async def _settle(running: list[asyncio.Task[None]], told: Told) -> None:
    """Wait until all calls have ended but those of listeners, which only end with their replicas."""
    until = time.monotonic() + PATIENCE_S
    while calls := [name for name in told.in_flight if not name.startswith("listen")]:
        if time.monotonic() > until:
            told.wrong.append(f"did not end: {', '.join(calls)}")
            break
        await asyncio.sleep(0.2)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _wrong_in_logs(directory: Path) -> list[str]:
    lines = [line for log in directory.glob("*.log") for line in log.read_text().splitlines()]
    return [
        line[:600]
        for line in lines
        if not line.startswith("{") or json.loads(line).get("level") == "error"
    ]


def _repeated(directory: Path, told: Told, times: int) -> list[str]:
    """Return the finished calls of which more steps ran again than replicas stopped."""
    ran = Counter((directory / "ran").read_text().splitlines())
    again: Counter[str] = Counter()
    for line, count in ran.items():
        again[line.partition(" ")[0]] += count - 1
    return [f"{call} repeated {again[call]} steps" for call in told.finished if again[call] > times]


async def chaos(arguments: argparse.Namespace) -> bool:
    """One run; whether everything held."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        dice = random.Random(arguments.seed)
        told = await drained(Path(place), arguments.count, AT_ONCE, dice)
    rows: dict[str, Any] = {
        "stops": arguments.count,
        "calls in flight at each": ", ".join(map(str, told.at_signal)),
        **{name: told.outcomes[name] for name in sorted(told.outcomes)},
        "wrong": len(told.wrong),
        "seconds": round(time.monotonic() - begun),
    }
    table("two replicas that stop in turn under load", rows)
    for line in told.wrong[:10]:
        print(f"  {line}")
    return not told.wrong


def main(arguments: argparse.Namespace) -> bool:
    """The run."""
    return asyncio.run(chaos(arguments))
