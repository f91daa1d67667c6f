"""The pages of calls: the recent calls of a process, and the line of time of one."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from roundgate import Context, ToolError, prompt, resource, tool
from roundgate.errors import Unavailable
from tests.support.asgi import Client, of_functions
from tests.support.console import elements, with_auth
from tests.support.console_tasks import CAPABILITIES, operated
from tests.support.issuer import token
from tests.support.services import answer, service


class Confirm(BaseModel):
    go: bool


@tool
async def ask(ctx: Context, env: str) -> str:
    await ctx.step("plan", lambda: "plan")
    await ctx.elicit("confirm", f"Deploy {env}?", Confirm)
    await ctx.step("apply", lambda: "applied")
    return "done"


@tool
async def hello() -> str:
    return "hello"


@tool
async def fails() -> str:
    raise ToolError("no")


async def test_the_rounds_of_a_call_are_one_line_of_time(tmp_path: Path) -> None:
    async with operated(tmp_path, ask) as gateway:
        first = await gateway.call("ask", env="production")
        params = {
            "name": "ask",
            "arguments": {"env": "production"},
            "requestState": first["requestState"],
            "inputResponses": {"confirm": {"action": "accept", "content": {"go": True}}},
        }
        await gateway.client.post("tools/call", params, clientCapabilities=CAPABILITIES)
        calls = (await gateway.browser.get("/api/calls")).json()["calls"]
        assert [(call["tool"], call["rounds"], call["outcome"]) for call in calls] == [
            ("ask", 2, "ok")
        ]
        path = f"/calls/{calls[0]['call']}"
        moments = (await gateway.browser.get(f"/api{path}")).json()["moments"]
        # a slow machine writes lines late, so `test_timeline` tests their order
        assert {(moment["title"], moment["outcome"]) for moment in moments} == {
            ("round 1: tools/call ask", "input_required"),
            ("step plan", "ok"),
            ("asks confirm", ""),
            ("round 2: tools/call ask", "ok"),
            ("step apply", "ok"),
        }
        page = await gateway.browser.page(path)
        assert "process" in page
        assert "production" not in page


async def test_calls_to_services_are_in_the_line_without_their_path(tmp_path: Path) -> None:
    async with service(answer(b"{}")) as api:
        tool = {
            "name": "order",
            "description": "Reads an order.",
            "method": "GET",
            "path": "/orders/{id}",
            "arguments": {"id": {"required": True}},
        }
        http = {
            "kind": "http",
            "name": "api",
            "prefix": "",
            "base_url": api.url,
            "tools": [tool],
        }
        async with operated(tmp_path, backends=[http]) as gateway:
            await gateway.call("order", id="SECRET-4111")
            (call,) = (await gateway.browser.get("/api/calls")).json()["calls"]
            page = await gateway.browser.page(f"/calls/{call['call']}")
            assert "upstream" in page
            assert api.url.removeprefix("http://") in page
            assert "SECRET-4111" not in page


async def test_calls_are_found_by_their_facts(tmp_path: Path) -> None:
    async with operated(tmp_path, ask) as gateway:
        await gateway.call("ask", env="a")
        await gateway.client.error("tools/call", {"name": "unknown", "arguments": {}})
        (call, *_) = (await gateway.browser.get("/api/calls?text=ASK")).json()["calls"]
        for text in (call["call"], "input_req", "local"):
            found = (await gateway.browser.get(f"/api/calls?text={text}")).json()["calls"]
            assert call["call"] in {each["call"] for each in found}
        assert (await gateway.browser.get("/api/calls?text=nothing")).json()["calls"] == []
        assert "No call matches" in await gateway.browser.page("/calls?text=nothing")


async def test_equal_calls_are_one_row_and_long_lists_have_pages(tmp_path: Path) -> None:
    async with operated(tmp_path, ask, hello) as gateway:
        for number in range(60):
            await gateway.call("ask", env="a")
            for _ in range(1 + number % 2):
                await gateway.call("hello")
        first = (await gateway.browser.get("/api/calls")).json()
        assert (len(first["calls"]), first["total"]) == (50, 120)
        assert [row["equal"] for row in first["calls"][:4]] == [2, 1, 1, 1]
        second = (await gateway.browser.get("/api/calls?page=3")).json()["calls"]
        assert len(second) == 20
        each = (await gateway.browser.get("/api/calls?text=hello&each=true")).json()
        assert each["total"] == 90
        page = await gateway.browser.page("/calls?text=hello")
        assert "90 equal calls" in page
        assert "Page 1 of 3" in await gateway.browser.page("/calls")
        for path in ("/calls?page=0", "/calls?page=x"):
            assert (await gateway.browser.get(path)).status_code == 400


async def test_the_slowest_and_the_failed_calls_of_a_back_end_are_listed(tmp_path: Path) -> None:
    async with operated(tmp_path, ask, hello, fails) as gateway:
        for name in ("hello", "fails", "hello"):
            await gateway.call(name)
        await gateway.call("ask", env="a")
        rows = (await gateway.browser.get("/api/calls?order=slowest&backend=python")).json()[
            "calls"
        ]
        assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
        (failed,) = (await gateway.browser.get("/api/calls?tone=bad")).json()["calls"]
        assert (failed["tool"], failed["reason"]) == ("fails", "ToolError")
        page = await gateway.browser.page(f"/calls/{failed['call']}")
        assert "<strong>Tool error</strong>: ToolError" in page
        (waits,) = (await gateway.browser.get("/api/calls?tone=waits")).json()["calls"]
        assert waits["tool"] == "ask"
        assert (await gateway.browser.get("/api/calls?backend=none")).json()["calls"] == []
        overview = (await gateway.browser.get("/api/overview")).json()
        (backend,) = overview["backends"]
        assert (backend["hour"]["runs"], backend["hour"]["failed"]) == (4, 1)
        assert [(work["runs"], work["failed"]) for work in overview["work"]] == [(4, 1), (4, 1)]
        assert overview["work"][0]["slots"][-1] == [4, 1]


async def test_a_back_end_whose_calls_fail_is_failing(tmp_path: Path) -> None:
    async with operated(tmp_path, hello, fails) as gateway:
        for age_s in (600, 610, 620):  # since then there was no call that says that it works again
            record = logging.LogRecord(
                "roundgate.request", logging.INFO, "", 1, "request", (), None
            )
            record.created -= age_s
            facts = {"method": "tools/call", "name": "fails", "outcome": "tool_error", "ms": 1.0}
            record.fields = facts | {"call": str(age_s)}
            gateway.app.state.console.recent.handle(record)
        (backend,) = (await gateway.browser.get("/api/overview")).json()["backends"]
        assert backend["state"] == "failing"
        page = await gateway.browser.page()
        assert "3 of its last 3 calls failed" in page
        assert "Back ends fail" in page
        for _ in range(4):
            await gateway.call("hello")
        assert "Healthy" in await gateway.browser.page()


async def test_a_call_of_another_process_says_where_it_is(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway:
        page = await gateway.browser.get("/calls/UNKNOWN")
        assert (page.status_code, "The log has the events" in page.text) == (404, True)
        assert (await gateway.browser.get("/api/calls/UNKNOWN")).status_code == 404


async def test_a_store_that_cannot_be_reached_is_a_page_with_503(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def unavailable(*args: Any, **kwargs: Any) -> None:
        raise Unavailable("The store cannot be reached; try again")

    async with operated(tmp_path) as gateway:
        monkeypatch.setattr(gateway.store, "find", unavailable)
        monkeypatch.setattr(gateway.store, "read", unavailable)
        for path in ("/tasks", "/tasks/uA.b", "/api/tasks", "/api/tasks/uA.b"):
            response = await gateway.browser.get(path)
            assert response.status_code == 503
            assert "cannot be reached" in response.text


HOSTILE = '"><img src=x onerror=alert(1)>'


async def test_subjects_are_texts() -> None:
    async with with_auth(ask) as browser:
        await browser.sign_in(sub=HOSTILE)
        client = Client(browser.http)
        bearer: dict[str, str | None] = {"authorization": f"Bearer {token(sub=HOSTILE)}"}
        await client.post(
            "tools/call",
            {"name": "ask", "arguments": {"env": "a"}},
            headers=bearer,
            clientCapabilities=CAPABILITIES,
        )
        page = await browser.page("/calls")
        (call,) = re.findall(r"/console/calls/([\w-]+)", page)
        for each in (page, await browser.page(f"/calls/{call}")):
            assert not [tag for tag, _ in elements(each) if tag == "img"]
            assert "onerror" in each


async def test_the_pages_of_calls_update_themselves_and_stop(tmp_path: Path) -> None:
    async with operated(tmp_path, ask) as gateway:
        await gateway.call("ask", env="a")
        (call,) = (await gateway.browser.get("/api/calls")).json()["calls"]
        for path in ("/calls?text=ask&", f"/calls/{call['call']}?"):
            page = await gateway.browser.page(f"{path}left=2")
            (polled,) = [each for _, each in elements(page) if "hx-get" in each]
            assert "left=1" in str(polled["hx-get"])
            assert f'id="{str(polled["hx-select"])[1:]}"' in page
            assert "hx-get" not in await gateway.browser.page(f"{path}left=0")


async def test_prompts_and_resources_count_for_their_back_ends(tmp_path: Path) -> None:
    @prompt(name="hello")
    def greet() -> str:
        return "Say hello."

    @resource("note://{number}")
    def note(number: str) -> str:
        return number

    backends = [of_functions(hello), of_functions(greet, note, name="texts")]
    async with operated(tmp_path, backends=backends) as gateway:
        await gateway.call("hello")
        await gateway.client.result("prompts/get", {"name": "hello"})
        await gateway.client.result("resources/read", {"uri": "note://1"})
        found = (await gateway.browser.get("/api/calls?each=true")).json()["calls"]
        of_texts = (await gateway.browser.get("/api/calls?each=true&backend=texts")).json()
        overview = (await gateway.browser.get("/api/overview")).json()
    assert [(call["tool"], call["backend"]) for call in found] == [
        ("note://1", "texts"),
        ("hello", "texts"),
        ("hello", "python"),
    ]
    assert of_texts["total"] == 2
    assert {each["name"]: each["hour"]["runs"] for each in overview["backends"]} == {
        "python": 1,
        "texts": 2,
    }
