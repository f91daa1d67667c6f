"""Suspects: run alone, where their end hurts nobody else, and counted against nobody else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from roundgate.auth.principal import LOCAL, Principal
from roundgate.clock import Clock
from roundgate.observability.metrics import Metrics
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.storage.tasks import TaskRecord, TaskRef
from roundgate.tasks import events
from roundgate.tasks.pool import MAX_WAITING, Children, Pool, Quarantine, child_command
from roundgate.tasks.stored import Claimed
from roundgate.tasks.turn import TurnResult
from roundgate_aws.worker import WorkerFunction
from tests.support.postponing import postpone
from tests.support.tasks import Share, Workshop, quick
from tests.support.telemetry import recorded
from tests.support.worker import working

TOOLS = '''
import asyncio, os, re, time
from contextlib import suppress
from roundgate import Context, tool

def tell(line):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{os.getpid()} {line}\\n")

@tool(task="required")
async def innocent(ctx: Context, number: int) -> str:
    """A few steps."""
    for step in range(4):
        await ctx.step(f"step-{step}", effect, number, step)
    return f"innocent {number}"

async def effect(number, step):
    await asyncio.sleep(0.25)
    tell(f"{number} {step}")

@tool(task="required")
async def poison(ctx: Context, kind: str) -> str:
    """Ends its process, or blocks it."""
    tell(f"poison {kind}")
    if kind == "burn":
        re.match(r"(a+)+$", "a" * 64 + "b")
    while kind == "hang":
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
    while kind == "sleep":
        await asyncio.sleep(600)
    await asyncio.sleep(0.3)
    os._exit(9) if kind == "exit" else time.sleep(600)
'''


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    file = tmp_path / "gateway.yaml"
    file.write_text(
        'backends: [{kind: python, name: tools, prefix: "", path: tools.py}]\n'
        "tasks: {sweep_every_s: 0.2, requeue_after_s: 1, lease_s: 2, clock_skew_s: 0.5, stop_grace_s: 1}\n"
    )
    return file


@pytest.fixture
def environment(
    tmp_path: Path, path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What processes have in common, those that this one begins too."""
    effects = tmp_path / "effects.txt"
    effects.touch()
    made = {
        "GATEWAY_STORE": f"sqlite:///{path}",
        "GATEWAY_CONFIG": str(config),
        "EFFECTS": str(effects),
    }
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    return made


def effects(environment: dict[str, str]) -> list[list[str]]:
    return [line.split() for line in Path(environment["EFFECTS"]).read_text().splitlines()]


async def suspected(shop: Workshop, ref: TaskRef) -> TaskRef:
    """A task whose worker died with it and others."""
    claimed = await shop.worker.claim(ref)
    assert isinstance(claimed, Claimed)
    now_ms = shop.clock.now_ms()
    assert (
        await shop.store.apply(
            ref, events.LetGo(now_ms, blame=True, fence=claimed.lease.fence), now_ms
        )
    ).happened
    return ref


# Poison among innocents, in real processes


@pytest.mark.parametrize("kind", ["exit", "block"])
async def test_one_poison_task_takes_none_of_its_neighbours_along(
    share: Share, config: Path, environment: dict[str, str], tmp_path: Path, kind: str
) -> None:
    shop = share(Clock()).workshop(innocent=None, poison=None)
    refs = [await shop.begin("innocent", number=number) for number in range(6)]
    bad = await shop.begin("poison", kind=kind)
    with working(config, tmp_path / "one.log", environment) as one:
        one.process.wait(60)  # it takes the process along, once
    assert one.process.returncode == (9 if kind == "exit" else 70)
    with working(config, tmp_path / "two.log", environment) as two:
        ended = await shop.over(bad, *refs, within_s=240)
        assert two.process.poll() is None  # and never again
    assert [record.status for record in ended] == [Status.FAILED] + [Status.COMPLETED] * 6
    assert "3 workers died or stalled while they ran this task alone" in (
        ended[0].status_message or ""
    )
    begun = [line[1:] for line in effects(environment) if line[1] == "poison"]
    assert len(begun) == 1 + 3
    again = len(effects(environment)) - len(begun) - 6 * 4
    assert 0 <= again <= 6, "only steps that were being run when the process ended are run again"


async def test_each_suspect_runs_in_a_process_of_its_own(
    share: Share, environment: dict[str, str]
) -> None:
    shop = share(Clock()).workshop(innocent=None)
    metrics = Metrics()
    children = Children(child_command(), metrics)
    refs = [
        await suspected(shop, await shop.begin("innocent", number=number)) for number in range(2)
    ]
    with recorded() as telemetry:
        for ref in refs:
            await children.run(ref)
        counted = telemetry.points("roundgate.tasks.ended", outcome="ok")
        turns = telemetry.points("roundgate.tasks.turn.duration")
    assert [point.value for point in counted] == [2], "the parent counts the tasks"
    assert [point.count for point in turns] == [2]
    assert metrics.take_flow() == {"created": 0, "claimed": 2, "ended": 2}
    assert [(await shop.record(ref)).status for ref in refs] == [Status.COMPLETED] * 2
    pids = {line[0] for line in effects(environment)}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize("kind", ["burn", "hang"])
async def test_a_process_for_a_suspect_ends_whatever_its_suspect_does(
    share: Share, config: Path, environment: dict[str, str], kind: str
) -> None:
    """It holds the interpreter's lock from its first moment on; it takes no cancellation."""
    shop = share(Clock()).workshop(innocent=None, poison=None)
    children = Children(child_command())
    ref = await suspected(shop, await shop.begin("poison", kind=kind))
    async with asyncio.timeout(120):
        turn = asyncio.create_task(children.run(ref))
        pid = await begun(environment)
        if kind == "hang":
            await shop.cancel(ref)
        await turn
        assert not is_running(pid)


async def test_a_process_for_a_suspect_that_is_told_to_stop_frees_its_task_without_blame(
    share: Share, config: Path, environment: dict[str, str]
) -> None:
    shop = share(Clock()).workshop(poison=None)
    children = Children(child_command())
    ref = await suspected(shop, await shop.begin("poison", kind="sleep"))
    async with asyncio.timeout(120):
        turn = asyncio.create_task(children.run(ref))
        await begun(environment)
        children.request_stop()
        await turn
    record = await shop.record(ref)
    assert (record.status, record.lease_until_ms, record.deaths) == (Status.WORKING, 0, 0)


async def test_a_process_for_a_suspect_ends_with_the_one_that_began_it(
    share: Share, config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    shop = share(Clock()).workshop(poison=None)
    ref = await suspected(shop, await shop.begin("poison", kind="sleep"))
    with working(config, tmp_path / "one.log", environment) as one:
        pid = await begun(environment)
        assert pid != one.process.pid
        one.process.kill()
        async with asyncio.timeout(120):
            while is_running(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    record = await shop.record(ref)
    assert (record.status, record.lease_until_ms, record.deaths) == (Status.WORKING, 0, 0)


async def begun(environment: dict[str, str]) -> int:
    """The id of the process that runs the task, once it does."""
    async with asyncio.timeout(120):
        while not effects(environment):  # noqa: ASYNC110 (another process writes them)
            await asyncio.sleep(0.05)
    return int(effects(environment)[0][0])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Where no process can be begun


@asynccontextmanager
async def at_work(pool: Pool) -> AsyncIterator[None]:
    pool.start()
    try:
        yield
    finally:
        await pool.stop()


async def test_without_processes_a_suspect_runs_while_nothing_else_does(share: Share) -> None:
    running: set[int] = set()
    beside: list[set[int]] = []

    async def work(ctx: Context, number: int) -> None:
        running.add(number)
        if number == 99:
            beside.append({*running})
        await asyncio.sleep(0.2)
        if number == 99:
            beside.append({*running})
        running.discard(number)

    shop = share(Clock(), concurrency=4).workshop(work=work)
    suspect = await suspected(shop, await shop.begin("work", number=99))
    refs = [await shop.begin("work", number=number) for number in range(8)]
    async with at_work(shop.pool):
        await shop.over(suspect, *refs, within_s=60)
    assert beside == [{99}, {99}]


async def sent_often(shop: Workshop, ref: TaskRef) -> None:
    """Have a sweep send a task so often that it waits for minutes before it does so again."""
    for due_ms in range(3):
        (late,) = [task for task in (await shop.store.open_tasks(2))[0] if task.ref == ref]
        assert await postpone(shop.store, late, shop.clock.now_ms() + 500_000 + due_ms)


async def looked_at_soon(shop: Workshop, ref: TaskRef) -> TaskRecord:
    return await shop.until(ref, lambda found: (found.due_ms or 0) <= shop.clock.now_ms() + 2_000)


async def test_a_suspect_that_waits_is_looked_at_again_soon_however_often_it_was_sent(
    share: Share,
) -> None:
    """It waits in the memory of a process that may die; each time it did, the sweep
    waited twice as long for it."""
    over_now = asyncio.Event()

    async def work(ctx: Context, waits: bool) -> None:
        if waits:
            await over_now.wait()

    shop = share(Clock(), requeue_after_s=2).workshop(work=work)
    hung = await shop.begin("work", waits=True)
    suspect = await suspected(shop, await shop.begin("work", waits=False))
    await sent_often(shop, suspect)
    async with at_work(shop.pool):
        found = await looked_at_soon(shop, suspect)
        assert found.resends == 0, "its message has arrived"
        over_now.set()
        await shop.over(hung, suspect, within_s=60)


def test_no_more_suspects_than_a_bound_wait_in_memory_and_each_once() -> None:
    quarantine = Quarantine()
    for number in range(3 * MAX_WAITING):
        quarantine.put(TaskRef("owner", str(number)))
        quarantine.put(TaskRef("owner", "0"))
    assert len(quarantine) == MAX_WAITING
    assert [quarantine.take().id for _ in range(3)] == ["0", "1", "2"]


# Shares


async def test_no_owner_takes_more_than_its_share_of_the_turns(share: Share) -> None:
    hung, over_now = asyncio.Event(), asyncio.Event()

    async def hangs(ctx: Context) -> None:
        hung.set()
        await over_now.wait()

    shop = share(Clock(), concurrency=4).workshop(hangs=hangs, quick=quick)
    pool = Pool(shop.worker, shop.sweep, shop.queue, shop.config, share=2)
    for _ in range(8):
        await shop.begin("hangs")
    async with at_work(pool):
        await hung.wait()
        other = Principal("issuer", "somebody else", "client", frozenset())
        ref = await shop.begin("quick", principal=other)
        await shop.over(ref, within_s=60)
        # the other's turn may be about to end
        owners = [turn.ref.owner for turn in shop.worker.held() if turn.ref.owner != ref.owner]
        assert len(owners) == 2
        over_now.set()


async def test_a_suspect_is_told_from_a_task_that_is_not_to_be_had(share: Share) -> None:
    shop = share(Clock()).workshop(quick=quick)
    ref = await suspected(shop, await shop.begin("quick", principal=LOCAL))
    assert await shop.worker.work(ref) is TurnResult.SUSPECT
    assert await shop.worker.work(ref, alone=True) is TurnResult.FINISHED


# On AWS Lambda


def batch(*refs: TaskRef) -> dict[str, object]:
    records = [
        {"messageId": f"m{n}", "body": str(ref), "eventSource": "aws:sqs"}
        for n, ref in enumerate(refs)
    ]
    return {"Records": records}


async def test_a_function_runs_suspects_when_the_others_of_their_batch_are_done(
    share: Share,
) -> None:
    order: list[str] = []

    async def work(ctx: Context, name: str) -> None:
        order.append(f"{name} begins")
        await asyncio.sleep(0.1)
        order.append(f"{name} ends")

    shop = share(Clock()).workshop(work=work)
    function = WorkerFunction(shop.worker, shop.sweep, shop.clock, Metrics())
    suspects = [
        await suspected(shop, await shop.begin("work", name=name))
        for name in ("suspect 1", "suspect 2")
    ]
    refs = [
        suspects[0],
        await shop.begin("work", name="a"),
        suspects[1],
        await shop.begin("work", name="b"),
    ]
    assert await function.handle(batch(*refs), 60_000) == {"batchItemFailures": []}
    assert sorted(order[:4]) == ["a begins", "a ends", "b begins", "b ends"]
    assert order[4:] == ["suspect 1 begins", "suspect 1 ends", "suspect 2 begins", "suspect 2 ends"]


async def test_a_suspect_that_waits_in_a_function_is_looked_at_again_soon(
    share: Share,
) -> None:
    over_now = asyncio.Event()

    async def work(ctx: Context, waits: bool) -> None:
        if waits:
            await over_now.wait()

    shop = share(Clock(), requeue_after_s=2).workshop(work=work)
    function = WorkerFunction(shop.worker, shop.sweep, shop.clock, Metrics())
    first, waiting = [
        await suspected(shop, await shop.begin("work", waits=waits)) for waits in (True, False)
    ]
    await sent_often(shop, waiting)
    handling = asyncio.ensure_future(function.handle(batch(first, waiting), 60_000))
    assert (await looked_at_soon(shop, waiting)).resends == 0
    over_now.set()
    assert await handling == {"batchItemFailures": []}


async def test_a_suspect_for_which_there_is_no_time_left_comes_again(share: Share) -> None:
    async def work(ctx: Context) -> None:
        raise AssertionError("it is not run")

    shop = share(Clock()).workshop(work=work)
    function = WorkerFunction(shop.worker, shop.sweep, shop.clock, Metrics())
    ref = await suspected(shop, await shop.begin("work"))
    assert await function.handle(batch(ref), 8_000) == {
        "batchItemFailures": [{"itemIdentifier": "m0"}]
    }


# The end of a process


STUBBORN = '''
import asyncio, time
from contextlib import suppress
from roundgate import Context, tool

@tool(task="required")
async def stubborn(ctx: Context) -> str:
    """Neither stops nor asks."""
    print("begun", flush=True)
    while True:
        with suppress(BaseException):
            await asyncio.sleep(60)

@tool(task="required")
async def slow(ctx: Context) -> str:
    """Has steps of seconds."""
    for step in range(9):
        await ctx.step(f"step-{step}", second)
    return "done"

async def second():
    with open(__file__ + ".effects", "a") as file:
        file.write("begun\\n")
    await asyncio.sleep(1.5)
'''


async def test_a_process_that_is_told_to_stop_ends_whatever_its_handlers_do(
    share: Share, config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text(STUBBORN)
    shop = share(Clock()).workshop(stubborn=None)
    ref = await shop.begin("stubborn")
    with working(config, tmp_path / "one.log", environment) as one:
        await held(shop, ref)
        assert one.stop() == 0
    record = await shop.record(ref)
    assert (record.status, record.lease_until_ms, record.suspect) == (Status.WORKING, 0, False)


async def test_steps_that_end_within_the_grace_are_not_begun_again_elsewhere(
    share: Share, config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text(STUBBORN)
    longer(config, grace_s=6)
    shop = share(Clock()).workshop(slow=None)
    ref = await shop.begin("slow")
    for name in ("one.log", "two.log", "three.log"):
        with working(config, tmp_path / name, environment) as one:
            await held(shop, ref)
            time.sleep(0.7)  # noqa: ASYNC251
            assert one.stop() == 0
        assert (await shop.record(ref)).lease_until_ms == 0
    with working(config, tmp_path / "four.log", environment):
        await shop.over(ref, within_s=60)
    assert lines(tmp_path / "tools.py.effects") == ["begun"] * 9


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def longer(config: Path, *, grace_s: int) -> None:
    config.write_text(config.read_text().replace("stop_grace_s: 1", f"stop_grace_s: {grace_s}"))


async def held(shop: Workshop, ref: TaskRef) -> None:
    """Until a worker has it."""
    await shop.until(ref, lambda record: record.lease_until_ms > 0)
