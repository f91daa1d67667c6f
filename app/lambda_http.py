"""The gateway as an AWS Lambda function: events of API Gateway and of Function URLs → the ASGI app.

    HTTP API (payload 2.0), REST API (1.0), Function URL (2.0)  ──▶  Mangum  ──▶  the app of `app.main`

The app is built when the module is imported, in the init phase. Lifespan is off: Mangum would start and stop the app
with every event. Nothing streams here: a body that is an event stream is sent when it is complete, and work that goes
on after the answer would be frozen with the process, so tasks belong to the worker function (`app.lambda_worker`).
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from mangum import Mangum
from mangum.types import LambdaContext
from starlette.types import ASGIApp, Receive, Scope, Send

from app import config, logs, main, settings
from app.http.guard import HEALTH
from app.http.hosting import Hosting
from app.protocol import jsonrpc
from app.protocol.jsonrpc import Request

Event: TypeAlias = dict[str, Any]
Response: TypeAlias = dict[str, Any]

MARGIN_MS: Final = 1_000
"""What is left of the function's time when a call has to end: to seal, to answer, to write the log."""
MAX_ANSWER_BYTES: Final = 6 * 1024 * 1024 - 4_096
"""AWS Lambda returns 6 MB; the headers are part of it."""


def make_handler(environ: Mapping[str, str]) -> Function:
    """The handler that an environment describes.

    Raises:
        ConfigError: every problem in it or in gateway.yaml; the function's log shows it.
    """
    using = settings.from_environment(environ)
    logs.configure(using.log_level, alone=using.on_lambda)
    file = config.load(using.config)
    return Function(_Hosted(main.build_app(file, using), file.config.http.path))


class Function:
    """What the runtime calls with each event. The event loop is made with the first: it is nothing for a snapshot."""

    def __init__(self, app: _Hosted) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._adapter: Mangum | None = None

    def __call__(self, event: Event, context: LambdaContext) -> Response:
        """The response to an event of API Gateway or of a Function URL.

        Raises:
            ValueError: it is neither.
        """
        _check(event)
        if self._loop is None or self._adapter is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)  # before Mangum looks for one
            self._adapter = Mangum(self._app, lifespan="off")
        asyncio.set_event_loop(self._loop)
        response: Response = self._adapter(event, context)
        size = len((response.get("body") or "").encode())
        return response if size <= MAX_ANSWER_BYTES else _too_large(event, size)

    def close(self) -> None:
        """Let go of the loop; a function on AWS Lambda is never told that it ends."""
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            asyncio.set_event_loop(None)


class _Hosted:
    """Puts what the event knows into the scope, and takes stage and base path off the request's path."""

    def __init__(self, app: ASGIApp, endpoint: str) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        event, context = scope["aws.event"], scope["aws.context"]
        remaining_ms = max(1.0, context.get_remaining_time_in_millis() - MARGIN_MS)
        Hosting(remaining_ms, _claims(event)).put(scope)
        scope["path"] = _own_path(scope["path"], self._endpoint)
        await self._app(scope, receive, send)


def _own_path(path: str, endpoint: str) -> str:
    """The path as the app knows it: API Gateway puts a stage or a base path mapping in front."""
    at = path.find("/.well-known/")
    if at >= 0:  # first of all, because the endpoint's path is the end of that of its metadata
        return path[at:]
    for own in (endpoint, endpoint + "/", HEALTH):
        if path.endswith(own):
            return own
    return path


def _claims(event: Event) -> Mapping[str, Any] | None:
    """What the API's authorizer says of the caller, in each of the forms that it has."""
    authorizer = event.get("requestContext", {}).get("authorizer")
    if not isinstance(authorizer, dict):
        return None
    jwt = authorizer.get("jwt")
    in_jwt = jwt.get("claims") if isinstance(jwt, dict) else None
    for claims in (in_jwt, authorizer.get("claims"), authorizer.get("lambda")):
        if isinstance(claims, dict):
            return claims
    return authorizer


def _check(event: Any) -> None:
    """Raises ValueError: not an event that this function serves."""
    if not isinstance(event, dict) or not isinstance(event.get("requestContext"), dict):
        kind = f"one with {sorted(event)[:8]}" if isinstance(event, dict) else type(event).__name__
        raise ValueError(
            f"This function serves events of API Gateway and of Function URLs, not {kind};"
            " queues and schedules belong to the worker function"
        )


def _too_large(event: Event, size: int) -> Response:
    """The answer in place of one that AWS would not return: it would say 502 and nothing else."""
    body = event.get("body") or ""
    asked = jsonrpc.parse(base64.b64decode(body) if event.get("isBase64Encoded") else body.encode())
    request_id = asked.id if isinstance(asked, Request) else None
    message = f"The result has {size} bytes; AWS Lambda returns {MAX_ANSWER_BYTES} at most, so ask for less at once"
    answer = jsonrpc.error_response(request_id, -32603, message)
    headers = {"content-type": "application/json"}
    return {"statusCode": 200, "headers": headers, "body": answer.decode(), "isBase64Encoded": False}


def __getattr__(name: str) -> Function:
    """`handler` is made when the runtime looks for it, in the init phase: importing the module makes nothing."""
    if name != "handler":
        raise AttributeError(name)
    made = globals()["handler"] = make_handler(os.environ)
    return made
