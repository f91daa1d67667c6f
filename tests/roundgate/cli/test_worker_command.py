"""`roundgate worker`: it works on tasks until it is told to stop, and says before
it begins what is wrong."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from roundgate import Context, tool
from tests.support.command import roundgate
from tests.support.jobs import dig
from tests.support.task_client import TaskClient, ref_of, tasked
from tests.support.worker import working

TOOLS = '''
import asyncio, logging, os, time
from roundgate import Context, tool

@tool(task="required")
async def dig(ctx: Context) -> str:
    """Digs."""
    await ctx.continue_as_task()
    return "dug"

@tool(task="required")
async def hold(ctx: Context) -> str:
    """Is in the middle of a step for long; a run that goes on after it is done at once."""
    await ctx.continue_as_task()
    first = await ctx.step("first", lambda: os.getpid())
    if not await ctx.step("begun", os.path.exists, os.environ["GATE"]):
        logging.getLogger("held").info("holding")
        while not os.path.exists(os.environ["GATE"]):
            await asyncio.sleep(0.05)
            await ctx.step(f"look{time.monotonic_ns()}", lambda: None)
    return f"held since {first}"
'''


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "digging.py").write_text(TOOLS)
    file = tmp_path / "gateway.yaml"
    file.write_text(
        'backends: [{kind: python, name: digging, prefix: "", path: digging.py}]\n'
        "tasks: {poll_interval_ms: 100, sweep_every_s: 0.2, requeue_after_s: 1, lease_s: 2}\n"
    )
    return file


def patient(config: Path) -> None:
    """Let no lease end before its worker."""
    config.write_text(config.read_text().replace("lease_s: 2", "lease_s: 600"))


def environment(directory: Path) -> dict[str, str]:
    return {
        "GATEWAY_STORE": f"sqlite:///{directory / 'gateway.sqlite3'}",
        "GATE": str(directory / "gate"),
    }


async def begun(directory: Path, config: Path, name: str) -> str:
    """A task that waits for a worker, and its gateway gone."""

    async def stand_in(ctx: Context) -> str:
        await ctx.continue_as_task()
        return "nobody runs this"

    stand_in.__name__ = name
    async with tasked(directory, tool(task="required")(stand_in), works=False) as idle:
        return await idle.begin(name)


async def ended(directory: Path, task_id: str) -> str:
    """The text of its result, once there is one."""
    async with tasked(directory, dig, works=False) as idle:
        return await TaskClient(idle.mcp).text(task_id)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_it_works_and_leaves_with_exit_status_0_when_it_is_told_to_stop(
    tmp_path: Path, config: Path, by: signal.Signals
) -> None:
    task_id = await begun(tmp_path, config, "dig")
    with working(config, tmp_path / "worker.log", environment(tmp_path)) as worker:
        assert await ended(tmp_path, task_id) == "dug"
        line = worker.logged(task=ref_of(task_id), outcome="finished")
        assert (line["name"], line["turn"]) == ("dig", 1)
        assert worker.stop(by) == 0


async def test_it_lets_go_of_what_it_has_when_it_is_told_to_stop_and_another_goes_on(
    tmp_path: Path, config: Path
) -> None:
    patient(config)
    task_id = await begun(tmp_path, config, "hold")
    with working(config, tmp_path / "one.log", environment(tmp_path)) as one:
        one.logged(msg="holding")
        assert one.stop() == 0
        one.logged(task=ref_of(task_id), outcome="released")
    (tmp_path / "gate").touch()
    with working(config, tmp_path / "two.log", environment(tmp_path)):
        assert await ended(tmp_path, task_id) == f"held since {one.process.pid}"


def test_it_tells_what_is_wrong_before_it_takes_any_task(tmp_path: Path) -> None:
    ran = roundgate("worker", directory=tmp_path, GATEWAY_QUEUE="kafka://x", GATEWAY_WORKER="maybe")
    assert (ran.status, ran.err.count("GATEWAY_QUEUE"), ran.err.count("GATEWAY_WORKER")) == (
        1,
        1,
        1,
    )
    assert not (tmp_path / ".roundgate").exists()


async def test_sighup_serves_the_new_files_and_lets_a_turn_end_on_its_old_ones(
    tmp_path: Path, config: Path
) -> None:
    held = await begun(tmp_path, config, "hold")
    with working(config, tmp_path / "worker.log", environment(tmp_path)) as worker:
        worker.logged(msg="holding")
        changed = TOOLS.replace('"dug"', '"dug deeper"').replace('f"held', 'f"wrongly held')
        (tmp_path / "digging.py").write_text(changed)
        worker.process.send_signal(signal.SIGHUP)
        worker.logged(msg=f"reloaded {config}")
        dug = await begun(tmp_path, config, "dig")
        assert await ended(tmp_path, dug) == "dug deeper"
        (tmp_path / "gate").touch()
        assert await ended(tmp_path, held) == f"held since {worker.process.pid}"
        assert worker.stop() == 0
