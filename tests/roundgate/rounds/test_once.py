"""`once`: a round that is sent again is not run again, whoever serves it and whatever
happened to the first."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate import Context, ToolError, tool
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.main import build_app
from roundgate.settings.process import Settings
from roundgate.storage.accounts import Accounts, Reserved
from tests.roundgate.rounds.conftest import Effects, Start
from tests.roundgate.rounds.served.tools import Consent, effect, pay
from tests.support import rounds, wire
from tests.support.asgi import NO_FALLBACK, Client, client, config_file
from tests.support.rounds import CAPABILITIES, KEYS, REFUSAL, accept, names_in, retry
from tests.support.server import Server

YES = accept(ok=True)


class Later(Clock):
    """Later than it is."""

    def __init__(self, by_s: float) -> None:
        self._by_ms = int(by_s * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._by_ms


def replica(store: Path, *functions: Any, later_s: float = 0, **sections: Any) -> FastAPI:
    """A gateway in this process with the keys and the store of the others."""
    using = Settings(state_keys=KEYS, store=f"sqlite:///{store}")
    return build_app(config_file(*(functions or (pay,)), **sections), using, clock=Later(later_s))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "gateway.sqlite3"


@pytest.fixture(scope="module")
def pair(start: Start, shared: Path) -> Sequence[Server]:
    """Two gateways on one SQLite file."""
    return start(2, store=shared)


@pytest.fixture
async def two(pair: Sequence[Server]) -> AsyncIterator[list[Client]]:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=pair[0].url, timeout=60, limits=limits) as one,
        httpx.AsyncClient(base_url=pair[1].url, timeout=60, limits=limits) as other,
    ):
        yield [Client(one), Client(other)]


@pytest.fixture
async def mcp(tmp_path: Path) -> AsyncIterator[Client]:
    async with client(replica(tmp_path / "gateway.sqlite3")) as made:
        yield made


async def confirmed(mcp: Client, name: str = "pay", **arguments: Any) -> dict[str, Any]:
    """The parameters of a second round of `pay`, ready to be sent as often as one likes."""
    method, params = rounds.tool(name, **arguments)
    return retry(params, await rounds.ask(mcp, method, params), sure=YES)


async def send(mcp: Client, params: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = (
        await mcp.post("tools/call", params, clientCapabilities=CAPABILITIES)
    ).json()
    return body


async def text(mcp: Client, params: dict[str, Any]) -> str:
    said: str = (await send(mcp, params))["result"]["content"][0]["text"]
    return said


async def test_two_hundred_replays_over_two_processes_have_one_effect_and_one_outcome(
    two: list[Client], effects: Effects
) -> None:
    params = await confirmed(two[0], amount=1, takes_s=0.3)
    receipts = await asyncio.gather(*(text(two[number % 2], params) for number in range(200)))
    ((receipt, count),) = Counter(receipts).items()
    assert receipt.startswith("receipt ")
    assert (count, effects()) == (200, ["pay 1"])


async def test_a_late_replay_has_the_same_outcome(mcp: Client, effects: Effects) -> None:
    params = await confirmed(mcp, amount=2)
    assert len({await text(mcp, params) for _ in range(3)}) == 1
    assert effects() == ["pay 2"]


async def test_another_call_is_another_payment(mcp: Client, effects: Effects) -> None:
    receipts = {await text(mcp, await confirmed(mcp, amount=3)) for _ in range(2)}
    assert (len(receipts), effects()) == (2, ["pay 3", "pay 3"])


@pytest.mark.parametrize(
    ("answer", "approval", "effect_count"),
    [(accept(approve=True), True, 1), ({"action": "decline"}, True, 0), (YES, False, 1)],
    ids=["approved", "declined", "once"],
)
async def test_a_call_keeps_the_protection_with_which_it_began(
    answer: dict[str, Any], approval: bool, effect_count: int, tmp_path: Path
) -> None:
    count = 0

    @tool
    async def charge(ctx: Context) -> str:
        nonlocal count
        if not approval:
            await ctx.elicit("sure", "Sure?", Consent)
        count += 1
        return f"charged {count}"

    protected = {"approve": "always"} if approval else {"override": {"charge": {"once": True}}}
    before = replica(tmp_path / "gateway.sqlite3", charge, backend=protected)
    after = replica(tmp_path / "gateway.sqlite3", charge)
    method, params = rounds.tool("charge")
    async with client(before) as one, client(after) as other:
        asked = await rounds.ask(one, method, params)
        (key,) = asked["inputRequests"]
        again = retry(params, asked, **{key: answer})
        texts = {await text(mcp, again) for mcp in (other, other, one)}
    assert (len(texts), count) == (1, effect_count)


@pytest.mark.parametrize(
    "answers",
    [{"sure": accept(ok=False)}, {"sure": {"action": "decline"}}, {"sure": YES, "more": {}}, {}],
    ids=["changed", "declined", "more", "none"],
)
async def test_other_answers_on_a_used_token_are_refused(
    mcp: Client, effects: Effects, answers: dict[str, Any]
) -> None:
    params = await confirmed(mcp, amount=4)
    receipt = await text(mcp, params)
    refused = (await send(mcp, params | {"inputResponses": answers}))["error"]
    assert (refused["code"], refused["message"]) == (-32602, REFUSAL)
    assert (await text(mcp, params), effects()) == (receipt, ["pay 4"])


async def hang_up(mcp: Client, params: dict[str, Any], effects: Effects) -> None:
    """Send a round, and close the connection as soon as it has had its effect."""
    sent = asyncio.create_task(send(mcp, params))
    await asyncio.to_thread(effects.wait)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent


async def test_a_client_that_hangs_up_gets_the_outcome_with_its_retry(
    two: list[Client], effects: Effects
) -> None:
    params = await confirmed(two[0], amount=5, takes_s=0.6)
    await hang_up(two[0], params, effects)
    receipts = [await text(mcp, params) for mcp in two]
    assert receipts[0].startswith("receipt ")
    assert (len(set(receipts)), effects()) == (1, ["pay 5"])


async def test_a_client_that_hangs_up_on_a_stream_gets_the_outcome_too(
    two: list[Client], effects: Effects
) -> None:
    params = await confirmed(two[0], amount=10, takes_s=0.4)
    asked = wire.message("tools/call", params, clientCapabilities=CAPABILITIES, progressToken="p")
    async with two[0].http.stream(
        "POST", "/mcp", json=asked, headers=wire.headers(asked)
    ) as response:
        assert "progress" in await anext(response.aiter_text())
    assert (await text(two[1], params)).startswith("receipt ")
    assert effects() == ["pay 10"]


async def test_a_gateway_that_is_told_to_stop_finishes_what_a_client_has_abandoned(
    start: Start, tmp_path: Path, effects: Effects
) -> None:
    store = tmp_path / "gateway.sqlite3"
    (server,) = start(store=store)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        params = await confirmed(Client(http), amount=6, takes_s=0.8)
        await hang_up(Client(http), params, effects)
    assert server.stop() == 0
    async with client(replica(store)) as other:
        assert (await text(other, params)).startswith("receipt ")
    assert effects() == ["pay 6"]


@pytest.fixture
async def orphaned(start: Start, tmp_path: Path, effects: Effects) -> tuple[Path, dict[str, Any]]:
    """The store and the parameters of a round whose process was killed after it had paid."""
    store = tmp_path / "gateway.sqlite3"
    (server,) = start(store=store)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        params = await confirmed(Client(http), amount=7, takes_s=600)
        lost = asyncio.create_task(send(Client(http), params))
        await asyncio.to_thread(effects.wait)
        server.process.kill()
        with pytest.raises(httpx.HTTPError):
            await lost
    return store, params


async def test_the_retry_of_a_round_whose_process_was_killed_is_told_so(
    orphaned: tuple[Path, dict[str, Any]], effects: Effects
) -> None:
    store, params = orphaned
    async with client(replica(store, limits={"call_timeout_s": 0.1})) as soon:
        waiting = await soon.post("tools/call", params, clientCapabilities=CAPABILITIES)
    assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "5")
    async with client(replica(store, later_s=120)) as after:
        told = [(await send(after, params))["result"] for _ in range(2)]
    assert [result["isError"] for result in told] == [True, True]
    assert "ended without a known outcome" in told[0]["content"][0]["text"]
    assert effects() == ["pay 7"]


@tool(once=True)
async def fickle(ctx: Context, how: str) -> str:
    """Ends its second round in one of several ways."""
    await ctx.elicit("sure", "Go on?", Consent)
    effect(how)
    if how == "asks again":
        await ctx.elicit("why", f"Why? {uuid.uuid4()}", Consent)
    if how == "sheds":
        await ctx.shed()
    if how == "refuses":
        raise ToolError(f"no, says {uuid.uuid4()}")
    raise RuntimeError(how)


@pytest.mark.parametrize("how", ["asks again", "sheds", "refuses", "crashes"])
async def test_whatever_a_round_ended_in_is_its_outcome(
    tmp_path: Path, effects: Effects, how: str
) -> None:
    async with client(replica(tmp_path / "gateway.sqlite3", fickle)) as mcp:
        params = await confirmed(mcp, "fickle", how=how)
        first, second = [(await send(mcp, params))["result"] for _ in range(2)]
    assert (first, effects()) == (second, [how])


async def test_an_error_is_an_outcome_too(tmp_path: Path, effects: Effects) -> None:
    app = replica(tmp_path / "gateway.sqlite3", fickle, fallback=NO_FALLBACK)
    async with client(app) as mcp:
        params = await confirmed(mcp, "fickle", how="asks again")
        poor: dict[str, Any] = {"elicitation": {"url": {}}}
        answers = [
            (await mcp.post("tools/call", params, clientCapabilities=poor)).json()["error"]
            for _ in range(2)
        ]
    assert answers[0] == answers[1]
    assert (answers[0]["code"], answers[0]["data"]) == (
        -32021,
        {"requiredCapabilities": {"elicitation": {"form": {}}}},
    )
    assert effects() == ["asks again"]


async def test_the_log_says_how_a_once_round_ended(
    tmp_path: Path, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    async with client(replica(tmp_path / "gateway.sqlite3", fickle)) as mcp:
        for how in ("asks again", "refuses"):
            params = await confirmed(mcp, "fickle", how=how)
            await send(mcp, params)
            await send(mcp, params)
    outcomes = [
        record.__dict__["fields"]["outcome"]
        for record in caplog.records
        if record.name == "roundgate.request"
    ]
    assert outcomes == ["input_required"] * 3 + ["input_required"] + ["tool_error"] * 2


async def test_nothing_is_written_down_before_there_are_answers(
    tmp_path: Path, effects: Effects
) -> None:
    async with client(replica(tmp_path / "gateway.sqlite3")) as mcp:
        for amount in range(20):
            await rounds.ask(mcp, *rounds.tool("pay", amount=amount))
    assert names_in(tmp_path) == []


async def test_a_record_is_forgotten_once_its_token_has_expired(
    tmp_path: Path, effects: Effects
) -> None:
    store = tmp_path / "gateway.sqlite3"
    async with client(replica(store)) as mcp:
        await text(mcp, await confirmed(mcp, amount=8))
    async with client(replica(store, later_s=3 * 86_400)) as mcp:
        await text(mcp, await confirmed(mcp, amount=9))
    with sqlite3.connect(store) as db:
        assert db.execute("select count(*) from sessions where key like 'once.%'").fetchone() == (
            1,
        )
    db.close()


async def test_a_result_is_sent_though_its_account_cannot_be_written(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Accounts.reserve

    async def contended(self: Accounts, owner: str, size: int, until_ms: int) -> Reserved:
        if size > 200_000:
            raise Unavailable("Too many processes write for this caller; try again soon")
        return await reserve(self, owner, size, until_ms)

    @tool(once=True)
    async def large(ctx: Context) -> str:
        """Returns a long text."""
        await ctx.elicit("sure", "Go on?", Consent)
        effect("large")
        return "x" * 200_000

    monkeypatch.setattr(Accounts, "reserve", contended)
    async with client(replica(tmp_path / "gateway.sqlite3", large)) as mcp:
        params = await confirmed(mcp, "large")
        assert len(await text(mcp, params)) == 200_000
        assert "without a known outcome" in await text(mcp, params)
    assert effects() == ["large"]


async def test_a_result_that_its_caller_has_no_room_for_is_sent_and_not_kept(
    tmp_path: Path, effects: Effects
) -> None:
    @tool(once=True)
    async def large(ctx: Context, size: int) -> str:
        """Returns a text of so many characters."""
        await ctx.elicit("sure", "Go on?", Consent)
        effect(f"large {size}")
        return "x" * size

    limits = {"max_stored_bytes": 100_000}
    async with client(replica(tmp_path / "gateway.sqlite3", large, limits=limits)) as mcp:
        params = await confirmed(mcp, "large", size=200_000)
        first, second = [(await send(mcp, params))["result"] for _ in range(2)]
        assert len(first["content"][0]["text"]) == 200_000
        assert "limits.max_stored_bytes" in second["content"][0]["text"]
        statuses = []
        for _ in range(60):
            response = await mcp.post(
                "tools/call", await confirmed(mcp, "large", size=1), clientCapabilities=CAPABILITIES
            )
            statuses.append(response.status_code)
    assert sorted(set(statuses)) == [200, 429]
    assert response.headers["retry-after"] == "60"
    assert "100,000 bytes" in response.json()["error"]["message"]
    ran = statuses.count(200)
    assert effects() == ["large 200000", *["large 1"] * ran], "a round that is refused does not run"
