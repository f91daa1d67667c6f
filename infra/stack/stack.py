"""The whole of it: services, functions from the built zips, and what invokes them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from infra.stack.aws import REGION, Aws, make_resources, services
from infra.stack.front import Front
from infra.stack.functions import Environment, Pool, Tools, free_port, unpack
from infra.stack.template import Template
from infra.stack.triggers import Poller, Schedule

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "template.yaml"


@dataclass
class Stack:
    """A stack that is up."""

    url: str
    gateways: Pool
    workers: Pool
    poller: Poller
    aws: Aws
    resources: Mapping[str, str]

    @property
    def environments(self) -> list[Environment]:
        """Of both functions."""
        return [*self.gateways.environments, *self.workers.environments]


@asynccontextmanager
async def running(
    directory: Path,
    *,
    gateways: int = 3,
    workers: int = 2,
    port: int | None = None,
    sweep_every_s: float | None = None,
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[Stack]:
    """The stack, as the template describes it, for as long as this lasts.

    `sweep_every_s` is the schedule's own rate unless it is given: a minute is long to wait for here.
    """
    tools = find_tools()
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    parameters = {"PublicUrl": url}
    with services(directory) as aws:
        resources = make_resources(aws, Template(TEMPLATE, parameters, {}))
        known = {**resources, "Queue": "https://" + resources["Queue"].partition("://")[2]}
        template = Template(TEMPLATE, parameters, known)
        async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as http:
            environment = {**aws.environment, **(more or {})}
            front = pool_of("GatewayFunction", gateways, template, tools, environment, directory, http)
            back = pool_of("WorkerFunction", workers, template, tools, environment, directory, http)
            poller, schedule = triggers(template, aws, resources, back, workers, sweep_every_s)
            stack = Stack(f"{url}/mcp", front, back, poller, aws, resources)
            background = [asyncio.create_task(one.run()) for one in (poller, schedule)]
            server = serve(front, template, port)
            background.append(asyncio.create_task(server.serve()))
            try:
                await up(server)
                yield stack
            finally:
                server.should_exit = True
                for one in background[:2]:
                    one.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(*background, return_exceptions=True)
                front.close()
                back.close()


def pool_of(
    name: str,
    count: int,
    template: Template,
    tools: Tools,
    environment: Mapping[str, str],
    directory: Path,
    http: httpx.AsyncClient,
) -> Pool:
    """The environments of one function of the template."""
    function = template.function(name)
    code = unpack(function.zip, directory / name)
    environments = [
        Environment(function, number, code, tools, environment, directory / f"{name}-{number}.log")
        for number in range(1, count + 1)
    ]
    return Pool(environments, http)


def triggers(
    template: Template, aws: Aws, resources: Mapping[str, str], workers: Pool, count: int, sweep_every_s: float | None
) -> tuple[Poller, Schedule]:
    """What the worker's events say."""
    events = template.function("WorkerFunction").events
    source, rule = events["Tasks"]["Properties"], events["Sweep"]["Properties"]
    arn = f"arn:aws:sqs:{REGION}:123456789012:tasks"
    poller = Poller(aws.client("sqs"), resources["Queue"], workers, source["BatchSize"], count, arn)
    return poller, Schedule(workers, sweep_every_s or rate_s(rule["Schedule"]), json.loads(rule["Input"]))


def rate_s(expression: str) -> float:
    """`rate(1 minute)` in seconds."""
    number, unit = expression.removeprefix("rate(").rstrip(")").split()
    return float(number) * {"minute": 60, "hour": 3600, "day": 86_400}[unit.rstrip("s")]


def serve(pool: Pool, template: Template, port: int) -> uvicorn.Server:
    """The API of the template on a port."""
    stage = template.properties("Api")["StageName"]
    events = template.function("GatewayFunction").events.values()
    routes = [(event["Properties"]["Method"], event["Properties"]["Path"]) for event in events]
    front = Front(pool, routes, stage)
    return _Server(uvicorn.Config(front, port=port, log_level="warning", lifespan="off"))


class _Server(uvicorn.Server):
    """Signals belong to whoever runs the stack."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


async def up(server: uvicorn.Server) -> None:
    """Wait until a server answers."""
    async with asyncio.timeout(10):
        for _ in range(1000):
            if server.started:
                return
            await asyncio.sleep(0.01)


def find_tools() -> Tools:
    """The emulator and the runtime's Python, installed once."""
    subprocess.run([ROOT / "scripts/lambda-tools"], check=True)
    emulator = ROOT / ".cache/lambda/aws-lambda-rie"
    python = ROOT / ".cache/lambda/runtime/bin/python"
    if not (emulator.exists() and python.exists()):
        sys.exit("scripts/lambda-tools did not install the emulator")
    return Tools(emulator, python)
