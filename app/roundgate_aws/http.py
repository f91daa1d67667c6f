"""The gateway as an AWS Lambda function: Mangum turns each event of API Gateway (payloads 1.0 and
2.0) or of a Function URL into a request to the app of `roundgate.main`.

The app is built in the init phase. Lifespan is off: Mangum would start and stop the app with every
event. Responses do not stream: a `text/event-stream` body is returned once it is complete;
`roundgate_aws.stream` streams. The process is frozen after each response, so tasks run in the
worker function (`roundgate_aws.worker`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from roundgate.starting import kept

with kept():
    import asyncio
    import base64
    import os
    from collections.abc import Mapping

    from mangum import Mangum

    from roundgate import json
    from roundgate.clock import seed_after_restore
    from roundgate.protocol import Request, jsonrpc
    from roundgate_aws.api_gateway import BAD_REQUEST, Event, Hosted, check, make_hosted

if TYPE_CHECKING:
    from mangum.types import LambdaContext

Response: TypeAlias = dict[str, Any]

MAX_ANSWER_BYTES: Final = 6 * 1024 * 1024
"""The limit on a response encoded as JSON, in which each quotation mark of the body takes two
bytes."""
ENVELOPE_BYTES: Final = 20_000
"""An upper bound for the rest of a response; API Gateway accepts 10,240 bytes of headers."""


def make_handler(environ: Mapping[str, str]) -> HttpFunction:
    """Return the handler that an environment describes.

    Raises:
        ConfigError: lists every problem in the environment or in gateway.yaml. Lambda logs it.
    """
    return HttpFunction(make_hosted(environ, is_buffered=True))


class HttpFunction:
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
            return _answer(400, json.encode(BAD_REQUEST))
        return _fitting(event, response)

    def close(self) -> None:
        """Close the event loop. AWS Lambda never calls this; tests do."""
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            asyncio.set_event_loop(None)


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
    data = (
        base64.b64decode(body) if event.get("isBase64Encoded") else body.encode("utf-8", "replace")
    )
    request = jsonrpc.message_from_json(json.decode(data))
    request_id = request.id if isinstance(request, Request) else None
    message = (
        f"The call succeeded, but its response has {size} bytes as JSON in JSON, and AWS Lambda"
        f" returns at most {MAX_ANSWER_BYTES}; request less data per call"
    )
    return _answer(200, jsonrpc.error_response(request_id, -32603, message))


def _answer(status: int, body: bytes) -> Response:
    headers = {"content-type": "application/json"}
    text = body.decode()
    return {"statusCode": status, "headers": headers, "body": text, "isBase64Encoded": False}


def __getattr__(name: str) -> HttpFunction:
    """Make `handler` when the runtime asks for it in the init phase, not at import. Raise
    AttributeError for any other name."""
    if name != "handler":
        raise AttributeError(name)
    made = globals()["handler"] = make_handler(os.environ)
    return made
