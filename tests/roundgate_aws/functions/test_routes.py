"""What `gateway.yaml` puts at a path is reached there through the API of the template, and what a
browser asks first is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from roundgate import config
from roundgate_aws import http as lambda_http
from roundgate_aws.stack.events import Front
from roundgate_aws.stack.functions import EnvironmentPool
from roundgate_aws.template import StackTemplate, rendered
from tests.roundgate_aws.functions.conftest import LambdaContext, environment
from tests.support import permissions, wire
from tests.support.permissions import KNOWN

ORIGIN = "https://app.example.com"
PATHS = ["/tools/v1", "/deep/er/support", "/admin/mcp", "/solo"]
GATEWAY: dict[str, Any] = {
    "http": {"path": "/tools/v1", "allowed_origins": [ORIGIN]},
    "views": [
        {"name": "support", "path": "/deep/er/support"},
        {"name": "admin"},
        {"name": "solo", "path": "/solo"},
    ],
}
AUTH = {"issuer": "https://issuer.example", "jwks_url": "https://issuer.example/keys"}


class InProcess:
    """The gateway function, in this process."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self.routes: list[str] = []

    async def invoke(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        self.routes.append(event["routeKey"])
        return cast("Mapping[str, Any]", await asyncio.to_thread(self._handler, event, Context()))


class Context(LambdaContext):
    aws_request_id = "1"


@asynccontextmanager
async def api(environ: dict[str, str]) -> AsyncIterator[tuple[httpx.AsyncClient, InProcess]]:
    """The API of the template in front of a gateway with these variables."""
    handler = lambda_http.make_handler(environ)
    function = InProcess(handler)
    front = Front(cast("EnvironmentPool", function), permissions.deployed().routes(), "$default")
    transport = httpx.ASGITransport(front)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        yield http, function
    await asyncio.to_thread(handler.close)


@pytest.mark.parametrize("slash", ["", "/"], ids=["as it is", "with a slash"])
async def test_each_endpoint_is_routed_and_preflighted(tmp_path: Path, slash: str) -> None:
    asked = wire.message("tools/list")
    preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
    async with api(environment(tmp_path, **GATEWAY)) as (http, function):
        for path in PATHS:
            answer = await http.post(path + slash, json=asked, headers=wire.headers(asked))
            assert answer.status_code == 200, (path, answer.text)
            assert answer.json()["result"]["tools"]
            allowed = await http.options(path + slash, headers=preflight)
            assert allowed.status_code in (200, 204), (path, allowed.text)
            assert allowed.headers["access-control-allow-origin"] in (ORIGIN, "*")
        assert set(function.routes) == {"$default", "OPTIONS /{path+}"}
        elsewhere = await http.post("/elsewhere", json=asked, headers=wire.headers(asked))
        assert elsewhere.status_code == 404


async def test_a_browser_may_read_the_metadata_of_each_endpoint(tmp_path: Path) -> None:
    environ = environment(tmp_path, **GATEWAY, auth=AUTH)
    del environ["GATEWAY_ALLOW_ANONYMOUS"]
    environ["GATEWAY_PUBLIC_URL"] = "https://mcp.example.com"
    preflight = {
        "origin": ORIGIN,
        "access-control-request-method": "GET",
        "access-control-request-headers": "mcp-protocol-version",
    }
    async with api(environ) as (http, function):
        for path in PATHS:
            document = f"/.well-known/oauth-protected-resource{path}"
            asked = await http.options(document, headers=preflight)
            assert asked.status_code in (200, 204), (path, asked.text)
            assert asked.headers["access-control-allow-origin"] in (ORIGIN, "*")
            found = await http.get(document, headers={"origin": ORIGIN})
            assert found.json()["resource"] == f"https://mcp.example.com{path}"
        assert set(function.routes) == {"OPTIONS /{path+}", "GET /.well-known/{document+}"}


@pytest.mark.parametrize(
    ("parameters", "base"),
    [
        ({"PublicUrl": "https://mcp.example.com"}, "https://mcp.example.com"),
        (
            {"StageName": "prod"},
            "https://a1b2c3d4e5.execute-api.eu-central-1.amazonaws.com/prod",
        ),
    ],
    ids=["public URL", "named stage"],
)
def test_the_outputs_name_each_endpoint(
    tmp_path: Path, parameters: dict[str, str], base: str
) -> None:
    (tmp_path / "tools.py").write_text("")
    path = tmp_path / "gateway.yaml"
    tools = {"kind": "python", "name": "tools", "path": "tools.py"}
    path.write_text(json.dumps({"backends": [tools], **GATEWAY}))
    file = config.load(path)
    rest = StackTemplate(parameters, KNOWN, rendered(file, "arm64", path, "rest"))
    challenged = rest.properties("RestNoToken")["ResponseParameters"]
    assert challenged["gatewayresponse.header.WWW-Authenticate"] == "'Bearer'", "one for all views"
    template = StackTemplate(parameters, KNOWN, rendered(file, "arm64", path))
    outputs = {name: one["Value"] for name, one in template.source["Outputs"].items()}
    assert template.value(outputs["Endpoint"]) == f"{base}/tools/v1"
    assert template.value(outputs["ViewEndpoints"]).split(", ") == [
        f"{base}{path}" for path in PATHS[1:]
    ]
