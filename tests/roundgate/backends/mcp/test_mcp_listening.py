"""Changes of lists and resources of servers, on the streams of the gateway's clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import config as configuration
from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import listening as mcp_listening
from roundgate.backends.mcp import server as mcp_server
from roundgate.http import replica
from roundgate.methods.changes import Hub
from roundgate.settings import Settings
from tests.support import wire
from tests.support.asgi import STATE_KEY, Exchange, built, client, stoppable
from tests.support.issuer import PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.scripted import STREAM_HEAD, Asked, event, result, scripted
from tests.support.sdk_server import Subscribed, library, sdk_served
from tests.support.services import answer, service
from tests.support.upstreams import app_of, entry, until

UPDATED = "notifications/resources/updated"


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr(mcp_server, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(mcp_server, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(mcp_backend, "LEAST_PAUSE_S", 0.05)
    monkeypatch.setattr(mcp_listening, "SESSION_CHECK_S", 0.1)


@asynccontextmanager
async def listening(
    app: FastAPI, headers: Mapping[str, Any] | None = None, **wanted: Any
) -> AsyncIterator[Exchange]:
    """An open stream that has been acknowledged, once, with all that was asked for."""
    asked = wire.message("subscriptions/listen", {"notifications": wanted})
    async with Exchange(app, asked, more_headers=[*(headers or {}).items()]) as stream:
        first = await stream.event()
        assert first is not None
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["notifications"] == wanted
        yield stream


async def said(stream: Exchange) -> tuple[str, Any]:
    """Method and URI of the next notification."""
    while True:
        async with asyncio.timeout(60):
            one = await stream.event()
        if one is not None:
            return one["method"], one["params"].get("uri")


@asynccontextmanager
async def repeated(app: FastAPI, tool: str, **arguments: Any) -> AsyncIterator[None]:
    """Call a tool again and again: the gateway may not listen at once."""

    async def repeat() -> None:
        async with client(app) as mcp:
            while True:
                await mcp.text(tool, arguments)
                await asyncio.sleep(0.2)

    calls = asyncio.create_task(repeat())
    try:
        yield
    finally:
        calls.cancel()


async def touched(app: FastAPI, stream: Exchange, tool: str, uri: str) -> tuple[str, Any]:
    """The next notification after changes of a resource."""
    async with repeated(app, tool, uri=uri):
        return await said(stream)


def listened(app: FastAPI) -> list[int]:
    """The number of URIs that the gateway listens to at each server."""
    backends = app.state.core.serving.now.backends
    return [len(backend.core._listening._wanted) for backend in backends]


def hub(app: FastAPI) -> Hub:
    found: Hub = app.state.core.changes.hub
    return found


async def test_one_stream_carries_changes_of_two_servers_with_the_gateways_uris() -> None:
    async with (
        sdk_served(library()) as one,
        sdk_served(library("annex")) as other,
        app_of(entry(one, "lib"), entry(other, "annex", uris="named")) as app,
    ):
        uris = ["notes://today", "notes://annex/bob/1"]
        async with listening(app, resourceSubscriptions=uris) as stream:
            assert await touched(app, stream, "lib__touch", "notes://today") == (UPDATED, uris[0])
            assert await touched(app, stream, "annex__touch", "notes://bob/1") == (UPDATED, uris[1])
        await until(0, lambda: len(hub(app).uris))


async def test_lists_that_change_reach_listeners() -> None:
    async with (
        sdk_served(library()) as url,
        app_of(entry(url, "lib")) as app,
        listening(app, promptsListChanged=True, resourcesListChanged=True) as stream,
        client(app) as mcp,
    ):
        changed: set[str] = set()
        async with repeated(app, "lib__grow"), asyncio.timeout(60):
            while len(changed) < 2:
                changed.add((await said(stream))[0])
        assert changed == {
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
        }
        listed = (await mcp.result("prompts/list"))["prompts"]
        assert "lib__another" in [prompt["name"] for prompt in listed]


async def test_an_older_server_is_subscribed_to_while_somebody_listens() -> None:
    subscribed = Subscribed()
    async with (
        sdk_served(subscribed.server(), older=True) as url,
        app_of(entry(url, "old", uris="named")) as app,
    ):
        async with listening(app, resourceSubscriptions=["s://old/a"]) as first:
            await until(["+s://a"], lambda: subscribed.asked)
            async with listening(app, resourceSubscriptions=["s://old/a", "s://old/b"]) as second:
                await until(["+s://a", "+s://b"], lambda: subscribed.asked)
                await subscribed.touch("s://a")
                assert await said(first) == (UPDATED, "s://old/a")
                assert await said(second) == (UPDATED, "s://old/a")
                await subscribed.touch("s://b", "s://b/part")
                assert await said(second) == (UPDATED, "s://old/b")
            await until(["+s://a", "+s://b", "-s://b"], lambda: subscribed.asked)
        await until(["+s://a", "+s://b", "-s://b", "-s://a"], lambda: subscribed.asked)


class Changing:
    """A server of 2026-07-28 whose streams of changes the test holds."""

    def __init__(self) -> None:
        self.streams: list[asyncio.Queue[dict[str, Any] | None]] = []
        self.filters: list[Any] = []
        self.open = 0
        self.is_down = False
        self.is_mute = False
        """Whether streams are not acknowledged."""

    def __call__(self, asked: Asked) -> Any:
        if self.is_down:
            return None
        match asked.rpc:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"]}
                resources = {"resources": {"subscribe": True}}
                return result(asked, {**about, "capabilities": resources})
            case "resources/list":
                return result(asked, {"resources": [{"uri": f"r:{n}", "name": "r"} for n in "ab"]})
            case "resources/templates/list":
                return result(asked, {"resourceTemplates": []})
        return self._listen(asked)

    async def _listen(self, asked: Asked) -> Any:
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.streams.append(queue)
        self.filters.append(asked.params["notifications"])
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}}

        async def stream() -> Any:
            self.open += 1
            try:
                yield STREAM_HEAD
                while self.is_mute:
                    await asyncio.sleep(0.05)
                    yield b": alive\n\n"
                agreed = {"notifications": asked.params["notifications"], **meta}
                method = "notifications/subscriptions/acknowledged"
                yield event({"jsonrpc": "2.0", "method": method, "params": agreed})
                while True:
                    try:
                        async with asyncio.timeout(0.05):
                            params = await queue.get()
                    except TimeoutError:
                        yield b": alive\n\n"
                        continue
                    if params is None:
                        return
                    params = {**params, **meta}
                    yield event({"jsonrpc": "2.0", "method": UPDATED, "params": params})
            finally:
                self.open -= 1

        return stream()


async def test_a_stream_at_the_server_is_replaced_before_it_is_closed_and_none_is_left() -> None:
    server = Changing()

    async with scripted(server) as at, app_of(entry(at.url, "up")) as app:
        async with listening(app, resourceSubscriptions=["r:a"]):
            await until([{"resourceSubscriptions": ["r:a"]}], lambda: server.filters)
            for _ in range(3):
                async with listening(app, resourceSubscriptions=["r:b", "r:unknown"]) as stream:
                    await until(
                        [{"resourceSubscriptions": ["r:a", "r:b"]}], lambda: server.filters[-1:]
                    )
                    await until(1, lambda: server.open)
                    server.streams[-1].put_nowait({"uri": "r:b"})
                    assert await said(stream) == (UPDATED, "r:b")
                await until([{"resourceSubscriptions": ["r:a"]}], lambda: server.filters[-1:])
            await until(1, lambda: server.open)
        await until(0, lambda: server.open)
        assert listened(app) == [0]
        assert not hub(app).uris


async def test_after_an_interruption_each_resource_is_reported() -> None:
    server = Changing()

    async with (
        scripted(server) as at,
        app_of(entry(at.url, "up")) as app,
        listening(app, resourceSubscriptions=["r:a", "r:b"]) as stream,
    ):
        await until(1, lambda: len(server.streams))
        server.streams[0].put_nowait(None)
        assert {await said(stream), await said(stream)} == {(UPDATED, "r:a"), (UPDATED, "r:b")}
        server.streams[-1].put_nowait({"uri": ["no", "text"]})
        server.streams[-1].put_nowait({"uri": "r:c"})
        server.streams[-1].put_nowait({"uri": "r:a"})
        assert await said(stream) == (UPDATED, "r:a")


async def test_a_server_that_acknowledges_nothing_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_listening, "ACKNOWLEDGE_S", 0.3, raising=False)
    server = Changing()
    server.is_mute = True

    async with (
        scripted(server) as at,
        app_of(entry(at.url, "up")) as app,
        listening(app, resourceSubscriptions=["r:a"]),
    ):
        await until(1, lambda: len(server.streams))
        async with listening(app, resourceSubscriptions=["r:b"]) as stream:
            await until([{"resourceSubscriptions": ["r:a", "r:b"]}], lambda: server.filters[-1:])
            server.is_mute = False
            server.streams[-1].put_nowait({"uri": "r:b"})
            assert await said(stream) == (UPDATED, "r:b")


async def test_the_uris_of_one_process_and_of_one_server_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_listening, "MAX_URIS", 1)
    server = Changing()
    async with (
        scripted(server) as at,
        app_of(entry(at.url, "up")) as app,
        listening(app, resourceSubscriptions=["r:a", "r:b"]),
    ):
        await until([{"resourceSubscriptions": ["r:a"]}], lambda: server.filters[-1:])
        monkeypatch.setattr(replica, "MAX_URIS", 0)
        async with listening(app, resourceSubscriptions=["r:a"]):
            await until(0, lambda: server.open)


async def test_a_server_that_reports_nothing_is_not_asked() -> None:
    class Silent(Changing):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "server/discover":
                about = {"supportedVersions": ["2026-07-28"]}
                return result(asked, {**about, "capabilities": {"resources": {}}})
            return super().__call__(asked)

    server = Silent()
    async with (
        scripted(server) as at,
        app_of(entry(at.url, "up")) as app,
        listening(app, resourceSubscriptions=["r:a"]),
    ):
        await asyncio.sleep(0.3)
        assert server.filters == []


async def test_a_process_lists_reads_and_reports_changes() -> None:
    program = "from tests.support.sdk_server import library; library().run()"
    command = [sys.executable, "-c", program]
    env = {"PYTHONPATH": str(Path(__file__).parents[4])}
    backend = {"kind": "mcp", "name": "lib", "command": command, "env": env}
    async with app_of(backend) as app, client(app) as mcp:

        async def resources() -> int:
            return len((await mcp.result("resources/list"))["resources"])

        await until(2, resources)
        got = await mcp.result("prompts/get", {"name": "lib__review", "arguments": {"code": "x"}})
        assert got["messages"][0]["content"]["text"] == "Review this python: x"
        wanted: dict[str, Any] = {"resourceSubscriptions": ["notes://bob/1"]}
        async with listening(app, **wanted, promptsListChanged=True) as stream:
            assert (await touched(app, stream, "lib__touch", "notes://bob/1"))[0] == UPDATED
            await mcp.text("lib__grow")
            while (await said(stream))[0] != "notifications/prompts/list_changed":
                pass
            assert await resources() == 3
        await until(0, lambda: len(hub(app).uris))


async def test_a_reload_moves_what_is_listened_to_and_a_server_may_come_later(
    tmp_path: Path,
) -> None:
    server = Changing()
    server.is_down = True

    async with scripted(server) as at:
        path = tmp_path / "gateway.yaml"
        text_of = "backends:\n  - {{kind: mcp, name: up, url: '{}'{}}}\n".format
        path.write_text(text_of(at.url, ""))
        app = await asyncio.to_thread(built, configuration.load(path), Settings(reload=True))
        async with stoppable(app), listening(app, resourceSubscriptions=["r:a"]) as stream:
            server.is_down = False
            await until(1, lambda: server.open)
            server.streams[-1].put_nowait({"uri": "r:a"})
            assert await said(stream) == (UPDATED, "r:a")
            streams = len(server.streams)
            path.write_text(text_of(at.url, ", prefix: p"))

            await until(True, lambda: len(server.streams) > streams and server.open == 1)
            server.streams[-1].put_nowait({"uri": "r:a"})
            assert await said(stream) == (UPDATED, "r:a")
            path.write_text(text_of(at.url, ", resources: {include: []}"))
            await until(0, lambda: server.open)


async def test_scopes_hold_for_a_stream_that_is_older_than_its_resource() -> None:
    server = Changing()
    server.is_down = True
    uris = ["r:a"]

    async with scripted(server) as at, service(answer(jwks("ec"))) as keys:
        backends = [entry(at.url, "up", resources={"scopes": ["read"]})]
        file = guarded(f"{keys.url}/jwks", auth={"scopes": []}, backends=backends)
        using = Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        app = await asyncio.to_thread(built, file, using)
        reader, other = (bearer(token(scope=scope)) for scope in ("read", "other"))
        async with (
            stoppable(app),
            listening(app, reader, resourceSubscriptions=uris) as allowed,
            listening(app, other, resourceSubscriptions=uris) as refused,
        ):
            server.is_down = False
            await until(1, lambda: server.open)
            server.streams[-1].put_nowait({"uri": "r:a"})
            assert await said(allowed) == (UPDATED, "r:a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await said(refused)
