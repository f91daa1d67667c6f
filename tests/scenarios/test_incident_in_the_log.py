"""Two refunds at once; a worker is killed, and one refund fails for good. The log alone tells what happened to each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scenarios.conftest import Agency, clients, kill
from tests.support.rounds import accept
from tests.support.server import Server

REFUND = '''

class Go(BaseModel):
    go: bool


@tool(task="required", read_only=True)
async def refund(ctx: Context, order: str) -> str:
    """Pays an order back."""
    await ctx.elicit("confirm", f"Pay {order} back?", Go)
    await ctx.continue_as_task()
    await ctx.step("look_up", _look_up, order)
    await ctx.step("pay", _pay, order, retries=1, backoff=0.01)
    return f"{order} is paid back"


async def _look_up(order: str) -> None:
    note(f"look up {order}")
    while not os.path.exists(os.environ["DIARY"] + ".go"):  # the test lets it go on
        await asyncio.sleep(0.05)


async def _pay(order: str) -> None:
    if order == "B":
        raise ConnectionError("the bank is away")
    note(f"pay {order}")
'''


def lines_of(servers: list[Server], call: str) -> list[dict[str, Any]]:
    """Every line of a call, in the order of time."""
    lines = [line for server in servers for line in server.lines() if line.get("call") == call]
    return sorted(lines, key=lambda line: str(line["ts"]))


async def test_each_of_two_refunds_is_told_by_its_own_lines(agency: Agency) -> None:
    agency.change = lambda source: source + REFUND
    gateway, victim = agency.gateway(), agency.worker()
    async with clients(gateway) as (owner,):
        tasks = {}
        for order in ("A", "B"):
            params = {"name": "refund", "arguments": {"order": order}}
            asked = (await owner.send("tools/call", params)).json()["result"]
            answered = {
                **params,
                "requestState": asked["requestState"],
                "inputResponses": {"confirm": accept(go=True)},
            }
            tasks[order] = (await owner.send("tools/call", answered)).json()["result"]["taskId"]
        for order in tasks:
            await agency.has_done(f"look up {order}")
        kill(victim)
        agency.directory.joinpath("diary.txt.go").touch()
        other = agency.worker()
        servers = [gateway, victim, other]
        assert await owner.text(tasks["A"]) == "A is paid back"
        ended = other.logged(msg="task", outcome="step failed")
    rounds = {
        order: [
            line
            for line in gateway.lines()
            if line.get("outcome") == "task" and str(line["task"]).endswith(tasks[order])
        ]
        for order in tasks
    }
    calls = {order: str(lines[0]["call"]) for order, lines in rounds.items()}
    assert calls["A"] != calls["B"]
    told = {order: lines_of(servers, call) for order, call in calls.items()}
    assert shape(told["A"]) == [
        "request input_required",
        "request task",
        "a task is taken over",
        "task finished",
    ]
    assert shape(told["B"]) == [
        "request input_required",
        "request task",
        "a task is taken over",
        "a step failed, trying again",
        "a step failed",
        "tool refund failed",
        "a failed step has ended a task",
        "task step failed",
    ]
    quoted = quoted_lines()
    assert shape(quoted) == shape(told["B"]), "docs/observability.md quotes these lines"
    for line, of_docs in zip(told["B"], quoted, strict=True):
        assert of_docs.keys() <= line.keys(), line["msg"]
        same = ("level", "method", "name", "tool", "step", "attempt", "turn", "reason", "deaths")
        assert [of_docs.get(key) for key in same] == [
            line[key] if key in of_docs else None for key in same
        ]
    assert ended["call"] == calls["B"]
    for order, lines in told.items():
        ref = lines[1]["task"]
        assert all(line["task"] == ref for line in lines[1:]), "every line after it has the task"
        taken_over = lines[2]
        assert (taken_over["subject"], taken_over["tool"]) == ("local", "refund")
        assert {line.get("tool", line.get("name")) for line in lines} == {"refund"}, order
    again, last = told["B"][3], told["B"][4]
    assert (again["step"], again["attempt"], again["reason"]) == ("pay", 1, "ConnectionError")
    assert again["again"] > again["ts"]
    assert (last["step"], last["attempt"]) == ("pay", 2)
    assert told["A"][0]["address"] == "127.0.0.1"


def quoted_lines() -> list[dict[str, Any]]:
    """The lines of the refund that failed, as the documentation quotes them."""
    text = (Path(__file__).parents[2] / "docs/observability.md").read_text()
    block = (
        text.partition("Two refunds ran at once")[2].partition("```json\n")[2].partition("```")[0]
    )
    return [json.loads(line) for line in block.replace("\n ", " ").splitlines()]


def shape(lines: list[dict[str, Any]]) -> list[str]:
    """The messages of lines, with the outcomes of requests and turns."""
    return [f"{line['msg']} {line.get('outcome', '')}".strip() for line in lines]
