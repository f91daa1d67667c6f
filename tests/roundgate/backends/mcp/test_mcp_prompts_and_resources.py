"""Prompts, resources, templates and completions of servers, through the gateway."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from roundgate.backends.mcp import lists as mcp_lists
from roundgate.errors import ConfigError
from roundgate.runtime import loading
from roundgate.runtime.protection import changes, protection
from roundgate.settings import Settings
from tests.support.asgi import STATE_KEY, Client, built, client, config_of, stoppable
from tests.support.issuer import PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.scripted import Asked, Scripted, error, http, result, scripted
from tests.support.sdk_server import library, sdk_served
from tests.support.services import answer, service
from tests.support.upstreams import app_of, entry, fronted, gateway_of, health, tool, until

CAPABLE: dict[str, Any] = {"elicitation": {"form": {}}}


pytestmark = pytest.mark.usefixtures("brisk")


@dataclass
class Shelf:
    """A script of a server of 2026-07-28 with these lists; `others` answers other requests."""

    prompts: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    templates: list[dict[str, Any]] = field(default_factory=list)
    others: Callable[[Asked], Any] = lambda asked: error(asked, -32601)
    capabilities: tuple[str, ...] = ("tools", "prompts", "resources", "completions")
    is_down: bool = False
    ttl_ms: int = 50

    def __call__(self, asked: Asked) -> Any:
        if self.is_down:
            return None
        match asked.rpc:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"]}
                return result(asked, {**about, "capabilities": {c: {} for c in self.capabilities}})
            case "tools/list":
                return result(asked, {"tools": [tool("t")], "ttlMs": self.ttl_ms})
            case "prompts/list":
                return result(asked, {"prompts": self.prompts})
            case "resources/list":
                return result(asked, {"resources": self.resources})
            case "resources/templates/list":
                return result(asked, {"resourceTemplates": self.templates})
            case "resources/read":
                contents = {"uri": asked.params["uri"], "text": f"read {asked.params['uri']}"}
                return result(asked, {"contents": [contents]})
        return self.others(asked)


def resource(uri: str, **members: Any) -> dict[str, Any]:
    return {"uri": uri, "name": "r", **members}


def template(text: str, **members: Any) -> dict[str, Any]:
    return {"uriTemplate": text, "name": "r", **members}


async def uris(mcp: Client) -> list[str]:
    return [one["uri"] for one in (await mcp.result("resources/list"))["resources"]]


async def templates(mcp: Client) -> list[str]:
    listed = (await mcp.result("resources/templates/list"))["resourceTemplates"]
    return [one["uriTemplate"] for one in listed]


async def prompts(mcp: Client) -> list[str]:
    return [one["name"] for one in (await mcp.result("prompts/list"))["prompts"]]


async def read(mcp: Client, uri: str) -> str:
    (contents,) = (await mcp.result("resources/read", {"uri": uri}))["contents"]
    text: str = contents["text"]
    return text


# -- the official SDK ------------------------------------------------------------------------------


@pytest.fixture(params=["2026-07-28", "2025-11-25"])
async def sdk(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """The revision and the URL of a server of the official SDK."""
    async with sdk_served(library(), older=request.param < "2026") as url:
        yield request.param, url


async def test_prompts_resources_and_completions_of_a_server(sdk: tuple[str, str]) -> None:
    revision, url = sdk
    async with gateway_of(entry(url, "lib")) as mcp:
        assert (await health(mcp))["revision"] == revision
        assert await prompts(mcp) == ["lib__review", "lib__toned"]
        assert await uris(mcp) == ["notes://today", "notes://logo"]
        assert await templates(mcp) == ["notes://{owner}/{number}"]
        asked = {"name": "lib__review", "arguments": {"code": "x"}}
        got = await mcp.result("prompts/get", asked)
        assert got["description"] == "Review some code."
        assert got["messages"] == [
            {"role": "user", "content": {"type": "text", "text": "Review this python: x"}}
        ]
        assert await read(mcp, "notes://today") == "# Today"
        assert await read(mcp, "notes://bob/4") == "4 of bob at library"
        (logo,) = (await mcp.result("resources/read", {"uri": "notes://logo"}))["contents"]
        assert base64.b64decode(logo["blob"]) == b"\x89PNG\x00"
        assert logo["mimeType"] == "image/png"
        ref = {"type": "ref/resource", "uri": "notes://{owner}/{number}"}
        typed = {"name": "number", "value": "1"}
        context = {"arguments": {"owner": "bob"}}
        about = {"ref": ref, "argument": typed, "context": context}
        completed = (await mcp.result("completion/complete", about))["completion"]
        assert completed == {"values": ["1-number", "bob"], "total": 7}
        about = {
            "ref": {"type": "ref/prompt", "name": "lib__review"},
            "argument": {"name": "code", "value": "y"},
        }
        completed = (await mcp.result("completion/complete", about))["completion"]
        assert completed["values"] == ["y-code"]


async def test_two_servers_of_one_kind_keep_their_resources_apart() -> None:
    async with (
        sdk_served(library()) as url,
        sdk_served(library("annex")) as annex,
        gateway_of(
            entry(url, "lib"), entry(annex, "annex", uris="named"), entry(annex, "third")
        ) as mcp,
    ):
        assert await uris(mcp) == [
            *("notes://today", "notes://logo"),
            *("notes://annex/today", "notes://annex/logo"),
        ]
        listed = ["notes://{owner}/{number}", "notes://annex/{owner}/{number}"]
        assert await templates(mcp) == listed
        assert await read(mcp, "notes://bob/4") == "4 of bob at library"
        assert await read(mcp, "notes://annex/bob/4") == "4 of bob at annex"
        contents = await mcp.result("resources/read", {"uri": "notes://annex/bob/4"})
        assert contents["contents"][0]["uri"] == "notes://annex/bob/4"
        link, embedded = (await mcp.call("annex__links"))["content"]
        assert link["uri"] == "notes://annex/ann/1"
        assert embedded["resource"]["uri"] == "notes://annex/ann/2"
        assert await read(mcp, link["uri"]) == "1 of ann at annex"
        link, embedded = (await mcp.call("third__links"))["content"]
        assert (link["uri"], embedded["resource"]["uri"]) == ("notes://ann/1", "notes://ann/2")
        ref = {"type": "ref/resource", "uri": "notes://annex/{owner}/{number}"}
        about = {"ref": ref, "argument": {"name": "owner", "value": "b"}}
        completed = (await mcp.result("completion/complete", about))["completion"]
        assert completed["values"] == ["b-owner"]


async def test_a_prompt_asks_and_any_replica_continues() -> None:
    async with (
        sdk_served(library()) as url,
        app_of(entry(url, "lib")) as one,
        app_of(entry(url, "lib")) as other,
        client(one) as first,
        client(other) as second,
    ):
        params: dict[str, Any] = {"name": "lib__toned", "arguments": {"subject": "tea"}}
        asked = (await first.post("prompts/get", params, clientCapabilities=CAPABLE)).json()
        asked = asked["result"]
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"].keys() == {"tone"}
        assert "about tea" not in str(asked)
        state = {"requestState": asked["requestState"]}
        moved = {"name": "lib__toned", "arguments": {"subject": "rum"}, **state}
        _, refused = await second.error("prompts/get", moved, clientCapabilities=CAPABLE)
        assert "requestState is not valid" in refused["message"]
        responses = {"tone": {"action": "accept", "content": {"tone": "dry"}}}
        done = {**params, **state, "inputResponses": responses}
        got = await second.result("prompts/get", done, clientCapabilities=CAPABLE)
        assert got["messages"][0]["content"]["text"] == "about tea, dry"
        _, refused = await second.error("prompts/get", params)
        assert "did not declare" in refused["message"]


# -- whatever servers list -------------------------------------------------------------------------


async def test_all_pages_of_each_list_are_read_and_a_circle_takes_only_its_list_away() -> None:
    class Paged(Shelf):
        def __call__(self, asked: Asked) -> Any:
            cursor = int(asked.params.get("cursor", "0")) if asked.body else 0
            if asked.rpc == "resources/list":
                more = {"nextCursor": str(cursor + 1)} if cursor < 3 else {}
                return result(asked, {"resources": [resource(f"r:{cursor}")], **more})
            if asked.rpc == "prompts/list":
                return result(asked, {"prompts": [{"name": "p"}], "nextCursor": "1"})
            return super().__call__(asked)

    async with fronted(Paged()) as (_, mcp):
        assert await uris(mcp) == ["r:0", "r:1", "r:2", "r:3"]
        assert await prompts(mcp) == ["up__p"]
        assert "sent before" in (await health(mcp))["left_out"]["prompts/list"]
        assert await mcp.text("up__t") == "up refused the request: no"


async def test_a_server_without_templates_or_with_a_broken_list_serves_the_rest() -> None:
    class Broken(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/templates/list":
                return error(asked, -32601, "Method not found")
            if asked.rpc == "prompts/list":
                return error(asked, -32603, "it broke")
            return super().__call__(asked)

    async with fronted(Broken(resources=[resource("r:1")])) as (_, mcp):
        assert await uris(mcp) == ["r:1"]
        assert await templates(mcp) == []
        left_out = (await health(mcp))["left_out"]
        assert left_out.keys() == {"prompts/list"}
        assert "it broke" in left_out["prompts/list"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(http(500, b"oops", "text/plain"), "500"), (asyncio.Event, "within 3 s")],
)
async def test_a_list_without_an_answer_takes_no_other_away(
    fault: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_lists, "LIST_S", 3)  # for the other lists, on a slow machine

    class Broken(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc in ("prompts/list", "skills/list"):
                return fault if isinstance(fault, bytes) else fault().wait()
            if asked.rpc == "server/discover":
                skills: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/skills": {}}}
                capabilities = {"tools": {}, "prompts": {}, "resources": {}, **skills}
                about = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
                return result(asked, about)
            return super().__call__(asked)

    async with fronted(Broken(resources=[resource("r:1")])) as (_, mcp):
        assert await uris(mcp) == ["r:1"]
        left_out = (await health(mcp))["left_out"]
        assert left_out.keys() == {"prompts/list", "skills/list"}
        assert all(reason in each for each in left_out.values()), left_out


async def test_a_list_that_is_not_declared_is_not_asked_for() -> None:
    async with fronted(Shelf(capabilities=("tools",))) as (server, mcp):
        capabilities = (await mcp.result("server/discover"))["capabilities"]
        assert capabilities.keys().isdisjoint({"prompts", "resources", "completions"})
        assert {"prompts/list", "resources/list"}.isdisjoint(server.methods())


async def test_prompts_that_clients_would_refuse_are_left_out() -> None:
    definitions: list[dict[str, Any]] = [
        {"name": ""},
        {"name": 5},
        {"name": "p1", "arguments": {}},
        {"name": "p2", "arguments": [{"required": True}]},
        {"name": "p3", "arguments": [{"name": "a", "required": "yes"}]},
        {"name": "p4", "title": 1},
        {"name": "good"},
        {"name": "a b"},
        {"name": "x" * 63},
    ]
    shelf = Shelf(prompts=[{"name": "good"}, *definitions])
    async with scripted(shelf) as server, app_of(entry(server)) as app, client(app) as mcp:
        assert await prompts(mcp) == ["up__good"]
        assert len(app.state.core.serving.catalog.left_out) == len(definitions)


async def test_resources_that_clients_would_refuse_are_left_out() -> None:
    resources = [
        resource("r:1"),
        *(resource("r:1"), {"uri": "r:2"}, resource("x:" + "y" * 5_000)),
        resource("r:3", mimeType=5),
    ]
    listed = [template("r:{x"), template("r:{}"), template("r:" + "{x}a" * 21)]
    shelf = Shelf(resources=resources, templates=listed)
    async with scripted(shelf) as server, app_of(entry(server)) as app, client(app) as mcp:
        assert await uris(mcp) == ["r:1"]
        assert await templates(mcp) == []
        assert len(app.state.core.serving.catalog.left_out) == 7


async def test_definitions_and_contents_pass_with_members_that_are_not_known() -> None:
    hop = {"io.modelcontextprotocol/x": 1, "com.example/y": 2}
    contents = {"text": "", "com.example": [1.5], "_meta": dict(hop), "uri": "r:1", "z": None}
    answered = {"contents": [contents], "extra": {"a": None}, "_meta": dict(hop), "ttlMs": 9}

    class Odd(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                return result(asked, answered)
            if asked.rpc == "prompts/get":
                block = {"type": "hologram", "data": 1}
                message = {"role": "user", "content": block, "m": 1}
                return result(asked, {"messages": [message], "x": 1})
            return super().__call__(asked)

    shelf = Odd([{"name": "p", "k": 1}], [resource("r:1", size=1, _meta=hop, new=True)])
    async with fronted(shelf) as (_, mcp):
        (listed,) = (await mcp.result("resources/list"))["resources"]
        assert listed == resource("r:1", size=1, _meta={"com.example/y": 2}, new=True)
        got = (await mcp.post("resources/read", {"uri": "r:1"})).json()["result"]
        assert got["contents"] == [{**contents, "_meta": {"com.example/y": 2}}]
        assert list(got["contents"][0]) == list(contents), "in the server's order"
        assert got["extra"] == {"a": None}
        assert got["_meta"]["com.example/y"] == 2
        assert (got["ttlMs"], got["cacheScope"]) == (0, "private")
        got = (await mcp.post("prompts/get", {"name": "up__p"})).json()["result"]
        assert got["messages"][0] == {
            "role": "user",
            "content": {"type": "hologram", "data": 1},
            "m": 1,
        }
        assert got["x"] == 1


async def test_the_stricter_caching_hint_counts() -> None:
    class Hinting(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                hint = {"ttlMs": 5_000, "cacheScope": "private"}
                return result(asked, {"contents": [{"uri": "r:1", "text": ""}], **hint})
            return super().__call__(asked)

    caching = {"read": {"ttl_ms": 60_000, "scope": "public"}}
    async with fronted(Hinting(resources=[resource("r:1")]), sections={"caching": caching}) as (
        _,
        mcp,
    ):
        got = await mcp.result("resources/read", {"uri": "r:1"})
        assert (got["ttlMs"], got["cacheScope"]) == (5_000, "private")


async def test_a_large_resource_passes_and_one_beyond_the_bound_is_an_error() -> None:
    blob = base64.b64encode(bytes(1_000_000)).decode()

    class Large(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                return result(asked, {"contents": [{"uri": "r:1", "blob": blob}]})
            return super().__call__(asked)

    async with scripted(Large(resources=[resource("r:1")])) as server:
        async with gateway_of(entry(server)) as mcp:
            got = await mcp.result("resources/read", {"uri": "r:1"})
            assert got["contents"][0]["blob"] == blob
        async with gateway_of(entry(server, max_response_bytes=10_000)) as mcp:
            _, refused = await mcp.error("resources/read", {"uri": "r:1"})
            assert "10000 bytes" in refused["message"]


async def test_templates_of_any_form_are_served() -> None:
    forms: dict[str, tuple[list[str], list[str]]] = {
        "a://{x}": (["a://a", "a://a%2Fb"], ["a://a/b", "m://a"]),
        "b://{x*}": (["b://a", "b://a/b/c"], []),
        "c://{x:3}/y": (["c://abcd/y"], ["c://a/z"]),
        "d://{x}/{x}": (["d://a/a"], ["d://a"]),
        "e://{+path}/end": (["e://a/b/end", "e://end/end"], ["e://end"]),
        "f://{id}{?q,r}": (["f://a", "f://a?q=/1"], ["f://a/b"]),
        "g://a{/rest*}": (["g://a", "g://a/b/c"], ["g://ab"]),
        "{scheme}://x": (["z://x"], ["z://y"]),
    }
    async with fronted(Shelf(templates=[template(each) for each in forms])) as (_, mcp):
        assert await templates(mcp) == [*forms]
        for matching, others in forms.values():
            for uri in matching:
                assert await read(mcp, uri) == f"read {uri}"
            for uri in others:
                _, refused = await mcp.error("resources/read", {"uri": uri})
                assert "Resource not found" in refused["message"], uri


async def test_a_collision_names_both_and_the_first_serves() -> None:
    shelf = Shelf([{"name": "p"}], [resource("r:1")], [template("t:{x}")])
    async with scripted(shelf) as one, scripted(shelf) as other:
        backends = [entry(one, "one", prefix=""), entry(other, "two", prefix="")]
        async with app_of(*backends) as app, client(app) as mcp:
            assert await prompts(mcp) == ["p"]
            assert await uris(mcp) == ["r:1"]
            messages = [one.message for one in app.state.core.serving.catalog.left_out]
            for kind in ("tool 't'", "prompt 'p'", "resource 'r:1'", "resource template 't:{x}'"):
                assert f"{kind} is offered by 'one' too" in messages
            await read(mcp, "r:1")
            assert "resources/read" not in other.methods()
        with pytest.raises(ConfigError, match="is offered by 'one' too"):
            await asyncio.to_thread(loading.load, config_of({"backends": backends}))


async def test_a_selection_by_the_servers_own_names() -> None:
    listed = [resource("r:1"), resource("r:secret"), resource("s:1")]
    shelf = Shelf([{"name": "a"}, {"name": "b"}], listed, [template("r:{x}")])
    settings: dict[str, Any] = {
        "prompts": {"exclude": ["b"]},
        "resources": {"include": ["r:*"], "exclude": ["*secret", "*{x}"]},
    }
    async with fronted(
        shelf,
        **settings,
        uris="named",
        sections={"views": [{"name": "v", "prompts": ["up__a"], "resources": ["r:up/1"]}]},
    ) as (_, mcp):
        assert await prompts(mcp) == ["up__a"]
        assert await uris(mcp) == ["r:up/1"]
        assert await templates(mcp) == []
        view = Client(mcp.http, "/v/mcp")
        assert await prompts(view) == ["up__a"]
        assert await read(view, "r:up/1") == "read r:1"


async def test_a_template_has_no_uri_that_is_excluded() -> None:
    shelf = Shelf([], [resource("r:secret")], [template("r:{+x}")])
    settings = {"exclude": ["r:secret"]}
    async with fronted(shelf, resources=settings) as (server, mcp):
        assert await read(mcp, "r:2") == "read r:2"
        for uri in ("r:secret", "r:%73ecret", "r:a/../secret", "r:a%2f..%2Fsecret", "r:./secret"):
            response = await mcp.post("resources/read", {"uri": uri})
            assert response.json()["error"]["code"] == -32602
        assert server.methods().count("resources/read") == 1


SPELLINGS = [
    "FILE:///secret", "File:///secret", "file://LOCALHOST/secret", "file:/secret", "file:secret",
    "file:////secret", "file:\\\\\\secret", " file:///secret", "file:///sec\tret", "file:///s\necret",
    "file:///%2573ecret", "FILE:///%73ecret", "file:///sec%09ret", "file:///secret\0", "file:///a/.\t./secret",
    "NOTES://Ann/x", "notes://ANN/x", "notes://ann//x", "notes://ann/%252e%252e/x",
]  # fmt: skip


async def test_no_spelling_of_a_uri_leads_past_exclude() -> None:
    """Servers that parse URIs read each of these as one that is excluded."""
    shelf = Shelf([], [], [template("{+any}")])
    settings = {"exclude": ["file:///secret*", "notes://ann/x"]}
    async with fronted(shelf, resources=settings) as (server, mcp):
        others = ("file:///Secret", "notes://ann/X", "notes://bob/x", "memo:x%20y", "r:100%")
        for other in others:
            assert await read(mcp, other) == f"read {other}"
        for uri in SPELLINGS:
            response = await mcp.post("resources/read", {"uri": uri})
            assert response.json()["error"]["code"] == -32602, uri
        assert server.methods().count("resources/read") == len(others)


async def test_a_template_has_no_uri_of_another_back_end() -> None:
    shelf = Shelf([], [], [template(text) for text in ("{+any}", "ui{+rest}", "u{a}{+b}")])
    async with scripted(shelf) as server, gateway_of(entry(server, "one")) as mcp:
        for uri in ("ui://two/page.html", "skill://two/a/SKILL.md"):
            response = await mcp.post("resources/read", {"uri": uri})
            assert response.json()["error"]["code"] == -32602
    assert "resources/read" not in server.methods()


# -- faults and changes ----------------------------------------------------------------------------


async def test_a_server_that_is_down_is_named_and_heals() -> None:
    shelf = Shelf([{"name": "p"}], [resource("r:1")], is_down=True)
    async with fronted(shelf) as (_, mcp):
        capabilities = (await mcp.result("server/discover"))["capabilities"]
        assert {"prompts", "resources"} <= capabilities.keys()
        listed = await mcp.result("resources/list")
        assert (listed["resources"], listed["ttlMs"]) == ([], 0)
        for method, params, words in (
            ("prompts/get", {"name": "up__p"}, "up did not answer: it has not been up"),
            ("resources/read", {"uri": "r:1"}, "not served just now"),
        ):
            status, refused = await mcp.error(method, params)
            assert status == 503
            assert words in refused["message"]
        shelf.is_down = False
        await until(["r:1"], lambda: uris(mcp))
        assert await prompts(mcp) == ["up__p"]
        shelf.is_down = True
        status, refused = await mcp.error("resources/read", {"uri": "r:1"})
        assert status == 503
        assert "up did not answer" in refused["message"]
        assert await uris(mcp) == ["r:1"]


async def test_lists_that_change_are_served_and_an_unknown_resource_has_them_read_again() -> None:
    shelf = Shelf([{"name": "p"}], [resource("r:1")], ttl_ms=3_600_000)
    async with fronted(shelf) as (_, mcp):
        shelf.prompts = [{"name": "q"}]
        shelf.resources = [resource("r:2")]
        shelf.others = lambda asked: error(asked, -32602, "Unknown prompt: p")
        _, refused = await mcp.error("prompts/get", {"name": "up__p"})
        assert refused["message"] == "up refused the request: Unknown prompt: p"
        await until(["up__q"], lambda: prompts(mcp))
        assert await uris(mcp) == ["r:2"]


ODD_ANSWERS: list[tuple[str, dict[str, Any], str]] = [
    ("resources/read", {"contents": "x"}, "without contents"),
    ("resources/read", {"contents": [{"uri": "r:1"}]}, "neither text nor blob"),
    ("resources/read", {"resultType": "task", "taskId": "1"}, "unknown type"),
    ("prompts/get", {"messages": {}}, "malformed prompt"),
    ("prompts/get", {}, "malformed prompt"),
    ("prompts/get", {"messages": [{"role": "user"}]}, "malformed prompt"),
    ("prompts/get", {"messages": [{"role": "user", "content": "x"}]}, "malformed prompt"),
    ("completion/complete", {"completion": {"values": [1]}}, "suggestions that are not text"),
]


async def test_an_answer_of_another_form_is_one_error() -> None:
    class Wrong(Shelf):
        answered: Any = None

        def __call__(self, asked: Asked) -> Any:
            known = asked.rpc in params
            return result(asked, self.answered) if known else super().__call__(asked)

    shelf = Wrong([{"name": "p", "arguments": [{"name": "a"}]}], [resource("r:1")])
    about = {"ref": {"type": "ref/prompt", "name": "up__p"}, "argument": {"name": "a", "value": ""}}
    params: dict[str, dict[str, Any]] = {
        "resources/read": {"uri": "r:1"},
        "prompts/get": {"name": "up__p"},
        "completion/complete": about,
    }
    async with fronted(shelf) as (_, mcp):
        for method, shelf.answered, words in ODD_ANSWERS:
            _, refused = await mcp.error(method, params[method])
            assert words in refused["message"]


async def test_an_older_servers_error_for_an_unknown_resource_is_the_gateways() -> None:
    class Older(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                return error(asked, -32002, "Resource not found")
            return super().__call__(asked)

    async with fronted(Older(templates=[template("r:{x}")])) as (_, mcp):
        _, refused = await mcp.error("resources/read", {"uri": "r:5"})
        assert (refused["code"], refused["data"]) == (-32602, {"uri": "r:5"})


# -- scopes ----------------------------------------------------------------------------------------


@asynccontextmanager
async def _guarded(server: Scripted, **settings: Any) -> AsyncIterator[Client]:
    """A gateway for callers with tokens."""
    async with service(answer(jwks("ec"))) as keys:
        backends = [entry(server, **settings)]
        file = guarded(f"{keys.url}/jwks", auth={"scopes": []}, backends=backends)
        app = await asyncio.to_thread(
            built, file, Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        )
        async with stoppable(app), client(app) as mcp:
            yield mcp


async def test_scopes_of_prompts_and_resources() -> None:
    arguments = [{"name": "a"}]
    shelf = Shelf([{"name": "p", "arguments": arguments}], [resource("r:1")], [template("t:{x}")])
    settings = {"prompts": {"scopes": ["ask"]}, "resources": {"scopes": ["read"]}}
    about = {"ref": {"type": "ref/prompt", "name": "up__p"}, "argument": {"name": "a", "value": ""}}
    async with scripted(shelf) as server, _guarded(server, **settings) as mcp:
        for scope, seen in (("", 0), ("ask read", 1)):
            who: Any = {"headers": bearer(token(scope=scope))}
            for method, member in (
                ("prompts/list", "prompts"),
                ("resources/list", "resources"),
                ("resources/templates/list", "resourceTemplates"),
            ):
                listed = (await mcp.post(method, **who)).json()["result"]
                assert len(listed[member]) == seen
                assert listed["cacheScope"] == "private"
        who = {"headers": bearer(token(scope="other"))}
        requests: list[tuple[str, dict[str, Any]]] = [
            ("prompts/get", {"name": "up__p"}),
            ("resources/read", {"uri": "r:1"}),
            ("resources/read", {"uri": "t:1"}),
            ("completion/complete", about),
        ]
        for method, params in requests:
            refused = await mcp.post(method, params, **who)
            assert refused.status_code == 403
            assert "insufficient_scope" in refused.headers["www-authenticate"]
        assert {"prompts/get", "resources/read"}.isdisjoint(server.methods())
        who = {"headers": bearer(token(scope="read"))}
        assert (await mcp.post("resources/read", {"uri": "r:1"}, **who)).status_code == 200


async def test_a_reload_that_takes_scopes_away_is_a_change_of_protection() -> None:
    shelf = Shelf([{"name": "p"}], [resource("r:1")], [template("t:{x}")])
    async with scripted(shelf) as server:
        protections = []
        for scopes in (["a"], []):
            parts: dict[str, Any] = {"prompts": {"scopes": scopes}, "resources": {"scopes": scopes}}
            file = config_of({"backends": [entry(server, **parts)]})
            snapshot = await asyncio.to_thread(loading.load, file)
            protections.append(protection(file, snapshot.catalog))
        assert list(changes(*protections)) == [
            "backends.up: prompts has changed",
            "backends.up: resources has changed",
            "prompt up__p: scopes has changed",
            "resource r:1: scopes has changed",
            "resource t:{x}: scopes has changed",
        ]


async def test_changes_for_a_server_that_is_down_are_known_from_its_settings() -> None:
    protections = []
    for part in ({"scopes": ["a"], "include": ["r:*"]}, {"include": ["r:*", "s:*"]}):
        file = config_of({"backends": [entry("http://127.0.0.1:1/mcp", resources=part)]})
        snapshot = await asyncio.to_thread(loading.load, file, may_be_missing=["up"])
        protections.append(protection(file, snapshot.catalog))
    assert list(changes(*protections)) == ["backends.up: resources has changed"]


async def test_a_file_argument_may_be_a_resource_of_a_server() -> None:
    """And a fault of the server is a tool error, as one of the tool's own service is."""
    upload = {
        "name": "upload",
        "description": "Uploads.",
        "method": "POST",
        "path": "/post",
        "body": "multipart",
        "arguments": {"a": {"file": True}},
    }

    class Refusing(Shelf):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read" and asked.params["uri"] == "r:odd":
                return error(asked, -32603, "it broke")
            return super().__call__(asked)

    shelf = Refusing(resources=[resource("r:1"), resource("r:odd")], ttl_ms=3_600_000)
    async with service() as told, scripted(shelf) as server:
        api = {"kind": "http", "name": "api", "base_url": told.url, "tools": [upload]}
        async with gateway_of(entry(server), api) as mcp:
            await mcp.call("api__upload", {"a": {"resource": "r:1"}})
            assert b"read r:1" in told.body()
            said = await mcp.text("api__upload", {"a": {"resource": "r:odd"}})
            assert said == "arguments.a: up refused the request: it broke"
            shelf.is_down = True
            said = await mcp.text("api__upload", {"a": {"resource": "r:1"}})
            assert said.startswith("arguments.a: up did not answer")
            assert len(told.requests) == 1
