"""Calls through API Gateway and the functions as they are deployed: rounds, limits,
replicas that die in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import httpx
import httpx2
import pytest
from mcp import Client as OfficialClient
from mcp.client.streamable_http import streamable_http_client

from roundgate_aws.stack.events import MAX_HEADER_BYTES, MAX_REQUEST_BYTES
from roundgate_aws.stack.functions import Account, PayloadTooLarge
from roundgate_aws.stack.runtime_api import InvocationFailed
from tests.roundgate_aws.stack.conftest import TIMES, Deployed, last, only_http, to_api
from tests.support import wire
from tests.support.asgi import Client
from tests.support.rounds import Conversation, accept, tool

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMES = {
    "first": accept(name="Ada"),
    "middle": accept(name="King"),
    "last": accept(name="Lovelace"),
}


async def test_each_of_four_rounds_is_another_replica_and_those_before_it_are_dead(
    stack: Deployed, mcp: Client
) -> None:
    gateways, served = stack.stack.gateways, []

    def one_after_another() -> Iterator[Client]:
        while True:
            yield mcp
            served.append((last(gateways).name, last(gateways).starts))
            last(gateways).kill()

    conversation = Conversation(NAMES)
    result = await conversation.have(one_after_another(), *tool("introduce"))
    served.append((last(gateways).name, last(gateways).starts))
    assert result["content"][0]["text"] == "Ada King Lovelace"
    assert conversation.asked == [["first"], ["middle"], ["last"]]
    assert len(set(served)) == 4
    assert len({name for name, _ in served}) == 3


async def test_the_official_client_lists_and_calls(stack: Deployed) -> None:
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=60) as http,
        OfficialClient(streamable_http_client(stack.stack.url, http_client=http)) as official,
    ):
        listed = await official.list_tools()
        called = await official.call_tool("greet", {"name": "Ada"})
    assert "greet" in [one.name for one in listed.tools]
    assert "Hello, Ada!" in str(called.content)


@only_http
async def test_a_function_that_hangs_is_stopped_at_its_time_out_and_replaced(
    stack: Deployed,
) -> None:
    hasty = replace(stack.stack.deployment, times=replace(TIMES, gateway_s=4))
    with closing(hasty.gateways(1, "Hasty")) as pool:
        async with to_api(hasty, pool) as http:
            hung = await Client(http).post("tools/call", {"name": "hang", "arguments": {}})
            assert (hung.status_code, hung.json()) == (500, {"message": "Internal Server Error"})
            assert await Client(http).text("greet", {"name": "Ada"}) == "Hello, Ada!"
        assert pool.environments[0].starts == 2


@only_http
async def test_an_api_does_not_wait_longer_than_its_limit_and_the_function_goes_on(
    stack: Deployed,
) -> None:
    impatient = replace(stack.stack.deployment, times=replace(TIMES, api_s=4))
    with closing(impatient.gateways(1, "Impatient")) as pool:
        patient = replace(impatient, times=replace(TIMES, api_s=60))
        async with to_api(impatient, pool) as http, to_api(patient, pool) as patient_http:
            mcp = Client(patient_http)
            assert await mcp.text("greet", {"name": "Ada"}) == "Hello, Ada!"
            asked = {"name": "stare", "arguments": {"seconds": 6}}
            late = await Client(http).post("tools/call", asked)
            assert (late.status_code, late.json()) == (503, {"message": "Service Unavailable"})
            assert await mcp.text("greet", {"name": "Bob"}) == "Hello, Bob!", (
                "when the other has ended"
            )
    assert pool.environments[0].starts == 1
    assert pool.environments[0].invocations == 3


@only_http
async def test_an_answer_that_aws_lambda_would_not_return_is_an_error_that_says_so(
    mcp: Client,
) -> None:
    status, error = await mcp.error("tools/call", {"name": "talk", "arguments": {"megabytes": 7}})
    assert (status, error["code"]) == (200, -32603)
    assert "AWS Lambda returns at most 6291456" in error["message"]


async def test_an_answer_that_only_its_escaping_makes_too_large_arrives(mcp: Client) -> None:
    assert len(await mcp.text("recite", {"count": 1_700_000})) == 1_700_000


@only_http
async def test_a_request_beyond_the_executions_of_the_account_is_answered_503_and_counted(
    stack: Deployed,
) -> None:
    small = replace(stack.stack.deployment, account=Account(1))
    with closing(small.gateways(2, "Few")) as pool:
        async with to_api(small, pool) as http:
            assert await Client(http).text("greet", {"name": "Ada"}) == "Hello, Ada!"
            params = {"name": "stare", "arguments": {"seconds": 1}}
            answers = await asyncio.gather(
                *(Client(http).post("tools/call", params) for _ in range(3))
            )
    assert sorted(answer.status_code for answer in answers) == [200, 503, 503]
    assert pool.counts["Throttles"] == 2


@only_http
async def test_a_body_over_10_mb_is_refused_by_the_api(
    stack: Deployed, http: httpx.AsyncClient
) -> None:
    before = len(stack.stack.gateways.recent)
    response = await http.post("/mcp", content=b" " * (MAX_REQUEST_BYTES + 1))
    assert (response.status_code, response.json()) == (413, {"message": "Request Entity Too Large"})
    assert len(stack.stack.gateways.recent) == before


@only_http
async def test_headers_over_10_kb_are_refused_by_the_api(http: httpx.AsyncClient) -> None:
    response = await http.get("/healthz", headers={"x-large": "x" * MAX_HEADER_BYTES})
    assert response.status_code == 431


@only_http
async def test_an_event_over_6_mb_invokes_nothing(stack: Deployed) -> None:
    before = len(stack.stack.gateways.recent)
    with pytest.raises(PayloadTooLarge):
        await stack.stack.gateways.invoke({"body": "x" * 6 * 1024 * 1024})
    assert len(stack.stack.gateways.recent) == before


async def test_a_body_that_is_no_text_reaches_the_gateway_in_base64(
    http: httpx.AsyncClient,
) -> None:
    response = await http.post(
        "/mcp", content=b'{"jsonrpc": "\xff"}', headers=wire.headers(wire.message("tools/list"))
    )
    assert response.status_code == 400
    assert wire.valid_error(response)["code"] == -32700


async def test_health_is_told_and_other_paths_are_not_there(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200
    elsewhere = await http.get("/elsewhere")
    assert elsewhere.status_code == 404
    assert elsewhere.json() == {"error": "There is nothing here; the MCP endpoint is POST /mcp"}


async def test_the_endpoint_takes_a_slash_at_its_end(http: httpx.AsyncClient) -> None:
    assert (await Client(http, "/mcp/").post("tools/list")).status_code == 200


@only_http
async def test_a_caller_without_a_token_gets_the_challenge_under_api_gateways_header_name(
    stack: Deployed,
) -> None:
    deployment = stack.stack.deployment
    with closing(deployment.gateways(1, "Guarded", GATEWAY_CONFIG="guarded.json")) as pool:
        async with to_api(deployment, pool) as http:
            refused = await Client(http).post("tools/list")
            metadata = await http.get("/.well-known/oauth-protected-resource/mcp")
    assert refused.status_code == 401
    assert "www-authenticate" not in refused.headers
    challenge = refused.headers["x-amzn-remapped-www-authenticate"]
    assert challenge.startswith("Bearer ")
    assert (
        f'resource_metadata="{metadata.json()["resource"].removesuffix("/mcp")}/.well-known/'
        in challenge
    )
    assert metadata.json()["authorization_servers"] == ["https://issuer.example.com"]


@only_http
async def test_a_function_that_lacks_a_setting_names_it_in_its_log_and_answers_nothing(
    stack: Deployed,
) -> None:
    with closing(
        stack.stack.deployment.gateways(1, "Poisoned", GATEWAY_STATE_KEYS_SECRET="")
    ) as pool:
        with pytest.raises(InvocationFailed):
            await pool.invoke({})
        said = pool.environments[0].log.read_text()
    assert "ConfigError" in said
    assert "GATEWAY_STATE_KEYS" in said
