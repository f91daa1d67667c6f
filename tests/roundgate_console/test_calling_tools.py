"""The pages of tools, and calls from forms."""

from __future__ import annotations

import html
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

from roundgate import Context, tool
from tests.support.console import OPERATOR, Browser, csrf_of, elements, local, with_auth
from tests.support.issuer import token


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@tool
async def order(
    item: str,
    count: int = 1,
    size: Size = Size.SMALL,
    gift: bool = False,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """Orders things."""
    return {"item": item, "count": count, "size": size, "gift": gift, "tags": tags}


class Confirm(BaseModel):
    go: bool
    reason: Literal["early", "late"] = "early"


@tool
async def deploy(ctx: Context, env: str) -> str:
    """Deploys."""
    answer = await ctx.elicit("confirm", f"Deploy {env}?", Confirm)
    return f"deployed because {answer.reason}" if answer.go else "nothing done"


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of the last form of a page."""
    return {
        str(each["name"]): str(each["value"])
        for tag, each in elements(page)
        if tag == "input" and each.get("type") == "hidden"
    }


async def call(browser: Browser, name: str, fields: dict[str, Any], view: str = "") -> str:
    response = await browser.submit(f"/tools/{name}/call?view={view}", fields)
    assert response.status_code == 200, response.text
    return html.unescape(response.text)


async def test_the_list_shows_tools_and_narrows_them_down() -> None:
    async with local(order, deploy) as browser:
        page = await browser.page("/tools")
        assert "order" in page
        assert "deploy" in page
        fewer = await browser.page("/tools?text=orders")
        assert "/tools/order?" in fewer
        assert "/tools/deploy?" not in fewer


async def test_a_form_has_a_field_for_each_argument_and_calls_with_values_of_their_types() -> None:
    async with local(order) as browser:
        inputs = {
            each["name"]: (tag, each.get("type"))
            for tag, each in elements(await browser.page("/tools/order"))
            if (each.get("name") or "").startswith("argument/")
        }
        fields = {
            "argument/item": "tea",
            "argument/count": "3",
            "argument/size": '"large"',
            "argument/gift": "true",
            "argument/tags": '["a", "b"]',
        }
        page = await call(browser, "order", fields)
    kinds = [*[("input", "text")] * 2, *[("select", None)] * 2, ("textarea", None)]
    assert inputs == dict(zip(fields, kinds, strict=True))
    assert '"item":"tea","count":3,"size":"large","gift":true,"tags":["a","b"]' in page.replace(
        '": ', '":'
    ).replace(", ", ",")


async def test_a_value_of_another_type_is_marked_and_kept_or_refused_by_the_gateway() -> None:
    async with local(order) as browser:
        page = await call(browser, "order", {"argument/item": "tea", "argument/count": "three"})
        assert "must be a number" in page
        assert 'value="three"' in page
        assert 'value="tea"' in page
        page = await call(browser, "order", {"json": '{"item": 7}'})
        assert "item" in page
        assert "Result" not in page


async def test_arguments_can_be_written_as_json() -> None:
    async with local(order) as browser:
        for text, problem in (("{", "Parse error"), ("[1]", "must be a JSON object")):
            assert problem in await call(browser, "order", {"json": text})
        assert '"item": "x"' in await call(browser, "order", {"json": '{"item": "x"}'})


async def test_a_question_is_answered_in_the_page_and_asked_again_until_the_answer_fits() -> None:
    async with local(deploy) as browser:
        asked = await browser.submit("/tools/deploy/call", {"argument/env": "prod"})
        assert "Deploy prod?" in asked.text
        fields = hidden(asked.text)
        unfit = {**fields, "action/0": "accept", "answer/0/go": ""}
        assert "Deploy prod?" in (await browser.submit("/tools/deploy/call", unfit)).text
        again = await browser.submit(
            "/tools/deploy/call",
            {**fields, "action/0": "accept", "answer/0/go": "true", "answer/0/reason": '"late"'},
        )
        assert "deployed because late" in again.text
        declined = await browser.submit("/tools/deploy/call", {**fields, "action/0": "decline"})
        assert "declined" in declined.text.lower()


async def test_a_call_that_becomes_a_task_links_to_it() -> None:
    @tool(task="required")
    async def slow() -> str:
        return "done"

    async with local(slow) as browser:
        response = await browser.submit("/tools/slow/call", {})
    assert "/console/tasks/" in response.text


async def test_a_call_runs_as_the_operator() -> None:
    @tool
    async def whoami(ctx: Context) -> str:
        """Says who calls."""
        return ctx.principal.subject

    async with with_auth(whoami) as browser:
        await browser.sign_in(sub="olga")
        page = await call(browser, "whoami", {})
    assert "olga" in page


async def test_a_tool_that_needs_a_scope_refuses_an_operator_without_it() -> None:
    @tool(scopes=["refunds:write"])
    async def refund() -> str:
        """Refunds."""
        return "refunded"

    async with with_auth(refund) as browser:
        await browser.sign_in()
        page = await call(browser, "refund", {})
        assert "refunds:write" in page
        assert "refunded" not in page
        await browser.sign_in(scope="gateway:operate refunds:write")
        assert "refunded" in await call(browser, "refund", {})


async def test_headers_that_repeat_arguments_are_sent() -> None:
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }

    @tool(input_schema=schema)
    async def place(region: str = "") -> str:
        """Places."""
        return f"in {region}"

    async with local(place) as browser:
        assert "in eu" in await call(browser, "place", {"argument/region": "eu"})


async def test_the_json_api_calls_a_tool() -> None:
    async with with_auth(order) as browser:
        call = "/console/api/tools/order/call"
        key = {"authorization": f"Bearer {token(scope=OPERATOR)}"}
        done = await browser.http.post(call, json={"arguments": {"item": "tea"}}, headers=key)
        assert (done.status_code, done.json()["kind"]) == (200, "complete")
        assert done.json()["result"]["structuredContent"]["item"] == "tea"
        missing = await browser.http.get("/console/api/tools/none", headers=key)
        assert (missing.status_code, missing.json()) == (404, {"error": "There is no such tool"})


VIEWS = [{"name": "some", "include": [{"name": "deploy"}]}]


async def test_a_round_is_answered_at_the_endpoint_of_its_view() -> None:
    async with local(order, deploy, views=VIEWS) as browser:
        tool_page = await browser.page("/tools/deploy?view=some")
        assert "at /some/mcp." in tool_page
        assert "all tools" in tool_page
        path = "/tools/deploy/call?view=some"
        asked = (await browser.submit(path, {"argument/env": "prod"})).text
        assert "/tools/deploy/call?view=some" in asked
        answers = {**hidden(asked), "action/0": "accept", "answer/0/go": "true"}
        answers["answer/0/reason"] = '"late"'
        assert "deployed because late" in await call(browser, "deploy", answers, "some")
        elsewhere = await call(browser, "deploy", answers)
        assert "deployed" not in elsewhere


async def test_a_view_has_only_its_own_tools() -> None:
    async with local(order, deploy, views=VIEWS) as browser:
        for path in ("/tools/order", "/tools/order/call", "/tools/deploy/call"):
            view = "some" if "order" in path else "none"
            answer = await browser.submit(f"{path}?view={view}", {})
            assert answer.status_code in (404, 405), path
        key = {"x-csrf-token": csrf_of(await browser.page())}
        answer = await browser.http.post(
            "/console/api/tools/order/call?view=some",
            json={"arguments": {"item": "a"}},
            headers={**browser.same_origin, **key},
        )
        assert answer.json()["kind"] == "error"


async def test_an_operator_needs_the_scopes_of_a_views_endpoint() -> None:
    views = [{**VIEWS[0], "scopes": ["deploy"]}]
    async with with_auth(order, deploy, views=views) as browser:
        for scope, status in ((OPERATOR, 403), (f"{OPERATOR} deploy", 200)):
            await browser.sign_in(scope=scope)
            path = "/tools/deploy/call?view=some"
            answer = await browser.submit(path, {"argument/env": "prod"})
            assert (answer.status_code, "Deploy prod?" in answer.text) == (status, status == 200)
            key = {"authorization": f"Bearer {token(scope=scope)}"}
            called = await browser.http.post(f"/console/api{path}", json={}, headers=key)
            assert called.status_code == status
