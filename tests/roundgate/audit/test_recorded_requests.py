"""The audit log has each request that a call makes of its back end, with the call's id."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from roundgate.audit.verifying import files_of, lines_of, records_of_call
from roundgate.protocol.tasks import EXTENSION
from tests.support import wire
from tests.support.asgi import client
from tests.support.audit import DIGESTS, audited, records, text, verified, written
from tests.support.older_servers import ADA, again, call, clients, older_server
from tests.support.older_servers import said as said_by
from tests.support.scripted import error, scripted
from tests.support.services import answer, service
from tests.support.upstreams import Upstream, app_of, process, tool, until

SECRET = "tell-nobody-4711"
ORDER = {
    "name": "order",
    "method": "POST",
    "path": "/orders/{id}",
    "description": "An order.",
    "arguments": {
        "id": {"location": "path", "schema": {"type": "string"}},
        "notify": {"location": "query", "schema": {"type": "boolean"}},
        "note": {"location": "body", "schema": {"type": "string"}},
    },
}


def story(directory: Path, call_id: str) -> list[str]:
    """The events of a call, as `roundgate audit show` orders them."""
    found = records_of_call(lines_of(files_of([directory / "audit"])), call_id)
    return [record["event"] for record in found]


async def test_a_request_to_an_http_service_is_recorded_without_its_values(tmp_path: Path) -> None:
    async with service(answer(b'{"ok": true}'), answer(b"{}", "409 Conflict")) as orders:
        backend = {
            "kind": "http",
            "name": "api",
            "prefix": "",
            "base_url": f"{orders.url}/v1",
            "tools": [ORDER],
        }
        async with (
            app_of(backend, audit=audited(tmp_path)) as app,
            client(app) as mcp,
        ):
            for _ in range(2):
                await mcp.call("order", {"id": SECRET, "notify": True, "note": SECRET})
    called, first, _, again_, second, _ = records(
        tmp_path / "audit", "called", "requested", "ended"
    )
    assert first["request"] == "POST /v1/orders/{id}"
    assert first["service"] == orders.url.removeprefix("http://")
    assert [first["outcome"], second["outcome"]] == ["200", "409"]
    assert [first["call"], second["call"]] == [called["call"], again_["call"]]
    body = hashlib.sha256(b'{"note":"%s"}' % SECRET.encode()).hexdigest()
    assert first["sent"] == DIGESTS.of({"path": f"/orders/{SECRET}?notify=true", "body": body})
    assert SECRET not in text(tmp_path / "audit")
    assert verified(tmp_path / "audit").problems == []
    assert story(tmp_path, called["call"]) == ["called", "requested", "ended"]


async def test_every_attempt_of_a_request_is_recorded(tmp_path: Path) -> None:
    async with service(answer(b"{}", "503 Down"), answer(b'{"ok": true}')) as orders:
        backend = {
            "kind": "http",
            "name": "api",
            "prefix": "",
            "base_url": orders.url,
            "tools": [{"name": "order", "path": "/orders", "description": "Orders."}],
            "retry": {"attempts": 2},
        }
        async with app_of(backend, audit=audited(tmp_path)) as app, client(app) as mcp:
            await mcp.call("order")
    sent = records(tmp_path / "audit", "requested")
    assert [record["outcome"] for record in sent] == ["503", "200"]


async def test_a_service_that_cannot_be_reached_is_an_outcome_by_name(tmp_path: Path) -> None:
    async with service(answer()) as gone:
        url = gone.url
    tools = [{"name": "order", "path": "/orders", "description": "Orders."}]
    backend = {"kind": "http", "name": "api", "prefix": "", "base_url": url, "tools": tools}
    async with app_of(backend, audit=audited(tmp_path)) as app, client(app) as mcp:
        await mcp.call("order")
    (sent,) = records(tmp_path / "audit", "requested")
    assert sent["outcome"] == "ConnectError"


async def test_a_request_to_a_server_is_recorded_without_its_context(tmp_path: Path) -> None:
    up = Upstream(tools=[tool("works"), tool("breaks")])

    def reply(asked: Any) -> Any:
        if asked.rpc == "tools/call" and asked.params["name"] == "breaks":
            return error(asked, -32602, SECRET)
        return up(asked)

    async with scripted(reply) as server:
        backend = {"kind": "mcp", "name": "up", "url": server.url}
        async with app_of(backend, audit=audited(tmp_path)) as app, client(app) as mcp:
            await mcp.call("up__works", {"note": SECRET})
            await mcp.post("tools/call", {"name": "up__breaks", "arguments": {}})
            await mcp.post("tools/list")
    works, breaks = records(tmp_path / "audit", "requested")
    called, *_ = records(tmp_path / "audit", "called")
    assert works["call"] == called["call"]
    assert works["request"] == "tools/call works"
    assert works["service"] == server.url.removeprefix("http://").partition("/")[0]
    assert works["sent"] == DIGESTS.of({"name": "works", "arguments": {"note": SECRET}})
    assert [works["outcome"], breaks["outcome"]] == ["ok", "-32602"]
    assert SECRET not in text(tmp_path / "audit")


async def test_a_request_to_a_process_is_recorded(tmp_path: Path) -> None:
    async with app_of(process(), audit=audited(tmp_path)) as app, client(app) as mcp:
        listed = (await mcp.result("tools/list"))["tools"]
        await mcp.post("tools/call", {"name": listed[0]["name"], "arguments": {}})
    (sent,) = records(tmp_path / "audit", "requested")
    assert sent["service"] == "process"
    assert sent["request"] == f"tools/call {listed[0]['name'].removeprefix('up__')}"


async def test_answers_to_a_server_are_recorded_where_they_are_sent(tmp_path: Path) -> None:
    audit = audited(tmp_path)
    async with (
        older_server(tmp_path, "2.x keeps") as up,
        clients(tmp_path, up.entry, sections={"audit": audit}) as (one, two),
    ):
        asked = await call(one, "greet")
        assert said_by(await again(two, "greet", asked, ADA)) == "Hello, Ada"
    first, second = records(tmp_path / "audit", "requested")
    assert first["call"] == second["call"]
    assert [first["request"], first["outcome"]] == ["tools/call greet", "detached"]
    assert [second["request"], second["outcome"]] == ["answers", "ok"]
    assert first["chain"] != second["chain"]


async def test_a_workers_requests_have_the_id_of_their_call(tmp_path: Path) -> None:
    async with scripted(Upstream(tools=[tool("works")])) as server:
        backend = {
            "kind": "mcp",
            "name": "up",
            "url": server.url,
            "override": {"works": {"task": "required"}},
        }
        async with app_of(backend, audit=audited(tmp_path)) as app, client(app) as mcp:
            params = {"name": "up__works", "arguments": {}}
            can: dict[str, Any] = {"extensions": {EXTENSION: {}}}
            asked = wire.message("tools/call", params, clientCapabilities=can)
            await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
            await written(tmp_path / "audit", "task_ended")
            await written(tmp_path / "audit", "turn_ended")
    (called,) = records(tmp_path / "audit", "called")
    (sent,) = records(tmp_path / "audit", "requested")
    assert sent["call"] == called["call"]
    assert sent["task"]
    events = story(tmp_path, called["call"])
    assert events.index("turn") < events.index("requested") < events.index("turn_ended")


async def test_a_request_that_is_cancelled_is_recorded(tmp_path: Path) -> None:
    async with service(answer(b"{}"), pause_s=600) as orders:
        tools = [{"name": "order", "path": "/orders", "description": "Orders."}]
        backend = {"kind": "http", "name": "api", "prefix": "", "base_url": orders.url}
        sections = {"audit": audited(tmp_path)}
        async with app_of({**backend, "tools": tools}, **sections) as app, client(app) as mcp:
            running = asyncio.create_task(mcp.call("order"))

            async def requests() -> int:
                return len(orders.requests)

            await until(1, requests)
            running.cancel()
            (sent,) = await written(tmp_path / "audit", "requested")
    assert sent["outcome"] == "cancelled"
