"""The two functions in this process, on one SQLite file, and the events that AWS
would invoke them with."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker
from tests.support import root_logger, wire
from tests.support.rounds import KEYS

EVENTS = Path(__file__).parent / "events"
CAPABILITIES: dict[str, Any] = {
    "elicitation": {},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}


@dataclass
class LambdaContext:
    """The context object of AWS Lambda, as far as we use it."""

    remaining_ms: int = 29_000
    aws_request_id: str = "8f7d3b1e-6c1f-4f5e-9a57-0d3a6b2c4e10"

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


def recorded(name: str) -> dict[str, Any]:
    """An event as AWS sent it, without what was said in it."""
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def asking(
    kind: str, method: str, params: dict[str, Any] | None = None, path: str | None = None
) -> dict[str, Any]:
    """A recorded event with a request in it; `path` is the one that the API received."""
    event = copy.deepcopy(recorded(kind))
    message = wire.message(method, params, clientCapabilities=CAPABILITIES)
    body = json.dumps(message)
    for name, value in wire.headers(message).items():
        key = next((known for known in event["headers"] if known.lower() == name), name)
        event["headers"][key] = value
        if "multiValueHeaders" in event:
            event["multiValueHeaders"][key] = [value]
    event["body"] = base64.b64encode(body.encode()).decode() if event["isBase64Encoded"] else body
    if path is not None:
        event["path" if "path" in event else "rawPath"] = path
        event["requestContext"].get("http", {})["path"] = path
    return event


@dataclass
class Functions:
    """Both, as one deployment."""

    http: Callable[[Any, Any], Any]
    worker: Callable[[Any, Any], Any]

    def ask(
        self, kind: str, method: str, params: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """The JSON-RPC answer to a request in an event of a kind."""
        answer = self.http(asking(kind, method, params, **more), LambdaContext())
        body: dict[str, Any] = json.loads(answer["body"])
        return body


def write_config(
    folder: Path,
    module: str = "tools.py",
    override: dict[str, Any] | None = None,
    **sections: Any,
) -> Path:
    """Write a gateway.json that serves a module of this folder, with further sections."""
    path = str(Path(__file__).parent / module)
    tools = {"kind": "python", "name": "tools", "prefix": "", "path": path}
    config = folder / "gateway.json"
    config.write_text(json.dumps({"backends": [tools | {"override": override or {}}], **sections}))
    return config


def environment(folder: Path, **sections: Any) -> dict[str, str]:
    """The environment of both functions, with a gateway.json and a store in a folder."""
    config = write_config(folder, **sections)
    return {
        "AWS_LAMBDA_FUNCTION_NAME": "gateway",
        "GATEWAY_CONFIG": str(config),
        "GATEWAY_ALLOW_ANONYMOUS": "true",
        "GATEWAY_STATE_KEYS": KEYS,
        "GATEWAY_STORE": f"sqlite:///{folder / 'gateway.sqlite3'}",
        "GATEWAY_LOG_LEVEL": "warning",
    }


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of both functions."""
    return environment(tmp_path)


@pytest.fixture(autouse=True)
def root_is_lent() -> Iterator[None]:
    """A handler that is made takes the root logger for itself, as in a process of its own."""
    with root_logger.lent():
        yield


@contextmanager
def made(environ: dict[str, str]) -> Iterator[Functions]:
    """Both functions with an environment."""
    with (
        root_logger.lent(),
        closing(lambda_http.make_handler(environ)) as http,
        closing(lambda_worker.make_handler(environ)) as worker,
    ):
        yield Functions(http, worker)


@pytest.fixture
def functions(environ: dict[str, str]) -> Iterator[Functions]:
    with made(environ) as functions:
        yield functions
