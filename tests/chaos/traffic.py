"""Live traffic for runs that stop a part: clients that call without a pause, and replicas that can be restarted."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.chaos.orders import table
from tests.support import wire
from tests.support.forked import Forked
from tests.support.rounds import accept
from tests.support.server import end, run

PATIENCE_S: Final = 60
STEPS: Final = 20
TOOLS = '''
import asyncio
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool

RAN = Path(__file__).with_name("ran")


class Go(BaseModel):
    go: bool


@tool
async def plain(seconds: float) -> str:
    """Works for a while."""
    await asyncio.sleep(seconds)
    return "done"


@tool
async def question(seconds: float, ctx: Context) -> str:
    """Asks after its work."""
    await ctx.step("work", asyncio.sleep, seconds)
    answer = await ctx.elicit("go", "Go on?", Go)
    return "done" if answer.go else "refused"


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
    """The calls of steps and tasks that have ended with their result."""
    in_flight: set[str] = field(default_factory=set)

    def done(self, kinds: Sequence[str]) -> int:
        """Return the number of calls of some kinds that ended with their result."""
        return sum(self.outcomes[f"{kind}: done"] for kind in kinds)

    def report(self, title: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Print the outcomes between other figures, and what was wrong; return whether all was right."""
        outcomes = {name: self.outcomes[name] for name in sorted(self.outcomes)}
        table(title, {**before, **outcomes, **after})
        for line in self.wrong[:10]:
            print(f"  {line}")
        return not self.wrong


class Refused(Exception):
    """A 503, with the words of its error."""


class Clients:
    """Clients that call without a pause, each one kind of call.

    Args:
        http: the connections.
        url: the endpoint.
        told: records every outcome.
        dice: decides the durations.
        longest_s: the longest work of a call.
        may_refuse: a pattern that the words of a 503 must have, by kind of call. Another 503 is wrong.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        told: Told,
        dice: random.Random,
        longest_s: float,
        may_refuse: Mapping[str, str],
    ) -> None:
        self.headers: dict[str, str] = {}
        """Further headers of each request."""
        self._http = http
        self._url = url
        self._told = told
        self._dice = dice
        self._longest_s = longest_s
        self._may_refuse = may_refuse
        self._calls = 0
        self._is_over = False

    @asynccontextmanager
    async def calling(self, kinds: Sequence[str], at_once: int) -> AsyncIterator[None]:
        """Call within the block, then wait until all calls have ended but those of listeners, which
        only end with their replicas."""
        running = [asyncio.create_task(self._repeat(kinds[n % len(kinds)])) for n in range(at_once)]
        try:
            yield
            self._is_over = True
            until = time.monotonic() + PATIENCE_S
            while calls := [name for name in self._told.in_flight if not name.startswith("listen")]:
                if time.monotonic() > until:
                    self._told.wrong.append(f"did not end: {', '.join(calls)}")
                    break
                await asyncio.sleep(0.2)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _repeat(self, kind: str) -> None:
        while not self._is_over:
            if not await self.once(kind):
                await asyncio.sleep(0.2)

    async def once(self, kind: str) -> bool:
        """Make one call; return whether it got its result."""
        self._calls += 1
        name = f"{kind}-{self._calls}"
        self._told.in_flight.add(name)
        try:
            outcome = await getattr(self, f"_{kind}")(name)
        except Refused as error:
            self._note_refusal(kind, name, error)
        except Exception as error:
            self._told.wrong.append(f"{name}: {error!r}"[:600])
        else:
            self._told.outcomes[f"{kind}: {outcome}"] += 1
            return True
        finally:
            self._told.in_flight.discard(name)
        return False

    def _note_refusal(self, kind: str, name: str, error: Refused) -> None:
        words = self._may_refuse.get(kind)
        if words is None or not re.search(words, str(error)):
            self._told.wrong.append(f"{name}: 503 {error}")
        else:
            self._told.outcomes[f"{kind}: 503"] += 1

    async def _ask(self, method: str, params: Mapping[str, Any], **meta: Any) -> dict[str, Any]:
        """Return the result of a request; raise Refused for a 503."""
        asked = wire.message(method, dict(params), self._calls, **meta)
        headers = {**wire.headers(asked), **self.headers}
        async with self._http.stream("POST", self._url, json=asked, headers=headers) as response:
            body = (await response.aread()).decode()
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            message = wire.events(body)[-1]
        else:
            assert kind.startswith("application/json"), f"{response.status_code} {body[:300]}"
            message = json.loads(body)
        if response.status_code == 503:
            assert response.headers["retry-after"], response.headers
            raise Refused(message["error"]["message"])
        if "retryAfter" in message.get("error", {}).get("data", {}):  # in a stream that has begun
            raise Refused(message["error"]["message"])
        assert "result" in message, f"{response.status_code} {message}"
        return dict(message["result"])

    async def _tool(self, name: str, arguments: Mapping[str, Any], **meta: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        while True:
            result = await self._ask("tools/call", params, **meta)
            if result["resultType"] != "input_required":
                assert not result.get("isError"), result
                return result
            asked = result.get("inputRequests", {})
            self._told.outcomes[f"{name}: {'asked' if asked else 'shed'}"] += 1
            if asked:
                await asyncio.sleep(self._dice.uniform(0.1, 1))
            answers = {key: accept(go=True) for key in asked}
            params |= {"requestState": result["requestState"], "inputResponses": answers}

    def _seconds(self) -> float:
        return self._dice.uniform(0.1, self._longest_s)

    async def _plain(self, name: str) -> str:
        return _text(await self._tool("plain", {"seconds": self._seconds()}))

    async def _question(self, name: str) -> str:
        form: dict[str, Any] = {"elicitation": {"form": {}}}
        seconds = self._seconds()
        return _text(await self._tool("question", {"seconds": seconds}, clientCapabilities=form))

    async def _stream(self, name: str) -> str:
        return _text(await self._tool("stream", {"seconds": self._seconds()}, progressToken=name))

    def _work(self, name: str) -> dict[str, Any]:
        return {"call": name, "count": STEPS, "seconds": self._seconds() / STEPS}

    async def _steps(self, name: str) -> str:
        return self._finished(name, await self._tool("steps", self._work(name)))

    async def _task(self, name: str) -> str:
        tasks: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        created = await self._tool("task", self._work(name), clientCapabilities=tasks)
        while True:
            params = {"taskId": created["taskId"]}
            try:
                result = await self._ask("tasks/get", params, clientCapabilities=tasks)
            except Refused as error:
                self._note_refusal("tasks/get", name, error)
            else:
                if result["status"] != "working":
                    return self._finished(name, result["result"])
            await asyncio.sleep(0.2)

    def _finished(self, name: str, result: Mapping[str, Any]) -> str:
        assert _text(result) == str(sum(range(STEPS))), result
        self._told.finished.append(name)
        return "done"

    async def _listen(self, name: str) -> str:
        await self._ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        return "closed"


def _text(result: Mapping[str, Any]) -> str:
    return str(result["content"][0]["text"])


@dataclass
class Replica:
    """One gateway, or one worker if it has no port, in all its lives."""

    config: Path
    port: int | None
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
        serve = ["serve", str(self.config), "--port", str(self.port)]
        arguments = ["worker", str(self.config)] if self.port is None else serve
        self.process = run(arguments, self._log, dict(self.environment))

    @property
    def _log(self) -> Path:
        return self.config.with_name(f"{self.port or 'worker'}.{self.lives}.log")

    async def until_ready(self) -> None:
        """Wait until it is ready; a worker that has logged a line is."""
        assert self.process is not None
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            while self.process.poll() is None:
                try:
                    if self.port is None:
                        if self._log.stat().st_size:
                            return
                    elif (await http.get(self.url.replace("/mcp", "/readyz"))).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(f"it did not start: {self._log.read_text()}")

    def end(self) -> None:
        """Kill the process that runs now."""
        if self.process is not None:
            end(self.process)

    async def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)

    async def restart(self, told: Told) -> None:
        """Stop the process and start another one, until it is ready and balancers know."""
        if status := await self.stop():
            told.wrong.append(f"a process ended with {status}")
        self.start()
        await self.until_ready()
        await asyncio.sleep(0.7)


def connections() -> httpx.AsyncClient:
    """Return an HTTP client with a connection for each request: one that the balancer has just
    closed would look like a cut."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=60, trust_env=False, limits=limits)


def wrong_in_logs(directory: Path) -> list[str]:
    """Return the lines that are no JSON, and the errors."""
    lines = [line for log in directory.glob("*.log") for line in log.read_text().splitlines()]
    return [
        line[:600]
        for line in lines
        if not line.startswith("{") or json.loads(line).get("level") == "error"
    ]


def repeated(directory: Path, told: Told) -> Counter[str]:
    """Return how many steps of each finished call ran again."""
    ran = Counter((directory / "ran").read_text().splitlines())
    again: Counter[str] = Counter()
    for line, count in ran.items():
        again[line.partition(" ")[0]] += count - 1
    return Counter({call: again[call] for call in told.finished if again[call]})
