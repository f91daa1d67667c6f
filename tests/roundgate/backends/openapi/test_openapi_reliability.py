"""What keeps services from harm, and calls from harm by services, is the same for documents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.roundgate.backends.test_http_tls import serving
from tests.support.asgi import built, client
from tests.support.authority import Authority
from tests.support.openapi import document, file_of, gateway_of, operation
from tests.support.services import answer, service
from tests.support.till import till

BODY = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"a": {"type": "string"}}}
            }
        }
    }
}
CHARGE = document(operation("post", "/charges", **BODY))


async def test_an_operation_is_one_effect_and_waits_for_its_turn(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "retry": {"pause_s": 0.01},
        "idempotency_key": "Idempotency-Key",
        "limits": {"concurrent": 2},
    }
    async with till() as one:
        one.lose, one.pause_s = 2, 0.01
        file = file_of(tmp_path, CHARGE, base_url=one.url, **settings)
        async with gateway_of(file) as gate:
            results = await asyncio.gather(*(gate.call("op", {"a": str(n)}) for n in range(8)))
    assert not [result for result in results if "isError" in result]
    assert len(one.charges) == 8
    assert one.most_at_once == 2


async def test_operations_of_several_services_at_one_host_share_its_breaker(tmp_path: Path) -> None:
    away = answer(b"{}", "503 No")
    async with service(away) as told:
        paths = operation() | {
            "/y": {
                "get": {
                    "operationId": "other",
                    "responses": {},
                    "servers": [{"url": f"{told.url}/other"}],
                }
            }
        }
        described = document(paths) | {"servers": [{"url": told.url}]}
        file = file_of(tmp_path, described, breaker={"failures": 2}, origins=[told.url])
        async with gateway_of(file) as gate:
            for name in ("op", "other"):
                assert "503 No" in await gate.text(name)
            assert "is paused" in await gate.text("op")
            assert "is paused" in await gate.text("other")
    assert len(told.requests) == 2


async def test_a_snapshot_tells_the_pause_of_each_host(tmp_path: Path) -> None:
    away = answer(b"{}", "503 No")
    async with service(away) as one, service(away) as other, service() as good:
        urls = {"one": one.url, "other": other.url, "good": good.url}
        paths = {
            f"/{name}": {
                "get": {"operationId": name, "responses": {}, "servers": [{"url": url}]},
            }
            for name, url in urls.items()
        }
        file = file_of(
            tmp_path, document(paths), breaker={"failures": 1}, origins=list(urls.values())
        )
        app = built(file)
        async with app.router.lifespan_context(app), client(app) as gate:
            snapshot = app.state.core.serving.now
            assert [*snapshot.pause_reasons().values()] == [[]]
            for name in urls:
                await gate.call(name)
            (pauses,) = snapshot.pause_reasons().values()
    assert pauses == [
        f"requests to {each.url.removeprefix('http://')} are paused: it answered 503"
        for each in (one, other)
    ]


async def test_a_hint_says_that_an_operation_may_be_sent_again(tmp_path: Path) -> None:
    described = document(operation("post", "/search", **BODY))
    override = {"op": {"idempotent": True}}
    for more, requests in (({}, 1), ({"override": override}, 2)):
        async with service(answer(b"{}", "503 No"), answer()) as told:
            file = file_of(tmp_path, described, base_url=told.url, retry={"pause_s": 0.01}, **more)
            async with gateway_of(file) as gate:
                await gate.call("op", {"a": "x"})
        assert len(told.requests) == requests


async def test_a_private_authority_is_believed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with service(answer(b'"good"'), tls=serving(authority)) as told:
        file = file_of(tmp_path, CHARGE, base_url=told.url, tls={"ca": "authority.pem"})
        async with gateway_of(file) as gate:
            assert await gate.text("op", {"a": "x"}) == "good"
