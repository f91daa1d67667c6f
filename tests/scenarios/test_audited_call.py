"""An auditor follows one call over two gateways, a worker and an operator, and learns what a killed
process has left."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from roundgate.tasks.watchdog import EXIT_STATUS
from tests.scenarios.conftest import Agency, clients, kill
from tests.support.asgi import Client
from tests.support.audit import KEY, records, verified, written
from tests.support.command import roundgate
from tests.support.rounds import accept, retry, tool, valid_input_required
from tests.support.server import running
from tests.support.task_client import DECLARED


@pytest.fixture
def log(agency: Agency, tmp_path: Path) -> Path:
    """The directory of the audit log that every process of the agency writes."""
    directory = tmp_path / "audit"
    agency.more_yaml = f"audit: {{directory: '{directory}', key: {KEY}, durable: true}}\n"
    return directory


async def test_a_call_can_be_followed_over_replicas_a_worker_and_an_operator(
    agency: Agency, log: Path
) -> None:
    first, second, worker = agency.gateway(), agency.gateway(), agency.worker()
    async with clients(first, second) as (one, two):
        method, params = tool("book", city="Oslo")
        asked = valid_input_required((await one.send(method, params)).json())
        kill(first)
        await two.send(method, retry(params, asked, who=accept(name="Ada")))
        task_id = await two.begin("tour", days=1)
        await two.asked(task_id)
        await two.answer(task_id, {"who": accept(name="Ada")})
        await two.text(task_id)
    await written(log, "turn_ended", 2)
    assert [process.stop() for process in (second, worker)] == [0, 0]

    booked, _, toured = (record["call"] for record in records(log, "called"))
    rounds = roundgate("audit", "show", booked, log)
    assert rounds.status == 0, rounds.err
    assert len({line.split("(")[-1].split()[0] for line in rounds.out.splitlines()}) == 2
    shown = roundgate("audit", "show", toured, log)
    assert shown.status == 0, shown.err
    events = [line.split()[1] for line in shown.out.splitlines()]
    assert events[:2] == ["called", "task_created"]
    assert {"turn", "asked", "answered", "turn_ended", "task_ended"} <= set(events)

    report = verified(log)
    assert report.problems == []
    assert len(report.remarks) == 1, "the killed gateway alone has no end"
    stopped = {record["chain"] for record in records(log, "stopped")}
    assert len(stopped) == len(report.chains) - 1


async def test_a_kill_leaves_the_record_of_a_call_that_was_running(
    agency: Agency, log: Path
) -> None:
    gateway, worker = agency.gateway(), agency.worker()
    async with clients(gateway) as (one,):
        await one.begin("tour", days=400)
        await agency.has_done("day 1")
    kill(worker)
    kill(gateway)
    (turn,) = records(log, "turn")
    assert records(log, "turn_ended") == []
    assert turn["who"]["subject"] == "local"
    assert len(records(log, "called")) == len(records(log, "ended")) == 1
    assert verified(log).problems == []


async def test_a_stop_loses_no_record_of_several_processes(agency: Agency, log: Path) -> None:
    config = agency.files()
    with running(config, agency.shared | {"GATEWAY_WORKER": "off"}, "--workers", "2") as server:
        await written(log, "started", 2)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            mcp = Client(http)

            async def call(number: int) -> None:
                method, params = tool("book", city=f"city {number}")
                while True:
                    try:
                        await mcp.post(method, params, clientCapabilities=DECLARED)
                        return
                    except (httpx.TransportError, TimeoutError):
                        continue  # the process was replaced, which the log shows

            await asyncio.gather(*(call(number) for number in range(40)))
        assert server.stop(signal.SIGTERM) == 0
        lines = server.lines()
    # on a slow machine, the supervisor may replace a process that starts too slowly
    replaced = sum(line["msg"].startswith("a server process died") for line in lines)
    report = verified(log)
    assert report.problems == []
    assert len(report.remarks) <= replaced
    stopped = {record["chain"] for record in records(log, "stopped")}
    assert stopped
    assert stopped <= {line["chain"] for line in lines if line["msg"] == "audit checkpoint"}
    of_stopped = [
        record for record in records(log, "called", "ended") if record["chain"] in stopped
    ]
    calls = Counter(record["call"] for record in of_stopped)
    assert set(calls.values()) == {2}, "each call has both records"
    assert replaced or len(calls) == 40


def without_approvals(config: Path) -> None:
    """Remove the approvals from a gateway.yaml."""
    config.write_text(config.read_text().replace("approve: destructive", "approve: never"))


async def test_a_reload_that_removes_an_approval_is_recorded(agency: Agency, log: Path) -> None:
    config = agency.files()
    with running(config, agency.shared | {"GATEWAY_WORKER": "off"}) as server:
        without_approvals(config)
        server.process.send_signal(signal.SIGHUP)
        (policy,) = await written(log, "policy")
        assert server.stop() == 0
    assert "backends.agency: approve has changed" in policy["changed"]
    (started,) = records(log, "started")
    assert policy["config"] != started["config"]


BLOCKS = """

@tool(task="required", read_only=True)
async def block(ctx: Context) -> str:
    \"\"\"Blocks the first process that runs it.\"\"\"
    import time

    await ctx.continue_as_task()
    blocked = os.environ["DIARY"] + ".blocked"
    if not os.path.exists(blocked):
        open(blocked, "w").close()
        time.sleep(600)
    return "done"
"""


async def test_the_end_of_a_blocked_process_is_recorded_with_its_turns(
    agency: Agency, log: Path
) -> None:
    agency.change = lambda source: source + BLOCKS
    gateway, blocked = agency.gateway(), agency.worker()
    async with clients(gateway) as (one,):
        task_id = await one.begin("block")
        assert blocked.process.wait(60) == EXIT_STATUS
        agency.worker()
        assert await one.text(task_id) == "done"
    first, second = await written(log, "turn_ended", 2)
    assert [first["outcome"], second["outcome"]] == ["stalled", "finished"]
    assert (first["call"], first["task"]) == (second["call"], second["task"])
    assert first["tool"] == "block"
