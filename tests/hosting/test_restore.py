"""The commands of docs/runbooks/restore.md, against a store that is in use: what continues, what is
asked again and what runs twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.postgresql import Server as Database
from tests.support.asgi import Client
from tests.support.documents import ROOT
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.rounds import KEYS, accept, retry
from tests.support.server import Server, running
from tests.support.sessions import BOTH, NEWEST, calling, opening
from tests.support.task_client import TaskClient
from tests.support.worker import working

RUNBOOK = ROOT / "docs/runbooks/restore.md"
CONFIG = """
tasks:
  {lease_s: 3, clock_skew_s: 0.5, requeue_after_s: 1, requeue_at_most_s: 1, sweep_every_s: 0.2,
   poll_interval_ms: 100}
backends: [{kind: python, name: own, prefix: "", path: tools.py}]
"""


@dataclass
class Deployment:
    """A gateway and a worker on a store that can be restored."""

    folder: Path
    store: str
    environment: dict[str, str]
    """The variables of the commands."""
    program: str
    """The program that the commands of this store run."""
    _stack: ExitStack = field(default_factory=ExitStack)
    gateway: Server | None = None

    def start(self) -> None:
        shared = {
            "GATEWAY_STORE": self.store,
            "GATEWAY_STATE_KEYS": KEYS,
            "EFFECTS": str(self.folder),
        }
        config = self.folder / "gateway.yaml"
        config.write_text(CONFIG)
        shutil.copy(Path(__file__).with_name("served_for_restore.py"), self.folder / "tools.py")
        self.gateway = self._stack.enter_context(
            running(config, shared | {"GATEWAY_WORKER": "off"})
        )
        self._stack.enter_context(working(config, self.folder / "worker.log", shared))

    def stop(self) -> None:
        """End all processes at once, as a broken host would."""
        self._stack.close()

    def run(self, part: str) -> None:
        """Run the commands of a part of the runbook that are about this store."""
        (script,) = (block for block in commands(part) if f"{self.program}" in block)
        environment = {**os.environ, **self.environment, "GATEWAY_STORE": self.store}
        subprocess.run(["bash", "-euc", script], check=True, env=environment, cwd=self.folder)

    @property
    def effects(self) -> list[str]:
        return (self.folder / "effects").read_text().splitlines()

    async def has_done(self, what: str) -> None:
        until = time.monotonic() + 60
        while what not in self.effects:
            assert time.monotonic() < until, self.effects
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[TaskClient]:
        assert self.gateway is not None
        async with httpx.AsyncClient(base_url=self.gateway.url, timeout=60) as http:
            yield TaskClient(Client(http))


def commands(part: str) -> list[str]:
    """The shell commands below a heading."""
    text = RUNBOOK.read_text()
    section = text.partition(f"## {part}")[2].partition("\n## ")[0]
    found, rest = [], section
    while "```sh\n" in rest:
        block, _, rest = rest.partition("```sh\n")[2].partition("```")
        found.append("\n".join(line.strip() for line in block.splitlines()))
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    backup = str(tmp_path / "backup")
    if request.param == "sqlite":
        if shutil.which("sqlite3") is None:
            pytest.skip("the shell of SQLite is not installed: apt-get install sqlite3")
        file = tmp_path / "store.sqlite3"
        made = Deployment(
            tmp_path, f"sqlite:///{file}", {"FILE": str(file), "BACKUP": backup}, '"$FILE"'
        )
    else:
        database: Database = request.getfixturevalue("postgresql")
        made = Deployment(tmp_path, database.url, {"BACKUP": backup}, "pg_")
    try:
        yield made
    finally:
        made.stop()


@asynccontextmanager
async def load(client: TaskClient) -> AsyncIterator[None]:
    """Calls and new tasks, without a pause."""

    async def keep_calling() -> None:
        number = 0
        while True:
            number += 1
            await client.begin("ask", name=f"load {number}")
            await client.call("ping")

    calling_ = asyncio.create_task(keep_calling())
    try:
        yield
        assert not calling_.done()
    finally:
        calling_.cancel()
        with suppress(asyncio.CancelledError):
            await calling_


async def pay_again(client: TaskClient, params: dict[str, Any]) -> httpx.Response:
    return await client.send("tools/call", params)


async def before_and_after(deployment: Deployment) -> dict[str, Any]:
    """Use the deployment, and take a backup in the middle."""
    known: dict[str, Any] = {}
    async with deployment.client() as client:
        session = await client.mcp.http.post("/mcp", json=opening(), headers={"accept": BOTH})
        known["session"] = session.headers["mcp-session-id"]
        for name in ("ended", "asked"):
            known[name] = await client.begin("ask", name=name)
            await client.asked(known[name])
        await client.answer(known["ended"], {"go": accept(go=True)})
        await client.over(known["ended"])
        known["running"] = await client.begin("wait", name="running")
        await deployment.has_done("running gate begins")
        known["paid"] = {}
        for name in ("early", "late"):
            call = {"name": "pay", "arguments": {"name": name}}
            asked = (await client.send("tools/call", call)).json()["result"]
            known["paid"][name] = retry(call, asked, go=accept(go=True))
        known["result"] = (await pay_again(client, known["paid"]["early"])).json()["result"]
        async with load(client):
            await asyncio.to_thread(deployment.run, "Backup while everything runs")
        # what the backup does not know
        await pay_again(client, known["paid"]["late"])
        await client.answer(known["asked"], {"go": accept(go=True)})
        await client.over(known["asked"])
        known["later"] = await client.begin("ask", name="later")
    return known


async def test_tasks_continue_at_the_moment_of_the_backup(deployment: Deployment) -> None:
    deployment.start()
    known = await before_and_after(deployment)
    deployment.stop()
    deployment.run("Restore")
    (deployment.folder / "open").touch()
    deployment.start()
    async with deployment.client() as client:
        # as it was
        assert await client.text(known["ended"]) == "ended done"
        # asked again, although it was answered and had ended
        await client.asked(known["asked"])
        await client.answer(known["asked"], {"go": accept(go=True)})
        assert await client.text(known["asked"]) == "asked done"
        # taken over from a worker that no longer exists
        assert await client.text(known["running"]) == "running done"
        # unknown
        status, error = await client.error("tasks/get", {"taskId": known["later"]})
        assert (status, error["code"]) == (400, -32602)
        # a payment that the backup knows is answered from it; another happens again
        again = (await pay_again(client, known["paid"]["early"])).json()["result"]
        assert again["content"] == known["result"]["content"]
        assert "isError" not in (await pay_again(client, known["paid"]["late"])).json()["result"]
        # sealed in its id
        older = {
            "accept": BOTH,
            "mcp-session-id": known["session"],
            "mcp-protocol-version": NEWEST,
        }
        response = await client.mcp.http.post("/mcp", json=calling("ping"), headers=older)
        assert "pong" in response.text
    counts = {what: deployment.effects.count(what) for what in set(deployment.effects)}
    expected = {
        "ended first": 1,
        "ended second": 1,
        "asked first": 1,
        "asked second": 2,
        "running first": 1,
        "running gate begins": 2,
        "running gate": 1,
        "early paid": 1,
        "late paid": 2,
    }
    assert {what: counts[what] for what in expected} == expected


def test_the_backup_of_a_file_in_use_is_whole_and_private(tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("the shell of SQLite is not installed: apt-get install sqlite3")
    file, backup = tmp_path / "store.sqlite3", tmp_path / "backup"
    with sqlite3.connect(file) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma application_id = 7")
        db.execute("pragma user_version = 3")
        db.execute("create table t (n)")
        db.execute("insert into t values (1)")
        db.commit()
        assert (tmp_path / "store.sqlite3-wal").stat().st_size > 0
        (script,) = (block for block in commands("Backup") if "$FILE" in block)
        environment = {**os.environ, "FILE": str(file), "BACKUP": str(backup)}
        subprocess.run(["bash", "-euc", script], check=True, env=environment)
    with sqlite3.connect(f"file:{backup}?mode=ro", uri=True) as copy:
        assert copy.execute("select n from t").fetchall() == [(1,)]
        assert copy.execute("pragma application_id").fetchone() == (7,)
        assert copy.execute("pragma user_version").fetchone() == (3,)
        assert copy.execute("pragma integrity_check").fetchone() == ("ok",)
    assert backup.stat().st_mode & 0o777 == 0o600
