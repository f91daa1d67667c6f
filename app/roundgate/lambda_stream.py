"""The gateway as an AWS Lambda function whose responses stream: a loop on Lambda's Runtime API in
place of the Python runtime, which returns a response only when it is complete.

The wrapper script of the package (AWS_LAMBDA_EXEC_WRAPPER) starts this module. The app's lifespan
begins in the init phase, and one event loop serves all invocations:

    GET  invocation/next            wait for an event of a REST API, or of its authorizer
    POST invocation/ID/response     the head as JSON, 8 NUL bytes, and the body as the app sends it
    POST invocation/ID/error        the app failed before its head; later, trailers of the response

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-custom.html#runtimes-custom-response-streaming
https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode-lambda.html
"""

from __future__ import annotations

from typing import Any, Final

from roundgate.garbage import kept

with kept():
    import asyncio
    import base64
    import json
    import logging
    import os
    import signal
    import time
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack, suppress
    from dataclasses import dataclass
    from typing import TypeAlias

    import h11
    from fastapi import FastAPI
    from mangum import Mangum
    from starlette.types import Message, Scope

    from roundgate.auth import Verifier
    from roundgate.errors import AuthError, GatewayError, Inside
    from roundgate.lambda_http import Hosted, bad_request, check, make_hosted

Fields: TypeAlias = Sequence[tuple[str, str]]

VERSION: Final = "/2018-06-01/runtime"
ERROR_TYPE: Final = "Lambda-Runtime-Function-Error-Type"
ERROR_BODY: Final = "Lambda-Runtime-Function-Error-Body"
STREAMING: Final[Fields] = (
    ("Content-Type", "application/vnd.awslambda.http-integration-response"),
    ("Lambda-Runtime-Function-Response-Mode", "streaming"),
    ("Transfer-Encoding", "chunked"),
    ("Trailer", f"{ERROR_TYPE}, {ERROR_BODY}"),
)
DELIMITER: Final = bytes(8)
"""The end of the head (API Gateway, "Lambda proxy integration format for response streaming")."""
READ_BYTES: Final = 65_536
END_S: Final = 2.0
"""Seconds for ending a failed response, whose receiver may have stopped reading."""

log: Final = logging.getLogger("roundgate.lambda")


class RuntimeApiError(Inside):
    """The Runtime API refused a request. The process ends, and Lambda starts another one."""


class Exchange:
    """One request to the Runtime API, on a connection of its own: a connection that outlived a
    freeze may be dead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    async def begin(
        cls, address: str, method: str, path: str, headers: Iterable[tuple[str, str]] = ()
    ) -> Exchange:
        """Send the head of a request. Raise OSError if the Runtime API is unreachable."""
        host, _, port = address.rpartition(":")
        exchange = cls(*await asyncio.open_connection(host, int(port)))
        target = f"{VERSION}/{path}"
        await exchange._write(
            h11.Request(method=method, target=target, headers=[("Host", address), *headers])
        )
        return exchange

    async def send(self, data: bytes) -> None:
        """Send a part of the body. Raise OSError if the Runtime API has closed the connection."""
        await self._write(h11.Data(data=data))

    async def end(self, trailers: Fields = ()) -> tuple[dict[str, str], bytes]:
        """End the request; return the headers and the body of the response.

        Raises:
            OSError: the connection has ended.
            RuntimeApiError: the response has an error status.
        """
        try:
            await self._write(h11.EndOfMessage(headers=[*trailers]))
            head = await self._event()
            body = b""
            while isinstance(part := await self._event(), h11.Data):
                body += part.data
        except h11.RemoteProtocolError as error:
            raise ConnectionResetError(str(error)) from error
        finally:
            self.close()
        if not isinstance(head, h11.Response) or head.status_code >= 300:
            raise RuntimeApiError(f"the Runtime API answered {head!r:.200}")
        return {name.decode(): value.decode() for name, value in head.headers}, body

    def close(self) -> None:
        """Close the connection at once; a request that has not ended is broken off."""
        self._writer.transport.abort()

    async def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event


@dataclass(frozen=True, slots=True)
class Invocation:
    """An event, and the members of Lambda's context object that the app uses."""

    event: Any
    aws_request_id: str
    deadline_ms: int

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until Lambda ends the invocation."""
        return max(0, self.deadline_ms - int(time.time() * 1000))


class Answer:
    """ASGI's `receive` and `send` of one invocation. A chunk has left when `send` returns."""

    def __init__(self, api: str, invocation_id: str) -> None:
        self._api = api
        self._path = f"invocation/{invocation_id}"
        self._exchange: Exchange | None = None
        self._left = asyncio.Event()
        self.body: bytes | None = b""
        """The body of the request, until `receive` has returned it."""
        self.is_complete = False

    async def receive(self) -> Message:
        """Return the request, and later `http.disconnect` once the response is complete or cannot be
        sent."""
        if (body := self.body) is not None:
            self.body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a part of the response. If Lambda no longer takes it, drop it: the app reads that as
        a client that hung up."""
        if self.is_complete:
            return
        try:
            await self._send(message)
        except OSError:
            self.is_complete = True
            if self._exchange is not None:
                self._exchange.close()
        finally:
            if self.is_complete:
                self._left.set()

    async def _send(self, message: Message) -> None:
        if self._exchange is None:
            path = f"{self._path}/response"
            self._exchange = await Exchange.begin(self._api, "POST", path, STREAMING)
            await self._exchange.send(head(message["status"], message.get("headers", ())))
            return
        if message.get("body"):
            await self._exchange.send(message["body"])
        if not message.get("more_body", False):
            self.is_complete = True
            await self._exchange.end()

    async def whole(self, value: Any) -> None:
        """Send a JSON value as the response, unstreamed."""
        self.is_complete = True
        await post(self._api, f"{self._path}/response", (), json.dumps(value).encode())

    async def fail(self, kind: str) -> None:
        """Report that the app failed, by the kind of its error: the client gets a 502, or a stream
        that breaks off."""
        if self.is_complete:
            return
        self.is_complete = True
        if self._exchange is None:
            await report(self._api, f"{self._path}/error", kind)
            return
        details = base64.b64encode(described(kind)).decode()
        with suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(END_S):
                await self._exchange.end(((ERROR_TYPE, kind), (ERROR_BODY, details)))


def head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
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


def described(kind: str) -> bytes:
    """Return an error as Lambda takes it. Its text may hold secrets, so only the log has it."""
    return json.dumps({"errorType": kind, "errorMessage": "see the log of the function"}).encode()


async def report(api: str, path: str, kind: str) -> None:
    """Report an error of the function to the Runtime API."""
    await post(api, path, ((ERROR_TYPE, kind),), described(kind))


async def post(api: str, path: str, headers: Fields, body: bytes) -> None:
    """Send a request with a body of known length."""
    fields = (*headers, ("Content-Length", str(len(body))))
    exchange = await Exchange.begin(api, "POST", path, fields)
    await exchange.send(body)
    await exchange.end()


async def next_invocation(api: str) -> Invocation:
    """Wait for the next event and return its invocation."""
    headers, event = await (await Exchange.begin(api, "GET", "invocation/next")).end()
    os.environ["_X_AMZN_TRACE_ID"] = headers.get("lambda-runtime-trace-id", "")
    return Invocation(
        json.loads(event),
        headers["lambda-runtime-aws-request-id"],
        int(headers["lambda-runtime-deadline-ms"]),
    )


async def decide(app: FastAPI, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether API Gateway lets a token pass, as the policy of a Lambda authorizer. API
    Gateway refuses with the challenge of the template, because it renames the challenge of a
    function. The gateway verifies each request itself, for its endpoint and its scopes.
    """
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    authorization = str(headers.get("authorization", "")).encode("utf-8", "replace")
    verifiers = app.state.verifiers.values()
    effect = "Allow" if await _is_accepted(authorization, verifiers) else "Deny"
    api, stage, *_ = event["methodArn"].split("/")
    statement = {
        "Action": "execute-api:Invoke",
        "Effect": effect,
        "Resource": f"{api}/{stage}/*",  # API Gateway keeps the policy for the token at all paths
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    return {"principalId": "caller", "policyDocument": policy}


async def _is_accepted(authorization: bytes, verifiers: Iterable[Verifier]) -> bool:
    """Return False if no endpoint takes the token. If that is unknown, the gateway answers."""
    for verifier in verifiers:
        try:
            await verifier.principal(authorization, None)
        except AuthError as error:
            if error.status != 401:
                return True
        except GatewayError:  # the keys of the issuer are unavailable
            return True
        else:
            return True
    return False


async def respond(api: str, app: Hosted, adapter: Mangum, invocation: Invocation) -> None:
    """Run the app for an event, and stream its response."""
    answer = Answer(api, invocation.aws_request_id)
    try:
        check(invocation.event)
        if invocation.event.get("type") == "REQUEST":
            await answer.whole(await decide(app.app, invocation.event))
            return
        try:
            scope, answer.body = _request(adapter, invocation)
        except ValueError:  # Mangum cannot read the head
            await _send_whole(answer, bad_request())
        else:
            await app(scope, answer.receive, answer.send)
        if not answer.is_complete:
            raise RuntimeError("the app ended before its response")
    except BaseException as error:
        log.error("the function failed", exc_info=error)
        await answer.fail(type(error).__name__)
        if not isinstance(error, Exception):
            raise


def _request(adapter: Mangum, invocation: Invocation) -> tuple[Scope, bytes]:
    """Return an event as ASGI's scope and body; raise ValueError if its head is malformed."""
    handler = adapter.infer(invocation.event, invocation)  # type: ignore[arg-type]
    return handler.scope, handler.body


async def _send_whole(answer: Answer, response: Mapping[str, Any]) -> None:
    headers = [(name.encode(), value.encode()) for name, value in response["headers"].items()]
    status, body = response["statusCode"], response["body"].encode()
    await answer.send({"type": "http.response.start", "status": status, "headers": headers})
    await answer.send({"type": "http.response.body", "body": body})


async def serve(api: str, app: Hosted) -> None:
    """Serve invocations, one after another, until cancelled."""
    adapter = Mangum(app, lifespan="off")
    while True:
        await respond(api, app, adapter, await next_invocation(api))


async def run(environ: Mapping[str, str]) -> None:
    """Start the app that an environment describes, and serve.

    Raises:
        Exception: the app cannot start. Lambda gets the kind of the error, and the log its text.
    """
    api = environ["AWS_LAMBDA_RUNTIME_API"]
    async with AsyncExitStack() as stack:
        try:
            hosted = make_hosted(environ)
            await stack.enter_async_context(hosted.app.router.lifespan_context(hosted.app))
        except Exception as error:
            await report(api, "init/error", type(error).__name__)
            raise
        await serve(api, hosted)


async def main() -> None:
    """Run until SIGTERM, which ends the lifespan and the process."""
    running = asyncio.create_task(run(os.environ))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
