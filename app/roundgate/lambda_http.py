"""The gateway as an AWS Lambda function: Mangum turns each event of API Gateway (payloads 1.0 and
2.0) or of a Function URL into a request to the app of `roundgate.main`.

The app is built in the init phase. Lifespan is off: Mangum would start and stop the app with every
event. Responses do not stream: a `text/event-stream` body is returned once it is complete;
`roundgate.lambda_stream` streams. The process is frozen after each response, so tasks run in the
worker function (`roundgate.lambda_worker`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from roundgate.garbage import kept

with kept():  # collecting garbage among all modules takes 4 % of a cold start
    import asyncio
    import base64
    import os
    from collections.abc import Container, Iterable, Mapping
    from urllib.parse import urlsplit

    from fastapi import FastAPI
    from mangum import Mangum
    from starlette.types import Receive, Scope, Send

    from roundgate import aws, json
    from roundgate.clock import Clock, seed_after_restore
    from roundgate.config import ConfigFile
    from roundgate.errors import ConfigError
    from roundgate.http import HEALTH, MARGIN_MS, Hosting
    from roundgate.main import build_app
    from roundgate.observability.correlation import environment
    from roundgate.protocol import Request, jsonrpc
    from roundgate.runtime import startup
    from roundgate.settings import Settings
    from roundgate.tasks.external import is_event_path

if TYPE_CHECKING:
    from mangum.types import LambdaContext

Event: TypeAlias = dict[str, Any]
Response: TypeAlias = dict[str, Any]

AWS_MARGIN_MS: Final = 400
"""The milliseconds between the deadline of AWS calls and the end of the invocation; by then a call
has written its state."""
MAX_ANSWER_BYTES: Final = 6 * 1024 * 1024
"""The limit on a response encoded as JSON, in which each quotation mark of the body takes two
bytes."""
FETCHABLE_BYTES: Final = 4_600_000
"""The largest result that can always be returned: base64 makes four bytes of three."""
ENVELOPE_BYTES: Final = 20_000
"""An upper bound for the rest of a response; API Gateway accepts 10,240 bytes of headers."""


def make_handler(environ: Mapping[str, str]) -> Function:
    """Return the handler that an environment describes.

    Raises:
        ConfigError: lists every problem in the environment or in gateway.yaml. Lambda logs it.
    """
    return Function(make_hosted(environ))


def make_hosted(environ: Mapping[str, str]) -> Hosted:
    """Return the app that an environment describes, for events.

    Raises:
        ConfigError: as `make_handler`.
    """
    with kept():
        using, file = startup.read_configuration(environ)
        _check_exposure(file, using)
        _check_results(file)
        app = build_app(file, using)
    base = urlsplit(using.public_url or "").path.rstrip("/")
    return Hosted(app, file.config.endpoints, Clock(), base)


def _check_exposure(file: ConfigFile, using: Settings) -> None:
    """Raise ConfigError if there is no authentication and GATEWAY_ALLOW_ANONYMOUS is not set."""
    if file.config.auth == "none" and not using.allow_anonymous:
        message = "there is no authentication, so anyone who knows the URL could call"
        remedy = "configure auth, or deploy with AllowAnonymous=true (GATEWAY_ALLOW_ANONYMOUS=true) if that is intended"
        raise ConfigError([file.origin.at("auth").problem(message, remedy)])


def _check_results(file: ConfigFile) -> None:
    """Raise ConfigError if the result of a task may exceed the limit on a response."""
    limit = file.config.tasks.max_result_bytes
    if limit > FETCHABLE_BYTES:
        message = f"is {limit}, and AWS Lambda returns 6 MB of JSON or base64"
        remedy = f"set it to at most {FETCHABLE_BYTES}"
        raise ConfigError([file.origin.at("tasks", "max_result_bytes").problem(message, remedy)])


class Function:
    """The handler that the Lambda runtime calls with each event.

    The event loop and Mangum's adapter are created at the first event, because a snapshot must not
    hold sockets.
    """

    def __init__(self, app: Hosted) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._adapter: Mangum | None = None

    def __call__(self, event: Event, context: LambdaContext) -> Response:
        """Return the response to an event of API Gateway or of a Function URL.

        Raises:
            ValueError: the event is of an unknown kind.
        """
        check(event)
        if self._loop is None:
            seed_after_restore()
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)  # Mangum runs the app in the current loop
        if self._adapter is None:
            self._adapter = Mangum(self._app, lifespan="off")
        try:
            response: Response = self._adapter(event, context)
        except ValueError:  # Mangum cannot read the head; the app answers its own errors
            return bad_request()
        return _fitting(event, response)

    def close(self) -> None:
        """Close the event loop. AWS Lambda never calls this; tests do."""
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            asyncio.set_event_loop(None)


class Hosted:
    """Middleware that adds the event's deadline and claims to the scope, and removes the stage and
    the base path from the path."""

    def __init__(self, app: FastAPI, endpoints: Iterable[str], clock: Clock, base: str) -> None:
        self.app = app
        self._served = frozenset({*endpoints, HEALTH})
        self._clock = clock
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        event, context = scope["aws.event"], scope["aws.context"]
        remaining_ms = context.get_remaining_time_in_millis()
        Hosting(max(1.0, remaining_ms - MARGIN_MS), _claims(event)).put(scope)
        scope["path"] = _own_path(scope["path"], event, self._served, self._base)
        deadline = self._clock.deadline(max(1.0, remaining_ms - AWS_MARGIN_MS))
        with aws.bounded(deadline), environment(_request_ids(event, context)):
            await self.app(scope, receive, send)


def _request_ids(event: Event, context: LambdaContext) -> dict[str, str]:
    """Return the ids of the request at the API and of the invocation, for every log line."""
    ids = {
        "api_request": event["requestContext"].get("requestId"),
        "lambda_request": context.aws_request_id,
    }
    return {name: value for name, value in ids.items() if isinstance(value, str)}


def _own_path(path: str, event: Event, served: Container[str], base: str) -> str:
    """Return the path as the app knows it: without the stage or the base path.

    Only a prefix named by the event or GATEWAY_PUBLIC_URL is removed. Otherwise a misspelt path of
    a view could reach the endpoint of all tools.
    """
    at = path.find("/.well-known/")
    if at >= 0:  # first, because the path of the metadata ends with the path of the endpoint
        return path[at:]
    stage = f"/{event['requestContext'].get('stage')}"
    prefixes = (_before_resource(path, event), "", stage, base)
    own = [path.removeprefix(prefix) for prefix in prefixes if path.startswith(prefix)]
    known = [candidate for candidate in own if candidate.removesuffix("/") in served]
    known += filter(is_event_path, own)  # last: the stage may be called `events`
    return known[0] if known else path


def _before_resource(path: str, event: Event) -> str:
    """Return the part of the path before the resource that a REST API matched, such as
    `/{proxy+}`."""
    resource = str(event.get("resource", ""))
    for name, value in (event.get("pathParameters") or {}).items():
        resource = resource.replace(f"{{{name}+}}", value).replace(f"{{{name}}}", value)
    return path.removesuffix(resource) if resource.startswith("/") else ""


def _claims(event: Event) -> Mapping[str, Any] | None:
    """Return the claims of the API's authorizer, in any of its forms; `None` without an
    authorizer."""
    authorizer = event.get("requestContext", {}).get("authorizer")
    if not isinstance(authorizer, dict):
        return None
    jwt = authorizer.get("jwt")
    in_jwt = jwt.get("claims") if isinstance(jwt, dict) else None
    for claims in (in_jwt, authorizer.get("claims"), authorizer.get("lambda")):
        if isinstance(claims, dict):
            return claims
    return authorizer


def check(event: Any) -> None:
    """Raise ValueError unless this function serves the event."""
    if not isinstance(event, dict) or not isinstance(event.get("requestContext"), dict):
        kind = (
            f"an object with {sorted(event)[:8]}"
            if isinstance(event, dict)
            else type(event).__name__
        )
        raise ValueError(
            f"This function serves events of API Gateway and of Function URLs, not {kind};"
            " send queues and schedules to the worker function"
        )


def bad_request() -> Response:
    """Return the response to an event that Mangum cannot convert: its Host header is not a host
    with an optional port, or a text contains a lone surrogate."""
    return {
        "statusCode": 400,
        "headers": {"content-type": "application/json"},
        "body": '{"error": "The Host header is not a host with an optional port, or a text is not Unicode"}',
        "isBase64Encoded": False,
    }


def _fitting(event: Event, response: Response) -> Response:
    """Return the response, its base64 form or an error: the first that AWS Lambda can return."""
    body = response.get("body") or ""
    if len(body) * 2 + ENVELOPE_BYTES <= MAX_ANSWER_BYTES // 6:  # fits even if each needs an escape
        return response
    if (size := _size(response)) <= MAX_ANSWER_BYTES:
        return response
    # a REST API decodes base64 only for configured media types
    if event.get("version") == "2.0" and not response.get("isBase64Encoded"):
        encoded = {
            **response,
            "body": base64.b64encode(body.encode()).decode(),
            "isBase64Encoded": True,
        }
        if _size(encoded) <= MAX_ANSWER_BYTES:
            return encoded
    return _too_large(event, size)


def _size(response: Response) -> int:
    """Return the size in bytes of a response as the runtime's JSON, which also escapes two line
    separators."""
    body = response.get("body") or ""
    return len(json.encode(response)) + 3 * (body.count("\u2028") + body.count("\u2029"))


def _too_large(event: Event, size: int) -> Response:
    """Return the error for a response that AWS would replace by a 502 without a body."""
    body = event.get("body") or ""
    request = jsonrpc.parse(
        base64.b64decode(body) if event.get("isBase64Encoded") else body.encode("utf-8", "replace")
    )
    request_id = request.id if isinstance(request, Request) else None
    message = (
        f"The call succeeded, but its response has {size} bytes as JSON in JSON, and AWS Lambda"
        f" returns at most {MAX_ANSWER_BYTES}; request less data per call"
    )
    answer = jsonrpc.error_response(request_id, -32603, message)
    headers = {"content-type": "application/json"}
    return {
        "statusCode": 200,
        "headers": headers,
        "body": answer.decode(),
        "isBase64Encoded": False,
    }


def __getattr__(name: str) -> Function:
    """Make `handler` when the runtime asks for it in the init phase, not at import. Raise
    AttributeError for any other name."""
    if name != "handler":
        raise AttributeError(name)
    made = globals()["handler"] = make_handler(os.environ)
    return made
