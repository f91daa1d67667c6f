"""The `Invoke` operation of AWS Lambda's API, for functions declared in a file.

    functions.yaml    orders: {handler: orders.handler, timeout_s: 3, environments: 2, reserved: 2}
    orders.py         in the same folder

boto3 finds the API by `AWS_ENDPOINT_URL_LAMBDA`. An asynchronous invocation is tried three times,
as at AWS, but one second apart. All versions and aliases are the same code. Durable functions and
permissions are not supported.

    python -m roundgate_aws.stack.lambda_api functions.yaml [--port 9001]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from roundgate.net.serving import served
from roundgate_aws import machine
from roundgate_aws.stack.functions import (
    MAX_PAYLOAD_BYTES,
    Account,
    EnvironmentPool,
    Throttled,
    environments,
)
from roundgate_aws.stack.runtime_api import InvocationFailed
from roundgate_aws.template import TemplateFunction

MAX_EVENT_BYTES: Final = 1024 * 1024
MAX_CLIENT_CONTEXT: Final = 3_583
ASYNCHRONOUS_TRIES: Final = 3
BETWEEN_TRIES_S: Final = 1.0
PATH: Final = "/2015-03-31/functions/"


@dataclass
class LambdaApi:
    """An ASGI app that invokes functions by name."""

    pools: Mapping[str, EnvironmentPool]
    _asynchronous: set[asyncio.Task[None]] = field(default_factory=set)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if request.method != "POST" or not (
            path.startswith(PATH) and path.endswith("/invocations")
        ):
            return refused(
                404, "UnknownOperationException", "Only the operation Invoke is supported"
            )
        name = path.removeprefix(PATH).removesuffix("/invocations")
        name = name.rpartition("function:")[2].partition(":")[0]
        if name not in self.pools:
            return refused(404, "ResourceNotFoundException", f"Function not found: {name}")
        body = await request.body()
        is_event = request.headers.get("x-amz-invocation-type") == "Event"
        limit = MAX_EVENT_BYTES if is_event else MAX_PAYLOAD_BYTES
        if len(body) > limit:
            message = f"{len(body)} byte payload is too large (limit {limit} bytes)"
            return refused(413, "RequestEntityTooLargeException", message)
        if "x-amz-durable-execution-name" in request.headers:
            return refused(
                400, "InvalidParameterValueException", "Durable functions are not supported"
            )
        return await self._invoke(self.pools[name], body, request, is_event=is_event)

    async def _invoke(
        self, pool: EnvironmentPool, body: bytes, request: Request, *, is_event: bool
    ) -> Response:
        context = request.headers.get("x-amz-client-context", "")
        if len(context) > MAX_CLIENT_CONTEXT:
            return refused(400, "InvalidRequestContentException", "Client context is too long")
        try:
            event = json.loads(body or b"null")
        except ValueError:
            return refused(400, "InvalidRequestContentException", "Could not parse request body")
        if is_event:
            running = asyncio.create_task(self._later(pool, event))
            self._asynchronous.add(running)
            running.add_done_callback(self._asynchronous.discard)
            return Response(b"", 202, identified())
        try:
            return JSONResponse(await pool.invoke(event, context), 200, identified())
        except Throttled:
            more = {"Reason": "ReservedFunctionConcurrentInvocationLimitExceeded"}
            return refused(
                429, "TooManyRequestsException", "Rate Exceeded.", {"retry-after": "1"}, more
            )
        except InvocationFailed as error:
            headers = {"x-amz-function-error": "Unhandled"} | identified()
            return JSONResponse(dict(error.report), 200, headers)

    async def _later(self, pool: EnvironmentPool, event: Any) -> None:
        for _ in range(ASYNCHRONOUS_TRIES):
            with suppress(InvocationFailed):
                await pool.invoke(event)
                return
            await asyncio.sleep(BETWEEN_TRIES_S)

    def close(self) -> None:
        """End all functions."""
        for running in self._asynchronous:
            running.cancel()
        for pool in self.pools.values():
            pool.close()


def identified() -> dict[str, str]:
    """Return the headers that every response has."""
    return {"x-amzn-requestid": str(uuid.uuid4())}


def refused(
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Response:
    """Return an error response of the API."""
    body = {"Type": "User", "message": message, **(more or {})}
    return JSONResponse(body, status, {"x-amzn-errortype": code, **identified(), **(headers or {})})


def make_pools(
    file: Path,
    logs: Path,
    python: Path,
    variables: Mapping[str, str],
) -> dict[str, EnvironmentPool]:
    """Return a pool for each function of a file, with its environments and reserved concurrency."""
    declared: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text("utf-8"))
    pools = {}
    for name, declaration in declared.items():
        function = TemplateFunction(
            name=name,
            handler=declaration["handler"],
            zip=file,
            timeout_s=int(declaration.get("timeout_s", 3)),
            memory_mb=128,
            runtime="python3.13",
            environment={
                key: str(value) for key, value in declaration.get("environment", {}).items()
            },
            events={},
        )
        count, code = int(declaration.get("environments", 2)), file.parent.resolve()
        made = environments(function, count, code, python, variables, logs)
        pools[name] = EnvironmentPool(made, Account(int(declaration.get("reserved", 1_000))))
    return pools


@asynccontextmanager
async def functions_at(
    file: Path,
    directory: Path,
    python: Path,
    *,
    port: int | None = None,
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[str, LambdaApi]]:
    """Serve the functions of a file; yield the URL of the API, and the API."""
    api = LambdaApi(make_pools(file, directory, python, more or {}))
    try:
        async with served(api, port=port or 0) as bound:
            yield f"http://127.0.0.1:{bound}", api
    finally:
        api.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/tools functions", description="Functions of AWS Lambda on this machine."
    )
    parser.add_argument(
        "file", type=Path, help="the file that declares the functions, such as functions.yaml"
    )
    parser.add_argument("--port", type=int, help="the port to listen on; a free port by default")
    arguments = parser.parse_args()
    # handle SIGTERM like Ctrl-C, so the child processes are ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(_serve(arguments.file, arguments.port, machine.runtime()))
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(file: Path, port: int | None, python: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        own = {name: value for name, value in os.environ.items() if name.startswith("EXAMPLE_")}
        async with functions_at(file, Path(directory), python, port=port, more=own) as (url, api):
            print(f"functions: {', '.join(api.pools)}\nAWS_ENDPOINT_URL_LAMBDA={url}", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
