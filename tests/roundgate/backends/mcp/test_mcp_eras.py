"""Servers of both eras whose tools ask as servers before 2026-07-28 do: `ctx.elicit` of the Python
SDK 2.x, FastMCP 4 and the TypeScript SDK 2.x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundgate.client import VERSIONS, Client
from roundgate.errors import ConfigError
from tests.support.asgi import client
from tests.support.older_servers import (
    ADA,
    BOB,
    again,
    answer_to,
    call,
    clients,
    gateways,
    replica,
    said,
)
from tests.support.scripted import Asked, error, result, scripted, text
from tests.support.sdk_servers import NEW, over_http
from tests.support.upstreams import Upstream, app_of, entry, fronted, health, process, until

OLDER = "2025-11-25"
UNASKED = {
    "Python SDK 2.3": lambda asked: error(
        asked,
        -32600,
        "Cannot send 'elicitation/create': this transport context has no back-channel for "
        "server-initiated requests.",
    ),
    "FastMCP 4": lambda asked: result(
        asked,
        {
            **text(
                "elicitation via server-initiated requests is unavailable on 2026-07-28 connections."
            ),
            "isError": True,
        },
    ),
    "TypeScript SDK 2.4": lambda asked: result(
        asked,
        {
            **text(
                "Server-to-client requests are not available on protocol revision 2026-07-28: "
                "'elicitation/create' cannot be sent while serving a request on that revision."
            ),
            "isError": True,
        },
    ),
}
"""How each SDK refuses to ask in a call of 2026-07-28."""


async def test_a_server_of_both_eras_asks_in_the_revision_that_its_back_end_names(
    tmp_path: Path,
) -> None:
    async with over_http(NEW, tmp_path, revision=OLDER) as up:
        async with clients(tmp_path, up.entry) as (one, other):
            asked = await call(one, "greet")
            assert said(await again(other, "greet", asked, ADA)) == "Hello, Ada"
            asked = await call(one, "both")
            assert said(await again(other, "both", asked, ADA, BOB)) == "Ada and Bob"
            assert (await health(one))["revision"] == OLDER
        assert up.noted() == ["greet", "greeted"]


async def test_clients_of_every_revision_are_asked_after_one_call_that_could_not_ask(
    tmp_path: Path,
) -> None:
    async with over_http(NEW, tmp_path) as up:
        with gateways(tmp_path, up.entry, count=1) as (server,):
            url = f"{server.url}/mcp"
            for version in VERSIONS[:3]:
                async with Client(url, versions=[version], answers=answer_to) as ann:
                    if version == VERSIONS[0]:
                        for tool in ("greet", "both", "twice", "motto", "where"):
                            first = await ann.call(f"up__{tool}")
                            assert "call it again" in first.text
                    assert (await ann.call("up__greet")).text == "Hello, Ada"
                    assert (await ann.call("up__both")).text == "Ada and Bob"
                    assert (await ann.call("up__twice")).text == "Ada and Bob"
                    assert (await ann.call("up__motto")).text == "sampled: Carpe"
                    assert (await ann.call("up__where")).text == "file:///home/ada"
    assert up.noted() == ["greet"] + ["greet", "greeted"] * 3


async def test_a_tool_that_no_longer_asks_in_the_older_era_is_called_in_the_newer_one() -> None:
    class Both(Upstream):
        is_upgraded = False

        def __call__(self, asked: Asked) -> Any:
            is_newer = self.is_upgraded or "mcp-method" in asked.headers
            self.session = None if is_newer else "s1"
            return super().__call__(asked)

    def answer(asked: Asked) -> Any:
        if up.is_upgraded or up.session is not None:
            return result(asked, text("upgraded" if up.is_upgraded else "older"))
        return UNASKED["Python SDK 2.3"](asked)

    up = Both(answer)
    async with fronted(up) as (_, mcp):

        async def called() -> str:
            answered = await mcp.call("up__t", clientCapabilities={"elicitation": {"form": {}}})
            return str(answered["content"][0]["text"])

        assert "call it again" in await called()
        assert await called() == "older"
        up.is_upgraded = True
        assert "Unsupported protocol version" in await called()
        await until("upgraded", called)


async def test_a_tool_that_asks_in_the_older_era_is_found_and_never_run_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        over_http(NEW, tmp_path, "rounds") as up,
        replica(tmp_path, up.entry) as app,
        client(app) as mcp,
    ):
        first = await call(mcp, "greet")
        assert first["result"]["isError"] is True
        assert "call it again" in said(first)
        assert "may have taken effect" in said(first)
        assert up.noted() == ["greet"]
        asked = await call(mcp, "greet")
        assert said(await again(mcp, "greet", asked, ADA)) == "Hello, Ada"
        assert up.noted() == ["greet", "greet", "greeted"]
        (record,) = [
            each
            for each in caplog.records
            if each.getMessage() == "a tool asks in an older revision"
        ]
        assert record.fields == {"backend": "up", "tool": "greet"}  # type: ignore[attr-defined]
        # the other tools of the server keep its newer revision, in which they may ask in rounds
        asked = await call(mcp, "ask", {"kind": "form", "tag": "t"})
        assert list(asked["result"]["inputRequests"]) == ["first"]
        assert (await health(mcp))["revision"] == "2026-07-28"


async def test_prompts_and_resources_that_ask_in_the_older_era_are_asked_at_once(
    tmp_path: Path,
) -> None:
    capable: dict[str, Any] = {"elicitation": {"form": {}}}
    async with over_http(NEW, tmp_path) as up, clients(tmp_path, up.entry) as (one, other):
        for method, params, expected in (
            ("prompts/get", {"name": "up__toned", "arguments": {"subject": "tea"}}, "tea, by Ada"),
            ("resources/read", {"uri": "asked://tea"}, "tea of Ada"),
        ):
            asked = (await one.post(method, params, clientCapabilities=capable)).json()["result"]
            responses = dict.fromkeys(asked["inputRequests"], ADA)
            answered = {
                "inputResponses": responses,
                "requestState": asked["requestState"],
            }
            ended = await other.post(method, {**params, **answered}, clientCapabilities=capable)
            assert expected in ended.text


@pytest.mark.parametrize("sdk", UNASKED)
async def test_the_refusal_of_each_sdk_is_recognised(sdk: str, tmp_path: Path) -> None:
    older = Upstream(lambda asked: result(asked, text("in a session")), session="s1")

    def both(asked: Asked) -> Any:
        if asked.headers.get("mcp-protocol-version") != "2026-07-28":
            return older(asked)
        return Upstream(UNASKED[sdk])(asked)

    async with (
        scripted(both) as server,
        replica(tmp_path, entry(server)) as app,
        client(app) as mcp,
    ):
        assert "call it again" in said(await call(mcp, "t"))
        assert said(await call(mcp, "t")) == "in a session"
        assert server.methods().count("tools/call") == 2


async def test_a_server_without_an_older_revision_keeps_its_own_error(tmp_path: Path) -> None:
    async with (
        scripted(Upstream(UNASKED["FastMCP 4"])) as server,
        replica(tmp_path, entry(server)) as app,
        client(app) as mcp,
    ):
        for _ in range(2):
            told = said(await call(mcp, "t"))
            assert "unavailable on 2026-07-28 connections" in told
            assert "call it again" not in told


async def test_a_process_that_cannot_ask_names_the_setting(tmp_path: Path) -> None:
    async with replica(tmp_path, process("both")) as app, client(app) as mcp:
        assert "questions: true" in said(await call(mcp, "ask"))
    async with replica(tmp_path, process("both", questions=True)) as app, client(app) as mcp:
        assert "call it again" in said(await call(mcp, "ask"))
        assert "Ada" in said(await again(mcp, "ask", await call(mcp, "ask"), ADA))


async def test_a_server_without_the_named_revision_is_unavailable() -> None:
    async with fronted(Upstream(), revision=[OLDER]) as (server, mcp):
        assert (await health(mcp))["status"] == "down"
        assert "server/discover" not in server.methods()


async def test_an_unknown_revision_is_refused() -> None:
    entry = {"kind": "mcp", "name": "up", "url": "http://127.0.0.1:9/mcp"}
    wrongs: list[Any] = ["2025-01-01", []]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="revision"):
            async with app_of({**entry, "revision": wrong}):
                raise AssertionError("the gateway started")
