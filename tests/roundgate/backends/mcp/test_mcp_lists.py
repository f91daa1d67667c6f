"""The tools of servers: known late, changing, colliding, missing, and back again."""

from __future__ import annotations

import asyncio
import atexit
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from roundgate import config as configuration
from roundgate.errors import ConfigError
from roundgate.runtime import loading
from roundgate.settings import Settings
from tests.support.asgi import Client, built, client, config_of, stoppable
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    error,
    http,
    notice,
    result,
    scripted,
    text,
)
from tests.support.upstreams import (
    Upstream,
    entry,
    fronted,
    gateway_of,
    names,
    state,
    tool,
    until,
)

pytestmark = pytest.mark.usefixtures("brisk")


_NOWHERE = socket.socket()
_NOWHERE.bind(("127.0.0.1", 0))  # and it never listens, nor can another process
atexit.register(_NOWHERE.close)


def nowhere(name: str = "down") -> dict[str, Any]:
    """A server at a port where nothing listens."""
    port = _NOWHERE.getsockname()[1]
    return {"kind": "mcp", "name": name, "url": f"http://127.0.0.1:{port}/mcp"}


async def test_a_private_list_of_a_server_makes_the_lists_of_the_gateway_private() -> None:
    private = Upstream(ttl_ms=60_000, hints={"cacheScope": "private"})
    public = Upstream(tools=[tool("other")], ttl_ms=60_000, hints={"cacheScope": "public"})
    async with scripted(private) as first, scripted(public) as second:
        async with gateway_of(entry(second)) as mcp:
            assert (await mcp.result("tools/list"))["cacheScope"] == "public"
        async with gateway_of(entry(first, "one"), entry(second, "two")) as mcp:
            assert (await mcp.result("tools/list"))["cacheScope"] == "private"


async def test_a_list_that_becomes_private_is_served_as_such() -> None:
    upstream = Upstream(hints={"cacheScope": "public"}, ttl_ms=1)
    async with fronted(upstream) as (_, mcp):

        async def scope() -> Any:
            return (await mcp.result("tools/list"))["cacheScope"]

        assert await scope() == "public"
        upstream.hints = {"cacheScope": "private"}
        await until("private", scope)
        upstream.hints = {"cacheScope": 7}
        await until("public", scope)


class Paged:
    """A server whose list has pages; `cursors` says what follows each."""

    def __init__(self, pages: dict[str | None, tuple[list[str], str | None]]) -> None:
        self.pages = pages

    def __call__(self, asked: Asked) -> Any:
        if asked.rpc != "tools/list":
            return Upstream()(asked)
        listed, cursor = self.pages[asked.params.get("cursor")]
        more = {} if cursor is None else {"nextCursor": cursor}
        return result(asked, {"tools": [tool(name) for name in listed], **more})


async def test_all_pages_are_read_and_names_are_prefixed() -> None:
    pages = Paged({None: (["a", "b"], "1"), "1": (["c"], "2"), "2": ([], "3"), "3": (["d"], None)})
    async with fronted(pages) as (_, mcp):
        assert await names(mcp) == ["up__a", "up__b", "up__c", "up__d"]
        assert await mcp.text("up__d") == "done"


async def test_a_cursor_that_repeats_is_a_fault_of_that_server_alone() -> None:
    circle = Paged({None: (["a"], "1"), "1": (["b"], "2"), "2": (["c"], "1")})
    async with (
        scripted(circle) as bad,
        scripted(Upstream()) as good,
        gateway_of(entry(bad, "bad"), entry(good)) as mcp,
    ):
        assert await names(mcp) == ["bad__a", "bad__b", "up__t"]
        found = (await mcp.http.get("/healthz")).json()
        assert [one["status"] for one in found["upstreams"]] == ["up", "up"]
        (fault,) = found["upstreams"][0]["left_out"].values()
        assert fault.startswith("after 2 entries: ")
        assert "sent before" in fault


@pytest.mark.parametrize(
    "settings", [{"max_tools": 2}, {"max_response_bytes": 1_000}], ids=["tools", "bytes"]
)
async def test_a_list_without_end_is_served_up_to_its_limit(settings: dict[str, int]) -> None:
    class Endless(Paged):
        def __call__(self, asked: Asked) -> Any:
            number = int(asked.params.get("cursor", "0")) if asked.body else 0
            self.pages = {asked.params.get("cursor"): ([f"t{number}"], str(number + 1))}
            return super().__call__(asked)

    async with (
        scripted(Endless({})) as server,
        scripted(Upstream()) as good,
        gateway_of(entry(server, "bad", **settings), entry(good)) as mcp,
    ):
        listed = await names(mcp)
        assert listed[:2] == ["bad__t0", "bad__t1"]
        assert (len(listed) == 3) == ("max_tools" in settings)
        (fault, _) = (await mcp.http.get("/healthz")).json()["upstreams"]
        assert "(limit max_" in fault["left_out"]["tools/list"]


async def test_pages_without_end_that_come_slowly_are_served_up_to_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("roundgate.backends.mcp.server.LIST_S", 2.0)

    async def drip(asked: Asked) -> Any:
        if asked.rpc != "tools/list":
            return Upstream()(asked)
        number = int(asked.params.get("cursor", "0")) if asked.body else 0
        await asyncio.sleep(0 if number < 2 else 60)
        return result(asked, {"tools": [tool(f"t{number}")], "nextCursor": str(number + 1)})

    async with fronted(drip) as (_, mcp):
        assert await names(mcp) == ["up__t0", "up__t1"]
        left_out = await state(mcp, "left_out")
        assert left_out["tools/list"].endswith("did not arrive in time")


async def test_one_bad_tool_leaves_the_others_and_is_named() -> None:
    upstream = Upstream(
        tools=[tool("good"), tool("bad", inputSchema={"type": "string"}), tool("b c")]
    )
    async with fronted(upstream) as (_, mcp):
        assert await names(mcp) == ["up__good"]
        assert await state(mcp, "tools") == 2
        assert "inputSchema" in (await state(mcp, "left_out"))["bad"]


async def test_a_name_that_is_too_long_can_be_renamed() -> None:
    long = "x" * 62
    async with scripted(Upstream(tools=[tool(long), tool("a/b")])) as server:
        async with gateway_of(entry(server)) as mcp:
            assert await names(mcp) == []
        override = {long: {"name": "short"}, "a/b": {"name": "ab"}}
        async with gateway_of(entry(server, override=override)) as mcp:
            assert await names(mcp) == ["up__short", "up__ab"]
            await mcp.call("up__ab")
            assert server.asked[-1].params["name"] == "a/b"


async def test_selection_override_approval_and_views_work_as_for_every_kind() -> None:
    listed = [tool("a"), tool("b", annotations={"readOnlyHint": True}), tool("secret")]
    upstream = Upstream(tools=listed)
    async with scripted(upstream) as server:
        settings: dict[str, Any] = {
            "exclude": [{"name": "secret"}],
            "approve": "destructive",
            "override": {"b": {"description": "Reads.", "max_result": 200}},
        }
        views = [{"name": "v", "include": [{"name": "up__b"}]}]
        async with gateway_of(entry(server, **settings), views=views) as mcp:
            assert await names(mcp) == ["up__a", "up__b", "read_more"]
            status, refused = await mcp.error("tools/call", {"name": "up__a", "arguments": {}})
            assert (status, refused["code"]) == (400, -32021)
            assert "tools/call" not in server.methods()
            upstream.call = lambda asked: result(asked, text("x" * 500))
            assert "read_more" in await mcp.text("up__b")


async def test_a_typing_error_is_an_error_of_a_check_and_leaves_the_rest_served() -> None:
    async with scripted(Upstream()) as server:
        wrong = entry(server, include=[{"name": "t"}, {"name": "typo"}], override={"gone": {}})
        with pytest.raises(ConfigError) as caught:
            await asyncio.to_thread(loading.load, config_of({"backends": [wrong]}))
        assert len(caught.value.problems) == 2
        async with gateway_of(wrong) as mcp:
            assert await names(mcp) == ["up__t"]


async def test_a_server_that_is_down_is_named_and_heals() -> None:
    upstream = Upstream(is_down=True)
    async with (
        scripted(upstream) as down,
        scripted(Upstream()) as up,
        gateway_of(entry(down, "down"), entry(up)) as mcp,
    ):
        assert await names(mcp) == ["up__t"]
        missing = await mcp.call("down__t")
        assert missing["isError"]
        assert "taken effect" not in missing["content"][0]["text"]
        assert "down did not answer: it has not been up" in missing["content"][0]["text"]
        upstream.is_down = False
        await until(["down__t", "up__t"], lambda: names(mcp))
        assert await mcp.text("down__t") == "done"
        assert "missing" not in (await mcp.http.get("/healthz")).json()


async def test_a_gateway_whose_only_server_is_down_starts_and_heals() -> None:
    upstream = Upstream(is_down=True)
    async with fronted(upstream) as (_, mcp):
        assert await names(mcp) == []
        assert (await mcp.result("tools/list"))["ttlMs"] == 0
        assert await state(mcp, "status") == "down"
        upstream.is_down = False
        await until(["up__t"], lambda: names(mcp))
        assert (await mcp.result("tools/list"))["ttlMs"] > 0


async def test_the_tools_of_a_server_that_goes_down_stay_listed() -> None:
    upstream = Upstream(ttl_ms=50)
    async with fronted(upstream) as (_, mcp):
        upstream.is_down = True
        await until("down", lambda: state(mcp, "status"))
        assert await names(mcp) == ["up__t"]
        assert "did not answer" in await mcp.text("up__t")
        upstream.is_down = False
        await until("up", lambda: state(mcp, "status"))


@pytest.mark.parametrize("session", [None, "s1"])
async def test_a_function_that_follows_nothing_lists_and_calls(session: str | None) -> None:
    """As on AWS Lambda: no lifespan, and the calls run in another event loop than the start."""
    async with scripted(Upstream(session=session)) as server:
        file = config_of({"backends": [entry(server)]})
        served = (await asyncio.to_thread(loading.load, file, is_cold=True)).catalog
        assert list(served.tools) == ["up__t"]
        app = await asyncio.to_thread(built, file)
        async with client(app) as mcp:
            assert await names(mcp) == ["up__t"]
            assert await mcp.text("up__t") == "done"
        await app.state.core.aclose()


def test_strict_and_check_refuse_a_server_that_is_down() -> None:
    backends = [nowhere(), nowhere("other")]
    with pytest.raises(ConfigError) as caught:
        built(config_of({"backends": backends, "limits": {"strict": True}}))
    assert "the server is unavailable" in str(caught.value.problems[0])
    with pytest.raises(ConfigError):
        loading.load(config_of({"backends": backends}))


def test_servers_that_are_down_are_asked_all_at_once() -> None:
    """The silent ones hang up once all of them have been asked."""
    silent = socket.create_server(("127.0.0.1", 0), backlog=100)
    port = silent.getsockname()[1]
    thread = threading.Thread(target=hangs_up, args=(silent, 25))
    thread.start()
    backends = [nowhere(f"n{n}") for n in range(25)]
    backends += [
        {"kind": "mcp", "name": f"s{n}", "url": f"http://127.0.0.1:{port}/mcp"} for n in range(25)
    ]
    file = config_of({"backends": backends})
    everybody = [one["name"] for one in backends]
    snapshot = loading.load(file, may_be_missing=everybody)
    silent.shutdown(socket.SHUT_RDWR)
    thread.join()
    silent.close()
    assert len(snapshot.catalog.missing) == 50


def hangs_up(server: socket.socket, count: int) -> None:
    """Accept so many connections, and then hang up each."""
    held = []
    with suppress(OSError):  # at the end of the test
        while True:
            held.append(server.accept()[0])
            if len(held) >= count:
                for connection in held:
                    connection.close()


async def test_a_change_that_is_reported_is_served_at_once() -> None:
    changed = asyncio.Event()

    class Telling(Upstream):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "server/discover":
                about = {"supportedVersions": ["2026-07-28"]}
                return result(asked, {**about, "capabilities": {"tools": {"listChanged": True}}})
            if asked.rpc == "subscriptions/listen":
                return self._changes(asked)
            return super().__call__(asked)

        async def _changes(self, asked: Asked) -> Any:
            meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}}

            async def stream() -> Any:
                yield STREAM_HEAD
                agreed = {"toolsListChanged": True}
                yield notice("subscriptions/acknowledged", **meta, notifications=agreed)
                await changed.wait()
                yield notice("tools/list_changed", **meta)
                await asyncio.sleep(60)

            return stream()

    upstream = Telling()
    async with fronted(upstream) as (server, mcp):
        await until(True, lambda: "subscriptions/listen" in server.methods())
        upstream.tools = [tool("t"), tool("new")]
        await asyncio.sleep(0.2)
        assert await names(mcp) == ["up__t"]
        changed.set()
        await until(["up__t", "up__new"], lambda: names(mcp))


async def test_a_list_is_read_again_when_its_time_is_over() -> None:
    upstream = Upstream(ttl_ms=50)
    async with fronted(upstream) as (_, mcp):
        upstream.tools = [tool("other")]
        await until(["up__other"], lambda: names(mcp))
        status, _ = await mcp.error("tools/call", {"name": "up__t", "arguments": {}})
        assert status == 400


async def test_a_server_that_speaks_another_revision_is_read_again_without_a_call() -> None:
    upstream = Upstream(session="s1", ttl_ms=1)
    async with fronted(upstream) as (server, mcp):
        await until(True, lambda: server.methods().count("tools/list") > 2)
        assert await state(mcp, "revision") == "2025-11-25"
        upstream.session = None
        await until("2026-07-28", lambda: state(mcp, "revision"))


async def test_a_tool_that_the_server_does_not_know_any_more_makes_it_read_the_list() -> None:
    upstream = Upstream(lambda asked: error(asked, -32602, "Unknown tool: t"))
    async with fronted(upstream) as (_, mcp):
        upstream.tools = [tool("renamed")]
        await mcp.call("up__t")
        await until(["up__renamed"], lambda: names(mcp))


async def test_an_empty_list_after_a_full_one_is_not_believed_at_once() -> None:
    upstream = Upstream(ttl_ms=50)
    async with fronted(upstream) as (server, mcp):
        reads = server.methods().count("tools/list")
        upstream.tools = []

        await until(True, lambda: server.methods().count("tools/list") > reads)
        assert await names(mcp) == ["up__t"]
        await until([], lambda: names(mcp))
        upstream.tools = [tool("t")]
        await until(["up__t"], lambda: names(mcp))


async def test_a_reload_keeps_the_session_and_takes_new_settings(tmp_path: Path) -> None:
    upstream = Upstream(session="s1")
    async with scripted(upstream) as server:
        path = tmp_path / "gateway.yaml"
        text_of = "backends:\n  - {{kind: mcp, name: up, url: '{}'{}}}\n".format
        path.write_text(text_of(server.url, ""))
        app = await asyncio.to_thread(built, configuration.load(path), Settings(reload=True))
        async with stoppable(app), client(app) as mcp:
            await until(2, lambda: server.methods().count("initialize"))  # the start, and the list
            assert await mcp.text("up__t") == "done"
            assert server.methods().count("initialize") == 3  # the calls
            path.write_text(text_of(server.url, "") + "server: {version: '2'}\n")

            await until("2", lambda: version(mcp))
            assert await mcp.text("up__t") == "done"
            assert server.methods().count("initialize") == 3
            assert server.methods().count("DELETE") == 1
            path.write_text(text_of(server.url, ", prefix: p"))
            await until(["p__t"], lambda: names(mcp))
            assert await mcp.text("p__t") == "done"


async def version(mcp: Client) -> Any:
    return (await mcp.http.get("/healthz")).json()["version"]


async def test_sixty_changes_at_once_are_one_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    swaps: list[object] = []
    refreshed = loading.refreshed

    async def seen(*arguments: Any) -> Any:
        swaps.append(arguments)
        return await refreshed(*arguments)

    monkeypatch.setattr(loading, "refreshed", seen)
    upstreams = [Upstream(is_down=True) for _ in range(10)]
    async with scripted(lambda asked: upstreams[int(asked.target[-1])](asked)) as server:
        backends = [
            {"kind": "mcp", "name": f"n{n}", "url": f"{server.origin}/{n}"} for n in range(10)
        ]
        async with gateway_of(*backends) as mcp:
            for one in upstreams:
                one.is_down = False
            await until([f"n{n}__t" for n in range(10)], lambda: names(mcp))
    assert len(swaps) < 10


def test_a_backend_is_either_at_a_url_or_a_process() -> None:
    for wrong in (
        {},
        {"url": "http://x.example/mcp", "command": ["x"]},
        {"command": ["x"], "credential": {"bearer": "tttttttt"}},
        {"url": "http://x.example/mcp", "env": {"A": "b"}},
        {"url": "http://x.example/mcp", "tls": {}},
        {"url": "http://x.example/mcp", "idempotency_key": "Idempotency-Key"},
        {"url": "ftp://x.example/"},
        {"url": "http://user:pass@x.example/"},
    ):
        with pytest.raises(ConfigError):
            config_of({"backends": [{"kind": "mcp", "name": "up", **wrong}]})


async def test_http_of_another_kind_answers_nothing_useful() -> None:
    async with fronted(lambda asked: http(404, b"", "text/plain")) as (_, mcp):
        assert await state(mcp, "status") == "down"
