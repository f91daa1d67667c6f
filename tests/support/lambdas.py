"""Functions of AWS Lambda for a gateway in this process: the real thing under the
emulator, or bytes on a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.main import build_app
from tests.support.asgi import Client, client, config_of
from tests.support.services import answer
from tests.support.task_client import task_settings

FUNCTIONS = Path(__file__).parents[1] / "roundgate_aws/stack/served_functions/functions.yaml"


def entry(*tools: dict[str, Any], **backend: Any) -> dict[str, Any]:
    """A back end with these tools of the function `desk`, under their own names."""
    declared = [{"name": "tool", "description": "A tool.", **tool} for tool in tools]
    known = {"kind": "lambda", "name": "desk", "prefix": "", "function": "desk"}
    return {**known, "region": "eu-central-1", "tools": declared, **backend}


def use(patch: pytest.MonkeyPatch, url: str) -> None:
    """Have boto3 speak to the functions at a URL."""
    patch.setenv("AWS_ENDPOINT_URL_LAMBDA", url)
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "hardly-a-secret")


@asynccontextmanager
async def gateway_with(
    directory: Path, backend: dict[str, Any], **sections: Any
) -> AsyncIterator[Client]:
    """A client of a gateway whose one back end this is, with workers of its own."""
    tasks = {"poll_interval_ms": 100, "sweep_every_s": 0.1}
    file = config_of({"backends": [backend], "tasks": tasks, **sections}, directory)
    using = task_settings(directory, worker="on")
    # in a thread: the functions may be served by this loop, and be asked for their tools
    app = await asyncio.to_thread(build_app, file, using)
    async with app.router.lifespan_context(app), client(app) as one:
        yield one


def said(payload: Any = None, *, failed: bool = False, **headers: Any) -> bytes:
    """What AWS Lambda answers to an invocation."""
    more: dict[str, Any] = {"X_Amz_Function_Error": "Unhandled"} if failed else {}
    return answer(json.dumps(payload).encode(), **more, **headers)


def refused(status: str, code: str, message: str = "no", **headers: Any) -> bytes:
    """An error of AWS Lambda's own."""
    body = json.dumps({"message": message, "Type": "User"}).encode()
    return answer(body, status, x_amzn_errortype=code, **headers)
