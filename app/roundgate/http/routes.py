"""Path operations beside the MCP endpoints: health and readiness for probes, and metadata for OAuth
clients.

`/docs` lists them if `http.docs` is on.

`/sse` belonged to the transport of 2024-11-05. Its clients open a stream, read the address for posts
from it, post `initialize`, and wait for the response on the stream. They show the status of an error
response, but not its text. So the gateway opens the stream and sends an error with a text, under the
first ids of the official SDKs. The replica that gets the post does not know the stream, and clients
drop a response that precedes its request. So the error is sent after a pause, and repeated.

    GET  /sse            event: endpoint, message (1 s), message (2 s), message (4 s), end
    POST /sse?from=sse   202: the stream gave the client this address
    POST /sse            400 with the text, under the id of the request
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, StreamingResponse

from roundgate.errors import TransportError
from roundgate.http import bodies
from roundgate.http.exchange import exchange_of
from roundgate.http.protected import ProtectedResource, ResourceMetadata
from roundgate.http.readiness import ReadinessStatus
from roundgate.protocol import jsonrpc, sse

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


def make_router(
    health: Callable[[], Health],
    readiness: Callable[[], Awaitable[ReadinessStatus]],
    resources: Iterable[ProtectedResource],
    endpoint: str,
    *,
    streams: bool,
) -> APIRouter:
    """Return the routes of a gateway.

    Args:
        health: a function that returns the current status of the gateway.
        readiness: a function that returns whether the gateway should get requests.
        resources: the MCP endpoints as OAuth resources; empty without authentication.
        endpoint: the path of the default MCP endpoint, for error messages.
        streams: whether a response can be streamed.
    """
    router = APIRouter(tags=["operations"])

    async def healthz(request: Request) -> Health:
        """Report to a probe that the gateway serves requests, and to an operator how."""
        whole = health()
        return whole if exchange_of(request.scope).operates else Health(status=whole.status)

    async def readyz(response: Response) -> Ready:
        """Report to a load balancer whether to send requests here; 503 if not."""
        status = await readiness()
        if status is not ReadinessStatus.READY:
            response.status_code = 503
        response.headers["cache-control"] = "no-store"
        return Ready(status=status)

    _add_document(router, HEALTH, healthz, "Health")
    _add_document(router, READINESS, readyz, "Readiness", {503: {"model": Ready}})
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
                    yield sse.event(jsonrpc.error_response(first_id, -32600, str(refusal)))
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
