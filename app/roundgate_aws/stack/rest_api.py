"""API Gateway as a REST API whose responses stream, with payload format 1.0.

    client ──▶ RestApi of the template ── authorizer ──▶ function
                       │ 401 with its challenge            └── head ── chunk ── chunk ──▶ client

A refusal is the template's `GatewayResponse`. As at AWS, `WWW-Authenticate` of a function gets
another name, a function that fails before its head is a 502, and one that fails later cuts the
response off. Unlike at AWS, decisions of the authorizer are not kept, and the stage is not part of
the path, as behind a domain.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from roundgate_aws.stack import events
from roundgate_aws.stack.functions import EnvironmentPool, PayloadTooLarge, Throttled
from roundgate_aws.stack.runtime_api import InvocationFailed, parted
from roundgate_aws.template import StackTemplate

STATUSES: Final[Mapping[str, int]] = {
    "UNAUTHORIZED": 401,
    "ACCESS_DENIED": 403,
    "MISSING_AUTHENTICATION_TOKEN": 403,
    "REQUEST_TOO_LARGE": 413,
    "THROTTLED": 429,
    "AUTHORIZER_FAILURE": 500,
    "DEFAULT_4XX": 400,
    "DEFAULT_5XX": 502,
}
"""The status of each kind of refusal, unless the template has another one. A path without a method
is MISSING_AUTHENTICATION_TOKEN."""


@dataclass(frozen=True)
class RestMethod:
    """A method of the template's REST API."""

    verb: str
    path: str
    is_guarded: bool


class RestFront:
    """A REST API: the template's methods to one function."""

    def __init__(self, pool: EnvironmentPool, template: StackTemplate) -> None:
        self._pool = pool
        self._stage = template.properties("RestStage")["StageName"]
        self._methods = sorted(
            methods(template), key=lambda method: events.generality(method.verb, method.path)
        )
        self._refusals = {
            properties["ResponseType"]: properties
            for properties in map(
                template.properties, template.named("AWS::ApiGateway::GatewayResponse")
            )
        }
        self.counts: Counter[str] = Counter()
        """The number of requests, and of answers with a 5xx status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.counts["Count"] += 1

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.counts["5xx"] += message["status"] >= 500
            await send(message)

        request = Request(scope, receive)
        refusal = await self._pass(request, counted)
        if refusal is not None:
            await self._refused(refusal)(scope, receive, counted)

    async def _pass(self, request: Request, send: Send) -> str | None:
        """Pass a request to the function, and stream its response. Return the kind of a refusal if
        nothing was sent."""
        method = self._method(request.method, request.url.path)
        if method is None:
            return "MISSING_AUTHENTICATION_TOKEN"
        body = await request.body()
        size = len(request.url.path) + sum(map(len, request.headers.values()))
        if len(body) > events.MAX_REQUEST_BYTES or size > events.MAX_HEADER_BYTES:
            return "REQUEST_TOO_LARGE"
        event = self._event(request, method, body)
        try:
            if method.is_guarded and (refusal := await self._authorize(event, request)):
                return refusal
            chunks = (await self._pool.stream(event)).chunks()
            head, part = await parted(chunks)
        except PayloadTooLarge:
            return "REQUEST_TOO_LARGE"
        except Throttled:
            return "THROTTLED"
        except InvocationFailed:
            return "DEFAULT_5XX"
        headers = [
            (events.REMAPPED.get(name, name).encode("latin-1"), value.encode("latin-1"))
            for name, value in head.headers
            if name not in events.NOT_PASSED
        ]
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        await send({"type": "http.response.body", "body": part, "more_body": True})
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return None

    async def _authorize(self, event: Mapping[str, Any], request: Request) -> str | None:
        """Return the kind of the refusal of a request, or `None` if the function lets it pass."""
        if not request.headers.get("authorization"):
            return "UNAUTHORIZED"
        stage, verb, path = self._stage, request.method, request.url.path.lstrip("/")
        arn = f"arn:aws:execute-api:eu-central-1:123456789012:local/{stage}/{verb}/{path}"
        asked = {name: value for name, value in event.items() if name != "body"}
        streamed = await self._pool.stream({**asked, "type": "REQUEST", "methodArn": arn})
        try:
            answer = b"".join([chunk async for chunk in streamed.chunks()])
        except Throttled:
            raise
        except InvocationFailed:
            return "AUTHORIZER_FAILURE"
        (statement,) = json.loads(answer)["policyDocument"]["Statement"]
        return None if statement["Effect"] == "Allow" else "ACCESS_DENIED"

    def _refused(self, kind: str) -> Response:
        status = STATUSES[kind]
        default = "DEFAULT_5XX" if status >= 500 else "DEFAULT_4XX"
        properties = self._refusals.get(kind, self._refusals[default])
        prefix = "gatewayresponse.header."
        headers = {
            name.removeprefix(prefix): value.strip("'")
            for name, value in properties["ResponseParameters"].items()
        }
        templates = properties.get("ResponseTemplates", {})
        text = templates.get("application/json", json.dumps({"message": kind}))
        status = int(properties.get("StatusCode", status))
        return Response(text, status, headers, "application/json")

    def _method(self, verb: str, path: str) -> RestMethod | None:
        """Return the method of a request: of the most specific path, which alone counts."""
        parts = path.split("/")
        of_path = [
            method for method in self._methods if events.matches(method.path.split("/"), parts)
        ]
        of_verb = [method for method in of_path if method.verb in ("ANY", verb)]
        is_there = of_verb and of_verb[0].path == of_path[0].path
        return of_verb[0] if is_there else None

    def _event(self, request: Request, method: RestMethod, body: bytes) -> dict[str, Any]:
        url, source = request.url, request.client.host if request.client else "127.0.0.1"
        headers: dict[str, list[str]] = {"X-Forwarded-For": [source], "X-Forwarded-Proto": ["http"]}
        for name, value in request.headers.items():
            if name not in events.NOT_PASSED:
                headers.setdefault(name, []).append(value)
        queries: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            queries.setdefault(name, []).append(value)
        text, is_base64 = events.as_text(body)
        return {
            "resource": method.path,
            "path": url.path,
            "httpMethod": request.method,
            "headers": {name: values[-1] for name, values in headers.items()},
            "multiValueHeaders": headers,
            "queryStringParameters": {name: values[-1] for name, values in queries.items()} or None,
            "multiValueQueryStringParameters": queries or None,
            "pathParameters": _parameters(method.path.split("/"), url.path.split("/")),
            "stageVariables": None,
            "requestContext": {
                "accountId": "123456789012",
                "apiId": "local",
                "domainName": url.netloc,
                "httpMethod": request.method,
                "identity": {
                    "sourceIp": source,
                    "userAgent": request.headers.get("user-agent", ""),
                },
                "path": url.path,
                "protocol": "HTTP/1.1",
                "requestId": str(uuid.uuid4()),
                "requestTimeEpoch": int(time.time() * 1000),
                "resourcePath": method.path,
                "stage": self._stage,
            },
            "body": text or None,
            "isBase64Encoded": is_base64,
        }


def methods(template: StackTemplate) -> list[RestMethod]:
    """Return the methods of the template's REST API, with their paths."""
    resources = template.source["Resources"]

    def path(reference: Mapping[str, Any]) -> str:
        if "Ref" not in reference:  # RestApi.RootResourceId
            return ""
        properties = resources[reference["Ref"]]["Properties"]
        return f"{path(properties['ParentId'])}/{properties['PathPart']}"

    return [
        RestMethod(
            template.properties(name)["HttpMethod"],
            path(resources[name]["Properties"]["ResourceId"]),
            template.properties(name)["AuthorizationType"] == "CUSTOM",
        )
        for name in template.named("AWS::ApiGateway::Method")
    ]


def _parameters(pattern: Sequence[str], path: Sequence[str]) -> dict[str, str] | None:
    """Return the variables of a path, such as `{"path": "mcp"}`."""
    variables = {}
    for place, part in enumerate(pattern):
        if part.endswith("+}"):
            variables[part[1:-2]] = "/".join(path[place:])
        elif part.startswith("{"):
            variables[part[1:-1]] = path[place]
    return variables or None
