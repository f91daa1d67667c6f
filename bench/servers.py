"""A subject's server: start it on its own core, send it a first request, read its memory and CPU
time, and stop it.

Linux only, because of CPU affinity and `/proc`.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from bench.http1 import MalformedResponseError, ResponseReader
from bench.subjects import GENERATOR, ROOT, Subject
from bench.wire import WORKLOADS, Exchange

PATIENCE_S = 60.0
_NOTHING: Mapping[str, str] = MappingProxyType({})


class ServerFailedError(Exception):
    """A server did not start or answered incorrectly. The message ends with its output on
    stderr."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the server and the load generator. They are equal if the machine has one
    core."""

    server: int
    generator: int

    @classmethod
    def of_this_process(cls) -> "Cores":
        available = sorted(os.sched_getaffinity(0))
        return cls(server=available[0], generator=available[-1])


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident and proportional set size of a server and its children, in MiB."""

    rss_mib: float
    pss_mib: float


@dataclass(frozen=True, slots=True)
class Server:
    """A running server that has answered its first request. `start_ms` is the time from `exec` to
    that answer, in milliseconds."""

    subject: Subject
    port: int
    pid: int
    start_ms: float

    def memory(self) -> Memory:
        rss_kib = pss_kib = 0
        for pid in _family(self.pid):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                key, _, value = line.partition(":")
                rss_kib += int(value.split()[0]) if key == "Rss" else 0
                pss_kib += int(value.split()[0]) if key == "Pss" else 0
        return Memory(rss_kib / 1024, pss_kib / 1024)

    def cpu_s(self) -> float:
        """Return the CPU time of all threads so far, user and system, in seconds."""
        return cpu_s(self.pid)

    def waited_s(self) -> float:
        """Return the seconds for which the server's threads were ready to run without getting their
        core."""
        return sum(_scheduled_s(pid, 1) for pid in _family(self.pid))

    def lacks(self) -> list[str]:
        """Return the names of the libraries (uvloop, httptools) that the process has not loaded. The
        list is empty for a fair comparison, and for Node.js."""
        if self.subject.environment.packages:
            return []
        loaded = Path(f"/proc/{self.pid}/maps").read_text()
        return [name for name in ("uvloop", "httptools") if f"/{name}/" not in loaded]


@contextmanager
def running(
    subject: Subject,
    serves: str,
    workload: str,
    cores: Cores,
    environment: Mapping[str, str] = _NOTHING,
    folder: Path = ROOT,
    *,
    is_logged: bool = False,
    headers: Mapping[str, str] = _NOTHING,
) -> Iterator[Server]:
    """Start a server, wait for the correct answer to the first request of a workload, and stop the
    server at the end.

    `environment` is added to the variables of every server. `folder` is the folder for stored data.
    `headers` are added to the request.

    Raises:
        ServerFailedError: the server exits, does not answer, or answers incorrectly.
    """
    port = free_port()
    first = WORKLOADS[workload](1)[0].sent_with(headers)
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = spawn(
            subject.command(serves, port, is_logged=is_logged), cores, log, environment, folder
        )
        try:
            try:
                _ask_until_answered(process, port, first)
            except Exception as reason:
                log.seek(0)
                output = log.read().decode(errors="replace")[-2000:]
                raise ServerFailedError(
                    f"{subject.name} ({serves}): {reason}\n{output}"
                ) from reason
            yield Server(subject, port, process.pid, 1000 * (time.perf_counter() - began))
        finally:
            stop(process)


@contextmanager
def service(cores: Cores, environment: Mapping[str, str] = _NOTHING) -> Iterator[str]:
    """Run the service that adds, on the generator's core; yield its URL.

    Raises:
        ServerFailedError: the service does not start.
    """
    port = free_port()
    command = [
        *(str(GENERATOR.python), "-m", "uvicorn", "bench.apps.service:app", "--port", str(port)),
        *("--no-access-log", "--log-level", "warning", "--lifespan", "off"),
    ]
    with tempfile.TemporaryFile() as log:
        own = Cores(server=cores.generator, generator=cores.generator)
        process = spawn(command, own, log, environment, ROOT)
        try:
            _wait_for(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(process)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.perf_counter() + PATIENCE_S
    while process.poll() is None and time.perf_counter() < give_up_at:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return
    raise ServerFailedError("the service behind the gateway did not start")


def spawn(
    command: Sequence[str], cores: Cores, log: IO[bytes], more: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """Start a server on its core, with the variables `more` and a few of this process."""
    # Pass only the variables that a server needs, so the caller's environment slows no subject, and
    # byte code is written.
    environment = {
        key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")
    }
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), **more},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        preexec_fn=lambda: os.sched_setaffinity(0, {cores.server}),
    )


def _ask_until_answered(process: subprocess.Popen[bytes], port: int, exchange: Exchange) -> None:
    give_up_at = time.perf_counter() + PATIENCE_S
    while True:
        if process.poll() is not None:
            raise ServerFailedError(f"exited with status {process.returncode}")
        if time.perf_counter() > give_up_at:
            raise ServerFailedError(f"no answer within {PATIENCE_S:.0f} s")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
                return ask(connection, exchange)
        except ConnectionRefusedError:
            time.sleep(0.001)


def ask(connection: socket.socket, exchange: Exchange) -> None:
    """Send one request on a connected socket and check the answer.

    Raises:
        WrongAnswerError, MalformedResponseError: the answer is incorrect.
    """
    connection.sendall(exchange.request)
    reader = ResponseReader()
    while data := connection.recv(1 << 18):
        response = reader.feed(data)
        if response is not None:
            exchange.check(response)
            return
    raise MalformedResponseError("the server closed the connection")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server; kill it if that takes more than 10 s."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used, in seconds."""
    return sum(_scheduled_s(member, 0) for member in _family(pid))


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = [
        int(child) for thread in threads for child in (thread / "children").read_text().split()
    ]
    return [pid, *(member for child in children for member in _family(child))]


def _scheduled_s(pid: int, field: int) -> float:
    """Return the sum of a `schedstat` field over the threads, in seconds: 0 is the time on a core,
    1 the time on the run queue.

    `schedstat` counts nanoseconds; the hundredths of a second in `stat` are too coarse here.
    """
    fields = [
        thread.joinpath("schedstat").read_text().split()
        for thread in Path(f"/proc/{pid}/task").iterdir()
    ]
    return sum(int(values[field]) for values in fields) / 1e9
