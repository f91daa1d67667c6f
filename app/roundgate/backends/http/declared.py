"""From a tool in gateway.yaml to an endpoint: where each argument goes, what the configuration has taken."""

from __future__ import annotations

from roundgate.backends.http.config import HttpArgument, HttpToolConfig, ServiceConfig
from roundgate.backends.http.endpoint import (
    FRAMING,
    PATH_VARIABLE,
    Argument,
    Endpoint,
    Location,
    Taken,
)


def endpoint_of(tool: HttpToolConfig, taken: Taken | None = None) -> Endpoint:
    """The endpoint that a tool declares.

    Raises:
        ValueError: see `Endpoint`.
    """
    variables = PATH_VARIABLE.findall(tool.path)
    given = [
        _argument(name, argument, variables, tool) for name, argument in tool.arguments.items()
    ]
    known = {
        argument.wire_name for argument in given if argument.location == "path"
    } | tool.arguments.keys()
    implied = [name for name in dict.fromkeys(variables) if name not in known]
    return Endpoint(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        method=tool.method,
        path=tool.path,
        arguments=(*(_argument(name, HttpArgument(), variables, tool) for name in implied), *given),
        headers={name: value.get_secret_value() for name, value in tool.headers.items()},
        query=tool.query,
        body=tool.body,
        pointer=tool.result,
        output_schema=tool.output_schema,
        read_only=tool.read_only,
        destructive=tool.destructive,
        idempotent=tool.idempotent,
        taken=taken or Taken(),
        max_bytes=tool.max_response_bytes,
    )


def taken_by(service: ServiceConfig, tool: HttpToolConfig) -> Taken:
    """What the credential, fixed headers and fixed query parameters have."""
    credential = service.credential
    fixed = {name.lower() for name in (*service.headers, *tool.headers)}
    if credential is None:
        return Taken(FRAMING | fixed, frozenset(tool.query))
    return Taken(
        FRAMING | credential.headers() | fixed, credential.queries() | frozenset(tool.query)
    )


def _argument(
    name: str, argument: HttpArgument, variables: list[str], tool: HttpToolConfig
) -> Argument:
    wire_name = argument.wire_name or name
    return Argument(
        name=name,
        location=argument.location or _usual_location(wire_name, variables, tool),
        wire_name=wire_name,
        schema=argument.schema_,
        required=argument.required,
        allow_slash=argument.allow_slash,
        description=argument.description,
    )


def _usual_location(wire_name: str, variables: list[str], tool: HttpToolConfig) -> Location:
    if wire_name in variables:
        return "path"
    return "query" if tool.method in ("GET", "HEAD", "DELETE") else "body"
