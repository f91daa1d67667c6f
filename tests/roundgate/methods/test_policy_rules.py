"""Rules about calls: which tools a caller sees, which calls run, and every way around that a caller
may try."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from roundgate import Context, tool
from roundgate.errors import ConfigError
from roundgate.main import build_app
from roundgate.runtime import loading
from tests.support import asgi
from tests.support.asgi import NO_FALLBACK, Client, client, config_file, stoppable
from tests.support.audit import KEY, records
from tests.support.issuer import PUBLIC_URL, bearer, gateway_for, guarded, jwks, token
from tests.support.log_lines import log_lines
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES, accept, ask, retry
from tests.support.services import answer, service
from tests.support.sessions import opened
from tests.support.task_client import DECLARED, TaskClient, task_settings
from tests.support.telemetry import recorded

gateway = partial(asgi.gateway, fallback=NO_FALLBACK)

ran: list[Any] = []
NOT_THESE = "does not allow this call with these arguments"


@tool(read_only=True)
def look(place: str = "here") -> str:
    """Look at a place."""
    ran.append(place)
    return f"looked {place}"


@tool(destructive=True)
def refund(order: str, amount: int = 1_000, note: str | int | None = None) -> str:
    """Refund an order."""
    ran.append((order, amount))
    return f"refunded {amount}"


@tool
async def greet(ctx: Context, greeting: str = "Hello") -> str:
    """Greet a person."""
    who = await ctx.elicit("who", "Who?", Name)
    ran.append(greeting)
    return f"{greeting} {who.name}"


@tool(task="required")
async def ship(ctx: Context, parcel: str) -> str:
    """Ship a parcel."""
    await ctx.continue_as_task()
    where = await ctx.elicit("where", "Where to?", Name)
    ran.append(parcel)
    return f"{parcel} to {where.name}"


ALL = (look, refund, greet, ship)
SMALL = {
    "properties": {"amount": {"type": "integer", "maximum": 100}},
    "required": ["amount"],
}
RULES: list[dict[str, Any]] = [
    {"deny": {"claims": {"groups": "suspended"}}},
    {"allow": {"tool": "refund", "claims": {"groups": "support"}, "arguments": SMALL}},
    {"name": "managers", "allow": {"tool": "refund", "claims": {"groups": ["managers", "owners"]}}},
    {"deny": {"tool": "refund"}},
    {"allow": {"hint": "read_only"}},
    {"allow": {"scope": "work"}},
]


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@asynccontextmanager
async def shop(rules: list[dict[str, Any]] = RULES, **sections: Any) -> AsyncIterator[Client]:
    sections = {"fallback": NO_FALLBACK, **sections}
    async with gateway_for(*ALL, policy=rules, **sections) as (mcp, _):
        yield mcp


def of(*groups: str, **claims: Any) -> dict[str, str | None]:
    """The header of a caller in these groups."""
    return bearer(token(groups=list(groups) or None, **claims))


async def listed(mcp: Client, headers: dict[str, str | None]) -> list[str]:
    response = await mcp.post("tools/list", {}, headers=headers)
    return [entry["name"] for entry in response.json()["result"]["tools"]]


async def said(
    mcp: Client, headers: dict[str, str | None], tool_name: str, /, **arguments: Any
) -> str:
    """The text of a call's result, or the message of its error."""
    body = (
        await mcp.post("tools/call", {"name": tool_name, "arguments": arguments}, headers=headers)
    ).json()
    if "error" in body:
        assert body["error"]["code"] == -32602
        return str(body["error"]["message"])
    return str(body["result"]["content"][0]["text"])


async def test_a_caller_sees_the_tools_of_which_some_call_may_be_allowed() -> None:
    async with shop() as mcp:
        assert await listed(mcp, of()) == ["look"]
        assert await listed(mcp, of("support")) == ["look", "refund"]
        assert await listed(mcp, of(scope="work")) == ["look", "greet", "ship"]
        assert await listed(mcp, of("owners", scope="work")) == ["look", "refund", "greet", "ship"]
        assert await listed(mcp, of("support", "suspended")) == []
        assert await listed(mcp, of()) == ["look"]


async def test_a_list_that_depends_on_the_caller_is_private() -> None:
    async with shop() as mcp:
        result = (await mcp.post("tools/list", {}, headers=of())).json()["result"]
        assert result["cacheScope"] == "private"
    async with client(gateway(*ALL, policy=[{"allow": {"tool": "look"}}])) as mcp:
        result = await mcp.result("tools/list")
        assert [entry["name"] for entry in result["tools"]] == ["look"]
        assert result["cacheScope"] == "public"


async def test_the_first_rule_that_matches_decides() -> None:
    async with shop() as mcp:
        assert await said(mcp, of("support"), "refund", order="a", amount=100) == "refunded 100"
        assert NOT_THESE in await said(mcp, of("support"), "refund", order="a", amount=101)
        assert await said(mcp, of("managers"), "refund", order="a", amount=101) == "refunded 101"
        both = of("support", "managers")
        assert await said(mcp, both, "refund", order="a", amount=102) == "refunded 102"
        suspended = of("suspended", "managers")
        assert "does not allow you to call refund" in await said(
            mcp, suspended, "refund", order="a", amount=1
        )
        assert [amount for _, amount in ran] == [100, 101, 102]


async def test_a_call_that_no_rule_matches_is_refused() -> None:
    rules: list[dict[str, Any]] = [
        {"deny": {"claims": {"groups": "suspended"}}},
        {"allow": {"tool": "look"}},
    ]
    async with shop(rules) as mcp:
        assert "does not allow you to call refund" in await said(
            mcp, of("managers"), "refund", order="a", amount=1
        )
        assert await said(mcp, of(), "look") == "looked here"


MANAGERS: list[Any] = ["managers", ["managers"], ["x", 7, None, {"managers": 1}, "managers"]]
NO_MANAGERS: list[Any] = [
    *("managers support", "support,managers", ["managers support"], ["Managers"], ["managers "]),
    *(["managers\n"], ["ｍanagers"], [["managers"]], {"managers": True}, [], None),
]


async def test_a_claim_has_to_have_the_text_itself() -> None:
    rules = [{"allow": {"tool": "refund", "claims": {"groups": "managers"}}}]
    claims = [{"groups": groups} for groups in (*MANAGERS, *NO_MANAGERS)]
    async with shop(rules) as mcp:
        for number, each in enumerate([*claims, {"roles": ["managers"]}]):
            text = await said(mcp, bearer(token(**each)), "refund", order="a", amount=1)
            assert (text == "refunded 1") is (number < len(MANAGERS)), each
            assert len(ran) == min(number + 1, len(MANAGERS)), each


async def test_rules_look_at_subject_client_scopes_and_nested_claims() -> None:
    rules: list[dict[str, Any]] = [
        {"deny": {"subject": "eve*", "client": "*"}},
        {"allow": {"subject": ["ann", "*@example.com"], "client": "cli", "tool": "look"}},
        {"allow": {"claims": {"/realm_access/roles": "ops", "verified": "true"}, "tool": "greet"}},
        {"allow": {"scope": ["a", "b"], "claims": {"level": ["3", "4"]}, "tool": "refund"}},
    ]
    nested: dict[str, Any] = {"realm_access": {"roles": ["ops"]}, "verified": True}
    async with shop(rules) as mcp:
        assert await listed(mcp, bearer(token())) == ["look"]
        assert await listed(mcp, bearer(token(client_id="other"))) == []
        assert await listed(mcp, bearer(token(sub="bo@example.com"))) == ["look"]
        assert await listed(mcp, bearer(token(sub="bo@example.com.evil"))) == []
        assert await listed(mcp, bearer(token(sub="eve@example.com"))) == []
        assert await listed(mcp, bearer(token(sub="x", **nested))) == ["greet"]
        assert await listed(mcp, bearer(token(sub="x", **{**nested, "verified": "yes"}))) == []
        assert await listed(mcp, bearer(token(sub="x", scope="b c", level=3))) == ["refund"]
        assert await listed(mcp, bearer(token(sub="x", scope="b c", level=30))) == []


async def test_arguments_are_checked_as_the_function_gets_them() -> None:
    nothing: dict[str, Any] = {}  # Python's default is 1,000
    others: list[dict[str, Any]] = [{"amount": n} for n in (101, 10**30, 1e300)]
    async with shop() as mcp:
        for arguments in (nothing, *others, {"Amount": 1}):
            text = await said(mcp, of("support"), "refund", order="a", **arguments)
            assert NOT_THESE in text or "Invalid arguments" in text, arguments
            assert ran == []


async def test_of_a_repeated_argument_the_checked_value_is_the_sent_value() -> None:
    async with shop() as mcp:
        for first, second in ((1, 5_000), (5_000, 1)):
            body = (
                b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"refund","arguments":'
                b'{"order":"a","amount":%d,"amount":%d},"_meta":%b}}'
            )
            meta = json.dumps(
                {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                }
            ).encode()
            headers = {
                "content-type": "application/json",
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/call",
                "mcp-name": "refund",
                "authorization": str(of("support")["authorization"]),
            }
            await mcp.http.post(mcp.path, content=body % (first, second, meta), headers=headers)
        assert all(amount <= 100 for _, amount in ran)


class Options(BaseModel):
    force: bool = True
    depth: int = 3


class Item(BaseModel):
    count: int = 1_000


@tool
def wipe(path: str, options: Options, items: list[Item] = []) -> str:  # noqa: B006
    """Wipe a path."""
    ran.append(path)
    return "wiped"


@pytest.mark.parametrize(
    ("arguments", "is_allowed"),
    [
        ({"options": {"force": False}}, True),
        ({"options": {}}, False),  # Python's default is true
        ({"options": {"depth": 1}}, False),
        ({"options": {"force": False}, "items": [{"count": 1}]}, True),
        ({"options": {"force": False}, "items": [{"count": 1}, {}]}, False),
    ],
)
async def test_defaults_inside_of_arguments_are_checked(arguments: Any, is_allowed: bool) -> None:
    forced = {"properties": {"force": {"const": True}}, "required": ["force"]}
    many = {"properties": {"count": {"minimum": 100}}, "required": ["count"]}
    rules: list[dict[str, Any]] = [
        {"deny": {"arguments": {"properties": {"options": forced}, "required": ["options"]}}},
        {
            "deny": {
                "arguments": {"properties": {"items": {"contains": many}}, "required": ["items"]}
            }
        },
        {"allow": {}},
    ]
    async with client(gateway(wipe, policy=rules)) as mcp:
        text = await mcp.text("wipe", {"path": "/", **arguments})
        assert (text == "wiped") is is_allowed is bool(ran)


async def test_names_defaults_and_fixed_values_of_overrides_are_applied_before_the_check() -> None:
    override = {
        "refund": {
            "name": "pay",
            "arguments": {"amount": {"name": "sum"}, "order": {"fixed": "b"}},
        }
    }
    order = {"properties": {"order": {"const": "b"}}, "required": ["order"]}
    rules = [
        {"allow": {"tool": "pay", "arguments": {"allOf": [SMALL, order]}}},
    ]
    async with shop(rules, backend={"override": override}) as mcp:
        assert await listed(mcp, of()) == ["pay"]
        assert await said(mcp, of(), "pay", sum=7) == "refunded 7"
        assert NOT_THESE in await said(mcp, of(), "pay", sum=700)
        assert NOT_THESE in await said(mcp, of(), "pay")
        assert "Unknown tool" in await said(mcp, of(), "refund", order="a", amount=1)
        for name in ("Pay", "pay ", "pay\u200b", "ｐay", "p\u0061y\u0301", "python__pay"):
            assert "Unknown tool" in await said(mcp, of(), name, sum=7)
    assert ran == [("b", 7)]


async def test_a_view_cannot_be_used_to_get_around_a_rule() -> None:
    views = [
        {"name": "all", "override": {"refund": {"name": "give", "read_only": True}}},
        {"name": "desk"},
    ]
    rules: list[dict[str, Any]] = [
        {"deny": {"tool": "refund", "view": ["", "all"]}},
        {"allow": {}},
    ]
    async with client(gateway(*ALL, policy=rules, views=views)) as mcp:
        names = [entry["name"] for entry in (await mcp.result("tools/list"))["tools"]]
        assert names == ["look", "greet", "ship"]
        in_view = Client(mcp.http, "/all/mcp")
        names = [entry["name"] for entry in (await in_view.result("tools/list"))["tools"]]
        assert names == ["look", "greet", "ship"]
        status, error = await in_view.error("tools/call", {"name": "give", "arguments": {}})
        assert (status, error["code"]) == (400, -32602)
        desk = Client(mcp.http, "/desk/mcp")
        assert await desk.text("refund", {"order": "a", "amount": 3}) == "refunded 3"


async def test_search_finds_describes_and_calls_only_allowed_tools() -> None:
    async with shop(search={}) as mcp:
        own = ["search_tools", "describe_tool", "call_tool"]
        assert await listed(mcp, of()) == own
        assert "refund" not in await said(mcp, of(), "search_tools", query="refund an order")
        assert "refund" in await said(mcp, of("support"), "search_tools", query="refund an order")
        assert "no tool" in await said(mcp, of(), "describe_tool", name="refund")
        for headers, amount, text in (
            (of(), 1, "does not allow you to call refund"),
            (of("support"), 101, NOT_THESE),
            (of("support"), 99, "refunded 99"),
        ):
            arguments = {"order": "a", "amount": amount}
            called = {"name": "refund", "arguments": arguments}
            assert text in await said(mcp, headers, "call_tool", **called)


async def test_a_round_is_checked_with_the_token_of_its_request() -> None:
    async with shop() as mcp:
        params = {"name": "greet", "arguments": {}}
        first = await mcp.post(
            "tools/call", params, headers=of(scope="work"), clientCapabilities=CAPABILITIES
        )
        again = retry(params, first.json()["result"], who=accept(name="Bo"))
        refused = await mcp.post("tools/call", again, headers=of(), clientCapabilities=CAPABILITIES)
        assert "does not allow you" in refused.json()["error"]["message"]
        assert ran == []
        allowed = await mcp.post(
            "tools/call", again, headers=of(scope="work"), clientCapabilities=CAPABILITIES
        )
        assert allowed.json()["result"]["content"][0]["text"] == "Hello Bo"


async def test_an_approval_is_not_asked_for_a_refused_call() -> None:
    rules = [{"allow": {"tool": "refund", "arguments": SMALL}}]
    async with client(gateway(*ALL, policy=rules, backend={"approve": "destructive"})) as mcp:
        params = {"name": "refund", "arguments": {"order": "a", "amount": 500}}
        response = await mcp.post("tools/call", params, clientCapabilities=CAPABILITIES)
        assert NOT_THESE in response.json()["result"]["content"][0]["text"]
        params["arguments"] = {"order": "a", "amount": 5}
        asked = await ask(mcp, "tools/call", params)
        assert asked["inputRequests"].keys() == {"approve"}


async def test_answers_of_a_form_are_checked() -> None:
    rules = [{"allow": {"tool": "refund", "arguments": SMALL}}]
    backend = {"override": {"refund": {"ask_for": ["amount"]}}}
    async with client(gateway(*ALL, policy=rules, backend=backend)) as mcp:
        params = {"name": "refund", "arguments": {"order": "a"}}
        for amount, text in ((5_000, NOT_THESE), (50, "refunded 50")):
            asked = await ask(mcp, "tools/call", params)
            again = retry(params, asked, arguments=accept(amount=amount))
            response = await mcp.post("tools/call", again, clientCapabilities=CAPABILITIES)
            assert text in response.json()["result"]["content"][0]["text"]
    assert ran == [("a", 50)]


async def test_calls_of_a_session_are_checked() -> None:
    rules = [{"allow": {"tool": "refund", "arguments": SMALL}}]
    app = gateway(*ALL, policy=rules)
    session = await opened(app)
    arguments = {"order": "a", "amount": 500}
    result = await session.result(app, "tools/call", {"name": "refund", "arguments": arguments})
    assert NOT_THESE in result["content"][0]["text"]
    error = await session.error(app, "tools/call", {"name": "look"})
    assert "does not allow you to call look" in error["message"]
    listed = await session.result(app, "tools/list")
    assert [entry["name"] for entry in listed["tools"]] == ["refund"]
    assert ran == []


async def test_a_task_is_checked_when_it_is_made_used_and_run(tmp_path: Path) -> None:
    deny = {"deny": {"tool": "ship", "arguments": {"properties": {"parcel": {"const": "bomb"}}}}}
    file = config_file(*ALL, policy=[deny, {"allow": {}}], tasks={"poll_interval_ms": 100})
    using = task_settings(tmp_path)
    async with stoppable(build_app(file, using)) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        refused = (await ann.call("ship", {"parcel": "bomb"})).json()["result"]
        assert NOT_THESE in refused["content"][0]["text"]
        task_id = await ann.begin("ship", parcel="book")
        await ann.asked(task_id)
    stricter = replace(
        file,
        config=config_file(
            *ALL,
            policy=[
                {"deny": {"tool": "ship", "arguments": {"required": ["parcel"]}}},
                {"allow": {"tool": "ship", "arguments": {}}},
                {"allow": {}},
            ],
            tasks={"poll_interval_ms": 100},
        ).config,
    )
    async with stoppable(build_app(stricter, using)) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        await ann.answer(task_id, {"where": accept(name="Bo")})
        task = await ann.until(task_id, "completed", "failed")
        assert task["result"]["isError"]
        assert NOT_THESE in task["result"]["content"][0]["text"]
    closed = replace(file, config=config_file(*ALL, policy=[{"allow": {"tool": "look"}}]).config)
    async with stoppable(build_app(closed, using)) as app, client(app) as mcp:
        for method in ("tasks/get", "tasks/cancel"):
            response = await TaskClient(mcp).send(method, {"taskId": task_id})
            assert "does not allow you to call ship" in response.json()["error"]["message"]
    assert ran == []


async def test_a_task_keeps_the_claims_that_rules_named_and_lacks_all_others(
    tmp_path: Path,
) -> None:
    async with service(answer(jwks("ec"))) as keys:
        tasks = {"poll_interval_ms": 100}

        def file(*rules: dict[str, Any]) -> Any:
            return guarded(f"{keys.url}/jwks", *ALL, policy=list(rules), tasks=tasks)

        by_group = {"allow": {"claims": {"groups": "support"}}}
        using = task_settings(tmp_path, public_url=PUBLIC_URL)
        headers = of("support", department="x")
        async with stoppable(build_app(file(by_group), using)) as app, client(app) as mcp:
            ann = TaskClient(mcp, DECLARED, headers)
            done, refused = [await ann.begin("ship", parcel=name) for name in ("a", "b")]
            await ann.asked(done)
            await ann.asked(refused)
            await ann.answer(done, {"where": accept(name="Bo")})
            assert await ann.text(done) == "a to Bo"
        another = {"deny": {"claims": {"department": "y"}}}
        async with stoppable(build_app(file(another, by_group), using)) as app, client(app) as mcp:
            ann = TaskClient(mcp, DECLARED, headers)
            await ann.answer(refused, {"where": accept(name="Bo")})
            task = await ann.over(refused)
            assert NOT_THESE in task["result"]["content"][0]["text"]
    assert ran == ["a"]


async def test_refusals_are_logged_counted_and_recorded_with_their_rule(tmp_path: Path) -> None:
    audit = {"directory": str(tmp_path / "audit"), "key": KEY}
    with log_lines() as lines, recorded() as telemetry:
        async with shop(audit=audit) as mcp:
            await said(mcp, of("support"), "refund", order="secret-order", amount=500)
            await said(mcp, of(), "refund", order="secret-order", amount=5)
            await said(mcp, of(), "greet")
    refused = records(tmp_path / "audit", "refused", "ended")
    assert [record["reason"] for record in refused] == [
        "refused by policy[3]",
        "refused by policy[3]",
        "refused by policy",
    ]
    assert [record["event"] for record in refused] == ["ended", "refused", "refused"]
    told = lines.of("the policy refuses a call")
    assert [(line["rule"], line["subject"], line["tool"]) for line in told] == [
        ("policy[3]", "ann", "refund"),
        ("policy[3]", "ann", "refund"),
        ("policy", "ann", "greet"),
    ]
    assert "secret-order" not in "".join(lines.text)
    refusals = telemetry.points("roundgate.calls.refused")
    assert {point.attributes["limit"]: point.value for point in refusals} == {
        "policy[3]": 2,
        "policy": 1,
    }


async def test_what_is_pending_for_an_own_tool_needs_no_rule() -> None:
    rules = [{"allow": {"tool": "look"}}]
    backend = {"override": {"look": {"max_result": 200}}}
    async with client(gateway(*ALL, policy=rules, backend=backend)) as mcp:
        text = await mcp.text("look", {"place": "x" * 500})
        cursor = text.partition('"cursor":"')[2].partition('"')[0] or text.rsplit(" ", 1)[-1]
        assert cursor
        names = [entry["name"] for entry in (await mcp.result("tools/list"))["tools"]]
        assert names == ["look", "read_more"]


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([], "at least one rule"),
        (None, "at least one rule"),
        ([{}], "either allow or deny"),
        ([{"allow": {}, "deny": {}}], "either allow or deny"),
        ([{"deny": None}], "either allow or deny"),
        ([{"allow": {"tools": "look"}}], "did you mean tool"),
        ([{"allow": {"tool": []}}], "at least 1"),
        ([{"allow": {"subject": "ann"}}], "need auth"),
        ([{"name": "a", "allow": {}}, {"name": "a", "deny": {}}], "the name 'a'"),
        ([{"allow": {"hint": "harmless"}}], "read_only"),
        *[
            ([{"allow": {"tool": "look", member: None}}], rf"policy\[0\].allow.{member}: is empty")
            for member in ("subject", "client", "scope", "claims", "hint", "view", "arguments")
        ],
        ([{"allow": {"claims": {}}}], r"policy\[0\].allow.claims: is empty"),
        ([{"deny": {"scope": "read write"}}], "'read write' is not a scope"),
        ([{"deny": {"scope": ["read", ""]}}], "'' is not a scope"),
    ],
)
def test_a_wrong_rule_is_a_problem_of_the_file(rules: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config_file(*ALL, policy=rules)


@pytest.mark.parametrize(
    ("match", "problem"),
    [
        ({"tool": "look*up"}, r"policy\[0\].deny.tool: no tool is called 'look\*up'"),
        ({"tool": ["look", "refnd"]}, "no tool is called 'refnd'"),
        ({"tool": "[l]ook"}, "no tool is called"),
        ({"backend": "pyton"}, "no back end is called 'pyton'"),
        ({"view": "desk"}, "no view is called 'desk'"),
        ({"arguments": {"type": "strin"}}, "not a usable JSON Schema"),
        ({"arguments": {"$ref": "https://example.com/a.json"}}, "not a usable JSON Schema"),
        ({"arguments": {"properties": {"a": {"pattern": "^(?=a)(a+)+$"}}}}, "looks ahead"),
        ({"arguments": {"properties": {"a": {"pattern": "("}}}}, "not a usable JSON Schema"),
        ({"arguments": {"amount": {"maximum": 9}}}, "amount is not .* members of `properties`"),
        (
            {"arguments": {"properties": {"amount": {"maximun": 9}}}},
            r"properties.amount.maximun is not a keyword that is checked: did you mean maximum\?",
        ),
        (
            {"arguments": {"anyOf": [{"prefixItems": [{"requried": ["a"]}]}]}},
            "anyOf.prefixItems.requried is not a keyword",
        ),
        ({"arguments": {"properties": {"a": {"format": "email"}}}}, "a.format is not a keyword"),
    ],
)
def test_a_rule_that_could_never_apply_is_a_problem(match: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loading.load(config_file(*ALL, policy=[{"deny": match}, {"allow": {}}]))


async def test_a_pattern_that_would_backtrack_costs_nothing() -> None:
    schema = {"properties": {"place": {"pattern": "^(a+)+$"}}, "required": ["place"]}
    rules: list[dict[str, Any]] = [{"deny": {"arguments": schema}}, {"allow": {}}]
    async with client(gateway(*ALL, policy=rules)) as mcp:
        assert (await mcp.text("look", {"place": "a" * 50_000 + "b"})).startswith("looked")
        assert NOT_THESE in await mcp.text("look", {"place": "a" * 50_000})


async def test_schemas_may_refer_to_their_own_parts() -> None:
    schema = {
        "$defs": {"small": {"type": "integer", "maximum": 100}},
        "properties": {"amount": {"$ref": "#/$defs/small"}},
        "required": ["amount"],
    }
    async with client(gateway(*ALL, policy=[{"allow": {"arguments": schema}}])) as mcp:
        assert await mcp.text("refund", {"order": "a", "amount": 100}) == "refunded 100"
        assert NOT_THESE in await mcp.text("refund", {"order": "a", "amount": 101})
