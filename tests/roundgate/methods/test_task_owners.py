"""Whose a task is: each request about one is authorized, and who it does not belong
to learns nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.main import build_app
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, stoppable
from tests.support.clocks import SkippingClock
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.jobs import greet
from tests.support.rounds import accept
from tests.support.services import answer, service
from tests.support.task_client import DECLARED, TaskClient, task_settings

OTHER_ISSUER = "https://elsewhere.example.com/"
UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAA"
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tasks/get", {}),
    ("tasks/update", {"inputResponses": {"who": accept(name="Eve")}}),
    ("tasks/cancel", {}),
]


@tool(task="required", scopes=["dig"])
async def dig(ctx: Context) -> str:
    """Needs a scope."""
    await ctx.continue_as_task()
    return f"dug for {ctx.principal.subject} with {sorted(ctx.principal.scopes)}"


@dataclass
class Houses:
    """Two gateways on one store, each for the tokens of another issuer."""

    ours: Client
    theirs: Client
    app: FastAPI
    clock: SkippingClock

    def of(self, **claims: Any) -> TaskClient:
        """A client whose token has these claims."""
        house = self.theirs if claims.get("iss") == OTHER_ISSUER else self.ours
        return TaskClient(house, DECLARED, bearer(token(**claims)))


@pytest.fixture
async def houses(tmp_path: Path) -> AsyncIterator[Houses]:
    clock = SkippingClock()
    using = task_settings(tmp_path, public_url=PUBLIC_URL)
    async with AsyncExitStack() as stack:
        keys = await stack.enter_async_context(service(answer(jwks("ec"))))
        made: list[tuple[FastAPI, Client]] = []
        for issuer in (ISSUER, OTHER_ISSUER):
            auth = {"issuer": issuer, "scopes": []}
            file = guarded(
                f"{keys.url}/jwks",
                greet,
                dig,
                auth=auth,
                tasks={"poll_interval_ms": 100, "ttl_s": 600},
            )
            app = await stack.enter_async_context(stoppable(build_app(file, using, clock=clock)))
            made.append((app, await stack.enter_async_context(client(app))))
        yield Houses(made[0][1], made[1][1], made[0][0], clock)


STRANGERS: dict[str, dict[str, Any]] = {
    "another subject": {"sub": "eve"},
    "another client": {"client_id": "other"},
    "no client": {"client_id": None},
    "another issuer": {"iss": OTHER_ISSUER},
    "a subject that looks like both": {"sub": "ann cli"},
}


@pytest.mark.parametrize("claims", STRANGERS.values(), ids=STRANGERS.keys())
async def test_a_task_of_somebody_else_is_answered_as_one_that_never_was(
    houses: Houses, claims: dict[str, Any]
) -> None:
    ann, eve = houses.of(), houses.of(**claims)
    task_id = await ann.begin("greet")
    await ann.asked(task_id)
    before = await ann.get(task_id)
    for method, params in REQUESTS:
        foreign = await eve.send(method, {"taskId": task_id, **params})
        unknown = await eve.send(method, {"taskId": UNKNOWN, **params})
        malformed = await eve.send(method, {"taskId": "no.such/id", **params})
        assert foreign.content == unknown.content == malformed.content
        assert foreign.status_code == unknown.status_code == malformed.status_code == 400
        assert foreign.headers == unknown.headers == malformed.headers
        assert wire.valid_error(foreign)["code"] == -32602
    assert await ann.get(task_id) == before


async def test_an_expired_task_of_ones_own_is_answered_the_same(houses: Houses) -> None:
    ann = houses.of()
    task_id = await ann.begin("greet")
    await ann.asked(task_id)
    houses.clock.skip(601)
    later = TaskClient(houses.ours, DECLARED, bearer(token(exp=4_000_000_000)))
    for method, params in REQUESTS:
        expired = await later.send(method, {"taskId": task_id, **params})
        unknown = await later.send(method, {"taskId": UNKNOWN, **params})
        assert (expired.content, expired.status_code) == (unknown.content, 400)


async def test_a_task_is_the_callers_whatever_token_they_come_with(houses: Houses) -> None:
    task_id = await houses.of().begin("greet")
    later = houses.of(jti="another", scope="more", iat=1)
    await later.answer(task_id, {key: accept(name="Ann") for key in await later.asked(task_id)})
    assert await later.text(task_id) == "Hello, Ann!"


@pytest.mark.parametrize(("method", "params"), REQUESTS)
@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer x"}, bearer(token(exp=1)), bearer(token(iss=OTHER_ISSUER))],
    ids=["none", "garbage", "expired", "of another issuer"],
)
async def test_who_has_no_token_that_holds_is_told_nothing(
    houses: Houses, method: str, params: dict[str, Any], headers: dict[str, str | None]
) -> None:
    task_id = await houses.of().begin("greet")
    nobody = TaskClient(houses.ours, DECLARED, headers)
    for one in (task_id, UNKNOWN):
        assert (await nobody.send(method, {"taskId": one, **params})).status_code == 401


async def test_the_scope_that_a_tool_needs_is_needed_to_begin_its_task(houses: Houses) -> None:
    response = await houses.of().call("dig")
    assert response.status_code == 403
    assert 'error="insufficient_scope"' in response.headers["www-authenticate"]
    task_id = await houses.of(scope="dig").begin("dig")
    assert await houses.of(scope="dig").text(task_id) == "dug for ann with ['dig']"


async def test_only_ones_own_tasks_can_be_listened_to(houses: Houses) -> None:
    own, foreign = await houses.of().begin("greet"), await houses.of(sub="eve").begin("greet")
    wanted = {"notifications": {"taskIds": [foreign, own, UNKNOWN, "no.such/id"]}}
    asked = wire.message("subscriptions/listen", wanted, clientCapabilities=DECLARED)
    headers = {**wire.headers(asked), "authorization": f"Bearer {token()}"}
    async with Exchange(houses.app, asked, headers) as stream:
        first = await stream.event()
        assert first is not None
        assert first["params"]["notifications"] == {"taskIds": [own]}
        await houses.of(sub="eve").cancel(foreign)
        await houses.of().cancel(own)
        while (said := await stream.event()) and said["params"]["status"] != "cancelled":
            assert said["params"]["taskId"] == own
        assert said is not None
        assert said["params"]["taskId"] == own
