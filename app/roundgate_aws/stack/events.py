"""The event sources that invoke the functions: API Gateway, the queue's event source mapping, the
schedule.

API Gateway is an HTTP API with payload format 2.0. It changes requests and responses as AWS does:
header names become lower case, repeated headers are joined; `Transfer-Encoding` and similar headers
are removed; `WWW-Authenticate` of a response becomes `x-amzn-Remapped-WWW-Authenticate`. Its own
responses are 431 above 10 KB of headers, 413 above 10 MB of body or 6 MB of event, 503 after 30 s
(the function continues) or if the function is throttled, and 500 if the function fails or returns
more than 6 MB of JSON.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from roundgate_aws.stack.functions import EnvironmentPool, PayloadTooLarge, Throttled
from roundgate_aws.stack.runtime_api import InvocationFailed

INTEGRATION_S: Final = 30
MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
MAX_HEADER_BYTES: Final = 10_240
"""The limit on the path and all header values, in bytes."""
NOT_PASSED: Final = {
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
DEFAULT: Final = "$default"
"""The route of requests that no other route matches."""
REMAPPED: Final = {"www-authenticate": "x-amzn-remapped-www-authenticate"}


class Front:
    """An HTTP API: the template's routes to one function."""

    def __init__(
        self,
        pool: EnvironmentPool,
        routes: Iterable[tuple[str, str]],
        stage: str,
        *,
        integration_s: float = INTEGRATION_S,
    ) -> None:
        self._pool = pool
        self._integration_s = integration_s
        ordered = sorted(routes, key=lambda route: generality(*route))
        self._routes = [(method, path.split("/")) for method, path in ordered]
        self._stage = stage
        self.counts: Counter[str] = Counter()
        """The number of requests, and of answers with a 5xx status."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            self.counts["Count"] += 1
            self.counts["5xx"] += response.status_code >= 500
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        route = self._route(request.method, request.url.path)
        if route is None:
            return _message(404, "Not Found")
        if len(request.url.path) + sum(map(len, request.headers.values())) > MAX_HEADER_BYTES:
            return _message(431, "Request Header Fields Too Large")
        body = await request.body()
        if len(body) > MAX_REQUEST_BYTES:
            return _message(413, "Request Entity Too Large")
        event = self._event(request, route, body)
        try:
            async with asyncio.timeout(self._integration_s):
                answer = await self._pool.invoke(event)
        except (TimeoutError, Throttled):
            return _message(503, "Service Unavailable")
        except PayloadTooLarge:
            return _message(413, "Request Entity Too Large")
        except InvocationFailed:
            return _message(500, "Internal Server Error")
        return _response(answer)

    def _route(self, method: str, path: str) -> str | None:
        for allowed, pattern in self._routes:
            if allowed == DEFAULT:
                return DEFAULT
            if allowed in ("ANY", method) and matches(pattern, path.split("/")):
                return f"{allowed} {'/'.join(pattern)}"
        return None

    def _event(self, request: Request, route: str, body: bytes) -> dict[str, Any]:
        path = (
            request.url.path if self._stage == "$default" else f"/{self._stage}{request.url.path}"
        )
        text, is_base64 = as_text(body)
        source = request.client.host if request.client else "127.0.0.1"
        return {
            "version": "2.0",
            "routeKey": route,
            "rawPath": path,
            "rawQueryString": request.url.query,
            "headers": _headers(request.headers.items())
            | {"x-forwarded-for": source, "x-forwarded-proto": "http"},
            "requestContext": {
                "accountId": "123456789012",
                "apiId": "local",
                "domainName": request.url.netloc,
                "http": {
                    "method": request.method,
                    "path": path,
                    "protocol": "HTTP/1.1",
                    "sourceIp": source,
                    "userAgent": request.headers.get("user-agent", ""),
                },
                "requestId": str(uuid.uuid4()),
                "routeKey": route,
                "stage": self._stage,
                "timeEpoch": int(time.time() * 1000),
            },
            **({"body": text} if body else {}),
            "isBase64Encoded": is_base64,
        }


def generality(method: str, path: str) -> tuple[bool | int, ...]:
    """Return a key that sorts routes in API Gateway's order: exact paths, then paths with variables
    from the longest, then greedy paths, then the default."""
    return method == DEFAULT, path.endswith("+}"), "{" in path, -path.count("/"), method == "ANY"


def matches(pattern: list[str], path: list[str]) -> bool:
    for place, part in enumerate(pattern):
        if part.endswith("+}"):
            return len(path) > place
        if place >= len(path) or (part != path[place] and not part.startswith("{")):
            return False
    return len(pattern) == len(path)


def _headers(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in items:
        key = name.lower()
        if key not in NOT_PASSED:
            joined[key] = f"{joined[key]},{value}" if key in joined else value
    return joined


def as_text(body: bytes) -> tuple[str, bool]:
    """Return the body of an event, and whether it is in base64 because it is not UTF-8."""
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True


def _message(status: int, text: str) -> Response:
    return JSONResponse({"message": text}, status)


def _response(answer: Mapping[str, Any]) -> Response:
    text = answer.get("body") or ""
    body = base64.b64decode(text) if answer.get("isBase64Encoded") else text.encode()
    headers = {
        REMAPPED.get(name.lower(), name): value
        for name, value in (answer.get("headers") or {}).items()
    }
    passed = {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED}
    return Response(body, answer["statusCode"], passed)


Invoke: TypeAlias = Callable[..., Awaitable[Any]]
"""Invokes a function with an event. Raises InvocationFailed."""

THROTTLED_S = 1.0
"""The pause in seconds of the event source after a throttled invocation."""


@dataclass
class Poller:
    """The event source mapping: passes batches of the queue to the function, and deletes the
    messages that the function does not report as failed.

    SQS delivers the other messages again after the queue's visibility timeout, and moves them to
    the dead-letter queue after `maxReceiveCount` of its redrive policy. The same applies if the
    function died.
    """

    sqs: Any
    url: str
    invoke: Invoke
    batch_size: int
    concurrency: int
    arn: str
    reports_failures: bool = True
    """Whether the mapping has ReportBatchItemFailures; without it, results are ignored."""
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Run all pollers until cancelled."""
        await asyncio.gather(*(self._poll() for _ in range(self.concurrency)))

    async def _poll(self) -> None:
        while True:
            answer = await asyncio.to_thread(
                self.sqs.receive_message,
                QueueUrl=self.url,
                MaxNumberOfMessages=self.batch_size,
                WaitTimeSeconds=1,
                AttributeNames=["All"],
            )
            if messages := answer.get("Messages"):
                await self._deliver(messages)

    async def _invoked(self, messages: list[Any]) -> Any:
        """Return the function's result; retry while it is throttled."""
        event = {"Records": [self._record(message) for message in messages]}
        while True:
            try:
                return await self.invoke(event)
            except Throttled:
                self.counts["throttled"] += 1
                await asyncio.sleep(THROTTLED_S)

    async def _deliver(self, messages: list[Any]) -> None:
        self.counts["messages"] += len(messages)
        try:
            answer = await self._invoked(messages)
        except InvocationFailed:
            self.counts["failed invocations"] += 1
            return
        batch = {message["MessageId"] for message in messages}
        failed = failures(answer, batch) if self.reports_failures else set()
        self.counts["failed messages"] += len(failed)
        done = [message for message in messages if message["MessageId"] not in failed]
        if done:
            entries = [
                {"Id": str(n), "ReceiptHandle": entry["ReceiptHandle"]}
                for n, entry in enumerate(done)
            ]
            await asyncio.to_thread(
                self.sqs.delete_message_batch, QueueUrl=self.url, Entries=entries
            )

    def _record(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {},
            "md5OfBody": hashlib.md5(message["Body"].encode(), usedforsecurity=False).hexdigest(),
            "eventSource": "aws:sqs",
            "eventSourceARN": self.arn,
            "awsRegion": "eu-central-1",
        }


def failures(answer: Any, batch: Set[Any]) -> Set[Any]:
    """Return the ids of failed messages in the result of a function with ReportBatchItemFailures.

    No result means that no message failed. A malformed result means that all messages failed.
    """
    reported = answer.get("batchItemFailures") if isinstance(answer, dict) else None
    if answer is None or (isinstance(answer, dict) and reported is None):
        return set()
    if not isinstance(reported, list):
        return batch
    ids = [
        failure.get("itemIdentifier") if isinstance(failure, dict) else None for failure in reported
    ]
    return (
        set(ids) if all(isinstance(failure, str) and failure in batch for failure in ids) else batch
    )


@dataclass
class Schedule:
    """A schedule rule with a fixed rate and a constant input."""

    invoke: Invoke
    every_s: float
    event: Any

    async def run(self) -> None:
        """Call `invoke` every `every_s` seconds until cancelled, even after a failed invocation."""
        while True:
            await asyncio.sleep(self.every_s)
            try:
                await self.invoke(self.event)
            except InvocationFailed:
                continue
