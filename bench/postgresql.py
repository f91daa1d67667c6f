"""PostgreSQL for measurements and tests: a separate server, on a socket in its folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60
_EMPTY = """
do $$
declare tables text;
begin
    select string_agg(format('roundgate.%I', tablename), ', ') into tables from pg_tables
        where schemaname = 'roundgate' and tablename <> 'store';
    if tables is not null then
        execute 'truncate ' || tables;
        perform setval('roundgate.served', 1, false);
    end if;
end $$"""


@dataclass
class Server:
    """A server with one database, `roundgate`, whose owner has the same name."""

    folder: Path
    """The folder of the server's data and socket. The server does not listen on the network."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the database."""
        return f"postgresql://roundgate@/roundgate?host={self.folder}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        until = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None:
                # retry if the processes of a killed server have not all ended yet
                self._process = _begun("postgres", "-D", str(self.folder / "data"))
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and its connections, which would serve on for a moment. Unlike after a
        power cut, its written data is kept."""
        processes = self._processes()
        _signal(processes, signal.SIGKILL)
        self._end(signal.SIGKILL)
        until = time.monotonic() + PATIENCE_S
        while any(_runs(pid) for pid in processes):
            assert time.monotonic() < until, "a killed process of the server still runs"
            time.sleep(0.01)

    def stop(self) -> None:
        """Shut the server down; it ends its connections."""
        self._end(signal.SIGINT)

    def pause(self) -> None:
        """Stop the server and its connections until `resume`."""
        _signal(self._processes(), signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the server after `pause`."""
        _signal(self._processes(), signal.SIGCONT)

    def execute(self, statements: str) -> None:
        """Run statements as the owner of the database."""
        command = [_binary("psql"), "-h", str(self.folder), "-U", "roundgate", "-q"]
        subprocess.run([*command, "-v", "ON_ERROR_STOP=1", "-c", statements], check=True)

    def empty(self) -> None:
        """Delete all rows of the gateway."""
        self.execute(_EMPTY)

    def _is_ready(self) -> bool:
        command = [_binary("pg_isready"), "-q", "-h", str(self.folder), "-d", "postgres"]
        return subprocess.run(command, check=False).returncode == 0

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._process = None

    def _processes(self) -> list[int]:
        """Return the ids of the server's processes, first the one that would start others again."""
        assert self._process is not None
        parent = self._process.pid
        pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [parent, *(pid for pid in pids if _stat(pid)[1:2] == [str(parent)])]


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def _stat(pid: int) -> list[str]:
    """Return the state of a process, the id of its parent and so on; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def why_not() -> str | None:
    """Return the reason why no server can run on this machine, or `None`."""
    return None if _binary("initdb") else "PostgreSQL is not installed: apt-get install postgresql"


@contextmanager
def server(durable_in: Path | None = None) -> Iterator[Server]:
    """Create and run a server. It waits for disk writes only if `durable_in`, a folder on a disk,
    is set."""
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir=durable_in))
    if (user := _user()) is not None:
        shutil.chown(folder, user)
        if durable_in is not None:
            durable_in.chmod(0o711)
    made = Server(folder)
    try:
        data = str(folder / "data")
        flags = [
            "--auth=trust",
            "--username=roundgate",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        initdb = _begun("initdb", "-D", data, *flags)
        assert initdb.wait(PATIENCE_S) == 0
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{folder}'",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "fsync": "off" if durable_in is None else "on",
            "log_destination": "stderr",
        }
        access = folder / "data/pg_hba.conf"
        access.write_text(f"local all guarded scram-sha-256\n{access.read_text()}")
        with (folder / "data/postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        made.start()
        subprocess.run(
            [_binary("createdb"), "-h", str(folder), "-U", "roundgate", "roundgate"], check=True
        )
        yield made
    finally:
        if made._process is not None:
            made._end(signal.SIGQUIT)  # without writing data that is deleted anyway
        shutil.rmtree(folder, ignore_errors=True)


def _begun(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a program of PostgreSQL as another user, because it refuses to run as root."""
    user = _user()
    log = Path(arguments[1]).parent / "log"
    with log.open("ab") as sink:
        return subprocess.Popen(
            [_binary(name), *arguments],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
        )


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _binary(name: str) -> str:
    """Return the path of a program in its newest version, or "" if it is not installed."""
    candidates = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3])
    )
    return str(candidates[-1]) if candidates else shutil.which(name) or ""
