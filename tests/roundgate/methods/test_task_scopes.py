"""What a caller may do with a task is what its token of now grants; and a stream ends with
the token that opened it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, config, tool
from roundgate.auth.verifier import AuthorizerVerifier
from roundgate.main import build_app
from roundgate.settings import AuthorizerConfig
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, stoppable
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.jobs import greet
from tests.support.rounds import accept
from tests.support.services import answer, service
from tests.support.task_client import DECLARED, TaskClient, task_settings

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@tool(task="required", scopes=["vault.open", "vault.read"])
async def vault(ctx: Context) -> str:
    """Needs two scopes, and asks."""
    await ctx.continue_as_task()
    who = await ctx.elicit("who", "Who?", FORM)
    return f"opened for {who['name']}"


@dataclass
class Bank:
    """A gateway with a tool that needs scopes, and one that needs none."""

    app: FastAPI
    mcp: Client

    def of(self, scope: str = "", **claims: Any) -> TaskClient:
        return TaskClient(self.mcp, DECLARED, bearer(token(scope=scope, **claims)))

    def stream(self, task_ids: list[str], scope: str = "", **claims: Any) -> Exchange:
        asked = wire.message(
            "subscriptions/listen",
            {"notifications": {"taskIds": task_ids}},
            clientCapabilities=DECLARED,
        )
        return Exchange(
            self.app,
            asked,
            {**wire.headers(asked), "authorization": f"Bearer {token(scope=scope, **claims)}"},
        )


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with AsyncExitStack() as stack:
        keys = await stack.enter_async_context(service(answer(jwks("ec"))))
        auth = {"issuer": ISSUER, "scopes": []}
        file = guarded(f"{keys.url}/jwks", vault, greet, auth=auth, tasks={"poll_interval_ms": 100})
        app = await stack.enter_async_context(
            stoppable(build_app(file, task_settings(tmp_path, public_url=PUBLIC_URL)))
        )
        yield Bank(app, await stack.enter_async_context(client(app)))


GRANTED = "vault.open vault.read"
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tasks/get", {}),
    ("tasks/update", {"inputResponses": {"who": accept(name="Eve")}}),
    ("tasks/cancel", {}),
]


@pytest.mark.parametrize(("method", "params"), REQUESTS)
@pytest.mark.parametrize("left", ["", "vault.open", "another"])
async def test_who_has_lost_a_scope_of_the_tool_can_do_nothing_with_its_task(
    bank: Bank, method: str, params: dict[str, Any], left: str
) -> None:
    ann = bank.of(GRANTED)
    task_id = await ann.begin("vault")
    await ann.asked(task_id)
    before = await ann.get(task_id)
    response = await bank.of(left).send(method, {"taskId": task_id, **params})
    assert response.status_code == 403
    challenge = response.headers["www-authenticate"]
    assert 'error="insufficient_scope"' in challenge
    assert f'scope="{GRANTED}"' in challenge
    assert await ann.get(task_id) == before


async def test_who_has_them_again_goes_on(bank: Bank) -> None:
    task_id = await bank.of(GRANTED).begin("vault")
    again = bank.of(f"{GRANTED} more")
    await again.answer(task_id, {key: accept(name="Ann") for key in await again.asked(task_id)})
    assert await again.text(task_id) == "opened for Ann"


async def test_a_strangers_task_is_unknown_whatever_scopes_it_needs(bank: Bank) -> None:
    task_id = await bank.of(GRANTED).begin("vault")
    for scope in ("", GRANTED):
        for method, params in REQUESTS:
            foreign = await bank.of(scope, sub="eve").send(method, {"taskId": task_id, **params})
            unknown = await bank.of(scope, sub="eve").send(method, {"taskId": "A" * 22, **params})
            assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content)
            assert wire.valid_error(foreign)["code"] == -32602


async def test_a_task_of_a_tool_without_scopes_needs_none(bank: Bank) -> None:
    task_id = await bank.of("anything").begin("greet")
    await bank.of().answer(
        task_id, {key: accept(name="Ann") for key in await bank.of().asked(task_id)}
    )
    assert await bank.of().text(task_id) == "Hello, Ann!"


async def test_a_stream_is_not_told_of_tasks_whose_tools_its_token_does_not_grant(
    bank: Bank,
) -> None:
    hidden, open_ = await bank.of(GRANTED).begin("vault"), await bank.of(GRANTED).begin("greet")
    async with bank.stream([hidden, open_], scope="vault.open") as stream:
        first = await stream.event()
        assert first is not None
        assert first["params"]["notifications"] == {"taskIds": [open_]}
        await bank.of(GRANTED).cancel(hidden)
        await bank.of(GRANTED).cancel(open_)
        said = await stream.event()
        while said is None or said["params"]["status"] != "cancelled":
            assert said is None or said["params"]["taskId"] == open_
            said = await stream.event()
        assert said["params"]["taskId"] == open_
    async with bank.stream([hidden, open_], scope=GRANTED) as stream:
        first = await stream.event()
        assert first is not None
        assert first["params"]["notifications"] == {"taskIds": [hidden, open_]}


async def test_a_stream_ends_when_its_token_expires(bank: Bank) -> None:
    task_id = await bank.of().begin("greet")
    expires = int(time.time()) + 4
    async with bank.stream([task_id], exp=expires) as stream:
        messages = await stream.rest()
        assert -0.1 <= time.time() - expires < 30
    assert messages[0]["method"] == "notifications/subscriptions/acknowledged"
    assert messages[-1]["result"]["resultType"] == "complete"


@pytest.mark.parametrize("exp", [4_000_000_000, 10**15])
async def test_a_token_that_holds_for_long_holds_a_stream_open(bank: Bank, exp: int) -> None:
    task_id = await bank.of().begin("greet")
    async with bank.stream([task_id], exp=exp) as stream:
        first = await stream.event()
        assert first is not None
        assert first["method"] == "notifications/subscriptions/acknowledged"
        await bank.of().cancel(task_id)
        while (said := await stream.event()) is None or said["params"]["status"] != "cancelled":
            pass


CLAIMS: dict[str, tuple[Any, float | None]] = {
    "a number": (1_900_000_000, 1_900_000_000.0),
    "text, as API Gateway writes it": ("1900000000", 1_900_000_000.0),
    "absent": (None, None),
    "no date": ("soon", None),
    "infinite": ("inf", None),
    "a list": ([1], None),
}


@pytest.mark.parametrize(("claim", "expires"), CLAIMS.values(), ids=CLAIMS.keys())
async def test_the_expiry_that_an_authorizer_hands_over_is_known(
    claim: Any, expires: float | None
) -> None:
    verifier = AuthorizerVerifier(AuthorizerConfig(authorizer="api-gateway", issuer="i"))
    principal = await verifier.principal(None, {"sub": "ann", "exp": claim})
    assert principal.expires_at_s == expires
    assert principal == await verifier.principal(None, {"sub": "ann"})


@pytest.mark.parametrize("view", ["", "/v"])
async def test_while_a_back_end_is_missing_nobody_has_what_its_tools_may_need_scopes_for(
    tmp_path: Path, view: str
) -> None:
    """Its tasks are there again when it is; those of tools that are served
    are there all the time."""
    tool_of = (
        "from roundgate import tool\n@tool(task='required', scopes=[{}])\ndef {}(): return 'done'\n"
    )
    (tmp_path / "safe.py").write_text(tool_of.format("'vault'", "safe"))
    (tmp_path / "plain.py").write_text(tool_of.format("", "plain"))
    modules = [{"kind": "python", "name": name, "path": f"{name}.py"} for name in ("safe", "plain")]
    async with AsyncExitStack() as stack:
        keys = await stack.enter_async_context(service(answer(jwks("ec"))))
        auth = {"issuer": ISSUER, "scopes": [], "jwks_url": f"{keys.url}/jwks"}
        views = [{"name": "v", "override": {"safe__safe": {"name": "other"}}}]
        written = {"auth": auth, "backends": modules, "views": views if view else []}
        (tmp_path / "gateway.yaml").write_text(json.dumps(written))

        async def bank() -> Bank:
            file = config.load(tmp_path / "gateway.yaml")
            using = task_settings(tmp_path, public_url=PUBLIC_URL)
            app = await stack.enter_async_context(stoppable(build_app(file, using)))
            mcp = await stack.enter_async_context(client(app))
            return Bank(app, Client(mcp.http, f"{view}/mcp"))

        there = await bank()
        claims = {"aud": f"{PUBLIC_URL}{view}/mcp"} if view else {}
        made = there.of("vault", **claims)
        safe = await made.begin("other" if view else "safe__safe")
        plain = await made.begin("plain__plain")
        assert [await made.text(task) for task in (safe, plain)] == ["done", "done"]
        (tmp_path / "safe.py").unlink()
        missing = await bank()
        for scope in ("", "vault"):
            response = await missing.of(scope, **claims).send("tasks/get", {"taskId": safe})
            assert response.status_code == 503
            assert "unknown while safe is not served" in response.text
            assert await missing.of(scope, **claims).text(plain) == "done"
