"""Path operations beside the MCP endpoints: health and readiness for probes, metadata for OAuth
clients, and events for tasks.

`/healthz` answers while the event loop runs, so a failure means that the process must be restarted.
`/readyz` also fails for reasons that a restart does not remove:

    draining              SIGTERM has come; the process stops within `GATEWAY_DRAIN_S` seconds
    audit log unwritable  calls are refused (`audit.on_failure: refuse`)
    keys never read       the issuer's keys could not be read, so every caller gets 503
    store unreachable     the store did not answer within `CHECK_S` seconds
                          (`http.ready_needs_store`)

All replicas share the store, so by default its outage takes none out: calls that need no store go
on. Nothing listens before the back ends are loaded, so a probe of a starting process fails to
connect.

`/docs` lists them if `http.docs` is on.

`POST /events/{token}` delivers an external event of a service to the task that waits for it. The
token alone authenticates a delivery, and is valid for one payload. The rate and the size of requests
are bounded before a token is opened, and a token is opened before anything is read from the store. A
service that repeats a request, because the answer was lost, gets 200 in place of 202:

    202  accepted                     400  the body is not JSON          415  another media type
    200  the same was accepted before 404  no such event, or a forgery   429  too many requests
    409  another was accepted before  410  closed: too late, task over   503  try again

Neither tokens nor payloads reach the log.

`/sse` belonged to the transport of 2024-11-05. Its clients open a stream, read the address for posts
from it, post `initialize`, and wait for the response on the stream. They show the status of an error
response, but not its text. So the gateway opens the stream and sends an error with a text, under the
first ids of the official SDKs. The replica that gets the post does not know the stream, and clients
drop a response that precedes its request. So the error is sent after a pause, and repeated.

    GET  /sse            event: endpoint, message (1 s), message (2 s), message (4 s), end
    POST /sse?from=sse   202: the stream gave the client this address
    POST /sse            400 with the text, under the id of the request
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, StreamingResponse

from roundgate.clock import Clock
from roundgate.errors import GatewayError, ParseError, TransportError, Unavailable
from roundgate.http import bodies
from roundgate.http.bodies import SMALL, BodyBudget, read_body
from roundgate.http.exchange import exchange_of, sse_event
from roundgate.http.protected import ProtectedResource, ResourceMetadata
from roundgate.protocol import jsonrpc
from roundgate.storage import SessionStore
from roundgate.tasks.events import Delivered
from roundgate.tasks.external import EVENTS_PATH, Deliveries, Receipt, decode_payload
from roundgate.tokens import EventTokens

if TYPE_CHECKING:  # loaded only if tokens are verified
    from roundgate.auth.jwks import KeySet


CHECK_S: Final = 3.0
"""Seconds in which the store must answer. Probes should wait longer, such as 5 s."""
KEPT_S: Final = 1.0
"""Seconds for which an answer of the store counts, so that anonymous probes cause at most one read
a second."""
KEY: Final = "readyz"
"""The key that is read. No row has it."""


class ReadinessStatus(StrEnum):
    """The reason why a process should get no requests, or `READY`."""

    READY = "ready"
    DRAINING = "draining"
    AUDIT_UNWRITABLE = "audit log unwritable"
    KEYS_UNREAD = "keys never read"
    STORE_UNREACHABLE = "store unreachable"


class Readiness:
    """The readiness of this process.

    Args:
        sessions: the store to read from; `None` if its outage does not count.
        refuses: returns whether calls are refused because the audit log cannot be written.
        keys: the keys of the issuer; `None` if no token is verified.
    """

    def __init__(
        self,
        sessions: SessionStore | None,
        refuses: Callable[[], bool],
        keys: KeySet | None = None,
    ) -> None:
        self.is_draining = False
        """Whether the process has received SIGTERM and will stop soon."""
        self._sessions = sessions
        self._refuses = refuses
        self._keys = keys
        self._lock = asyncio.Lock()
        self._is_reachable = False
        self._checked_s: float | None = None
        """The time of the last answer of the store on the event loop's clock."""

    async def status(self) -> ReadinessStatus:
        """Return the current status; read from the store unless it answered within `KEPT_S`."""
        if self.is_draining:
            return ReadinessStatus.DRAINING
        if self._refuses():
            return ReadinessStatus.AUDIT_UNWRITABLE
        if self._keys is not None and not await self._keys.are_read():
            return ReadinessStatus.KEYS_UNREAD
        if self._sessions is None:
            return ReadinessStatus.READY
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._checked_s is None or now_s - self._checked_s >= KEPT_S:
                self._is_reachable = await _reach(self._sessions)
                self._checked_s = asyncio.get_running_loop().time()
            return (
                ReadinessStatus.READY if self._is_reachable else ReadinessStatus.STORE_UNREACHABLE
            )


async def _reach(sessions: SessionStore) -> bool:
    try:
        async with asyncio.timeout(CHECK_S):
            await sessions.read(KEY)
    except (Unavailable, TimeoutError):
        return False
    return True


HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
METRICS: Final = "/metrics"
OLD_TRANSPORT: Final = "/sse"
METADATA_MAX_AGE_S: Final = 300
"""Seconds for which clients may cache the metadata of a protected resource."""
PAUSES_S: Final[Sequence[float]] = (1.0, 1.0, 2.0)
"""Seconds before each of the errors on a stream of `/sse`."""
MAX_OPEN: Final = 100
"""The limit on open streams of `/sse` in one process; further clients get the error as JSON."""
_FIRST_IDS: Final = (0, 1)
_FROM_STREAM: Final = "from=sse"


class Upstream(BaseModel):
    """The status of a server behind the gateway."""

    name: str = Field(description="The name of its back end.")
    status: Literal["up", "down"] = Field(
        description="Whether the last request for its lists succeeded."
    )
    revision: str | None = Field(None, description="The revision of its protocol.")
    software: str | None = Field(None, description="Its own name and version.")
    tools: int = Field(description="The number of its tools that can be served.")
    prompts: int = Field(0, description="The number of its prompts that are served.")
    resources: int = Field(
        0, description="The number of its resources and templates that are served."
    )
    left_out: dict[str, str] | None = Field(
        None,
        description="Tools, prompts, resources and whole lists that are not served, with the reason.",
    )
    changed: list[str] | None = Field(
        None, description="Names of definitions that differ from the lock file."
    )
    skipped: int | None = Field(
        None,
        description="Lines of its standard output, and events, that are no messages and were skipped.",
    )


class Health(BaseModel):
    """The status of a gateway that serves requests. Only operators get more than `status`."""

    status: Literal["ok", "degraded"]
    name: str | None = Field(None, description="`server.name` of gateway.yaml.")
    version: str | None = Field(None, description="`server.version` of gateway.yaml.")
    store: str | None = Field(
        None, description="The id of the SQLite file or PostgreSQL database, once it is open."
    )
    keys: list[str] | None = Field(
        None, description="The ids of the state keys; the first one seals."
    )
    missing: list[str] | None = Field(
        None, description="Back ends that are configured and could not be loaded."
    )
    upstreams: list[Upstream] | None = Field(
        None, description="The MCP servers behind the gateway."
    )
    troubles: list[str] | None = Field(
        None, description="Problems for the operator, such as a deleted store or a wrong clock."
    )


class Ready(BaseModel):
    """Whether a load balancer should send requests to this process."""

    status: ReadinessStatus = Field(description="`ready`, or the reason for the status 503.")


@dataclass(frozen=True, slots=True)
class Operations:
    """The parts of one app that its path operations use, in `app.state.operations`.

    `PROBES` and `EVENTS` serve all apps of a process, because FastAPI takes milliseconds for each
    route.
    """

    health: Callable[[], Health]
    """Returns the current status of the gateway."""
    readiness: Callable[[], Awaitable[ReadinessStatus]]
    """Returns whether the gateway should get requests."""
    deliveries: Deliveries
    """The recipient of the payloads of events."""
    event_tokens: Callable[[], EventTokens]
    """Returns the sealer of the tokens of events."""
    rate: Rate
    """The limit on the rate of events."""
    budget: BodyBudget
    """The limit on all bodies that are read at once."""
    max_event_bytes: int
    """The limit on a payload, in bytes (`tasks.max_event_bytes`)."""


def _operations(request: Request) -> Operations:
    operations: Operations = request.app.state.operations
    return operations


def _add_document(
    router: APIRouter,
    path: str,
    answer: Callable[..., Any],
    summary: str,
    failures: dict[int | str, dict[str, Any]] | None = None,
) -> None:
    """Serve a document to GET and HEAD. The OpenAPI document omits HEAD."""
    for method in ("GET", "HEAD"):
        router.add_api_route(
            path,
            answer,
            methods=[method],
            summary=summary,
            responses=failures,
            include_in_schema=method == "GET",
            response_model_exclude_none=True,
        )


async def healthz(request: Request) -> Health:
    """Report to a probe that the gateway serves requests, and to an operator how."""
    whole = _operations(request).health()
    return whole if exchange_of(request.scope).operates else Health(status=whole.status)


async def readyz(request: Request, response: Response) -> Ready:
    """Report to a load balancer whether to send requests here; 503 if not."""
    status = await _operations(request).readiness()
    if status is not ReadinessStatus.READY:
        response.status_code = 503
    response.headers["cache-control"] = "no-store"
    return Ready(status=status)


PROBES: Final = APIRouter(tags=["operations"])
"""The routes for probes, of every app."""
_add_document(PROBES, HEALTH, healthz, "Health")
_add_document(PROBES, READINESS, readyz, "Readiness", {503: {"model": Ready}})


def make_router(
    resources: Iterable[ProtectedResource], endpoint: str, *, streams: bool
) -> APIRouter:
    """Return the routes for clients, which differ between gateways.

    Args:
        resources: the MCP endpoints as OAuth resources; empty without authentication.
        endpoint: the path of the default MCP endpoint, for error messages.
        streams: whether a response can be streamed.
    """
    router = APIRouter(tags=["operations"])
    for resource in resources:
        for path in resource.metadata_paths:
            _add_document(
                router,
                path,
                _make_metadata_route(resource),
                "Protected resource metadata (RFC 9728)",
            )
    router.add_route(
        OLD_TRANSPORT,
        _old_transport(endpoint, streams=streams),
        methods=["GET", "POST"],
        include_in_schema=False,
    )
    return router


def make_metrics_router(render: Callable[[str], tuple[bytes, str]]) -> APIRouter:
    """Return the route of `/metrics`, which only operators may read.

    Args:
        render: a function that returns the metrics and their media type, for a value of the Accept
            header.
    """
    router = APIRouter(tags=["operations"])

    @router.get(METRICS, summary="Metrics for Prometheus", response_class=Response)
    def metrics(request: Request) -> Response:
        """Report the metrics of this process in Prometheus' text format."""
        body, media_type = render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    return router


def _make_metadata_route(
    resource: ProtectedResource,
) -> Callable[[Response], Coroutine[Any, Any, ResourceMetadata]]:
    async def metadata(response: Response) -> ResourceMetadata:
        """Describe the MCP endpoint to OAuth clients."""
        response.headers["cache-control"] = f"max-age={METADATA_MAX_AGE_S}"
        return resource.metadata()

    return metadata


def nothing_at(endpoint: str) -> JSONResponse:
    """Return the 404 response for a path without content, or without content for this caller."""
    return JSONResponse(
        {"error": f"There is nothing here; the MCP endpoint is POST {endpoint}"}, status_code=404
    )


def not_found_handler(
    endpoint: str,
) -> Callable[[Request, Exception], Coroutine[Any, Any, Response]]:
    """Return the exception handler for paths without a route."""

    async def not_found(request: Request, error: Exception) -> Response:
        return nothing_at(endpoint)

    return not_found


def _old_transport(
    endpoint: str, *, streams: bool
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    refusal = TransportError(
        400,
        "This server does not speak the HTTP+SSE transport of 2024-11-05: use Streamable HTTP at "
        f'{endpoint} in place of /sse; in the settings of clients that is the type "http", not "sse"',
    )
    open_streams = 0

    async def events() -> AsyncIterator[bytes]:
        nonlocal open_streams
        open_streams += 1
        try:
            yield f"event: endpoint\r\ndata: {OLD_TRANSPORT}?{_FROM_STREAM}\r\n\r\n".encode()
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                for first_id in _FIRST_IDS:
                    yield sse_event(jsonrpc.error_response(first_id, -32600, str(refusal)))
        finally:
            open_streams -= 1

    async def answer(request: Request) -> Response:
        wants_stream = "text/event-stream" in request.headers.get("accept", "")
        if request.method == "GET" and wants_stream and streams and open_streams < MAX_OPEN:
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return StreamingResponse(events(), media_type="text/event-stream", headers=headers)
        if request.method == "POST" and request.url.query == _FROM_STREAM:
            return Response(status_code=202)
        exchange = exchange_of(request.scope)
        exchange.is_read = True
        exchange.request_id = await bodies.read_id(
            request.method, exchange.headers, request.receive
        )
        raise TransportError(refusal.status, str(refusal))

    return answer


RETRY_AFTER_S: Final = 5
"""Seconds after which a service may repeat a temporarily refused request."""

log = logging.getLogger("roundgate.events")


class Accepted(BaseModel):
    """The answer to a delivery that was accepted, now or before."""

    status: Literal["accepted", "repeated"] = Field(
        description="`repeated`: the same payload was accepted before."
    )


class NotAccepted(BaseModel):
    """The answer to a delivery that was not accepted."""

    error: str = Field(description="The reason, and the remedy.")


_ANSWERS: Final = {
    Delivered.KEPT: (202, None),
    Delivered.WAKES: (202, None),
    Delivered.AGAIN: (200, None),
    Delivered.OTHER: (409, "Another payload was accepted for this event before"),
    Delivered.CLOSED: (410, "This event no longer accepts a payload"),
    Delivered.UNKNOWN_TASK: (404, "There is no such event"),
}


class Rate:
    """A rate limit: `per_s` requests a second, in bursts of at most that number."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = float(per_s)
        self._at_ms = clock.monotonic_ms()

    def take(self) -> bool:
        """Count a request; return whether the gateway may serve it."""
        now_ms = self._clock.monotonic_ms()
        gained = (now_ms - self._at_ms) * self._per_s / 1000
        self._left, self._at_ms = min(float(self._per_s), self._left + gained), now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True


EVENTS: Final = APIRouter(tags=["events"])
"""The route to which services post external events, of every app."""
# FastAPI builds a serializer for each model of a response, so the others refer to the first
_REFUSAL: Final = {"$ref": "#/components/schemas/NotAccepted"}
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"content": {"application/json": {"schema": _REFUSAL}}}
    for status in (404, 409, 410, 413, 415, 429, 503)
}


@EVENTS.post(
    EVENTS_PATH + "{token}",
    status_code=202,
    summary="Deliver an external event",
    responses={200: {"model": Accepted}, 400: {"model": NotAccepted}, **_REFUSALS},
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": {}}}}},
)
async def deliver(token: str, request: Request, response: Response) -> Accepted | NotAccepted:
    """Accept one JSON value of at most `tasks.max_event_bytes` bytes for the task that waits
    for the event of this token. An empty body is `null`."""
    operations = _operations(request)
    receipt, size = None, 0
    try:
        if not operations.rate.take():
            raise TransportError(429, "Too many events are being delivered; try again soon")
        payload, size = await _payload(request, operations.budget, operations.max_event_bytes)
        receipt = await operations.deliveries.by_token(operations.event_tokens(), token, payload)
        status, error = _ANSWERS[receipt.delivered]
    except (TransportError, ParseError, Unavailable) as refusal:
        status, error = _status_from_error(refusal), str(refusal)
    if status in (429, 503):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    response.status_code = status
    _log(receipt, status, size)
    if error is not None:
        return NotAccepted(error=error)
    return Accepted(status="accepted" if status == 202 else "repeated")


def _status_from_error(refusal: GatewayError) -> int:
    match refusal:
        case TransportError(status=status):
            return status
        case ParseError():
            return 400
    return 503


def _log(receipt: Receipt | None, status: int, size: int) -> None:
    facts = {
        "task": None if receipt is None or receipt.ref is None else str(receipt.ref),
        "event": None if receipt is None else receipt.name,
        "outcome": None if receipt is None else receipt.delivered.value,
        "status": status,
        "bytes": size,
    }
    fields = {name: value for name, value in facts.items() if value is not None}
    log.info("an external event", extra={"fields": fields})


async def _payload(request: Request, budget: BodyBudget, max_bytes: int) -> tuple[Any, int]:
    """Return the payload of a request and its size in bytes.

    Raises:
        TransportError: the body is too large, has too many values, or another media type.
        ParseError: the body is not JSON, or is nested too deeply.
        Unavailable: other requests use too much memory.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise TransportError(415, "The Content-Type of an event must be application/json")
    held: list[int] = []
    try:
        body = await _read(request, budget, max_bytes, held)
        if not body:
            return None, 0
        held.append(budget.take_nodes(body))
        return decode_payload(body), len(body)
    finally:
        budget.give_back(sum(held))


async def _read(request: Request, budget: BodyBudget, max_bytes: int, held: list[int]) -> bytes:
    declared = request.headers.get("content-length", "")
    too_large = TransportError(
        413, f"The payload is larger than {max_bytes} bytes (tasks.max_event_bytes)"
    )
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large

    def hold(size: int) -> None:
        if size > SMALL:
            held.append(budget.take(size - sum(held)))

    body = await read_body(request.receive, max_bytes, hold)
    if body is None:
        raise too_large
    return body
