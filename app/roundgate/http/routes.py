"""Path operations beside the MCP endpoints: health for probes and metadata for OAuth clients.

`/docs` lists them where `http.docs` is on. `/sse` returns an error that explains to clients of the
2024-11-05 transport why they cannot connect; it is not part of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from roundgate.http.guard import HEALTH
from roundgate.http.old_transport import OLD_TRANSPORT, not_served
from roundgate.http.protected import ProtectedResource, ResourceMetadata

METADATA_MAX_AGE_S: Final = 300
"""How long clients may cache the metadata of a protected resource, in seconds."""


class Health(BaseModel):
    """The status of a gateway that serves requests, with its current troubles."""

    status: Literal["ok", "degraded"]
    name: str = Field(description="`server.name` of gateway.yaml.")
    version: str = Field(description="`server.version` of gateway.yaml.")
    store: str | None = Field(None, description="The id of the SQLite file, once it is open.")
    missing: list[str] | None = Field(
        None, description="Back ends that are configured and could not be loaded."
    )
    troubles: list[str] | None = Field(
        None, description="What an operator has to look at: a store taken away, a wrong clock."
    )


def make_router(
    health: Callable[[], Health],
    resources: Iterable[ProtectedResource],
    endpoint: str,
    *,
    streams: bool,
) -> APIRouter:
    """Return the routes of a gateway.

    Args:
        health: returns the current status of the gateway.
        resources: the MCP endpoints as OAuth resources; empty without authentication.
        endpoint: the path of the usual MCP endpoint, for error messages.
        streams: whether a response can be streamed.
    """
    router = APIRouter(tags=["operations"])

    async def healthz() -> Health:
        """Report to a probe that the gateway serves requests."""
        return health()

    _add_document(router, HEALTH, healthz, "Health")
    for resource in resources:
        for path in resource.metadata_paths:
            _add_document(
                router, path, _metadata_of(resource), "Protected resource metadata (RFC 9728)"
            )
    router.add_route(
        OLD_TRANSPORT,
        not_served(endpoint, streams=streams),
        methods=["GET", "POST"],
        include_in_schema=False,
    )
    return router


def _add_document(router: APIRouter, path: str, answer: Callable[..., Any], summary: str) -> None:
    """Serve a document to GET, and its head to HEAD, which the API's description omits."""
    for method in ("GET", "HEAD"):
        router.add_api_route(
            path,
            answer,
            methods=[method],
            summary=summary,
            include_in_schema=method == "GET",
            response_model_exclude_none=True,
        )


def _metadata_of(
    resource: ProtectedResource,
) -> Callable[[Response], Coroutine[Any, Any, ResourceMetadata]]:
    async def metadata(response: Response) -> ResourceMetadata:
        """Describe the MCP endpoint to OAuth clients."""
        response.headers["cache-control"] = f"max-age={METADATA_MAX_AGE_S}"
        return resource.metadata()

    return metadata


def nothing_at(endpoint: str) -> JSONResponse:
    """Return the 404 for an address that serves nothing, or nothing for this caller."""
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
