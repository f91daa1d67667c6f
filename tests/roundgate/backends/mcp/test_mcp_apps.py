"""Pages of servers (MCP Apps) through the gateway: hosts find, read and use them as at the server
itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.mcp.uris import Uris
from roundgate.errors import ConfigError
from roundgate.protocol.apps import DECLARED, EXTENSION
from tests.support.asgi import built, config_of
from tests.support.scripted import Asked, error, result, scripted, text
from tests.support.upstreams import Upstream, entry, fronted, gateway_of, names, tool, until

HTML = "text/html;profile=mcp-app"
PAGE = "ui://clock/app.html"
OURS = "ui://up/clock/app.html"
META = {
    "ui": {"resourceUri": PAGE, "visibility": ["app"], "csp": {"connectDomains": ["https://a.b"]}},
    "ui/resourceUri": PAGE,
    "openai/outputTemplate": PAGE,
    "com.example/uri": PAGE,
}
CONTENTS = {
    "uri": PAGE,
    "mimeType": HTML,
    "text": "<!DOCTYPE html>",
    "_meta": {"ui": {"csp": {"connectDomains": ["https://a.b"]}, "permissions": {"camera": {}}}},
}


class Clock(Upstream):
    """A server with a tool that has a page, and with the page."""

    def __call__(self, asked: Asked) -> Any:
        if asked.rpc == "resources/read":
            if asked.params["uri"] != PAGE:
                return error(asked, -32602, "Resource not found")
            return result(asked, {"contents": [CONTENTS]})
        return super().__call__(asked)


def clock(call: Any = None, **members: Any) -> Clock:
    tools = [tool("get-time", _meta=META), tool("plain")]
    answer = call or (lambda asked: result(asked, text(asked.params["name"])))
    return Clock(answer, tools, **members)


async def test_a_host_finds_the_page_of_a_tool_and_reads_it() -> None:
    async with fronted(clock()) as (server, mcp):
        timed, plain = (await mcp.result("tools/list"))["tools"]
        assert timed["_meta"] == {
            "ui": {**META["ui"], "resourceUri": OURS},  # type: ignore[dict-item]
            "ui/resourceUri": OURS,
            "openai/outputTemplate": OURS,
            "com.example/uri": PAGE,
        }
        assert "_meta" not in plain
        read = await mcp.result("resources/read", {"uri": OURS})
        assert read["contents"] == [{**CONTENTS, "uri": OURS}]
        (asked,) = (one for one in server.asked if one.rpc == "resources/read")
        assert asked.params["uri"] == PAGE
        extensions = (await mcp.result("server/discover"))["capabilities"]["extensions"]
        assert extensions == {EXTENSION: {}}


async def test_pages_in_results_have_the_uris_under_which_they_can_be_read() -> None:
    def call(asked: Asked) -> Any:
        return result(
            asked,
            {
                "content": [
                    {"type": "text", "text": PAGE},
                    {"type": "resource_link", "uri": PAGE, "name": "n"},
                    {"type": "resource", "resource": CONTENTS, "_meta": META},
                    {"type": "resource_link", "uri": "file:///a", "name": "n"},
                ],
                "structuredContent": {"uri": PAGE},
                "_meta": META,
            },
        )

    async with fronted(clock(call)) as (_, mcp):
        answer = await mcp.call("up__get-time")
        words, link, embedded, other = answer["content"]
        assert (words["text"], link["uri"], other["uri"]) == (PAGE, OURS, "file:///a")
        assert embedded["resource"] == {**CONTENTS, "uri": OURS}
        assert answer["_meta"]["openai/outputTemplate"] == OURS
        assert embedded["_meta"]["ui"]["resourceUri"] == OURS
        assert answer["structuredContent"] == {"uri": PAGE}


async def test_a_page_that_no_server_has_is_not_found() -> None:
    async with fronted(clock()) as (_, mcp):
        names = ("up/clock/other.html", "up/", "up", "down/clock/app.html", "clock/app.html", "/")
        for uri in (f"ui://{name}" for name in names):
            response = await mcp.post("resources/read", {"uri": uri})
            assert response.json()["error"]["code"] == -32602, uri
            assert PAGE not in response.text.replace(uri, "")


async def test_contents_that_are_none_are_an_error() -> None:
    class Broken(Clock):
        contents: Any = None

        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                return result(asked, {"contents": self.contents})
            return super().__call__(asked)

    upstream = Broken(tools=[tool("t", _meta=META)])
    odd: Any = ([5], [{}], [{"uri": PAGE}], [{"uri": 5, "text": "x"}], [{"uri": PAGE, "text": 5}])
    async with fronted(upstream) as (_, mcp):
        for upstream.contents in (None, "x", *odd):
            response = await mcp.post("resources/read", {"uri": OURS})
            assert response.json()["error"]["code"] in (-32602, -32603)


async def test_odd_members_pass_as_they_came() -> None:
    def call(asked: Asked) -> Any:
        return result(asked, {**text("t"), "_meta": {"ui": value, "ui/resourceUri": value}})

    async with fronted(clock(call)) as (_, mcp):
        values: list[Any] = [5, None, [], {}, "x", {"ui": 5}, {"ui": {"resourceUri": 5}}]
        for value in values:
            assert (await mcp.call("up__plain"))["_meta"]["ui"] == value


async def test_a_server_without_pages_declares_none_and_reads_nothing() -> None:
    async with fronted(Upstream()) as (server, mcp):
        assert "extensions" not in (await mcp.result("server/discover"))["capabilities"]
        response = await mcp.post("resources/read", {"uri": OURS})
        assert "error" in response.json()
        assert "resources/read" not in server.methods()


async def test_a_server_learns_that_pages_are_shown_from_the_client_of_each_call() -> None:
    key = "io.modelcontextprotocol/clientCapabilities"
    async with fronted(clock()) as (server, mcp):
        listed = next(one for one in server.asked if one.rpc == "tools/list")
        assert listed.params["_meta"][key]["extensions"] == DECLARED["extensions"]
        await mcp.call("up__plain", clientCapabilities={})
        await mcp.call("up__plain", clientCapabilities=dict(DECLARED))
        calls = [one for one in server.asked if one.rpc == "tools/call"]
        assert [one.params["_meta"][key] for one in calls] == [{}, DECLARED]


async def test_an_older_server_lists_its_pages_too() -> None:
    async with fronted(clock(session="s1")) as (server, mcp):
        opened = next(one for one in server.asked if one.rpc == "initialize")
        assert DECLARED.items() <= opened.params["capabilities"].items()
        listed = (await mcp.result("tools/list"))["tools"]
        assert listed[0]["_meta"]["ui"]["resourceUri"] == OURS


async def test_two_servers_with_the_same_page_do_not_meet() -> None:
    class Other(Clock):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                return result(asked, {"contents": [{**CONTENTS, "text": "other"}]})
            return super().__call__(asked)

    async with (
        scripted(clock()) as one,
        scripted(Other(tools=[tool("t", _meta=META)])) as two,
        gateway_of(entry(one), entry(two, name="other")) as mcp,
    ):
        for uri, words in ((OURS, CONTENTS["text"]), ("ui://other/clock/app.html", "other")):
            (page,) = (await mcp.result("resources/read", {"uri": uri}))["contents"]
            assert (page["uri"], page["text"]) == (uri, words)


async def test_a_page_calls_the_tools_of_its_server_by_their_own_names() -> None:
    views = [{"name": "clock", "include": [{"backend": "up"}], "bare_names": True}]
    async with (
        scripted(clock()) as server,
        scripted(Upstream()) as other,
        gateway_of(entry(server), entry(other, name="other"), views=views) as mcp,
    ):
        unknown = (await mcp.post("tools/call", {"name": "get-time", "arguments": {}})).json()
        assert "is up__get-time meant?" in unknown["error"]["message"]
        mcp.path = "/clock/mcp"
        assert await names(mcp) == ["get-time", "plain"]
        assert await mcp.text("get-time") == "get-time"
        assert (await mcp.result("resources/read", {"uri": OURS}))["contents"]
        for name in ("up__get-time", "other__t", "t"):
            refused = (await mcp.post("tools/call", {"name": name, "arguments": {}})).json()
            assert "Unknown tool" in refused["error"]["message"]


async def test_a_view_without_the_tools_of_a_server_has_no_page_of_it() -> None:
    views = [
        {"name": "plain", "include": [{"name": "up__plain"}]},
        {"name": "listed", "include": [{"name": "up__plain"}], "resources": ["ui://up/clock/*"]},
    ]
    async with fronted(clock(), sections={"views": views}) as (_, mcp):
        mcp.path = "/plain/mcp"
        assert "error" in (await mcp.post("resources/read", {"uri": OURS})).json()
        mcp.path = "/listed/mcp"
        assert (await mcp.result("resources/read", {"uri": OURS}))["contents"]
        assert "error" in (await mcp.post("resources/read", {"uri": "ui://up/x"})).json()


async def test_a_bare_name_of_two_servers_leaves_out_the_second() -> None:
    views = [{"name": "all", "bare_names": True}]
    async with (
        scripted(clock()) as server,
        scripted(Upstream(tools=[tool("plain"), tool("t")])) as other,
        gateway_of(entry(server), entry(other, name="other"), views=views) as mcp,
    ):
        mcp.path = "/all/mcp"
        assert await names(mcp) == ["get-time", "plain", "t"]
        assert await mcp.text("plain") == "plain"


@pytest.mark.usefixtures("brisk")
async def test_a_page_that_a_server_adds_later_can_be_read() -> None:
    upstream = Clock(tools=[tool("plain")], ttl_ms=50)
    async with fronted(upstream) as (_, mcp):
        assert "error" in (await mcp.post("resources/read", {"uri": OURS})).json()
        upstream.tools = [tool("get-time", _meta=META)]
        await until(["up__get-time"], lambda: names(mcp))
        assert (await mcp.result("resources/read", {"uri": OURS}))["contents"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(PAGE),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["ui", "uri", "resource", "resourceUri", "ui/resourceUri", "_meta", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["content", "_meta", "x"]), JSON))
def test_any_result_is_rewritten_and_keeps_its_members(answer: dict[str, Any]) -> None:
    changed = Uris("up", is_named=False).in_result(answer)
    assert changed.keys() == answer.keys()
    assert changed.get("x") == answer.get("x")


def test_two_tools_of_files_cannot_have_one_bare_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from roundgate import tool\n@tool\ndef t() -> str: return ''\n")
    backends = [{"kind": "python", "name": name, "path": "a.py"} for name in ("one", "two")]
    views = [{"name": "all", "bare_names": True}]
    with pytest.raises(ConfigError, match="both 't' without prefix"):
        built(config_of({"backends": backends, "views": views}, tmp_path))
