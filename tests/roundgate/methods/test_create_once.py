"""A call becomes one task, however often it is sent and whatever becomes of the
answers of its writes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from roundgate import Context, ToolError, tool
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.runtime.startup import Stores, make_stores
from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks
from tests.support import wire
from tests.support.asgi import STATE_KEY, Client
from tests.support.dynamodb import Emulator
from tests.support.rounds import REFUSAL, accept, retry, valid_input_required
from tests.support.server import Server, running
from tests.support.task_client import DECLARED, TaskClient, task_settings, tasked, valid_created
from tests.support.tasks import as_stored

KEY = "roundgate/idempotencyKey"
YES = accept(go=True)


class Go(BaseModel):
    go: bool


class Orders:
    """Tools that charge, and what they have charged."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def charge(self, what: str) -> str:
        self.charged.append(what)
        return f"charged {what}"

    def tools(self, mode: Any = "required", **options: Any) -> list[Callable[..., Any]]:
        """Every way to a task: at once, between two steps, after a question, or over already."""

        @tool(task=mode, **options)
        async def at_once(ctx: Context, what: str = "tea") -> str:
            await ctx.continue_as_task()
            return str(await ctx.step("charge", self.charge, what))

        @tool(task="optional", **options)
        async def between(ctx: Context, what: str = "tea") -> str:
            await ctx.step("reserve", self.charge, f"reserve {what}")
            await ctx.continue_as_task()
            return str(await ctx.step("charge", self.charge, what))

        @tool(task=mode, **options)
        async def asks(ctx: Context, what: str = "tea") -> str:
            sure = await ctx.elicit("sure", f"Charge {what}?", Go)
            if not sure.go:
                return "nothing done"
            await ctx.continue_as_task()
            return str(await ctx.step("charge", self.charge, what))

        @tool(task=mode, **options)
        async def over(ctx: Context, what: str = "tea") -> str:
            return self.charge(what)

        @tool(task=mode, **options)
        async def steps_first(ctx: Context, what: str = "tea") -> str:
            return str(await ctx.step("charge", self.charge, what))

        return [at_once, between, asks, over, steps_first]


@pytest.fixture
def orders() -> Orders:
    return Orders()


@dataclass
class Doubtful:
    """A task store of which the answers of `create` are lost, or of which `create` happens later or never."""

    inner: Any
    lost: int = 0
    """So many answers of writes that happen."""
    failed: int = 0
    """So many writes that do not happen."""
    blind: int = 0
    """So many reads that fail."""
    late: bool = False
    """The first failed write happens after all, when somebody looks no more."""
    created: list[NewTask] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def create(self, task: NewTask) -> bool:
        self.created.append(task)
        if self.failed:
            self.failed -= 1
            raise Unavailable("The store cannot be reached")
        if self.lost:
            self.lost -= 1
            await self.inner.create(task)
            raise Unavailable("The store's answer was lost")
        if self.late:
            self.late = False
            await self.inner.create(self.created[0])
        return bool(await self.inner.create(task))

    async def read(self, *arguments: Any) -> Any:
        if self.blind:
            self.blind -= 1
            raise Unavailable("The store cannot be reached")
        return await self.inner.read(*arguments)


def doubting(directory: Path, **troubles: Any) -> tuple[Stores, Doubtful]:
    made = make_stores(task_settings(directory), Clock())
    doubtful = Doubtful(made.tasks, **troubles)
    return Stores(as_stored(doubtful), made.queue, made.sessions), doubtful


def rows(directory: Path) -> int:
    """How many tasks there are."""
    db = sqlite3.connect(directory / "gateway.sqlite3")
    try:
        return int(db.execute("select count(*) from tasks").fetchone()[0])
    finally:
        db.close()


async def until_created(
    ann: TaskClient, params: dict[str, Any], **meta: Any
) -> tuple[dict[str, Any], int]:
    """The task of a call, and how many rounds without questions came before it."""
    sent, doubts = params, 0
    while True:
        response = await ann.send("tools/call", sent, **meta)
        assert response.status_code == 200, response.text
        if response.json()["result"]["resultType"] == "task":
            return valid_created(response.json()), doubts
        asked = valid_input_required(response.json())
        doubts += "inputRequests" not in asked
        sent = retry(params, asked, **dict.fromkeys(asked.get("inputRequests", {}), YES))


NAMES = ["at_once", "between", "asks", "over", "steps_first"]
TROUBLES: dict[str, tuple[dict[str, Any], int]] = {
    "the answer is lost": ({"lost": 1}, 0),
    "the answer is lost, and so is the reading back": ({"lost": 1, "blind": 1}, 1),
    "the write never happened": ({"failed": 1}, 1),
    "neither can be reached for three rounds": ({"failed": 3, "blind": 2}, 4),
    "the write happens later": ({"failed": 1, "late": True}, 1),
}


@pytest.mark.parametrize(
    ("name", "trouble"),
    [("at_once", trouble) for trouble in TROUBLES]
    + [(name, trouble) for name in NAMES[1:] for trouble in (*TROUBLES,)[1::3]],
)
async def test_a_write_in_doubt_leads_to_one_task_and_one_charge(
    orders: Orders, name: str, trouble: str, tmp_path: Path
) -> None:
    troubles, doubts = TROUBLES[trouble]
    stores, doubtful = doubting(tmp_path, **troubles)
    async with tasked(tmp_path, *orders.tools(), stores=stores) as ann:
        created, had = await until_created(ann, {"name": name, "arguments": {"what": "cake"}})
        assert await ann.text(created["taskId"]) == "charged cake"
    assert rows(tmp_path) == 1
    assert {task.ref.id for task in doubtful.created} == {created["taskId"]}
    assert Counter(orders.charged) == Counter(
        ["cake"] + (["reserve cake"] if name == "between" else [])
    )
    assert had <= doubts


@pytest.mark.parametrize(
    "troubles",
    [{"lost": 1, "blind": 1}, {"failed": 1, "late": True}],
    ids=["answers are lost", "it happens later"],
)
@pytest.mark.parametrize("name", ["at_once", "over"])
@pytest.mark.long
async def test_so_it_does_in_dynamodb(
    orders: Orders, name: str, troubles: dict[str, Any], tmp_path: Path, dynamodb: Emulator
) -> None:
    with dynamodb.table() as table:
        made = make_stores(task_settings(tmp_path), Clock())
        doubtful = Doubtful(
            StoredTasks(DynamoDbTasks(dynamodb.open(table)), made.queue), **troubles
        )
        stores = Stores(as_stored(doubtful), made.queue, made.sessions)
        params: dict[str, Any] = {"name": name, "arguments": {"what": "cake"}}
        async with tasked(tmp_path, *orders.tools(), stores=stores) as ann:
            created, doubts = await until_created(ann, params, **{KEY: "k"})
            again, _ = await until_created(ann, params, **{KEY: "k"})
            assert await ann.text(created["taskId"]) == "charged cake"
    assert (again["taskId"], doubts, orders.charged) == (created["taskId"], 1, ["cake"])


async def test_who_sends_the_state_before_the_doubt_again_is_told_of_the_same_task(
    orders: Orders, tmp_path: Path
) -> None:
    stores, _ = doubting(tmp_path, lost=1, blind=1)
    params: dict[str, Any] = {"name": "asks", "arguments": {}}
    async with tasked(tmp_path, *orders.tools(), stores=stores) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        answered = retry(params, asked, sure=YES)
        doubt = valid_input_required((await ann.send("tools/call", answered)).json())
        both = [
            await ann.send("tools/call", sent)
            for sent in (answered, retry(params, doubt), answered)
        ]
        ids = {valid_created(response.json())["taskId"] for response in both}
        assert len(ids) == 1
        await ann.text(*ids)
    assert (rows(tmp_path), orders.charged) == (1, ["tea"])


async def test_a_doubt_is_for_its_caller_and_its_call_alone(orders: Orders, tmp_path: Path) -> None:
    stores, _ = doubting(tmp_path, failed=1)
    params: dict[str, Any] = {"name": "at_once", "arguments": {}}
    async with tasked(tmp_path, *orders.tools(), stores=stores) as ann:
        doubt = valid_input_required((await ann.send("tools/call", params)).json())
        for other in (
            {"name": "over", "arguments": {}},
            {"name": "at_once", "arguments": {"what": "gold"}},
        ):
            _, error = await ann.error("tools/call", retry(other, doubt))
            assert (error["code"], error["message"]) == (-32602, REFUSAL)


async def test_a_task_whose_writer_died_before_its_message_gets_one_with_the_retry(
    orders: Orders, tmp_path: Path
) -> None:
    stores, _ = doubting(tmp_path, lost=1, blind=1)
    slow = {"requeue_after_s": 3_600, "sweep_every_s": 3_600}
    async with tasked(tmp_path, *orders.tools(), stores=stores, tasks=slow) as ann:
        created, _ = await until_created(ann, {"name": "at_once", "arguments": {}})
        assert await ann.text(created["taskId"]) == "charged tea"


@pytest.mark.parametrize(("most", "rounds"), [(3, 3), (25, 8)])
async def test_a_store_that_stays_away_ends_in_503_before_clients_give_up(
    orders: Orders, tmp_path: Path, most: int, rounds: int
) -> None:
    stores, _ = doubting(tmp_path, failed=100)
    params = sent = {"name": "at_once", "arguments": {}}
    async with tasked(tmp_path, *orders.tools(), stores=stores, state={"max_rounds": most}) as ann:
        answers: list[int] = []
        while answers[-1:] != [503]:
            response = await ann.send("tools/call", sent)
            answers.append(response.status_code)
            if response.status_code == 200:
                sent = retry(params, valid_input_required(response.json()))
    assert answers == [200] * (rounds - 1) + [503]
    message = wire.valid_error(response)["message"]
    assert "The gateway's store does not answer" in message
    assert "may still take effect" in message


# ---- one state, sent several times at once


async def test_one_state_sent_three_times_to_two_gateways_is_one_task_and_one_answer(
    orders: Orders, tmp_path: Path
) -> None:
    params: dict[str, Any] = {"name": "asks", "arguments": {}}
    async with (
        tasked(tmp_path, *orders.tools()) as ann,
        tasked(tmp_path, *orders.tools(), works=False) as elsewhere,
    ):
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        again = retry(params, asked, sure=YES)
        sent = await asyncio.gather(
            *(one.send("tools/call", again) for one in (ann, elsewhere, ann))
        )
        (task_id,) = {valid_created(response.json())["taskId"] for response in sent}
        (created_at,) = {response.json()["result"]["createdAt"] for response in sent}
        assert created_at
        assert await ann.text(task_id) == "charged tea"
        late = valid_created((await elsewhere.send("tools/call", again)).json())
    assert (late["taskId"], late["status"], rows(tmp_path), orders.charged) == (
        task_id,
        "completed",
        1,
        ["tea"],
    )


async def test_other_answers_to_the_same_state_are_another_call(
    orders: Orders, tmp_path: Path
) -> None:
    params: dict[str, Any] = {"name": "asks", "arguments": {}}
    async with tasked(tmp_path, *orders.tools()) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        no = valid_created(
            (await ann.send("tools/call", retry(params, asked, sure=accept(go=False)))).json()
        )
        yes = valid_created((await ann.send("tools/call", retry(params, asked, sure=YES))).json())
        assert no["taskId"] != yes["taskId"]
        assert await ann.text(yes["taskId"]) == "charged tea"


SERVED = """
import os
from roundgate import Context, tool

FORM = {"type": "object", "properties": {"go": {"type": "boolean"}}, "required": ["go"]}

def charge():
    with open(os.environ["EFFECTS"], "a") as file:
        file.write("charged\\n")
    return "charged"

@tool(task="required")
async def order(ctx: Context) -> str:
    await ctx.elicit("sure", "Sure?", FORM)
    await ctx.continue_as_task()
    return await ctx.step("charge", charge)

@tool(task="required")
async def at_once(ctx: Context) -> str:
    await ctx.continue_as_task()
    return await ctx.step("charge", charge)
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Server]]:
    """Two gateways in processes of their own on one SQLite file."""
    environment = {
        "EFFECTS": str(tmp_path / "effects"),
        "GATEWAY_STATE_KEYS": STATE_KEY,
        "GATEWAY_STORE": f"sqlite:///{tmp_path / 'gateway.sqlite3'}",
    }
    with ExitStack() as stack:
        servers = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "tools.py").write_text(SERVED)
            config = tmp_path / name / "gateway.yaml"
            backend = {"kind": "python", "name": "served", "prefix": "", "path": "tools.py"}
            config.write_text(
                json.dumps({"backends": [backend], "tasks": {"poll_interval_ms": 100}})
            )
            servers.append(stack.enter_context(running(config, environment)))
        yield servers


@pytest.mark.parametrize("by", ["state", "key"])
async def test_thirty_replays_over_two_processes_are_one_task_and_one_charge(
    pair: list[Server], tmp_path: Path, by: str
) -> None:
    async with AsyncExitStack() as stack:
        opened = [httpx.AsyncClient(base_url=server.url, timeout=60) for server in pair]
        clients = [TaskClient(Client(await stack.enter_async_context(http))) for http in opened]
        params: dict[str, Any] = {"name": "order" if by == "state" else "at_once", "arguments": {}}
        meta = {} if by == "state" else {KEY: "order-4711"}
        if by == "state":
            asked = valid_input_required((await clients[0].send("tools/call", params)).json())
            params = retry(params, asked, sure=YES)
        sent = [clients[number % 2].send("tools/call", params, **meta) for number in range(30)]
        bodies = [valid_created(response.json()) for response in await asyncio.gather(*sent)]
        ((task_id, count),) = Counter(body["taskId"] for body in bodies).items()
        assert count == 30
        assert await clients[1].text(task_id) == "charged"
    assert (tmp_path / "effects").read_text() == "charged\n"
    assert rows(tmp_path) == 1


# ---- a key of the client's


@pytest.mark.parametrize("name", ["at_once", "over", "steps_first"])
async def test_a_call_that_is_sent_again_with_its_key_is_the_same_task(
    orders: Orders, name: str, tmp_path: Path
) -> None:
    params: dict[str, Any] = {"name": name, "arguments": {"what": "cake"}}
    async with tasked(tmp_path, *orders.tools()) as ann:
        first, _ = await until_created(ann, params, **{KEY: "k-1"})
        assert await ann.text(first["taskId"]) == "charged cake"
        second, _ = await until_created(ann, params, **{KEY: "k-1"})
    assert (second["taskId"], second["status"], orders.charged) == (
        first["taskId"],
        "completed",
        ["cake"],
    )


async def test_a_key_is_for_one_tool_and_its_arguments_and_a_new_key_is_a_new_call(
    orders: Orders, tmp_path: Path
) -> None:
    calls = [
        ("at_once", "cake", "k-1"),
        ("at_once", "tea", "k-1"),
        ("over", "cake", "k-1"),
        ("at_once", "cake", "k-2"),
    ]
    async with tasked(tmp_path, *orders.tools(), works=False) as ann:
        ids = set()
        for name, what, key in calls * 2:
            created, _ = await until_created(
                ann, {"name": name, "arguments": {"what": what}}, **{KEY: key}
            )
            ids.add(created["taskId"])
    assert (len(ids), rows(tmp_path)) == (4, 4)


async def test_a_key_holds_through_the_rounds_whatever_is_answered_in_a_second_attempt(
    orders: Orders, tmp_path: Path
) -> None:
    params: dict[str, Any] = {"name": "asks", "arguments": {}}
    async with tasked(tmp_path, *orders.tools()) as ann:
        asked = valid_input_required((await ann.send("tools/call", params, **{KEY: "k"})).json())
        again = valid_input_required((await ann.send("tools/call", params, **{KEY: "k"})).json())
        first = valid_created((await ann.send("tools/call", retry(params, asked, sure=YES))).json())
        assert await ann.text(first["taskId"]) == "charged tea"
        no = valid_created(
            (await ann.send("tools/call", retry(params, again, sure=accept(go=False)))).json()
        )
        anew = valid_created((await ann.send("tools/call", params, **{KEY: "k"})).json())
    assert {no["taskId"], anew["taskId"]} == {first["taskId"]}
    assert orders.charged == ["tea"]


async def test_a_key_and_a_doubt_go_together(orders: Orders, tmp_path: Path) -> None:
    stores, _ = doubting(tmp_path, lost=1, blind=2)
    params: dict[str, Any] = {"name": "at_once", "arguments": {}}
    async with tasked(tmp_path, *orders.tools(), stores=stores) as ann:
        valid_input_required((await ann.send("tools/call", params, **{KEY: "k"})).json())
        created, _ = await until_created(
            ann, params, **{KEY: "k"}
        )  # another process of the client's
        assert await ann.text(created["taskId"]) == "charged tea"
    assert (rows(tmp_path), orders.charged) == (1, ["tea"])


async def test_a_once_tool_with_a_key_runs_once_also_in_its_first_round(
    orders: Orders, tmp_path: Path
) -> None:
    @tool(once=True)
    async def pay(ctx: Context, what: str = "tea") -> str:
        orders.charge(what)
        await asyncio.sleep(0.1)
        if what == "gold":
            raise ToolError("too dear")
        return f"receipt {len(orders.charged)}"

    other, *_ = orders.tools()
    async with tasked(tmp_path, pay, other) as ann:
        for what in ("tea", "gold"):
            params = {"name": "pay", "arguments": {"what": what}}
            together = await asyncio.gather(
                *(ann.send("tools/call", params, **{KEY: "k"}) for _ in range(3))
            )
            late = await ann.send("tools/call", params, **{KEY: "k"})
            assert {response.content for response in together} == {late.content}
        assert orders.charged == ["tea", "gold"]
        await ann.send("tools/call", {"name": "pay", "arguments": {}}, **{KEY: "another"})
    assert orders.charged == ["tea", "gold", "tea"]


@pytest.mark.parametrize(
    "key", ["", 7, None, [], {}, "x" * 257, "two words", "Ünïcode", "tab\t", True], ids=repr
)
async def test_a_key_that_is_none_is_an_error_that_says_what_one_is(
    orders: Orders, tmp_path: Path, key: Any
) -> None:
    async with tasked(tmp_path, *orders.tools(), works=False) as ann:
        response = await ann.send("tools/call", {"name": "at_once", "arguments": {}}, **{KEY: key})
        if key is None:  # as good as none
            valid_created(response.json())
            return
    error = wire.valid_error(response)
    assert (response.status_code, error["code"]) == (400, -32602)
    assert f'params._meta["{KEY}"] must be a string of 1 to 256' in error["message"]


async def test_the_id_of_the_request_is_no_key(orders: Orders, tmp_path: Path) -> None:
    params: dict[str, Any] = {"name": "at_once", "arguments": {}}
    async with tasked(tmp_path, *orders.tools(), works=False) as ann:
        ids = set()
        for _ in range(3):
            response = await ann.mcp.post(
                "tools/call", params, request_id=1, clientCapabilities=DECLARED
            )
            ids.add(valid_created(response.json())["taskId"])
    assert len(ids) == 3


# ---- what services are told of a call that is sent again


@tool(task="optional")
async def keyed(ctx: Context, fails: bool = False) -> str:
    """Says by which key a service would know what it does now."""
    await ctx.elicit("sure", "Sure?", Go)
    key = await ctx.idempotency_key("charge")
    if fails:
        await ctx.continue_as_task()
    return key


async def test_a_service_gets_the_same_key_however_often_a_round_is_sent(tmp_path: Path) -> None:
    params: dict[str, Any] = {"name": "keyed", "arguments": {}}
    async with tasked(tmp_path, keyed) as ann:

        async def key_of(sent: dict[str, Any]) -> str:
            result = wire.valid_result("tools/call", (await ann.send("tools/call", sent)).json())
            text: str = result["content"][0]["text"]
            return text

        first, second = [
            valid_input_required((await ann.send("tools/call", params)).json()) for _ in range(2)
        ]
        keys = [await key_of(retry(params, first, sure=YES)) for _ in range(3)]
        other_answers = await key_of(retry(params, first, sure=accept(go=False)))
        other_call = await key_of(retry(params, second, sure=YES))
    assert len(set(keys)) == 1
    assert len({keys[0], other_answers, other_call}) == 3


async def test_the_key_of_a_call_is_that_of_its_task(tmp_path: Path) -> None:
    params: dict[str, Any] = {"name": "keyed", "arguments": {"fails": True}}
    stores, _ = doubting(tmp_path, failed=1)
    async with tasked(tmp_path, keyed, stores=stores) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        answered = retry(params, asked, sure=YES)
        doubt = valid_input_required((await ann.send("tools/call", answered)).json())
        created = valid_created((await ann.send("tools/call", retry(params, doubt))).json())
        key = await ann.text(created["taskId"])
        again = valid_created((await ann.send("tools/call", answered)).json())
        assert (again["taskId"], await ann.text(again["taskId"])) == (created["taskId"], key)


# ---- the row comes before the first step


@pytest.mark.parametrize("name", ["steps_first", "at_once"])
async def test_a_call_that_must_be_a_task_has_its_row_before_its_first_step(
    orders: Orders, name: str, tmp_path: Path
) -> None:
    stores, doubtful = doubting(tmp_path, failed=1)
    async with tasked(tmp_path, *orders.tools(), stores=stores, works=False) as ann:
        params = {"name": name, "arguments": {}}
        doubt = valid_input_required((await ann.send("tools/call", params)).json())
        assert (orders.charged, len(doubtful.created)) == ([], 1)
        created = valid_created((await ann.send("tools/call", retry(params, doubt))).json())
        assert (created["status"], orders.charged) == ("working", [])
