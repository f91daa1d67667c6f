"""`roundgate tasks`: what an operator sees of tasks, what they can do, and
what they are not shown."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.cli import main, tasks
from roundgate.cli.output import say
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.runtime.startup import make_stores
from roundgate.settings.process import from_environment
from roundgate.storage import TaskRef
from roundgate.storage.dynamodb import DynamoDbTasks
from roundgate.storage.postgres import PostgresDatabase as Postgres
from roundgate.storage.postgres import PostgresTasks
from roundgate.storage.sqlite import SqliteDatabase, SqliteTasks
from roundgate.tasks import events
from roundgate.tasks.events import Decision, Event, NewTask
from roundgate.tasks.stored import StoredTasks
from tests.support.audit import records
from tests.support.command import roundgate
from tests.support.dynamodb import Emulator
from tests.support.jobs import JOBS, Name
from tests.support.postgresql import Server
from tests.support.rounds import accept
from tests.support.task_client import TaskClient, tasked

OWNER = task_owner(LOCAL)


class Operator:
    """Runs the command in a thread, as a process beside the gateway would be."""

    def __init__(
        self, directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{directory / 'gateway.sqlite3'}")
        self._capsys = capsys
        self._out = self._err = ""

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        self.said()
        self._out = self._err = ""
        status = await asyncio.to_thread(main, ["tasks", *arguments])
        return status, *self.said()

    def said(self) -> tuple[str, str]:
        """Standard output and standard error of the command, as far as it has written them."""
        told = self._capsys.readouterr()
        self._out, self._err = self._out + told.out, self._err + told.err
        return self._out, self._err

    async def has_said_something(self) -> None:
        """Returns once the command has written to standard output."""
        for _ in range(600):
            if self.said()[0]:
                return
            await asyncio.sleep(0.05)

    async def rows(self, *arguments: str) -> list[list[str]]:
        """The table of `list`, without its head."""
        status, out, err = await self("list", *arguments)
        assert (status, err) == (0, "")
        head, *rows = [re.split(r" {2,}", line) for line in out.splitlines()]
        assert head == [
            "TASK",
            "TOOL",
            "STATUS",
            "OUTCOME",
            "AGE",
            "CHANGED",
            "TURNS",
            "DEATHS",
            "DOING",
        ]
        return rows


@pytest.fixture
def operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Operator:
    return Operator(tmp_path, capsys, monkeypatch)


def ref(task_id: str) -> str:
    return f"{OWNER}.{task_id}"


async def one_of_each(ann: TaskClient) -> dict[str, str]:
    """A task in each status but `working`."""
    made = {"input_required": await ann.begin("greet"), "completed": await ann.begin("dig")}
    made |= {"failed": await ann.begin("reject"), "cancelled": await ann.begin("both")}
    await ann.asked(made["cancelled"])
    await ann.cancel(made["cancelled"])
    for status, task_id in made.items():
        await ann.until(task_id, status)
    return made


async def test_tasks_are_listed_oldest_first_with_what_they_are_doing(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        made = await one_of_each(ann)
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        waiting = await idle.begin("dig")
        rows = await operator.rows()
    assert [row[0] for row in rows] == [ref(task_id) for task_id in (*made.values(), waiting)]
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("greet", "input_required", "waits for its client"),
        ("dig", "completed", "-"),
        ("reject", "failed", "-"),
        ("both", "cancelled", "-"),
        ("dig", "working", "waits for a worker"),
    ]


async def test_a_list_can_be_narrowed(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        made = await one_of_each(ann)
    for status, task_id in made.items():
        assert [row[0] for row in await operator.rows("--status", status)] == [ref(task_id)]
    assert await operator.rows("--status", "working") == []
    assert await operator.rows("--older-than", "1h") == []
    assert len(await operator.rows("--older-than", "0s")) == 4
    assert len(await operator.rows("--owner", OWNER)) == 4
    assert await operator.rows("--owner", "somebody") == []
    assert [row[1] for row in await operator.rows("--tool", "reject")] == ["reject"]
    both = await operator.rows("--status", "failed", "--status", "cancelled")
    assert [row[0] for row in both] == [ref(made["failed"]), ref(made["cancelled"])]


async def test_a_list_goes_on_where_it_ended(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        made = await one_of_each(ann)
    status, first, more = await operator("list", "--limit", "3", "--json")
    assert (status, len(first.splitlines())) == (0, 3)
    assert more.startswith("more tasks follow: continue with --cursor=")
    option = more.split()[-1]
    status, rest, more = await operator("list", "--limit", "3", "--json", option)
    assert (status, more) == (0, "")
    shown = [json.loads(line)["task"] for line in (first + rest).splitlines()]
    assert sorted(shown) == sorted(map(ref, made.values()))
    assert (await operator("list", "--cursor", "x"))[::2] == (
        2,
        "--cursor: unknown cursor; use the cursor of an earlier page\n",
    )


async def test_a_task_of_the_log_is_one_that_commands_take(
    tmp_path: Path, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "roundgate"):
        async with tasked(tmp_path, *JOBS) as ann:
            await one_of_each(ann)
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    logged = {one["task"] for one in fields if "task" in one}
    assert logged
    for task in logged:
        assert (await operator("show", task))[0] == 0


async def test_facts_are_shown_as_json_one_task_a_line(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        task_id = await ann.begin("both")
        await ann.asked(task_id)
        (listed,) = (await operator("list", "--json"))[1].splitlines()
        (shown,) = (await operator("show", ref(task_id), "--json"))[1].splitlines()
    facts = json.loads(shown)
    more = {"asks": facts["asks"], "steps": facts["steps"]}
    assert {**json.loads(listed), **more} == facts
    assert facts["steps"] == [{"name": name, "state": "asked"} for name in ("first", "second")]
    assert facts["asks"] == [
        {"key": "first", "method": "elicitation/create"},
        {"key": "second", "method": "elicitation/create"},
    ]
    assert (facts["task"], facts["expired"]) == (ref(task_id), False)
    assert facts["doing"] == "waits for its client"


async def test_a_task_is_watched_until_it_is_over(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        task_id = await ann.begin("greet")
        await ann.asked(task_id)
        watching = asyncio.create_task(
            operator("watch", ref(task_id), "--interval", "0.1", "--json")
        )
        try:
            await operator.has_said_something()
            await ann.answer(task_id, {"who": accept(name="hunter2")})
            await ann.over(task_id)
        finally:
            await ann.cancel(task_id)  # or its thread would never end
            status, out, err = await watching
        failed = await ann.begin("reject")
        await ann.until(failed, "failed")
        assert (await operator("watch", ref(failed)))[0] == 1
    told = [json.loads(line)["status"] for line in out.splitlines()]
    assert (status, err, told[0], told[-1]) == (0, "", "input_required", "completed")
    assert "hunter" not in out


async def test_tasks_that_ended_are_purged_by_what_they_are(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        made = await one_of_each(ann)
    status, out, err = await operator("purge", "--owner", OWNER, "--dry-run")
    ended = {ref(made[how]) for how in ("completed", "failed", "cancelled")}
    assert (status, set(out.split()), err) == (0, ended, "purge: 3 tasks\n")
    status, out, err = await operator("purge", "--owner", OWNER)
    assert (status, out, err) == (1, "", "purge 3 tasks: confirm with --yes\n")
    assert len(await operator.rows()) == 4
    status, out, _ = await operator("purge", "--owner", OWNER, "--yes")
    assert (status, {line.removesuffix(" is purged") for line in out.splitlines()}) == (0, ended)
    assert [row[0] for row in await operator.rows()] == [ref(made["input_required"])]
    status, out, err = await operator("purge", ref(made["input_required"]), ref(made["failed"]))
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        f"{ref(made[how])} does not exist, or is open: cancel it first"
        for how in ("input_required", "failed")
    ]


async def test_many_tasks_are_cancelled_and_only_those_that_are_open(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        waiting = [await idle.begin("dig") for _ in range(20)]
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        other = await idle.begin("greet")
        status, out, _ = await operator("cancel", "--tool", "dig", "--yes", "--json")
        assert (await idle.get(other))["status"] == "working"
    told = [json.loads(line) for line in out.splitlines()]
    assert (status, {one["task"] for one in told}) == (0, set(map(ref, waiting)))
    assert all(one["done"] and one["text"] == "is cancelled" for one in told)
    assert await operator("cancel", "--tool", "dig", "--yes") == (0, "", "cancel: 0 tasks\n")


async def test_what_a_worker_runs_is_taken_from_it_only_by_name(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        runs, waits = await idle.begin("dig"), await idle.begin("dig")
    db = sqlite3.connect(tmp_path / "gateway.sqlite3")
    with db:
        db.execute("update tasks set lease_until_ms = expires_ms where id = ?", (runs,))
    db.close()
    for action, meant in (("requeue", {ref(waits)}), ("retry", set())):
        status, out, _ = await operator(action, "--tool", "dig", "--dry-run")
        assert (status, set(out.split())) == (0, meant)
    assert (await operator("requeue", ref(runs)))[0] == 0


@pytest.mark.parametrize("action", ["requeue", "retry"])
async def test_what_a_worker_has_begun_since_it_was_found_stays_with_it(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        begun, waits = await idle.begin("dig"), await idle.begin("dig")

    def changed(statement: str, *facts: str) -> None:
        with closing(sqlite3.connect(tmp_path / "gateway.sqlite3")) as db, db:
            db.execute(f"update tasks set {statement}", facts)

    def agreed(arguments: Any, refs: Any, **_: Any) -> bool:
        changed("fence = fence + 1, lease_until_ms = expires_ms, wake_ms = 0 where id = ?", begun)
        return True

    if action == "retry":
        changed("wake_ms = expires_ms")
    monkeypatch.setattr(tasks, "_is_agreed", agreed)
    status, out, err = await operator(action, "--tool", "dig")
    assert (status, out) == (
        0,
        f"{ref(waits)} is queued; a worker that ran it can no longer write to it\n",
    )
    assert err.startswith(f"{ref(begun)} ")
    assert "or a worker has claimed it meanwhile" in err


@pytest.mark.parametrize("action", ["cancel", "requeue", "retry", "purge"])
async def test_a_dry_run_does_nothing_to_tasks_that_are_named_either(
    tmp_path: Path, operator: Operator, action: str
) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        over = await ann.begin("reject")
        await ann.until(over, "failed")
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        waiting = await idle.begin("dig")
    before = await operator("list", "--json")
    status, out, err = await operator(action, ref(over), ref(waiting), "--dry-run")
    assert (status, out, err) == (0, f"{ref(over)}\n{ref(waiting)}\n", f"{action}: 2 tasks\n")
    after = await operator("list", "--json")
    assert [json.loads(line)["status"] for line in after[1].splitlines()] == ["failed", "working"]
    assert len(before[1].splitlines()) == 2


async def test_a_store_that_goes_away_while_tasks_are_changed_leaves_none_untold(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        made = [await idle.begin("dig") for _ in range(3)]
    apply = StoredTasks.apply

    async def away(store: StoredTasks, one: TaskRef, event: Event, now_ms: int) -> Decision:
        if one.id == made[1]:
            raise Unavailable("the store is away")
        return await apply(store, one, event, now_ms)

    monkeypatch.setattr(StoredTasks, "apply", away)
    status, out, err = await operator("cancel", *map(ref, made))
    assert status == 1
    assert out.splitlines() == [f"{ref(made[n])} is cancelled" for n in (0, 2)]
    unknown = f"{ref(made[1])} may or may not have been changed: check it with `tasks show`, and try again"
    assert err.splitlines() == [unknown, "the store is away"]


@pytest.mark.parametrize(
    "odd", [("--cursor", "9" * 30), ("--older-than", f"{'9' * 30}d"), ("--limit", "9" * 30)]
)
async def test_numbers_that_no_store_has_are_no_traceback(
    tmp_path: Path, operator: Operator, odd: tuple[str, str]
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        await idle.begin("dig")
    try:
        status = (await operator("list", *odd))[0]
    except SystemExit as left:
        status = int(str(left.code))
    assert status == 2


@pytest.mark.parametrize("action", ["cancel", "requeue", "retry", "purge"])
async def test_nothing_is_done_to_tasks_that_nobody_has_named(
    tmp_path: Path, operator: Operator, action: str
) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        task_id = await ann.begin("dig")
        await ann.over(task_id)
    for which in ((), (ref(task_id), "--tool", "dig")):
        status, out, err = await operator(action, *which, "--yes")
        assert (status, out) == (2, "")
        assert err.startswith("name tasks, or select them with --owner, --tool,")


@pytest.mark.parametrize("action", [("list",), ("show", "a.b"), ("purge", "a.b"), ("count",)])
def test_looking_for_tasks_makes_no_store(
    tmp_path: Path, action: tuple[str, ...], operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", *action]) == 1
    told = capsys.readouterr().err
    assert told.startswith(
        f"there is no store at {tmp_path / 'gateway.sqlite3'}: set GATEWAY_STORE"
    )
    assert list(tmp_path.iterdir()) == []


async def test_a_gateways_tasks_are_found_from_folders_below_its_file_and_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GATEWAY_STORE", raising=False)
    file, below, beside = (tmp_path / "shop/gateway.yaml", tmp_path / "shop/below", tmp_path / "x")
    below.mkdir(parents=True)
    beside.mkdir()
    file.write_text("")
    await make_stores(from_environment({"GATEWAY_CONFIG": str(file)}), Clock()).tasks.open_tasks(1)
    for folder, arguments in ((below, ()), (beside, ("--config", "../shop/gateway.yaml"))):
        monkeypatch.chdir(folder)
        assert await asyncio.to_thread(main, ["tasks", "count", *arguments]) == 0
    assert await asyncio.to_thread(main, ["tasks", "count"]) == 1
    assert "or pass its gateway.yaml with --config" in capsys.readouterr().err


async def test_one_task_is_shown_without_what_belongs_to_its_owner(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        task_id = await ann.begin("both")
        await ann.asked(task_id)
        await ann.answer(task_id, {"first": accept(name="hunter2")})
        status, out, _ = await operator("show", ref(task_id))
        assert status == 0
        facts = dict(re.split(r":\s+", line, maxsplit=1) for line in out.splitlines())
        assert (facts["task"], facts["tool"], facts["status"]) == (
            ref(task_id),
            "both",
            "input_required",
        )
        assert facts["asks"] == "second (elicitation/create)"
        assert facts["turns"].split()[0] == "1"
        await ann.answer(task_id, {"second": accept(name="hunter3")})
        await ann.text(task_id)
        done = (await operator("show", ref(task_id)))[1]
    assert re.search(r"^result:\s+\d+ bytes$", done, re.MULTILINE)
    assert "hunter" not in out + done


@pytest.mark.parametrize("action", ["show", "cancel", "requeue"])
async def test_a_task_that_there_is_not_is_exit_status_1(
    tmp_path: Path, operator: Operator, action: str
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        mine = await idle.begin("dig")
        for unknown in (ref("nothing"), f"somebody.{mine}"):
            status, out, err = await operator(action, unknown)
            assert (status, out) == (1, "")
            assert unknown in err


async def test_a_task_that_has_a_job_to_cancel_is_left_to_a_worker(
    tmp_path: Path, operator: Operator
) -> None:
    stores, now_ms = make_stores(from_environment(os.environ), Clock()), Clock().now_ms()
    facts: dict[str, Any] = {
        "created_ms": now_ms,
        "expires_ms": now_ms + 60_000,
        "due_ms": now_ms + 30_000,
    }
    await stores.tasks.create(NewTask(TaskRef(OWNER, "job"), "run", b"{}", **facts, cleans_up=True))
    told = f"{OWNER}.job is cancelled; a worker cancels its job\n"
    assert await operator("cancel", f"{OWNER}.job") == (0, told, "")
    assert [one.ref.id for one in await stores.queue.receive(10, 0)] == ["job"]
    assert await operator("cancel", f"{OWNER}.job") == (0, f"{OWNER}.job is cancelled\n", "")
    await stores.tasks.aclose()
    await stores.queue.aclose()


async def test_a_task_can_be_cancelled_and_its_client_is_told_by_whom(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        task_id = await ann.begin("greet")
        await ann.asked(task_id)
        assert await operator("cancel", ref(task_id)) == (0, f"{ref(task_id)} is cancelled\n", "")
        task = await ann.get(task_id)
        done = await ann.begin("dig")
        await ann.over(done)
        assert await operator("cancel", ref(done)) == (0, f"{ref(done)} is completed\n", "")
    assert (task["status"], task["statusMessage"]) == (
        "cancelled",
        "The operator cancelled the task",
    )


async def test_a_task_whose_message_is_lost_can_be_queued_again(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        task_id = await idle.begin("dig")
    lose_messages(tmp_path)
    async with tasked(tmp_path, *JOBS) as ann:
        await asyncio.sleep(0.6)
        assert (await ann.get(task_id))["status"] == "working"
        status, out, _ = await operator("requeue", ref(task_id))
        assert (status, out.startswith(f"{ref(task_id)} is queued")) == (0, True)
        await ann.over(task_id)
        status, out, err = await operator("requeue", ref(task_id))
        assert (status, out, "is not working" in err) == (1, "", True)


def lose_messages(directory: Path) -> None:
    db = sqlite3.connect(directory / "gateway.sqlite3")
    with db:
        db.execute("delete from waiting")
    db.close()


async def test_a_call_of_an_older_client_is_shown_and_cancelled_and_not_queued(
    tmp_path: Path, operator: Operator
) -> None:
    clock, using = Clock(), from_environment(dict(os.environ))
    stores = make_stores(using, clock)
    now_ms, own = clock.now_ms(), TaskRef(OWNER, "~call")
    facts = NewTask(own, "greet", b"{}", now_ms, now_ms + 10**6, now_ms + 10**6)
    await stores.tasks.create(facts)
    ((name, *_, doing),) = await operator.rows()
    assert (name, doing) == (
        str(own),
        "waits for a request of its client, or for the process that holds it",
    )
    status, out, _ = await operator("show", str(own), "--json")
    assert (status, json.loads(out)["hidden"]) == (0, True)
    assert "a round of an older server; no worker runs it" in (await operator("show", str(own)))[1]
    status, out, err = await operator("requeue", str(own))
    assert status == 1
    assert "no worker runs; cancel it instead" in out + err
    assert (await operator("requeue", "--tool", "greet", "--yes"))[0] == 0
    assert await stores.queue.receive(10, 0) == []
    assert (await operator("cancel", str(own)))[0] == 0
    record = await stores.tasks.head(own)
    assert record is not None
    assert record.status.value == "cancelled"
    await stores.tasks.aclose()
    await stores.queue.aclose()


async def test_open_tasks_are_counted(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *JOBS) as ann:
        await one_of_each(ann)
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        await idle.begin("dig")
        await idle.begin("dig")
        status, out, err = await operator("count")
    counted: dict[str, Any] = dict(line.split() for line in out.splitlines())
    assert (status, err, counted["working"], counted["input_required"]) == (0, "", "2", "1")
    assert float(counted["oldest_working_s"]) < 60


async def test_a_count_that_is_capped_says_at_least(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = SqliteDatabase(tmp_path / "gateway.sqlite3")
    store, now_ms = StoredTasks(SqliteTasks(database)), Clock().now_ms()
    for number in range(3):
        await store.create(_new_task(number, now_ms, cleans_up=True))
    await store.apply(
        TaskRef("owner", "2"), events.Cancel("ended, and to be cleaned up", now_ms), now_ms
    )
    assert "at least" not in (await operator("count"))[1]
    monkeypatch.setattr(tasks, "COUNTED", 50)
    await asyncio.gather(*(store.create(_new_task(number, now_ms)) for number in range(60)))
    await database.aclose()
    status, out, _ = await operator("count")
    assert status == 0
    assert ["working", "at", "least", "49"] in [line.split() for line in out.splitlines()]
    assert "at least" not in "".join(line for line in out.splitlines() if "_s " in line)
    (told,) = (await operator("count", "--json"))[1].splitlines()
    assert (json.loads(told)["working"], json.loads(told)["at_least"]) == (49, True)


def _new_task(number: int, now_ms: int, *, cleans_up: bool = False) -> NewTask:
    ref, late_ms = TaskRef("owner", str(number)), now_ms + 60_000
    return NewTask(ref, "dig", b"{}", now_ms, late_ms, late_ms, cleans_up=cleans_up)


def test_a_store_that_cannot_be_opened_is_exit_status_1_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for action in (["list"], ["count"], ["show", "a.b"]):
        ran = roundgate(
            "tasks",
            *action,
            directory=tmp_path,
            GATEWAY_STORE=f"sqlite:///{tmp_path}/file/x.sqlite3",
        )
        assert (ran.status, ran.out) == (1, "")
        assert ran.err
        assert "Traceback" not in ran.err


async def test_an_act_that_cannot_be_recorded_is_refused(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as idle:
        task = ref(await idle.begin("dig"))
    file, missing = tmp_path / "gateway.yaml", tmp_path / "typo.yaml"
    backends = "backends: [{kind: python, name: tools, path: tools.py}]\n"
    for text in ("audit: {", "audit: {to: fles}\n" + backends):
        file.write_text(text)
        status, out, err = await operator("cancel", task, "--config", str(file))
        assert (status, out) == (1, "")
        assert str(file) in err
        assert (await operator("show", task, "--config", str(file)))[0] == 0
    monkeypatch.setenv("GATEWAY_CONFIG", str(missing))
    status, out, err = await operator("cancel", task)
    assert (status, out) == (1, "")
    assert f"{missing}: (file): No such file or directory" in err
    file.write_text("audit: {}\nunknown: 1\n" + backends)
    status, out, _ = await operator("cancel", task, "--config", str(file))
    assert (status, out) == (0, f"{task} is cancelled\n")
    assert len(records(tmp_path / ".roundgate/audit", "operator")) == 1


def test_a_configuration_that_cannot_be_found_is_wrong_usage(tmp_path: Path) -> None:
    ran = roundgate("tasks", "list", "--config", tmp_path / "typo.yaml")
    assert (ran.status, ran.out) == (2, "")
    assert f"argument --config: {tmp_path / 'typo.yaml'} does not exist" in ran.err
    ran = roundgate("tasks", "list", "--config", "x" * 300)
    assert (ran.status, ran.out) == (2, "")
    assert "argument --config: [Errno 36] File name too long" in ran.err


PYTHON = "backends: [{kind: python, name: tools, path: tools.py}]\ntasks: {shards: 20}\n"


@pytest.mark.parametrize(
    ("text", "listed", "told"),
    [
        (PYTHON, 40, ""),
        (PYTHON + "wrong: 1\n", 40, ""),
        (PYTHON + "instructions: ${ELSEWHERE}\n", 40, ""),
        ("}", 18, "gateway.yaml cannot be read, so the default of tasks.shards, 8, is used"),
    ],
)
async def test_tasks_in_every_part_of_the_index_are_listed(
    text: str,
    listed: int,
    told: str,
    dynamodb: Emulator,
    tmp_path: Path,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "gateway.yaml").write_text(text)
    refs = [TaskRef(OWNER, f"task-{n}") for n in range(40)]
    with dynamodb.table() as name:
        table = dynamodb.open(name)
        store, now_ms = StoredTasks(DynamoDbTasks(table, shards=20)), Clock().now_ms()
        for one in refs:
            await store.create(NewTask(one, "tool", b"{}", now_ms, now_ms + 10**6, now_ms))
        await store.aclose()
        monkeypatch.setenv("GATEWAY_STORE", f"dynamodb://{name}")
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        config = str(tmp_path / "gateway.yaml")
        status, out, err = await operator(
            "list", "--status", "working", "--config", config, "--json"
        )
    assert (status, len(out.splitlines())) == (0, listed)
    assert told in err if told else not err


async def test_tasks_in_postgresql_are_listed_and_counted(
    postgresql: Server, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, now_ms = StoredTasks(PostgresTasks(Postgres(postgresql.url))), Clock().now_ms()
    for n in range(3):
        ref = TaskRef(OWNER, f"task-{n}")
        await store.create(NewTask(ref, "tool", b"{}", now_ms, now_ms + 10**6, now_ms))
    await store.aclose()
    monkeypatch.setenv("GATEWAY_STORE", postgresql.url)
    status, out, err = await operator("list", "--status", "working", "--json")
    assert (status, len(out.splitlines()), err) == (0, 3, "")
    status, out, err = await operator("count")
    assert (status, err) == (0, "")
    assert "3" in out


async def test_a_postgresql_server_that_is_away_is_told_without_its_password(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_STORE", "postgresql://gateway:s3cr3t@127.0.0.1:1/gateway")
    status, out, err = await operator("count")
    assert (status, out) == (1, "")
    assert "The database cannot be used" in err
    assert "s3cr3t" not in err


@pytest.mark.parametrize("command", ["tasks count", "worker", "serve"])
def test_a_store_at_aws_without_a_region_is_told_at_start_up(tmp_path: Path, command: str) -> None:
    pytest.importorskip("boto3")
    (tmp_path / "tools.py").write_text(
        "from roundgate import tool\n\n\n@tool\ndef one() -> int:\n    return 1\n"
    )
    (tmp_path / "gateway.yaml").write_text(
        "backends: [{kind: python, name: tools, path: tools.py}]\n"
    )
    nowhere = {
        "AWS_DEFAULT_REGION": "",
        "AWS_CONFIG_FILE": "/nowhere",
        "GATEWAY_STORE": "dynamodb://tasks",
    }
    ran = roundgate(*command.split(), directory=tmp_path, **nowhere)
    assert ran.status == 1
    assert ran.err.startswith(
        "1 problem(s):\nenvironment: AWS_DEFAULT_REGION: is needed for dynamodb"
    )


def test_what_is_wrong_in_the_environment_is_told(tmp_path: Path) -> None:
    ran = roundgate("tasks", "list", directory=tmp_path, GATEWAY_STORE="postgres://x")
    assert ran.status == 1
    assert ran.err.startswith("1 problem(s):\nenvironment: GATEWAY_STORE")


def test_what_a_caller_said_does_not_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("a\x1b[2Jb\x9bc\u202ed", "é日")
    say("to\rerr", to=sys.stderr)
    told = capsys.readouterr()
    assert told.out == "a\\u001b[2Jb\\u009bc\\u202ed é日\n"
    assert told.err == "to\\u000derr\n"


@tool(task="required")
async def refund(ctx: Context, change: str = "") -> str:
    """Asks after a change, if there is one."""
    await ctx.continue_as_task()
    if change:
        ctx.version(change, 2)
    await ctx.elicit("confirm", "Go on?", Name)
    return "done"


async def test_versions_of_open_tasks_are_counted(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *JOBS, refund) as ann:
        for change in ("", "postage", "postage", "postage"):
            await ann.asked(await ann.begin("refund", change=change))
        await ann.asked(await ann.begin("greet"))
        await ann.over(await ann.begin("dig"))
        status, out, err = await operator("versions")
        listed = (await operator("versions", "--tool", "refund", "--json"))[1]
    rows = [re.split(r" {2,}", line) for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert [row[:4] for row in rows] == [
        ["TOOL", "NAME", "VERSION", "OPEN"],
        ["greet", "-", "-", "1"],
        ["refund", "postage", "-", "1"],
        ["refund", "postage", "2", "3"],
    ]
    facts = [json.loads(line) for line in listed.splitlines()]
    assert [{**fact, "oldest": ""} for fact in facts] == [
        {"tool": "refund", "name": "postage", "tasks": 1, "oldest": ""},
        {"tool": "refund", "name": "postage", "version": 2, "tasks": 3, "oldest": ""},
    ]


@tool(task="required")
async def sign(ctx: Context, password: str, order: int) -> str:
    """Asks after a step that repeats a secret."""
    await ctx.continue_as_task()
    await ctx.step("login", str, f"{order} by {password}")
    await ctx.elicit("who", "Go on?", Name)
    return "done"


async def test_histories_are_exported_without_values_unless_the_operator_says_so(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *JOBS, sign) as ann:
        await ann.asked(await ann.begin("sign", password="hunter2", order=4711))
        await ann.over(await ann.begin("dig"))  # no journal is kept of it
        plain = await operator("export")
        valued = await operator("export", "--values", "--tool", "sign")
        redacted = await operator("export", "--values", "--redact", "order", "--tool", "sign")
        assert (await operator("export", "--tool", "dig"))[1] == ""
        assert (await operator("export", "--status", "completed"))[1] == ""
        too_long = await operator("export", "--max-bytes", "100")
        await ann.asked(await ann.begin("sign", password="hunter2", order=1))
        more = await operator("export", "--limit", "1")
    assert (plain[0], plain[2]) == (0, "")
    (line,) = plain[1].splitlines()
    assert "4711" not in line
    assert "hunter2" not in line
    assert ["s", "login", None, "step str"] in json.loads(line)["journal"]
    assert "hunter2" not in valued[1]
    assert '"4711 by ***"' in valued[1]
    assert "4711" not in redacted[1]
    assert too_long == (0, "", "skipped, longer than --max-bytes=100: 1\n")
    assert (len(more[1].splitlines()), more[2]) == (1, "more tasks exist than --limit=1\n")
