"""The whole stack: services, functions from the built zips, and their triggers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from roundgate import config as loading
from roundgate.backends import kind_of
from roundgate.errors import UsageError
from roundgate.net.serving import served
from roundgate_aws import machine, packaging
from roundgate_aws.packaging import PLACEHOLDER
from roundgate_aws.stack.events import INTEGRATION_S, Front, Poller, Schedule
from roundgate_aws.stack.functions import (
    Account,
    Environment,
    EnvironmentPool,
    environments,
    unpack,
)
from roundgate_aws.stack.lambda_api import LambdaApi, functions_at
from roundgate_aws.stack.rest_api import RestFront
from roundgate_aws.stack.services import ACCOUNT, REGION, LocalAws, make_resources, services
from roundgate_aws.template import StackTemplate

EXECUTIONS: Final = 10
"""The concurrency limit of a new account."""


@dataclass(frozen=True)
class Times:
    """Times in seconds that replace the template's; `None` keeps the template's."""

    sweep_every_s: float | None = None
    gateway_s: int | None = None
    """The gateway function's timeout in seconds."""
    api_s: float = INTEGRATION_S
    """The API's timeout for the gateway function, in seconds."""


_TIMES: Final = Times()


@dataclass(frozen=True)
class Deployment:
    """The parts from which pools of the template's functions are made."""

    template: StackTemplate
    zips: Path
    python: Path
    variables: Mapping[str, str]
    directory: Path
    times: Times
    account: Account

    def gateways(
        self, count: int, name: str = "GatewayFunction", **changes: str
    ) -> EnvironmentPool:
        """Return a pool of the gateway function, optionally with other variables."""
        return self._pool("GatewayFunction", count, name, changes, self.times.gateway_s)

    def workers(self, count: int) -> EnvironmentPool:
        """Return a pool of the worker function."""
        return self._pool("WorkerFunction", count, "WorkerFunction", {}, None)

    def _pool(
        self, of: str, count: int, name: str, changes: Mapping[str, str], timeout_s: int | None
    ) -> EnvironmentPool:
        deployed = self.template.function(of)
        function = replace(deployed, name=name, timeout_s=timeout_s or deployed.timeout_s)
        code, variables = self.directory / of, {**self.variables, **changes}
        if not code.exists():
            unpack(self.zips / function.zip.name, code)
        made = environments(function, count, code, self.python, variables, self.directory)
        return EnvironmentPool(made, self.account)

    def api(self, pool: EnvironmentPool) -> Front | RestFront:
        """Return the API in front of a pool of gateways."""
        if self.template.named("AWS::ApiGateway::RestApi"):
            return RestFront(pool, self.template)
        stage = self.template.properties("ApiStage")["StageName"]
        return Front(pool, self.template.routes(), stage, integration_s=self.times.api_s)


@dataclass
class Stack:
    """A running stack."""

    url: str
    front: Front | RestFront
    gateways: EnvironmentPool
    workers: EnvironmentPool
    poller: Poller
    aws: LocalAws
    resources: Mapping[str, str]
    deployment: Deployment
    invoked: LambdaApi | None = None
    """The functions that back ends of the kind lambda invoke."""

    @property
    def environments(self) -> list[Environment]:
        """Return the environments of both functions."""
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
    api: str = "http",
    times: Times = _TIMES,
    more: Mapping[str, str] | None = None,
    functions: Path | None = None,
) -> AsyncIterator[Stack]:
    """Run the stack that the template describes. Every caller is allowed, because only this machine
    can reach it.

    Args:
        directory: the folder for the functions and their logs.
        zips: the folder of the zips.
        gateways: the number of environments of the gateway function.
        workers: the number of environments of the worker function.
        executions: the concurrency limit of all functions.
        port: the port of the API; a free port by default.
        api: the type of the API, the parameter ApiType.
        times: the times that replace the template's.
        more: variables for both functions.
        functions: a file that declares other functions, which the stack's functions may invoke.
    """
    python = find_tools()
    with machine.reserved_port() as free, services(directory) as aws:
        port = port or free
        url = f"http://127.0.0.1:{port}"
        parameters = {"PublicUrl": url, "AllowAnonymous": "true", "ApiType": api}
        resources = make_resources(aws, StackTemplate(parameters=parameters))
        known = {**resources, "Queue": "https://" + resources["Queue"].partition("://")[2]}
        template = StackTemplate(parameters=parameters, known=known)
        variables = {**aws.environment, **(more or {})}
        async with AsyncExitStack() as others:
            invoked = None
            if functions is not None:
                at = functions_at(functions, directory, python, more=more)
                variables["AWS_ENDPOINT_URL_LAMBDA"], invoked = await others.enter_async_context(at)
            deployment = Deployment(
                template, zips, python, variables, directory, times, Account(executions)
            )
            front, back = deployment.gateways(gateways), deployment.workers(workers)
            others.callback(back.close)
            others.callback(front.close)
            poller, schedule = triggers(template, aws, resources, back, times)
            front_api = deployment.api(front)
            await others.enter_async_context(served(front_api, port=port))
            for trigger in (poller, schedule):
                others.push_async_callback(_cancelled, asyncio.create_task(trigger.run()))
            endpoint = f"{url}{_endpoint_path(zips)}"
            yield Stack(
                endpoint, front_api, front, back, poller, aws, resources, deployment, invoked
            )


async def _cancelled(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _endpoint_path(zips: Path) -> str:
    with zipfile.ZipFile(zips / "gateway.zip") as archive:
        http = json.loads(archive.read("gateway.json")).get("http") or {}
    return str(http.get("path", "/mcp"))


def triggers(
    template: StackTemplate,
    aws: LocalAws,
    resources: Mapping[str, str],
    workers: EnvironmentPool,
    times: Times,
) -> tuple[Poller, Schedule]:
    """Return the triggers that the worker's events in the template describe."""
    function = template.function("WorkerFunction")
    events = function.events
    source, rule = events["Tasks"]["Properties"], events["Sweep"]["Properties"]
    most = int(source["ScalingConfig"]["MaximumConcurrency"])
    poller = Poller(
        aws.client("sqs"),
        resources["Queue"],
        workers.invoke,
        batch_size=int(source["BatchSize"]),
        concurrency=min(len(workers.environments), most),
        arn=f"arn:aws:sqs:{REGION}:{ACCOUNT}:tasks",
        reports_failures="ReportBatchItemFailures" in source.get("FunctionResponseTypes", []),
    )
    every_s = times.sweep_every_s or rate_s(rule["Schedule"])
    return poller, Schedule(workers.invoke, every_s, json.loads(rule["Input"]))


def rate_s(expression: str) -> float:
    """Return the seconds of a rate such as `rate(1 minute)`."""
    number, unit = expression.removeprefix("rate(").rstrip(")").split()
    return float(number) * {"minute": 60, "hour": 3600, "day": 86_400}[unit.rstrip("s")]


def build_zips(config: Path, out: Path, more: Mapping[str, str] | None = None) -> Path:
    """Write the zips of a configuration for this machine; return their folder.

    Args:
        config: the path of gateway.yaml.
        out: the folder for the zips; not `.build`, which is for deployments.
        more: variables for compiling, such as the URL of functions that describe their tools.

    Raises:
        ConfigError: the configuration cannot be packed.
        UsageError: a back end cannot be compiled.
    """
    file = loading.load(config, placeholder=PLACEHOLDER)
    if any(kind_of(backend).compiler for backend in file.backends):
        # in a separate process, because its variables differ
        command = [sys.executable, "-m", "roundgate.cli", "compile", str(config)]
        environ = {**os.environ, **(more or {})}
        if subprocess.run(command, env=environ, check=False).returncode != 0:
            raise UsageError(f"{config} cannot be compiled")
    packaging.package(packaging.plan(file, config, machine.architecture()), out)
    return out


async def build_with_functions(config: Path, functions: Path, directory: Path) -> Path:
    """Write the zips of a configuration. `functions` declares the functions that describe its
    tools; return the folder of the zips."""
    named = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    logs = directory / "telling"
    logs.mkdir(parents=True, exist_ok=True)
    async with functions_at(functions, logs, machine.runtime()) as (url, _):
        more = {**named, "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL_LAMBDA": url}
        return await asyncio.to_thread(build_zips, config, directory / "zips", more)


def find_tools() -> Path:
    """Return the functions' Python; install it, DynamoDB Local and moto if necessary.

    Raises:
        UsageError: a program cannot be installed.
    """
    machine.dynamodb()
    machine.provide_moto()
    return machine.runtime()
