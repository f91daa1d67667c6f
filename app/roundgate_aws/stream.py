"""The gateway as an AWS Lambda function whose responses stream: a loop on Lambda's Runtime API in
place of the Python runtime, which returns a response only when it is complete.

The wrapper script of the package (AWS_LAMBDA_EXEC_WRAPPER) starts this module. The app's lifespan
begins in the init phase, and one event loop serves all invocations:

    GET  invocation/next            wait for an event of a REST API, or of its authorizer
    POST invocation/ID/response     the head as JSON, 8 NUL bytes, and the body as the app sends it
    POST invocation/ID/error        the app failed before its head

If the app fails later, the loop closes the connection of the response. Lambda counts that as an
error of the function (`Runtime.TruncatedResponse`), and the client's stream breaks off.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-custom.html#runtimes-custom-response-streaming
https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode-lambda.html
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from roundgate.starting import kept

with kept():
    import asyncio
    import json
    import logging
    import os
    import signal
    import time
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack, suppress

    import httpcore
    from mangum import Mangum
    from starlette.responses import JSONResponse
    from starlette.types import Message

    from roundgate.errors import Inside
    from roundgate_aws.api_gateway import BAD_REQUEST, Hosted, check, decide, make_hosted

STREAMING: Final = (
    ("Content-Type", "application/vnd.awslambda.http-integration-response"),
    ("Lambda-Runtime-Function-Response-Mode", "streaming"),
)
DELIMITER: Final = bytes(8)
"""The end of the head (API Gateway, "Lambda proxy integration format for response streaming")."""
END_S: Final = 30.0
"""Seconds in which Lambda must read the rest of a complete response, as `http.send_timeout_s`."""

log: Final = logging.getLogger("roundgate.lambda")


class RuntimeApiError(Inside):
    """The Runtime API refused a request."""


class StreamedInvocation(Struct, frozen=True):
    """An event, and the members of Lambda's context object that the app uses."""

    event: Any
    aws_request_id: str
    deadline_ms: int

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until Lambda ends the invocation."""
        return max(0, self.deadline_ms - int(time.time() * 1000))


class RuntimeApiClient:
    """A client of the Runtime API at an address, such as `127.0.0.1:9001`."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/2018-06-01/runtime"
        # each request has its own connection: one that outlived a freeze may be dead
        self._pool = httpcore.AsyncConnectionPool(max_keepalive_connections=0)

    async def next(self) -> StreamedInvocation:
        """Wait for the next event and return its invocation."""
        response = await self.request("GET", "invocation/next")
        headers = {name.decode().lower(): value.decode() for name, value in response.headers}
        os.environ["_X_AMZN_TRACE_ID"] = headers.get("lambda-runtime-trace-id", "")
        return StreamedInvocation(
            json.loads(response.content),
            headers["lambda-runtime-aws-request-id"],
            int(headers["lambda-runtime-deadline-ms"]),
        )

    async def report(self, path: str, error: Exception) -> None:
        """Report the kind of an error. Its text may hold secrets, so only the log has it."""
        kind = type(error).__name__
        content = {"errorType": kind, "errorMessage": "see the log of the function"}
        header = ("Lambda-Runtime-Function-Error-Type", kind)
        await self.request("POST", path, json.dumps(content).encode(), header)

    async def request(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] = b"",
        *headers: tuple[str, str],
    ) -> httpcore.Response:
        """Send a request; a body that is a stream leaves as it is produced. Return the response."""
        url = f"{self._url}/{path}"
        response = await self._pool.request(method, url, headers=[*headers], content=content)
        if response.status >= 300:
            raise RuntimeApiError(f"the Runtime API answered {response.status} to {method} {path}")
        return response


class StreamedResponse:
    """ASGI's `receive` and `send` of one invocation. `send` waits while Lambda reads slowly: one
    chunk may be on its way, and one may wait."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._sending = asyncio.Lock()
        self.body: bytes | None = b""
        """The body of the request, until `receive` has returned it."""
        self.begun = asyncio.Event()
        """Set once the app has sent its head."""
        self.over = asyncio.Event()
        """Set once the response is complete, or Lambda no longer reads it."""

    async def receive(self) -> Message:
        """Return the request, and later `http.disconnect` once the response is over."""
        if (body := self.body) is not None:
            self.body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a part of the response. Drop it if the response is over."""
        async with self._sending:
            if self.over.is_set():
                return
            if message["type"] == "http.response.start":
                await self._chunks.put(head(message["status"], message.get("headers", ())))
                self.begun.set()
                return
            if message.get("body"):
                await self._chunks.put(message["body"])
            if not message.get("more_body", False):
                await self._chunks.put(None)
                self.over.set()

    async def stream(self, api: RuntimeApiClient, path: str) -> None:
        """Send the response to Lambda once it has begun, until it is complete or Lambda hangs up."""
        await self.begun.wait()
        try:
            await api.request("POST", path, self._parts(), *STREAMING)
        except (httpcore.NetworkError, httpcore.ProtocolError):
            pass  # to the app, a client that hung up
        finally:
            self.over.set()
            if self._chunks.full():  # let a waiting `send` go on
                self._chunks.get_nowait()

    async def _parts(self) -> AsyncIterator[bytes]:
        while (chunk := await self._chunks.get()) is not None:
            yield chunk


def head(status: int, headers: Iterable[Sequence[bytes]]) -> bytes:
    """Return the head of a response as the first bytes of the stream:

    {"statusCode": 200, "headers": {"content-type": "text/event-stream"}, "cookies": []}
    """
    joined: dict[str, str] = {}
    cookies = []
    for name_bytes, value_bytes in headers:
        name, value = name_bytes.decode("latin-1").lower(), value_bytes.decode("latin-1")
        if name == "set-cookie":
            cookies.append(value)
        else:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    metadata = {"statusCode": status, "headers": joined, "cookies": cookies}
    return json.dumps(metadata).encode() + DELIMITER


async def run(
    app: Hosted, adapter: Mangum, invocation: StreamedInvocation, response: StreamedResponse
) -> None:
    """Run the app for an event. Raise RuntimeError if it ends before its response."""
    try:
        handler = adapter.infer(invocation.event, invocation)  # type: ignore[arg-type]
        scope, response.body = handler.scope, handler.body
    except ValueError:  # Mangum cannot read the head
        refusal = JSONResponse(BAD_REQUEST, 400)
        await refusal({"type": "http"}, response.receive, response.send)
    else:
        await app(scope, response.receive, response.send)
    if not response.over.is_set():
        raise RuntimeError("the app ended before its response")


async def respond(
    api: RuntimeApiClient, app: Hosted, adapter: Mangum, invocation: StreamedInvocation
) -> None:
    """Answer an event: as the API's authorizer, or with the streamed response of the app."""
    path = f"invocation/{invocation.aws_request_id}"
    response = StreamedResponse()
    try:
        check(invocation.event)
        if invocation.event.get("type") == "REQUEST":
            decision = await decide(app.app, invocation.event)
            await api.request("POST", f"{path}/response", json.dumps(decision).encode())
            return
        running = asyncio.create_task(run(app, adapter, invocation, response))
        streaming = asyncio.create_task(response.stream(api, f"{path}/response"))
        try:
            await asyncio.wait([running])
            if response.over.is_set():
                await asyncio.wait([streaming], timeout=END_S)
        finally:
            running.cancel()
            streaming.cancel()  # closes the connection of an incomplete response
            await asyncio.wait([running, streaming])
        if running.cancelled():
            raise RuntimeError("the app cancelled its own task")
        running.result()
        if not streaming.cancelled():
            streaming.result()
    except Exception as error:
        log.error("the function failed", exc_info=error)
        if not response.begun.is_set():
            await api.report(f"{path}/error", error)


async def serve(address: str, app: Hosted) -> None:
    """Serve invocations, one after another, until cancelled."""
    api, adapter = RuntimeApiClient(address), Mangum(app, lifespan="off")
    while True:
        await respond(api, app, adapter, await api.next())


async def start(environ: Mapping[str, str]) -> None:
    """Start the app that an environment describes, and serve.

    Raises:
        Exception: the app cannot start. Lambda gets the kind of the error, and the log its text.
    """
    address = environ["AWS_LAMBDA_RUNTIME_API"]
    async with AsyncExitStack() as stack:
        try:
            hosted = make_hosted(environ)
            await stack.enter_async_context(hosted.app.router.lifespan_context(hosted.app))
        except Exception as error:
            await RuntimeApiClient(address).report("init/error", error)
            raise
        await serve(address, hosted)


async def main() -> None:
    """Run until SIGTERM, which ends the lifespan and the process."""
    running = asyncio.create_task(start(os.environ))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
