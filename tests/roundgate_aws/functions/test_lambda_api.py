"""What the stack's Lambda API refuses, in AWS's words; what it invokes is tested on the stack."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, cast

import httpx
import pytest

from roundgate_aws.stack.functions import (
    MAX_PAYLOAD_BYTES,
    EnvironmentPool,
    Throttled,
)
from roundgate_aws.stack.lambda_api import MAX_CLIENT_CONTEXT, MAX_EVENT_BYTES, LambdaApi
from roundgate_aws.stack.runtime_api import InvocationFailed

F = "/2015-03-31/functions/f/invocations"


class Functions:
    """Functions that end as a test says."""

    def __init__(self, ends: Exception | None = None) -> None:
        self._ends = ends
        self.told: list[tuple[Any, str | None]] = []

    async def invoke(self, event: Any, client_context: str | None = None) -> Mapping[str, Any]:
        self.told.append((event, client_context))
        if self._ends is not None:
            raise self._ends
        return {"ok": True}

    def close(self) -> None:
        pass


async def asked(functions: Functions, path: str = F, **options: Any) -> httpx.Response:
    api = LambdaApi({"f": cast("EnvironmentPool", functions)})
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://lambda") as http:
        return await http.request(options.pop("method", "POST"), path, **options)


@pytest.mark.parametrize(
    ("path", "options", "status", "kind"),
    [
        ("/2015-03-31/functions/f", {}, 404, "UnknownOperationException"),
        (F, {"method": "GET"}, 404, "UnknownOperationException"),
        (F.replace("f/", "g/"), {}, 404, "ResourceNotFoundException"),
        (F, {"content": b"x" * (MAX_PAYLOAD_BYTES + 1)}, 413, "RequestEntityTooLargeException"),
        (
            F,
            {
                "content": b"x" * (MAX_EVENT_BYTES + 1),
                "headers": {"x-amz-invocation-type": "Event"},
            },
            413,
            "RequestEntityTooLargeException",
        ),
        (
            F,
            {"headers": {"x-amz-durable-execution-name": "n"}},
            400,
            "InvalidParameterValueException",
        ),
        (
            F,
            {"headers": {"x-amz-client-context": "x" * (MAX_CLIENT_CONTEXT + 1)}},
            400,
            "InvalidRequestContentException",
        ),
        (F, {"content": b"{"}, 400, "InvalidRequestContentException"),
    ],
)
async def test_what_is_refused_invokes_nothing(
    path: str, options: dict[str, Any], status: int, kind: str
) -> None:
    response = await asked(functions := Functions(), path, **options)
    assert (response.status_code, response.headers["x-amzn-errortype"]) == (status, kind)
    assert functions.told == []


@pytest.mark.parametrize("named", ["f", "f:live", "arn:aws:lambda:eu-central-1:1:function:f:7"])
async def test_a_function_is_found_by_name_and_arn_and_told_what_its_client_says(
    named: str,
) -> None:
    functions = Functions()
    path = f"/2015-03-31/functions/{named}/invocations"
    context = base64.b64encode(b'{"custom": {}}').decode()
    if named == "f:live":
        path = path.replace("f:live", "function:f:live")
    response = await asked(
        functions, path, json={"n": 1}, headers={"x-amz-client-context": context}
    )
    assert (response.status_code, response.json()) == (200, {"ok": True})
    assert functions.told == [({"n": 1}, context)]


async def test_too_many_at_once_and_errors_of_functions_are_told_as_aws_does() -> None:
    throttled = await asked(Functions(Throttled("too many")))
    assert (throttled.status_code, throttled.headers["retry-after"]) == (429, "1")
    failed = await asked(Functions(InvocationFailed("no", {"errorType": "ValueError"})))
    assert (failed.status_code, failed.headers["x-amz-function-error"]) == (200, "Unhandled")
    assert failed.json() == {"errorType": "ValueError"}
