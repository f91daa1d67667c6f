"""Whose a task is, and what its caller may do with it: each request about one is authorized with the
token of now, who it does not belong to learns nothing of it, and a stream ends with its token."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, config, tool
from roundgate.auth.verifier import AuthorizerVerifier
from roundgate.main import build_app
from roundgate.settings import AuthorizerConfig
from tests.support import wire
from tests.support.asgi import Client, client, stoppable
from tests.support.clocks import SkippingClock
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, jwks, token
from tests.support.jobs import greet
from tests.support.rounds import accept
from tests.support.services import answer, service
from tests.support.task_client import DECLARED, Callers, TaskClient, callers, task_settings

OTHER_ISSUER = "https://elsewhere.example.com/"
UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAA"
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tasks/get", {}),
    ("tasks/update", {"inputResponses": {"who": accept(name="Eve")}}),
    ("tasks/cancel", {}),
]
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
GRANTED = "vault.open vault.read"


@tool(task="required", scopes=["dig"])
async def dig(ctx: Context) -> str:
    """Needs a scope."""
    await ctx.continue_as_task()
    return f"dug for {ctx.principal.subject} with {sorted(ctx.principal.scopes)}"


@tool(task="required", scopes=["vault.open", "vault.read"])
async def vault(ctx: Context) -> str:
    """Needs two scopes, and asks."""
    await ctx.continue_as_task()
    who = await ctx.elicit("who", "Who?", FORM)
    return f"opened for {who['name']}"


@dataclass
class Houses:
    """Two gateways on one store, each for the tokens of another issuer."""

    ours: Callers
    theirs: Callers
    clock: SkippingClock

    def of(self, **claims: Any) -> TaskClient:
        """A client whose token has these claims."""
        return (self.theirs if claims.get("iss") == OTHER_ISSUER else self.ours).of(**claims)


@pytest.fixture
async def houses(tmp_path: Path) -> AsyncIterator[Houses]:
    clock = SkippingClock()
    options: dict[str, Any] = {"clock": clock, "tasks": {"ttl_s": 600}}
    async with (
        callers(tmp_path, greet, dig, **options) as ours,
        callers(tmp_path, greet, dig, issuer=OTHER_ISSUER, **options) as theirs,
    ):
        yield Houses(ours, theirs, clock)


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Callers]:
    """A gateway with a tool that needs scopes, and one that needs none."""
    async with callers(tmp_path, vault, greet) as made:
        yield made


STRANGERS: list[dict[str, Any]] = [
    {"sub": "eve"},
    {"client_id": "other"},
    {"client_id": None},
    {"iss": OTHER_ISSUER},
    {"sub": "ann cli"},
]


async def test_a_task_of_somebody_else_is_answered_as_one_that_never_was(houses: Houses) -> None:
    ann = houses.of()
    task_id = await ann.begin("greet")
    await ann.asked(task_id)
    before = await ann.get(task_id)
    for claims, (method, params) in product(STRANGERS, REQUESTS):
        eve = houses.of(**claims)
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
    later = houses.of(exp=4_000_000_000)
    for method, params in REQUESTS:
        expired = await later.send(method, {"taskId": task_id, **params})
        unknown = await later.send(method, {"taskId": UNKNOWN, **params})
        assert (expired.content, expired.status_code) == (unknown.content, 400)


async def test_a_task_is_the_callers_whatever_token_they_come_with(houses: Houses) -> None:
    task_id = await houses.of().begin("greet")
    later = houses.of(jti="another", scope="more", iat=1)
    await later.answer(task_id, {key: accept(name="Ann") for key in await later.asked(task_id)})
    assert await later.text(task_id) == "Hello, Ann!"


async def test_who_has_no_token_that_holds_is_told_nothing(houses: Houses) -> None:
    task_id = await houses.of().begin("greet")
    none, garbage = dict[str, str | None](), bearer("x")
    tokens = [none, garbage, bearer(token(exp=1)), bearer(token(iss=OTHER_ISSUER))]
    for headers, (method, params) in product(tokens, REQUESTS):
        nobody = TaskClient(houses.ours.mcp, DECLARED, headers)
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
    async with houses.ours.listening(foreign, own, UNKNOWN, "no.such/id") as stream:
        first = await stream.event()
        assert first is not None
        assert first["params"]["notifications"] == {"taskIds": [own]}
        await houses.of(sub="eve").cancel(foreign)
        await houses.of().cancel(own)
        while (said := await stream.event()) and said["params"]["status"] != "cancelled":
            assert said["params"]["taskId"] == own
        assert said is not None
        assert said["params"]["taskId"] == own


async def test_who_has_lost_a_scope_of_the_tool_can_do_nothing_with_its_task(
    bank: Callers,
) -> None:
    ann = bank.of(scope=GRANTED)
    task_id = await ann.begin("vault")
    await ann.asked(task_id)
    before = await ann.get(task_id)
    for left, (method, params) in product(["", "vault.open", "another"], REQUESTS):
        response = await bank.of(scope=left).send(method, {"taskId": task_id, **params})
        assert response.status_code == 403
        challenge = response.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge
        assert f'scope="{GRANTED}"' in challenge
    assert await ann.get(task_id) == before


async def test_who_has_them_again_goes_on(bank: Callers) -> None:
    task_id = await bank.of(scope=GRANTED).begin("vault")
    again = bank.of(scope=f"{GRANTED} more")
    await again.answer(task_id, {key: accept(name="Ann") for key in await again.asked(task_id)})
    assert await again.text(task_id) == "opened for Ann"


async def test_a_strangers_task_is_unknown_whatever_scopes_it_needs(bank: Callers) -> None:
    task_id = await bank.of(scope=GRANTED).begin("vault")
    for scope in ("", GRANTED):
        for method, params in REQUESTS:
            foreign = await bank.of(scope=scope, sub="eve").send(
                method, {"taskId": task_id, **params}
            )
            unknown = await bank.of(scope=scope, sub="eve").send(
                method, {"taskId": UNKNOWN, **params}
            )
            assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content)
            assert wire.valid_error(foreign)["code"] == -32602


async def test_a_task_of_a_tool_without_scopes_needs_none(bank: Callers) -> None:
    task_id = await bank.of(scope="anything").begin("greet")
    await bank.of().answer(
        task_id, {key: accept(name="Ann") for key in await bank.of().asked(task_id)}
    )
    assert await bank.of().text(task_id) == "Hello, Ann!"


async def test_a_stream_is_not_told_of_tasks_whose_tools_its_token_does_not_grant(
    bank: Callers,
) -> None:
    hidden, open_ = (
        await bank.of(scope=GRANTED).begin("vault"),
        await bank.of(scope=GRANTED).begin("greet"),
    )
    async with bank.listening(hidden, open_, scope="vault.open") as stream:
        first = await stream.event()
        assert first is not None
        assert first["params"]["notifications"] == {"taskIds": [open_]}
        await bank.of(scope=GRANTED).cancel(hidden)
        await bank.of(scope=GRANTED).cancel(open_)
        said = await stream.event()
        while said is None or said["params"]["status"] != "cancelled":
            assert said is None or said["params"]["taskId"] == open_
            said = await stream.event()
        assert said["params"]["taskId"] == open_
    async with bank.listening(hidden, open_, scope=GRANTED) as stream:
        first = await stream.event()
        assert first is not None
        assert first["params"]["notifications"] == {"taskIds": [hidden, open_]}


async def test_a_stream_ends_when_its_token_expires(bank: Callers) -> None:
    task_id = await bank.of().begin("greet")
    expires = int(time.time()) + 4
    async with bank.listening(task_id, exp=expires) as stream:
        messages = await stream.rest()
        assert -0.1 <= time.time() - expires < 30
    assert messages[0]["method"] == "notifications/subscriptions/acknowledged"
    assert messages[-1]["result"]["resultType"] == "complete"


@pytest.mark.parametrize("exp", [4_000_000_000, 10**15])
async def test_a_token_that_holds_for_long_holds_a_stream_open(bank: Callers, exp: int) -> None:
    task_id = await bank.of().begin("greet")
    async with bank.listening(task_id, exp=exp) as stream:
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

        async def bank() -> Callers:
            file = config.load(tmp_path / "gateway.yaml")
            using = task_settings(tmp_path, public_url=PUBLIC_URL)
            app = await stack.enter_async_context(stoppable(build_app(file, using)))
            mcp = await stack.enter_async_context(client(app))
            return Callers(app, Client(mcp.http, f"{view}/mcp"))

        there = await bank()
        claims = {"aud": f"{PUBLIC_URL}{view}/mcp"} if view else {}
        made = there.of(scope="vault", **claims)
        safe = await made.begin("other" if view else "safe__safe")
        plain = await made.begin("plain__plain")
        assert [await made.text(task) for task in (safe, plain)] == ["done", "done"]
        (tmp_path / "safe.py").unlink()
        missing = await bank()
        for scope in ("", "vault"):
            response = await missing.of(scope=scope, **claims).send("tasks/get", {"taskId": safe})
            assert response.status_code == 503
            assert "unknown while safe is not served" in response.text
            assert await missing.of(scope=scope, **claims).text(plain) == "done"
