"""The app as API Gateway calls it: events as requests, and the decisions of the API's authorizer.

`roundgate_aws.http` and `roundgate_aws.stream` share this module. Mangum converts an event of
a REST API (payload 1.0), of an HTTP API or of a Function URL (2.0); `Hosted` adds the members of the
event that the app needs.

https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from roundgate.starting import kept

with kept():  # collecting garbage among all modules takes 4 % of a cold start
    from collections.abc import Container, Iterable, Mapping
    from urllib.parse import urlsplit

    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from roundgate import aws
    from roundgate.auth import Verifier
    from roundgate.clock import Clock
    from roundgate.errors import AuthError, GatewayError
    from roundgate.http import HEALTH, Hosting
    from roundgate.http.web_adapter import MARGIN_MS
    from roundgate.main import build_app
    from roundgate.observability.tracing import environment
    from roundgate.runtime import startup
    from roundgate.tasks.external import is_event_path

if TYPE_CHECKING:
    from mangum.types import LambdaContext

Event: TypeAlias = dict[str, Any]

AWS_MARGIN_MS: Final = 400
"""The milliseconds between the deadline of AWS calls and the end of the invocation; by then a call
has written its state."""
BAD_REQUEST: Final = {
    "error": "The Host header is not a host with an optional port, or a text is not Unicode"
}
"""The body of the response to an event that Mangum cannot convert."""


def make_hosted(environ: Mapping[str, str], *, is_buffered: bool = False) -> Hosted:
    """Return the app that an environment describes, for events. If `is_buffered`, the API gets a
    response only once it is complete.

    Raises:
        ConfigError: lists every problem in the environment or in gateway.yaml. Lambda logs it.
    """
    with kept(), startup.reported_in_ascii():
        using, file = startup.read_configuration(environ)
        app = build_app(file, using)
    base = urlsplit(using.public_url or "").path.rstrip("/")
    return Hosted(app, file.config.endpoints, Clock(), base, is_buffered=is_buffered)


class Hosted:
    """Middleware that adds the event's deadline and claims to the scope, and removes the stage and
    the base path from the path."""

    def __init__(
        self,
        app: FastAPI,
        endpoints: Iterable[str],
        clock: Clock,
        base: str,
        *,
        is_buffered: bool = False,
    ) -> None:
        self.app = app
        self._served = frozenset({*endpoints, HEALTH})
        self._clock = clock
        self._base = base
        self._is_buffered = is_buffered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        event, context = scope["aws.event"], scope["aws.context"]
        remaining_ms = context.get_remaining_time_in_millis()
        left_ms = max(1.0, remaining_ms - MARGIN_MS)
        Hosting(left_ms, _claims(event), self._is_buffered).put(scope)
        scope["path"] = _own_path(scope["path"], event, self._served, self._base)
        deadline = self._clock.deadline(max(1.0, remaining_ms - AWS_MARGIN_MS))
        with aws.bounded(deadline), environment(_request_ids(event, context)):
            await self.app(scope, receive, send)


def _request_ids(event: Event, context: LambdaContext) -> dict[str, str]:
    """Return the ids of the request at the API and of the invocation, for every log line."""
    ids = {
        "api_request": event["requestContext"].get("requestId"),
        "lambda_request": context.aws_request_id,
    }
    return {name: value for name, value in ids.items() if isinstance(value, str)}


def _own_path(path: str, event: Event, served: Container[str], base: str) -> str:
    """Return the path as the app knows it: without the stage or the base path.

    Only a prefix named by the event or GATEWAY_PUBLIC_URL is removed. Otherwise a misspelt path of
    a view could reach the endpoint of all tools.
    """
    at = path.find("/.well-known/")
    if at >= 0:  # first, because the path of the metadata ends with the path of the endpoint
        return path[at:]
    stage = f"/{event['requestContext'].get('stage')}"
    prefixes = (_before_resource(path, event), "", stage, base)
    own = [path.removeprefix(prefix) for prefix in prefixes if path.startswith(prefix)]
    known = [candidate for candidate in own if candidate.removesuffix("/") in served]
    known += filter(is_event_path, own)  # last: the stage may be called `events`
    return known[0] if known else path


def _before_resource(path: str, event: Event) -> str:
    """Return the part of the path before the resource that a REST API matched, such as
    `/{proxy+}`."""
    resource = str(event.get("resource", ""))
    for name, value in (event.get("pathParameters") or {}).items():
        resource = resource.replace(f"{{{name}+}}", value).replace(f"{{{name}}}", value)
    return path.removesuffix(resource) if resource.startswith("/") else ""


def _claims(event: Event) -> Mapping[str, Any] | None:
    """Return the claims of the API's authorizer, in any of its forms; `None` without an
    authorizer."""
    authorizer = event.get("requestContext", {}).get("authorizer")
    if not isinstance(authorizer, dict):
        return None
    jwt = authorizer.get("jwt")
    in_jwt = jwt.get("claims") if isinstance(jwt, dict) else None
    for claims in (in_jwt, authorizer.get("claims"), authorizer.get("lambda")):
        if isinstance(claims, dict):
            return claims
    return authorizer


def check(event: Any) -> None:
    """Raise ValueError unless this function serves the event."""
    if not isinstance(event, dict) or not isinstance(event.get("requestContext"), dict):
        kind = (
            f"an object with {sorted(event)[:8]}"
            if isinstance(event, dict)
            else type(event).__name__
        )
        raise ValueError(
            f"This function serves events of API Gateway and of Function URLs, not {kind};"
            " send queues and schedules to the worker function"
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
