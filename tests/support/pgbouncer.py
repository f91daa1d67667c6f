"""PgBouncer for tests: a pooler in front of a PostgreSQL server, on a socket in its own folder.

The newest `pgbouncer` is used of those in PATH and in /usr/sbin, where Debian puts its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from bench import postgresql
from tests.support.documents import ROOT, blocks
from tests.support.postgresql import Server

Mode = Literal["session", "transaction"]
_SECTION = (ROOT / "docs/postgresql.md").read_text("utf-8").partition("\n## PgBouncer\n")[2]
(SETTINGS,) = blocks(_SECTION, "ini")
"""The settings of PgBouncer in `docs/postgresql.md`."""
ROLE = next(iter(blocks(_SECTION, "sql")))
"""The settings of the role in `docs/postgresql.md`."""
PREPARES = (1, 21)
"""The first version that follows prepared statements in transaction mode."""
PATIENCE_S = 60


@dataclass
class Pooler:
    """A PgBouncer that runs."""

    folder: Path
    mode: Mode
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the database behind the pooler."""
        return f"postgresql://roundgate@/roundgate?host={self.folder}"

    def start(self) -> None:
        """Start the pooler and wait until it listens."""
        is_root = os.geteuid() == 0  # it refuses to run as root
        with (self.folder / "log").open("ab") as sink:
            self._process = subprocess.Popen(
                [_newest()[1], str(self.folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                user=self.folder.owner() if is_root else None,
                group=self.folder.group() if is_root else None,
                extra_groups=[] if is_root else None,
            )
        until = time.monotonic() + PATIENCE_S
        while not (self.folder / ".s.PGSQL.5432").exists():
            is_late = time.monotonic() > until or self._process.poll() is not None
            assert not is_late, (self.folder / "log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the pooler, with all its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None
        (self.folder / ".s.PGSQL.5432").unlink(missing_ok=True)


@dataclass
class Pooled:
    """A `Server` whose clients connect to a pooler in front of it."""

    server: Server
    pooler: Pooler

    @property
    def url(self) -> str:
        """The URL of the pooler."""
        return self.pooler.url

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)


def why_not(mode: Mode) -> str | None:
    """Return why a mode cannot be tested on this machine, or `None`."""
    if reason := postgresql.why_not():
        return reason
    version, path = _newest()
    if not path:
        return "PgBouncer is not installed: apt-get install pgbouncer"
    if mode == "transaction" and version < PREPARES:
        found = ".".join(map(str, version))
        return f"transaction mode needs PgBouncer 1.21, and the newest in PATH is {found}"
    return None


@contextmanager
def pooler(server: Server, mode: Mode, pool_size: int | None = None) -> Iterator[Pooler]:
    """Run a pooler as documented in front of a server, by default with fewer connections than its
    clients make if the mode allows that."""
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    documented = re.sub("pool_mode = .*", f"pool_mode = {mode}", SETTINGS)
    if _newest()[0] < PREPARES:
        documented = re.sub("max_prepared_statements = .*", "", documented)
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
roundgate = host={server.folder} port=5432 user=roundgate
[pgbouncer]
{documented}
default_pool_size = {pool_size or (3 if mode == "transaction" else 90)}
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = any
"""
    )
    server.execute(ROLE.replace("role gateway", "role roundgate"))
    if os.geteuid() == 0:
        shutil.chown(folder, server.folder.owner())
    made = Pooler(folder, mode)
    try:
        made.start()
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _newest() -> tuple[tuple[int, ...], str]:
    """Return the version and path of the newest PgBouncer; `((), "")` if there is none."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin"]
    paths = {Path(folder) / "pgbouncer" for folder in folders}
    found = [(_version(str(path)), str(path)) for path in paths if path.is_file()]
    return max(found, default=((), ""))


def _version(path: str) -> tuple[int, ...]:
    shown = subprocess.run([path, "--version"], capture_output=True, check=True, text=True).stdout
    number = re.search(r"PgBouncer (\d+)\.(\d+)", shown)
    assert number is not None, shown
    return int(number[1]), int(number[2])
