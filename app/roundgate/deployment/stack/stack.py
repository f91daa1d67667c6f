"""The whole of it: services, functions from the built zips, and what invokes them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import uvicorn

from roundgate import config as loading
from roundgate.backends import kind_of
from roundgate.deployment import packaging, places, runtime, tools
from roundgate.deployment.packaging import PLACEHOLDER
from roundgate.deployment.stack.aws import ACCOUNT, REGION, Aws, make_resources, services
from roundgate.deployment.stack.front import INTEGRATION_S, Front
from roundgate.deployment.stack.functions import (
    Account,
    Environment,
    Pool,
    Tools,
    free_port,
    unpack,
)
from roundgate.deployment.stack.lambda_api import LambdaApi, functions_at
from roundgate.deployment.stack.template import Template
from roundgate.deployment.stack.triggers import Poller, Schedule
from roundgate.errors import UsageError

EXECUTIONS = 10
"""What a new account may have at once of all its functions."""


@dataclass(frozen=True)
class Times:
    """What of the template's times is another here, because nobody wants to wait for it;
    `None` is the template's."""

    sweep_every_s: float | None = None
    gateway_s: int | None = None
    """The gateway function's time-out."""
    api_s: float = INTEGRATION_S
    """For how long the API waits for it."""


_TIMES: Final = Times()


@dataclass(frozen=True)
class Deployment:
    """What the functions of the template are made from here."""

    template: Template
    zips: Path
    tools: Tools
    variables: Mapping[str, str]
    directory: Path
    http: httpx.AsyncClient
    times: Times
    account: Account

    def gateways(self, count: int, name: str = "GatewayFunction", **changes: str) -> Pool:
        """Environments of the gateway function, or of one that differs from
        it in these variables."""
        return self._pool("GatewayFunction", count, name, changes, self.times.gateway_s)

    def workers(self, count: int) -> Pool:
        """Environments of the worker function."""
        return self._pool("WorkerFunction", count, "WorkerFunction", {}, None)

    def _pool(
        self, of: str, count: int, name: str, changes: Mapping[str, str], timeout_s: int | None
    ) -> Pool:
        deployed = self.template.function(of)
        function = replace(deployed, name=name, timeout_s=timeout_s or deployed.timeout_s)
        code, variables = self.directory / of, {**self.variables, **changes}
        if not code.exists():
            unpack(self.zips / function.zip.name, code)
        environments = [
            Environment(
                function,
                number,
                code,
                self.tools,
                variables,
                self.directory / f"{name}-{number}.log",
            )
            for number in range(1, count + 1)
        ]
        return Pool(environments, self.http, self.account)

    def api(self, pool: Pool) -> Front:
        """The API in front of a pool of gateways."""
        stage = self.template.properties("ApiStage")["StageName"]
        return Front(pool, self.template.routes(), stage, integration_s=self.times.api_s)


@dataclass
class Stack:
    """A stack that is up."""

    url: str
    front: Front
    gateways: Pool
    workers: Pool
    poller: Poller
    aws: Aws
    resources: Mapping[str, str]
    deployment: Deployment
    invoked: LambdaApi | None = None
    """The functions that back ends of the kind lambda invoke."""

    @property
    def environments(self) -> list[Environment]:
        """Of both functions."""
        return [*self.gateways.environments, *self.workers.environments]


@asynccontextmanager
async def running(
    directory: Path,
    zips: Path,
    *,
    gateways: int = 3,
    workers: int = 2,
    executions: int = EXECUTIONS,
    port: int | None = None,
    times: Times = _TIMES,
    more: Mapping[str, str] | None = None,
    functions: Path | None = None,
) -> AsyncIterator[Stack]:
    """The stack, as the template describes it, for as long as this lasts; `more` are variables for
    both functions, `functions` is a file of others that they may invoke.

    All functions together run `executions` at once at most. Nobody but this machine reaches it, so
    everybody may call.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    made_with = find_tools()
    with services(directory) as aws:
        resources, template = _made(aws, {"PublicUrl": url, "AllowAnonymous": "true"})
        variables = {**aws.environment, **(more or {})}
        async with AsyncExitStack() as others:
            invoked = None
            if functions is not None:
                at = functions_at(functions, directory, made_with, more=more)
                variables["AWS_ENDPOINT_URL_LAMBDA"], invoked = await others.enter_async_context(at)
            http = await others.enter_async_context(
                httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
            )
            deployment = Deployment(
                template, zips, made_with, variables, directory, http, times, Account(executions)
            )
            front, back = deployment.gateways(gateways), deployment.workers(workers)
            others.callback(back.close)
            others.callback(front.close)
            poller, schedule = triggers(template, aws, resources, back, times)
            api = deployment.api(front)
            async with _served(api, port, poller.run(), schedule.run()):
                endpoint = f"{url}{_endpoint_path(zips)}"
                yield Stack(endpoint, api, front, back, poller, aws, resources, deployment, invoked)


def _endpoint_path(zips: Path) -> str:
    """Return the path of the package's usual endpoint."""
    with zipfile.ZipFile(zips / "gateway.zip") as archive:
        http = json.loads(archive.read("gateway.json")).get("http") or {}
    return str(http.get("path", "/mcp"))


@asynccontextmanager
async def _served(
    api: Front, port: int, *background: Coroutine[None, None, None]
) -> AsyncIterator[None]:
    """The API answers at a port, and what invokes workers runs, for as long as this lasts."""
    server = QuietServer(uvicorn.Config(api, port=port, log_level="warning", lifespan="off"))
    invoking = [asyncio.create_task(one) for one in background]
    answering = asyncio.create_task(server.serve())
    try:
        await up(server)
        yield
    finally:
        server.should_exit = True
        for one in invoking:
            one.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*invoking, answering, return_exceptions=True)


def _made(aws: Aws, parameters: Mapping[str, str]) -> tuple[Mapping[str, str], Template]:
    """The resources of the template, and the template with their names and addresses filled in."""
    resources = make_resources(aws, Template(places.TEMPLATE, parameters, {}))
    known = {**resources, "Queue": "https://" + resources["Queue"].partition("://")[2]}
    return resources, Template(places.TEMPLATE, parameters, known)


def triggers(
    template: Template, aws: Aws, resources: Mapping[str, str], workers: Pool, times: Times
) -> tuple[Poller, Schedule]:
    """What the worker's events say."""
    function = template.function("WorkerFunction")
    events = function.events
    source, rule = events["Tasks"]["Properties"], events["Sweep"]["Properties"]
    poller = Poller(
        aws.client("sqs"),
        resources["Queue"],
        workers.invoke,
        batch_size=int(source["BatchSize"]),
        concurrency=min(
            len(workers.environments), int(source["ScalingConfig"]["MaximumConcurrency"])
        ),
        arn=f"arn:aws:sqs:{REGION}:{ACCOUNT}:tasks",
        reports_failures="ReportBatchItemFailures" in source.get("FunctionResponseTypes", []),
        dead_letters=resources["DeadLetters"],
        allows_loops=function.allows_loops,
    )
    every_s = times.sweep_every_s or rate_s(rule["Schedule"])
    return poller, Schedule(workers.invoke, every_s, json.loads(rule["Input"]))


def rate_s(expression: str) -> float:
    """`rate(1 minute)` in seconds."""
    number, unit = expression.removeprefix("rate(").rstrip(")").split()
    return float(number) * {"minute": 60, "hour": 3600, "day": 86_400}[unit.rstrip("s")]


class QuietServer(uvicorn.Server):
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


def build_zips(config: Path, out: Path, more: Mapping[str, str] | None = None) -> Path:
    """The zips of a configuration for this machine, in a directory of their own: `.build` is for
    what is deployed. `more` are variables, such as where functions are that tell their tools.

    Raises:
        ConfigError: it cannot be packed.
        UsageError: something that describes a back end cannot be compiled.
    """
    file = loading.load(config, placeholder=PLACEHOLDER)
    if any(kind_of(backend).compile_with() for backend in file.backends):
        # in a process of its own, for the sake of its variables
        command = [sys.executable, "-m", "roundgate.cli", "compile", str(config)]
        environ = {**os.environ, **(more or {})}
        if subprocess.run(command, env=environ, check=False).returncode != 0:
            raise UsageError(f"{config} cannot be compiled")
    packaging.package(packaging.plan(file, config, runtime.here()), out)
    return out


async def build_with_functions(config: Path, functions: Path, directory: Path) -> Path:
    """The zips of a configuration whose functions are in a file, and may tell their tools."""
    named = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    logs = directory / "telling"
    logs.mkdir(parents=True, exist_ok=True)
    async with functions_at(functions, logs, find_tools(with_store=False)) as (url, _):
        more = {**named, "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL_LAMBDA": url}
        return await asyncio.to_thread(build_zips, config, directory / "zips", more)


def why_not() -> str | None:
    """Why the stack cannot be run here, if it cannot."""
    if runtime.interpreter() is None:
        return f"the functions need Python {runtime.PYTHON}"
    return None if shutil.which("java") else "DynamoDB Local needs Java 17"


def find_tools(*, with_store: bool = True) -> Tools:
    """The emulator and the runtime's Python; with DynamoDB Local they are installed once.

    Raises:
        UsageError: they cannot be.
    """
    if with_store:
        tools.dynamodb()
        tools.provide_moto()
    return Tools(*tools.emulator())
