"""Views: several endpoints of one gateway, each with its own part of what is served,
and nothing of another's.

Whoever tries to get more out of a view than it offers sends it what another has given out: a state,
a task's id, a session, the id of an event, a key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate import Context, prompt, resource, tool
from roundgate.auth import LOCAL
from roundgate.errors import ConfigError
from roundgate.main import build_app
from roundgate.methods import Hub
from roundgate.protocol import SubscriptionFilter
from roundgate.runtime import loading
from tests.support import wire
from tests.support.asgi import (
    NO_FALLBACK,
    Client,
    Exchange,
    client,
    config_file,
    gateway,
    stoppable,
)
from tests.support.issuer import PUBLIC_URL, bearer, gateway_for, token
from tests.support.rounds import CAPABILITIES, REFUSAL, accept, ask, retry
from tests.support.sessions import BOTH, opening, request
from tests.support.task_client import DECLARED, TaskClient, task_settings

ran: list[str] = []


@tool(read_only=True)
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"looked {place}"


@tool(destructive=True)
def wipe(disk: str) -> str:
    """Wipe a disk."""
    ran.append(disk)
    return f"wiped {disk}"


@tool
async def confirm(ctx: Context, what: str) -> str:
    """Asks."""
    sure = await ctx.elicit("sure", f"Really {what}?", {"type": "object", "properties": {}})
    ran.append(what)
    return f"did {what}: {sure}"


@tool(task="required")
def dig(depth: int) -> str:
    """A task."""
    return f"dug {depth}"


@tool(scopes=["vault"])
def unlock() -> str:
    """Needs a scope."""
    return "open"


@prompt
def greeting(name: str) -> str:
    """Greets."""
    return f"Greet {name}"


@resource("note://public/one")
def one() -> str:
    """A note."""
    return "one"


@resource("note://secret/{name}")
def secret(name: str) -> str:
    """A secret note."""
    return name


ALL = (look, wipe, confirm, dig, unlock, greeting, one, secret)
SUPPORT: dict[str, Any] = {
    "name": "support",
    "exclude": [{"name": "unlock"}, {"hint": "destructive", "name": "wipe"}],
    "override": {"confirm": {"arguments": {"what": {"fixed": "nothing"}}}},
    "prompts": ["greet*"],
    "resources": ["note://public/*"],
}
ADMIN: dict[str, Any] = {
    "name": "admin",
    "path": "/for/admins",
    "override": {"wipe": {"approve": "always", "name": "erase"}, "look": {"task": "required"}},
    "resources": ["*"],
    "instructions": "Be careful.",
}


@asynccontextmanager
async def views(*given: dict[str, Any], **sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    sections = {"fallback": NO_FALLBACK, **sections}
    app = gateway(*ALL, views=list(given or (SUPPORT, ADMIN)), **sections)
    async with client(app) as made:
        yield made.http


def at(http: httpx.AsyncClient, path: str) -> Client:
    return Client(http, path)


async def names(mcp: Client) -> list[str]:
    return [one["name"] for one in (await mcp.result("tools/list"))["tools"]]


async def test_each_endpoint_has_its_own_part() -> None:
    async with views() as http:
        assert await names(at(http, "/mcp")) == ["look", "wipe", "confirm", "dig", "unlock"]
        assert await names(at(http, "/support/mcp")) == ["look", "confirm", "dig"]
        assert await names(at(http, "/for/admins")) == ["look", "erase", "confirm", "dig", "unlock"]
        support, admin = at(http, "/support/mcp"), at(http, "/for/admins")
        assert [one["name"] for one in (await support.result("prompts/list"))["prompts"]] == [
            "greeting"
        ]
        assert (await admin.result("server/discover"))["instructions"] == "Be careful."
        assert "instructions" not in await support.result("server/discover")
        assert "prompts" not in (await admin.result("server/discover"))["capabilities"]
        found = (await support.result("resources/list"))["resources"]
        assert [one["uri"] for one in found] == ["note://public/one"]


async def test_what_a_view_does_not_have_cannot_be_used_there() -> None:
    async with views() as http:
        support = at(http, "/support/mcp")
        for method, params in (
            ("tools/call", {"name": "wipe", "arguments": {"disk": "c"}}),
            ("resources/read", {"uri": "note://secret/x"}),
        ):
            _, error = await support.error(method, params)
            assert error["code"] == -32602
        assert "requestState" not in await support.call("look")
        assert (await http.post("/nowhere/mcp", json={})).status_code == 404


async def test_a_view_may_take_the_place_of_everything() -> None:
    async with views({**SUPPORT, "path": "/mcp"}) as http:
        assert await names(at(http, "/mcp")) == ["look", "confirm", "dig"]


async def test_an_override_of_a_view_holds_there_alone() -> None:
    async with views() as http:
        support = at(http, "/support/mcp")
        schema = (await support.result("tools/list"))["tools"][1]["inputSchema"]
        assert schema["properties"] == {}
        params = {"name": "confirm", "arguments": {}}
        asked = await ask(support, "tools/call", params)
        assert asked["inputRequests"]["sure"]["params"]["message"] == "Really nothing?"


async def test_a_view_can_have_calls_approved_that_need_no_approval_elsewhere() -> None:
    ran.clear()
    async with views() as http:
        params = {"name": "erase", "arguments": {"disk": "c"}}
        asked = await ask(at(http, "/for/admins"), "tools/call", params)
        assert asked["inputRequests"]["approve"]["params"]["message"].startswith("Run wipe?")
        assert not ran
        done = await at(http, "/for/admins").result(
            "tools/call",
            retry(params, asked, approve=accept(approve=True)),
            clientCapabilities=CAPABILITIES,
        )
        assert done["content"][0]["text"] == "wiped c"


async def test_an_approval_of_the_back_end_is_asked_for_once_in_a_view_too() -> None:
    config = {"name": "v", "override": {"wipe": {"approve": "always"}}}
    async with views(config, backend={"approve": "destructive"}) as http:
        params = {"name": "wipe", "arguments": {"disk": "d"}}
        asked = await ask(at(http, "/v/mcp"), "tools/call", params)
        done = await at(http, "/v/mcp").result(
            "tools/call",
            retry(params, asked, approve=accept(approve=True)),
            clientCapabilities=CAPABILITIES,
        )
        assert done["content"][0]["text"] == "wiped d"


@pytest.mark.parametrize(("path", "other"), [("/for/admins", "/mcp"), ("/mcp", "/for/admins")])
async def test_a_state_of_one_view_is_none_at_another(path: str, other: str) -> None:
    ran.clear()
    params = {"name": "confirm", "arguments": {"what": "it"}}
    async with views() as http:
        asked = await ask(at(http, path), "tools/call", params)
        given = retry(params, asked, sure=accept())
        _, error = await at(http, other).error("tools/call", given, clientCapabilities=CAPABILITIES)
        assert (error["message"], ran) == (REFUSAL, [])
        done = await at(http, path).result("tools/call", given, clientCapabilities=CAPABILITIES)
        assert done["content"][0]["text"].startswith("did it")


async def test_a_task_of_one_view_is_unknown_at_another(tmp_path: Path) -> None:
    methods: dict[str, dict[str, Any]] = {
        "tasks/get": {},
        "tasks/update": {"inputResponses": {}},
        "tasks/cancel": {},
    }
    file = config_file(*ALL, views=[SUPPORT, ADMIN], tasks={"poll_interval_ms": 100})
    async with (
        stoppable(build_app(file, task_settings(tmp_path))) as app,
        client(app) as everything,
    ):
        admin = TaskClient(at(everything.http, "/for/admins"), DECLARED)
        created = await admin.begin("dig", depth=3)
        for path, (method, more) in product(("/mcp", "/support/mcp"), methods.items()):
            there, unknown = [
                await at(everything.http, path).post(
                    method, {"taskId": task_id, **more}, clientCapabilities=DECLARED
                )
                for task_id in (created, "A" * 22)
            ]
            assert there.json()["error"] == unknown.json()["error"], (path, method)
        assert await admin.text(created) == "dug 3"


async def test_a_task_runs_as_its_view_has_the_tool(tmp_path: Path) -> None:
    override = {"dig": {"arguments": {"depth": {"fixed": 1}}}}
    shallow = {"name": "shallow", "override": override}
    file = config_file(*ALL, views=[shallow], tasks={"poll_interval_ms": 100})
    async with (
        stoppable(build_app(file, task_settings(tmp_path))) as app,
        client(app) as everything,
    ):
        mcp = TaskClient(at(everything.http, "/shallow/mcp"), DECLARED)
        assert await mcp.text(await mcp.begin("dig")) == "dug 1"


async def test_a_key_of_one_view_does_not_find_the_outcome_of_another(tmp_path: Path) -> None:
    ran.clear()
    key: dict[str, Any] = {"roundgate/idempotencyKey": "same"}
    params = {"name": "wipe", "arguments": {"disk": "k"}}
    plain = {"name": "a", "override": {"wipe": {"once": True}}}
    approving = {"name": "b", "override": {"wipe": {"approve": "always"}}}
    async with views(plain, approving, using=task_settings(tmp_path)) as http:
        await at(http, "/a/mcp").result("tools/call", params, **key)
        await at(http, "/a/mcp").result("tools/call", params, **key)
        assert ran == ["k"]
        response = await at(http, "/b/mcp").post(
            "tools/call", params, clientCapabilities=CAPABILITIES, **key
        )
        assert "approve" in response.json()["result"]["inputRequests"]


async def opened(http: httpx.AsyncClient, path: str) -> dict[str, str]:
    """The headers of a session at a path."""
    headers = {"content-type": "application/json", "accept": BOTH}
    response = await http.post(path, json=opening(), headers=headers)
    assert response.status_code == 200, response.text
    session = {"mcp-session-id": response.headers["mcp-session-id"]}
    return {**headers, **session, "mcp-protocol-version": "2025-11-25"}


async def test_clients_with_sessions_have_views_too_and_a_session_is_for_one() -> None:
    async with views() as http:
        headers = await opened(http, "/support/mcp")
        listed = await http.post("/support/mcp", json=request("tools/list"), headers=headers)
        assert [one["name"] for one in listed.json()["result"]["tools"]] == [
            "look",
            "confirm",
            "dig",
        ]
        for path in ("/mcp", "/for/admins"):
            refused = await http.post(path, json=request("tools/list"), headers=headers)
            assert refused.status_code == 404


async def test_nobody_is_told_of_a_resource_that_the_view_does_not_have() -> None:
    async with views() as http:
        headers = await opened(http, "/support/mcp")
        for uri, word in (("note://public/one", "result"), ("note://secret/x", "error")):
            subscribed = await http.post(
                "/support/mcp", json=request("resources/subscribe", {"uri": uri}), headers=headers
            )
            assert word in subscribed.json(), uri


async def test_a_stream_of_a_view_acknowledges_only_what_the_view_has() -> None:
    app = gateway(*ALL, views=[SUPPORT])
    wanted = {"resourceSubscriptions": ["note://public/one", "note://secret/x"]}
    asked = wire.message("subscriptions/listen", {"notifications": wanted})
    exchange = Exchange(app, asked)
    exchange.scope["path"] = "/support/mcp"
    async with exchange as stream:
        first = await stream.event()
    assert first is not None
    assert first["params"]["notifications"] == {"resourceSubscriptions": ["note://public/one"]}


METADATA = "/.well-known/oauth-protected-resource"


@asynccontextmanager
async def guarded_views(**auth: Any) -> AsyncIterator[httpx.AsyncClient]:
    given = [{**SUPPORT, "scopes": ["support"]}, {**ADMIN, "scopes": ["admin"]}]
    async with gateway_for(*ALL, views=given, auth=auth) as (mcp, _):
        yield mcp.http


async def test_each_view_is_a_resource_of_its_own() -> None:
    async with guarded_views(scopes=["base"]) as http:
        document = (await http.get(f"{METADATA}/support/mcp")).json()
        assert document["resource"] == f"{PUBLIC_URL}/support/mcp"
        assert document["scopes_supported"] == ["base", "support"]
        admin = (await http.get(f"{METADATA}/for/admins")).json()
        assert admin["scopes_supported"] == ["admin", "base", "vault"]
        assert (await http.get(METADATA)).json()["resource"] == f"{PUBLIC_URL}/mcp"
        refused = await at(http, "/support/mcp").post("tools/list")
        challenge = refused.headers["www-authenticate"]
        assert refused.status_code == 401
        assert f'resource_metadata="{PUBLIC_URL}{METADATA}/support/mcp"' in challenge
        assert 'scope="base support"' in challenge


async def test_a_token_for_one_view_is_for_no_other() -> None:
    async with guarded_views() as http:
        for audience, scope, statuses in (
            ("/support/mcp", "support", (401, 200, 401)),
            ("/for/admins", "admin", (401, 401, 200)),
            ("/support/mcp", "admin", (401, 403, 401)),
            ("/mcp", "support admin", (200, 401, 401)),
        ):
            headers = bearer(token(aud=PUBLIC_URL + audience, scope=scope))
            for path, status in zip(("/mcp", "/support/mcp", "/for/admins"), statuses, strict=True):
                response = await at(http, path).post("tools/list", headers=headers)
                assert response.status_code == status, (audience, scope, path)


async def test_one_audience_for_all_leaves_the_scopes() -> None:
    async with guarded_views(audience="everything") as http:
        headers = bearer(token(aud="everything", scope="support"))
        assert (await at(http, "/support/mcp").post("tools/list", headers=headers)).is_success
        refused = await at(http, "/for/admins").post("tools/list", headers=headers)
        assert refused.status_code == 403
        assert 'scope="admin"' in refused.headers["www-authenticate"]


WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no tool": ([{"name": "v", "override": {"nil": {"title": "x"}}}], "is not the name of a tool"),
    "left out": (
        [{**SUPPORT, "override": {"wipe": {"title": "x"}}}],
        "is the name of a tool that the view leaves out",
    ),
    "approvals lifted": (
        [{"name": "v", "override": {"wipe": {"approve": "never"}}}],
        "a view cannot remove approvals",
    ),
    "scopes taken away": (
        [{"name": "v", "override": {"unlock": {"scopes": []}}}],
        "a view cannot remove the scopes vault",
    ),
    "other scopes": (
        [{"name": "v", "override": {"unlock": {"scopes": ["base"]}}}],
        "a view cannot remove the scopes vault",
    ),
    "text of an approval": (
        [{"name": "v", "override": {"wipe": {"approval": "x"}}}],
        "is not a setting of a view",
    ),
    "a name twice": (
        [{"name": "v", "override": {"wipe": {"name": "look"}}}],
        "'look' is another tool's name",
    ),
    "no argument": (
        [{"name": "v", "override": {"wipe": {"arguments": {"x": {"hidden": True}}}}}],
        "there are no arguments x",
    ),
    "nothing": ([{"name": "v", "include": [{"backend": "other"}]}], "the view 'v' is empty"),
    "a misspelt name left out": (
        [{"name": "v", "exclude": [{"name": "wpe"}]}],
        "no tool is called 'wpe'",
    ),
    "only a misspelt name": ([{"name": "v", "include": [{"name": "lok"}]}], "no tool is called"),
    "a misspelt name pinned": (
        [{"name": "v", "search": {"pinned": ["look", "wip?", "lok"]}}],
        "no tool is called 'lok'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_view_is_said_with_its_place(case: str) -> None:
    given, said = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        loading.load(config_file(*ALL, views=given))
    [problem] = caught.value.problems
    assert said in problem.message
    assert "views[0]" in str(problem)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"name": "a"}, {"name": "a", "path": "/b"}], "two views have the name 'a'"),
        ([{"name": "a", "path": "/b"}, {"name": "c", "path": "/b"}], "two views have the path"),
        ([{"name": "a", "path": "/healthz"}], "is reserved for the gateway"),
        ([{"name": "a", "path": "/readyz"}], "is reserved for the gateway"),
        ([{"name": "a", "path": "/.well-known/x"}], "is reserved for the gateway"),
        ([{"name": "a", "include": [{}]}], "name, tag, path, method, hint, extension and backend"),
    ],
)
def test_views_that_cannot_be_are_refused(given: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_file(*ALL, views=given)


async def test_only_the_listeners_of_a_view_hear_that_its_list_has_changed() -> None:
    hub = Hub(10, 10)
    wanted = SubscriptionFilter(tools_list_changed=True)
    features = frozenset({"tools"})
    everything = hub.subscribe(1, LOCAL, wanted, features)
    support = hub.subscribe(2, LOCAL, wanted, features, view="support")
    hub.publish_list("notifications/tools/list_changed", "support")
    heard = [bool(one._pending) for one in (everything, support)]
    assert heard == [False, True]
