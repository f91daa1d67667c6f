"""The stack with ApiType=rest: what a call reports reaches its client while it runs, and what the
API refuses has its challenge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from roundgate_aws.stack.functions import why_not
from roundgate_aws.stack.stack import Stack, Times, build_zips, running
from roundgate_aws.template import StackTemplate
from tests.roundgate_aws.stack.conftest import CONFIG, last, to_api
from tests.support import wire
from tests.support.asgi import Client
from tests.support.rounds import Conversation, accept, tool
from tests.support.task_client import TaskClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = {
    "first": accept(name="Ada"),
    "middle": accept(name="King"),
    "last": accept(name="Lovelace"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The stack, up; skipped where it cannot be."""
    if reason := why_not():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("rest")
    zips = build_zips(CONFIG, directory / "zips")
    more = {"EFFECTS": str(directory / "effects.txt")}
    times = Times(sweep_every_s=1)
    async with running(directory, zips, api="rest", gateways=2, times=times, more=more) as up:
        yield up


@pytest_asyncio.fixture(loop_scope="module")
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the API."""
    url = stack.url.removesuffix("/mcp")
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as made:
        yield made


async def test_progress_reaches_the_client_before_the_call_may_go_on(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    params = {"name": "count", "arguments": {"gates": str(tmp_path)}}
    message = wire.message("tools/call", params, progressToken="p")
    (tmp_path / "1").touch()
    text = ""
    async with http.stream("POST", "/mcp", json=message, headers=wire.headers(message)) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        async for part in answer.aiter_text():
            text += part
            if '"progress":1' in text and not (tmp_path / "2").exists():
                assert "counted" not in text
                (tmp_path / "2").touch()
    assert text.index('"progress":2') < text.index("counted")


async def test_each_round_is_another_replica_and_those_before_it_are_dead(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    gateways, served = stack.gateways, []

    def one_after_another() -> object:
        while True:
            yield Client(http)
            served.append((last(gateways).name, last(gateways).starts))
            last(gateways).kill()

    conversation = Conversation(NAMES)
    result = await conversation.have(one_after_another(), *tool("introduce"))  # type: ignore[arg-type]
    assert result["content"][0]["text"] == "Ada King Lovelace"
    assert len(set(served)) == 3


async def test_a_task_is_made_by_the_gateway_and_ended_by_a_worker(
    http: httpx.AsyncClient,
) -> None:
    tasks = TaskClient(Client(http))
    task = await tasks.begin("nap", times=1)
    assert (await tasks.over(task))["status"] == "completed"


async def test_an_answer_over_6_mb_arrives_whole(http: httpx.AsyncClient) -> None:
    assert len(await Client(http).text("talk", {"megabytes": 7})) == 7 * 1024 * 1024


async def test_what_is_no_method_of_the_api_is_refused_in_a_form_that_a_browser_reads(
    http: httpx.AsyncClient,
) -> None:
    assert (await http.get("/healthz")).status_code == 200
    refused = await http.post("/healthz")
    assert refused.status_code == 403
    assert refused.headers["access-control-allow-origin"] == "*"


async def test_a_function_that_cannot_start_is_a_502_and_counted(stack: Stack) -> None:
    broken = stack.deployment.gateways(1, "Poisoned", GATEWAY_STATE_KEYS_SECRET="")
    with closing(broken):
        async with to_api(stack.deployment, broken) as to_broken:
            answer = await Client(to_broken).post("tools/list")
    assert answer.status_code == 502
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_a_caller_without_a_valid_token_gets_the_challenge(stack: Stack) -> None:
    url = stack.url.removesuffix("/mcp")
    queue = "https://" + stack.resources["Queue"].partition("://")[2]
    known = {**stack.resources, "Queue": queue}
    template = StackTemplate(parameters={"PublicUrl": url, "ApiType": "rest"}, known=known)
    guarded = replace(stack.deployment, template=template)
    pool = guarded.gateways(1, "Guarded", GATEWAY_CONFIG="guarded.json")
    with closing(pool):
        async with to_api(guarded, pool) as http:
            mcp = Client(http)
            without = await mcp.post("tools/list")
            assert pool.counts["Invocations"] == 0, "the API refuses it by itself"
            refused = await mcp.post("tools/list", headers={"authorization": "Bearer nonsense"})
            metadata = await http.get("/.well-known/oauth-protected-resource/mcp")
            preflight = {"origin": "https://app.example", "access-control-request-method": "POST"}
            assert (await http.options("/mcp", headers=preflight)).status_code < 500
    at = f'resource_metadata="{url}/.well-known/oauth-protected-resource/mcp"'
    assert without.status_code == refused.status_code == 401
    assert without.headers["www-authenticate"] == f"Bearer {at}"
    assert refused.headers["www-authenticate"] == f'Bearer error="invalid_token", {at}'
    assert refused.headers["access-control-expose-headers"] == "WWW-Authenticate, Retry-After"
    assert metadata.json()["resource"] == f"{url}/mcp"
    assert json.loads(without.text) == {"error": "unauthorized"}
