"""DynamoDB Local: one emulator for all the processes of a run, be it of tests,
of a bench or of the stack.

Whoever uses it holds a shared lock on a file. Beside the emulator waits a process for the
exclusive one, which the kernel gives it when the last user has ended, however it ended;
then it stops the emulator.

    users      ──shared──┬─────────┬──▶ (ended)
    watcher    ──────────┴─ waits ─┴── exclusive ── stops Java
"""

from __future__ import annotations

import fcntl
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from roundgate.clock import Clock
from roundgate.deployment import places, tools
from roundgate.deployment.ports import reserved_port
from roundgate.storage.dynamodb import CONFIG, Table, create_table

START_S = 60

_WATCHER = """
import fcntl, os, subprocess, sys
from pathlib import Path

if os.fork():
    os._exit(0)  # nobody's child: it may outlive whoever began it
users, address, folder, port = sys.argv[1:]
java = subprocess.Popen(["java", "-Djava.library.path=DynamoDBLocal_lib", "-jar", "DynamoDBLocal.jar", "-inMemory",
                         "-disableTelemetry", "-port", port], cwd=folder)
with open(users) as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    Path(address).unlink(missing_ok=True)
    java.kill()
    java.wait()
"""


@dataclass
class Emulator:
    """DynamoDB Local, as boto3 is to be told of it."""

    url: str

    @cached_property
    def _session(self) -> Any:
        import boto3

        return boto3.Session("test", "test", region_name="eu-central-1")

    def client(self, **config: Any) -> Any:
        """boto3's client; every name in `config` overrides the one that is deployed."""
        from botocore.config import Config

        using = Config(**{**CONFIG, "read_timeout": 30, "proxies": {}, **config})
        return self._session.client("dynamodb", endpoint_url=self.url, config=using)

    def items(self, name: str) -> list[dict[str, Any]]:
        """Every row of a table."""
        client = self.client()
        pages = client.get_paginator("scan").paginate(TableName=name, ConsistentRead=True)
        found = [item for page in pages for item in page["Items"]]
        client.close()
        return found

    @contextmanager
    def table(self) -> Iterator[str]:
        """The name of a new table."""
        client, name = self.client(), f"test-{uuid.uuid4()}"
        create_table(client, name)
        yield name
        client.delete_table(TableName=name)
        client.close()

    def open(self, name: str, make_client: Callable[[], Any] | None = None) -> Table:
        """A table as a process of its own would have it."""
        return Table(name, make_client or self.client, Clock())


def why_not() -> str | None:
    """Why it cannot be run here, if it cannot."""
    if shutil.which("java") is None:
        return "DynamoDB Local needs Java 17"
    if not (places.cache() / "dynamodb-local/.stamp").exists():
        return "DynamoDB Local is not installed: scripts/tools dynamodb-local --install"
    return None


@contextmanager
def emulator(shared: Path) -> Iterator[Emulator]:
    """The emulator of everybody who names the same directory."""
    users, address = shared / "dynamodb.users", shared / "dynamodb.address"
    with _locked(users, fcntl.LOCK_SH):
        with _locked(shared / "dynamodb.starting", fcntl.LOCK_EX):
            if not address.exists():
                _start(users, address)
        yield Emulator(address.read_text())


@contextmanager
def _locked(path: Path, how: int) -> Iterator[IO[str]]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield file


def _start(users: Path, address: Path) -> None:
    with reserved_port() as port:
        with users.with_suffix(".log").open("a") as log:
            paths = [str(users), str(address), str(tools.dynamodb())]
            subprocess.run(
                [sys.executable, "-c", _WATCHER, *paths, str(port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        until = time.monotonic() + START_S
        while not _answers(port):
            assert time.monotonic() < until, users.with_suffix(".log").read_text()
            time.sleep(0.05)
        address.write_text(f"http://127.0.0.1:{port}")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
