"""Events of an HTTP API (payload format 2.0), for functions that are behind
one and stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from roundgate.backends.aws_lambda.config import HttpEventConfig, LambdaToolConfig
from roundgate.backends.http.arguments import PATH_VARIABLE, Argument, Location
from roundgate.backends.http.endpoint import Endpoint
from roundgate.backends.http.messages import Outgoing


def endpoint_of(tool: LambdaToolConfig, http: HttpEventConfig) -> Endpoint:
    """Where the arguments of a tool go in a request.

    Raises:
        ValueError: path and arguments contradict each other.
    """
    variables = PATH_VARIABLE.findall(http.path)
    elsewhere: Location = "query" if http.method in ("GET", "HEAD", "DELETE") else "body"
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", ())
    placed = [
        Argument(
            name,
            "path" if name in variables else elsewhere,
            name,
            schema,
            required=name in required,
        )
        for name, schema in properties.items()
    ]
    return Endpoint(
        tool.name,
        tool.description,
        http.method,
        http.path,
        placed,
        headers={name.lower(): value for name, value in http.headers.items()},
    )


def http_event(outgoing: Outgoing, request_id: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """A request as the event of an HTTP API (payload format 2.0); what a function is told stands
    where the claims of an AWS Lambda authorizer would."""
    query = "&".join(filter(None, (urlencode(outgoing.query), outgoing.raw_query)))
    body = {} if outgoing.body is None else {"body": outgoing.body.decode()}
    path = unquote(outgoing.path)
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": dict(outgoing.headers),
        **({"queryStringParameters": _joined(query)} if query else {}),
        "requestContext": {
            "http": {"method": outgoing.method, "path": path, "protocol": "HTTP/1.1"},
            **({"authorizer": {"lambda": {"roundgate": dict(told)}}} if told else {}),
            "requestId": request_id,
            "routeKey": "$default",
            "stage": "$default",
        },
        **body,
        "isBase64Encoded": False,
    }


def _joined(query: str) -> dict[str, str]:
    """Parameters by name; the values of one that comes several times are joined by commas,
    as API Gateway has it."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found
