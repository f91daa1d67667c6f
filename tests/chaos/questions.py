"""`scripts/chaos questions`: servers that ask through three gateways, while processes are killed.

Clients with and without sessions call servers that ask: of 2026-07-28 (`rounds`), and older ones that
keep the events of their streams (`kept`) or do not (`held`). Each request goes to the next gateway.

    calls of a group (✗)  all are asked  ✗ a gateway or server  answers (✗ while servers work)  outcomes

Must hold: each call ends with what its own user said, or with an error; the error of a call that has
taken effect says so; no effect happens twice; and a call fails only if its server, or a gateway that
it needs, was killed. Once it is asked, a call at `kept` needs no gateway. A client without sessions
that loses the answer to its first request has no result, because it must not repeat the request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx

from roundgate_aws.machine import is_listening, reserved_port
from tests.chaos.fleet import ROOT, Fleet, Member
from tests.chaos.orders import table
from tests.chaos.tasks import store, stores
from tests.support import wire
from tests.support.sessions import BOTH, calling, opening

PROGRAM: Final = ROOT / "tests/support/sdk_program.py"
SERVERS: Final[Mapping[str, Sequence[str]]] = {
    "held": ("older",),
    "kept": ("older", "keeps"),
    "rounds": ("rounds",),
}
"""The servers by name, with the options of their program."""
KINDS: Final = ("form", "several", "sampling", "roots")
CLIENTS: Final = ("with sessions", "without")
GATEWAYS: Final = 3
PATIENCE_S: Final = 180
PAUSE_S: Final = 0.2
CALL_S: Final = 10
"""Seconds of a round. A retry of a `once` round waits as long for an attempt that has died."""
EARLY: Final = 1 / 3
"""The part of the groups, except the first, in which a process is killed before all are asked."""
WORK_S: Final = 0.6
"""Seconds within which the second process is killed after the answers; servers work for half of it."""
CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}},
    "sampling": {},
    "roots": {},
}
MAX_EVENT: Final = 300
"""The maximum length of an event in the report, in characters."""
DOUBT: Final = ("may have taken effect", "unknown", "not known", "without a known outcome")
"""Words of an error that says that a call may have taken effect."""


@dataclass
class Upstream:
    """A server, in all its lives."""

    name: str
    notes: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life, and wait until it listens."""
        command = [sys.executable, str(PROGRAM), str(self.port), str(self.notes)]
        with self.notes.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *SERVERS[self.name]], stdout=log, stderr=log, start_new_session=True
            )
        until_s = time.monotonic() + PATIENCE_S
        while not is_listening(self.port):
            if time.monotonic() > until_s:
                raise AssertionError(f"the server {self.name} does not start")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it, as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def effects(self, tag: str) -> list[tuple[float, str]]:
        """Return when the call with a tag began and ended, each time."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        facts = [line.split() for line in lines]
        return [(float(at), f"{name} {pid}") for at, name, of, pid in facts if of == tag]


class Lost(Exception):
    """The client lost the answer to a request that it must not repeat."""


@dataclass
class Call:
    """One call of one client."""

    tag: str
    server: str
    kind: str
    http: httpx.AsyncClient
    gateways: Iterator[str]
    outcome: str = ""
    is_error: bool = False
    is_lost: bool = False
    """Whether the client lost an answer, and must not repeat its request."""
    events: list[tuple[float, str]] = field(default_factory=list)
    """The requests of the client, and their answers."""

    def note(self, event: str) -> None:
        """Record an event for the report."""
        self.events.append((time.time(), event[:MAX_EVENT]))

    @property
    def expected(self) -> str:
        """The text of the right result."""
        answers = {
            "form": [f"first {self.tag}"],
            "several": [f"{name} {self.tag}" for name in ("first", "second", "third")],
            "sampling": [f"said {self.tag}"],
            "roots": [f"file:///{self.tag}"],
        }[self.kind]
        return f"{self.tag}: {', '.join(answers)}"

    @property
    def arguments(self) -> dict[str, str]:
        return {"kind": self.kind, "tag": self.tag}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the user to a question."""
        match request["method"]:
            case "elicitation/create":
                return {"action": "accept", "content": {"name": request["params"]["message"]}}
            case "sampling/createMessage":
                content = request["params"]["messages"][0]["content"]
                asked = content[0] if isinstance(content, list) else content
                said = {"type": "text", "text": f"said {asked['text']}"}
                return {"role": "assistant", "content": said, "model": "m"}
        return {"roots": [{"uri": f"file:///{self.tag}"}]}

    def end(self, body: Mapping[str, Any]) -> None:
        """Record the outcome in a JSON-RPC response."""
        if "error" in body:
            self.outcome, self.is_error = body["error"]["message"], True
        else:
            self.is_error = body["result"].get("isError", False)
            self.outcome = body["result"]["content"][0]["text"]

    async def until(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part of the call, unless it has ended."""
        if not self.outcome and not self.is_lost:
            try:
                await part()
            except Lost:
                self.is_lost = True

    async def begin(self) -> None:
        """Call, until the first questions have arrived."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Answer all questions."""
        raise NotImplementedError


class CallWithoutSession(Call):
    """A call of 2026-07-28. A round with a state may be repeated, the first one may not."""

    asked: Mapping[str, Any] = {}

    async def begin(self) -> None:
        await self._round({}, may_repeat=False)

    async def finish(self) -> None:
        while not self.outcome:
            answers = {
                key: self.answer(request)
                for key, request in self.asked.get("inputRequests", {}).items()
            }
            more = {"inputResponses": answers} if answers else {}
            await self._round({**more, "requestState": self.asked["requestState"]}, may_repeat=True)

    async def _round(self, more: Mapping[str, Any], *, may_repeat: bool) -> None:
        params = {"name": f"{self.server}__ask", "arguments": self.arguments, **more}
        message = wire.message("tools/call", params, clientCapabilities=dict(CAPABILITIES))
        until_s = time.monotonic() + PATIENCE_S
        while True:
            url = next(self.gateways)
            try:
                response = await self.http.post(url, json=message, headers=wire.headers(message))
                self.note(f"POST {url}: {response.status_code} {response.text}")
                if response.status_code != 503 or time.monotonic() > until_s:
                    break
            except httpx.TransportError as error:
                self.note(f"POST {url}: {error!r}")
                is_unsent = isinstance(error, httpx.ConnectError)
                if not is_unsent and (not may_repeat or time.monotonic() > until_s):
                    raise Lost from None
            await asyncio.sleep(PAUSE_S)
        body = response.json()
        if body.get("result", {}).get("resultType") == "input_required":
            self.asked = body["result"]
        else:
            self.end(body)


class CallWithSession(Call):
    """A call of 2025-11-25: a stream, which may be resumed at any gateway."""

    headers: Mapping[str, str] = {}
    last_id: str | None = None
    open: Sequence[Mapping[str, Any]] = ()

    async def begin(self) -> None:
        self.headers = {"accept": BOTH, "content-type": "application/json"}
        opened = await self._post(opening(capabilities=dict(CAPABILITIES)))
        self.headers = {
            **self.headers,
            "mcp-session-id": opened.headers["mcp-session-id"],
            "mcp-protocol-version": opened.json()["result"]["protocolVersion"],
        }
        self.messages = self._messages(calling(f"{self.server}__ask", **self.arguments))
        await self._next()

    async def finish(self) -> None:
        while not self.outcome:
            for question in self.open:
                said = {"jsonrpc": "2.0", "id": question["id"], "result": self.answer(question)}
                response = await self._post(said)
                if response.status_code != 202:
                    raise AssertionError(f"an answer was refused: {response.text}")
            await self._next()

    async def _next(self) -> None:
        """Take the next question or the result."""
        async for message in self.messages:
            if "method" not in message:
                self.end(message)
                await self.messages.aclose()
                return
            if "id" in message:
                self.open = [message]
                return
        raise Lost

    async def _post(self, message: Mapping[str, Any]) -> httpx.Response:
        """POST a message that may be repeated."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            url = next(self.gateways)
            try:
                response = await self.http.post(url, json=message, headers=dict(self.headers))
                self.note(f"POST {url}: {response.status_code} {response.text}")
                if response.status_code != 503 or time.monotonic() > until_s:
                    return response
            except httpx.TransportError as error:
                self.note(f"POST {url}: {error!r}")
            await asyncio.sleep(PAUSE_S)

    async def _messages(self, call: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        until_s, method, body = time.monotonic() + PATIENCE_S, "POST", dict(call) or None
        while time.monotonic() < until_s:
            headers = dict(self.headers)
            if self.last_id is not None:
                method, body, headers["last-event-id"] = "GET", None, self.last_id
            url = next(self.gateways)
            try:
                async with self.http.stream(method, url, json=body, headers=headers) as response:
                    if response.headers.get("content-type") == "text/event-stream":
                        self.note(f"{method} {url}: a stream")
                        async for message in self._events(response):
                            self.note(f"{method} {url}: {json.dumps(message)}")
                            yield message
                        self.note(f"{method} {url}: the stream ended")
                        if self.last_id is None:  # a call without an id must not be repeated
                            raise Lost
                    else:
                        text = (await response.aread()).decode()
                        self.note(f"{method} {url}: {response.status_code} {text}")
                        if response.status_code == 200:
                            yield json.loads(text)
                        elif response.status_code != 503:
                            raise AssertionError(f"{method} was refused: {text}")
            except httpx.TransportError as error:
                self.note(f"{method} {url}: {error!r}")
                if self.last_id is None and not isinstance(error, httpx.ConnectError):
                    raise Lost from None
            await asyncio.sleep(PAUSE_S)

    async def _events(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
                continue
            data, self.last_id = event.get("data"), event.get("id", self.last_id)
            event = {}
            if data:
                yield json.loads(data)


@dataclass
class World:
    """The processes."""

    fleet: Fleet
    upstreams: Mapping[str, Upstream]
    dice: random.Random
    killed: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str]] = field(default_factory=list)
    """When each process was killed, and when its next life began."""

    async def kill(self) -> str:
        """Kill a process, which begins its next life; return its name."""
        members: list[Member | Upstream] = [*self.fleet.members, *self.upstreams.values()]
        victim = self.dice.choice(members)
        self.events.append((time.time(), f"{victim.name} is killed"))
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
        self.events.append((time.time(), f"{victim.name} is started"))
        self.killed[victim.name] += 1
        return victim.name


@dataclass
class Report:
    """The outcomes."""

    cells: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """The problems, each with the events of its call."""

    def note(self, call: Call, world: World, killed: Sequence[str], *, early: bool) -> None:
        """Judge a call, given the processes that were killed during it; `early` if one was killed
        before all calls were asked."""
        effects = world.upstreams[call.server].effects(call.tag)
        kinds = Counter(text.split()[0] for _, text in effects)
        begun, ended = kinds["begin"], kinds["end"]
        client = CLIENTS[isinstance(call, CallWithoutSession)]
        counts = self.cells.setdefault((client, call.server), Counter())
        is_right = not call.is_error and call.outcome == call.expected
        counts["lost" if call.is_lost else "right" if is_right else "error"] += 1
        needs_gateway = call.server != "kept" or early
        may_fail = call.server in killed or (needs_gateway and bool(killed))
        problems = []
        if call.is_lost and not early:
            problems.append("lost")
        elif not is_right and not call.is_error and not call.is_lost:
            problems.append("wrong")
        elif call.is_error and not may_fail:
            problems.append("failed without a reason")
        elif call.is_error and ended and not any(word in call.outcome for word in DOUBT):
            problems.append("does not say that it took effect")
        if begun > 1 or ended > 1:
            problems.append(f"began {begun} times and ended {ended} times")
        if is_right and (begun, ended) != (1, 1):
            problems.append("took no effect")
        if problems:
            what = f"{client}, {call.server}, {call.kind}, killed {', '.join(killed)}"
            lines = [f"{', '.join(problems)}: {call.tag}, {what}: {call.outcome!r}"]
            shown = [(at, f"{call.server} {text}") for at, text in effects]
            since = call.events[0][0] if call.events else 0.0
            kills = [event for event in world.events if event[0] >= since]
            for at, text in sorted([*call.events, *shown, *kills]):
                lines.append(f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f} {text}")
            self.wrong.append("\n    ".join(lines))


@contextmanager
def world(directory: Path, environment: Mapping[str, str], dice: random.Random) -> Iterator[World]:
    """Three servers, and three gateways in front of them."""
    with ExitStack() as stack:
        upstreams = {}
        for name in SERVERS:
            port = stack.enter_context(reserved_port())
            upstreams[name] = Upstream(name, directory / f"{name}.txt", port)
        for each in upstreams.values():
            each.start()
            stack.callback(each.kill)
        config = directory / "gateway.json"
        config.write_text(json.dumps(configuration(upstreams)))
        fleet = stack.enter_context(Fleet(config, directory, environment, GATEWAYS, workers=0))
        yield World(fleet, upstreams, dice)


def configuration(upstreams: Mapping[str, Upstream]) -> dict[str, Any]:
    """The gateways'. A round at a server without sessions may be repeated by its client, so its
    tool is `once`."""
    backends = [
        {
            "kind": "mcp",
            "name": each.name,
            "url": f"http://127.0.0.1:{each.port}/mcp",
            "include": [{"name": "ask"}],
            "override": {"ask": {"once": True}} if each.name == "rounds" else {},
            "refresh_s": 5,
        }
        for each in upstreams.values()
    ]
    return {"backends": backends, "limits": {"call_timeout_s": CALL_S}}


async def are_up(http: httpx.AsyncClient, fleet: Fleet) -> None:
    """Wait until each gateway serves each server."""
    until_s = time.monotonic() + PATIENCE_S
    for url in fleet.urls:
        while True:
            with suppress(httpx.TransportError):
                state = (await http.get(url.removesuffix("/mcp") + "/healthz")).json()
                if all(each["status"] == "up" for each in state["upstreams"]):
                    break
            if time.monotonic() > until_s:
                raise AssertionError("the gateways do not serve the servers")
            await asyncio.sleep(PAUSE_S)


async def group(calls: Sequence[Call], at: World, *, early: bool) -> Sequence[str]:
    """Make calls together; return the names of the processes that were killed during them."""
    beginning = [asyncio.create_task(each.until(each.begin)) for each in calls]
    killed = []
    if early:
        await asyncio.sleep(at.dice.uniform(0, WORK_S))
        killed.append(await at.kill())
    await asyncio.gather(*beginning)
    killed.append(await at.kill())
    finishing = [asyncio.create_task(each.until(each.finish)) for each in calls]
    if at.dice.random() < 0.5:
        await asyncio.sleep(at.dice.uniform(0, WORK_S))
        killed.append(await at.kill())
    await asyncio.gather(*finishing)
    return killed


async def run(title: str, count: int, directory: Path, at: World) -> bool:
    """Make at least `count` calls; return whether all ended as they must."""
    begun_s, report, made = time.monotonic(), Report(), 0
    limits = httpx.Limits(max_keepalive_connections=0)  # a kept connection stays with one gateway
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, limits=limits) as http:
        gateways = itertools.cycle(at.fleet.urls)
        while made < count:
            await are_up(http, at.fleet)
            calls = [
                make(f"t{made + number}", server, kind, http, gateways)
                for number, (make, server, kind) in enumerate(
                    itertools.product((CallWithSession, CallWithoutSession), SERVERS, KINDS)
                )
            ]
            made += len(calls)
            early = made > len(calls) and at.dice.random() < EARLY
            async with asyncio.timeout(2 * PATIENCE_S):
                killed = await group(calls, at, early=early)
            for each in calls:
                report.note(each, at, killed, early=early)
    rows: dict[str, Any] = {"calls": made}
    for (client, server), counts in sorted(report.cells.items()):
        cells = ", ".join(str(counts[name]) for name in ("right", "error", "lost"))
        rows[f"{client}, {server}: right, error, lost"] = cells
    rows |= {f"times {name} was killed": n for name, n in sorted(at.killed.items())}
    rows["seconds"] = round(time.monotonic() - begun_s)
    table(title, rows)
    for problem in report.wrong[:10]:
        print(f"  {problem}")
    return not report.wrong


def main(arguments: argparse.Namespace) -> bool:
    """Run on each store that was asked for; return whether all calls ended as they must."""
    results = []
    for kind in stores(arguments):
        with tempfile.TemporaryDirectory() as place:
            directory, dice = Path(place), random.Random(arguments.seed)
            with (
                store(kind, directory) as shared,
                world(directory, shared.environment, dice) as at,
            ):
                title = f"servers that ask, on {kind}"
                results.append(asyncio.run(run(title, arguments.count, directory, at)))
    return all(results)
