"""The table of measurements. Each yields samples; `bench.report` takes the medians.

To add one, write a generator of `Sample`s and add a line to `MEASUREMENTS`; printing, ratios,
`--only` and `bench/results.json` follow from this line. A generator measures the subjects in
rounds, so a slow minute of the machine affects all subjects alike.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TypeVar

from bench import instructions as counting
from bench.circumstances import issued, served
from bench.load import Order, Outcome
from bench.servers import Cores, Server, running, service
from bench.subjects import GENERATOR, ROOT, SUBJECTS, Subject

T = TypeVar("T")


class LoadFailedError(Exception):
    """The generator received a wrong answer or lost a connection, so the whole run is invalid."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The extent of a benchmark. Times are in seconds per subject, case and round."""

    cores: Cores
    rounds: int = 9
    seconds: float = 0.8
    warm_up_s: float = 0.3
    least_answers: int = 10
    starts: int = 7
    cold_starts: int = 11
    memory_rounds: int = 3
    memory_requests: int = 2000
    table_sizes: tuple[int, ...] = (10, 1_000, 100_000)

    @classmethod
    def quick(cls, cores: Cores) -> "Settings":
        return cls(
            cores,
            rounds=3,
            seconds=0.3,
            warm_up_s=0.1,
            least_answers=3,
            starts=3,
            cold_starts=3,
            memory_rounds=1,
            memory_requests=500,
            table_sizes=(10, 1_000, 10_000),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """An observation of a subject. `case` names its table; `notes` are remarks for the reader.

    If nothing is compared, `subject` is any other name for a row. A sample without values exists
    for its notes.
    """

    case: str
    subject: str
    values: dict[str, float]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A printed value: its key in `Sample.values`, its heading with the unit, and its decimals."""

    key: str
    heading: str
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement and its columns. A case shows the columns for which it has values; the first
    column is compared."""

    name: str
    title: str
    columns: tuple[Column, ...]
    is_more_better: bool
    sample: Callable[[Settings, Sequence[Subject]], Iterator[Sample]]
    subjects: tuple[str, ...] = tuple(subject.name for subject in SUBJECTS)
    """The names of the subjects that are measured."""


def load(
    settings: Settings,
    subjects: Sequence[Subject],
    *,
    serves: str,
    workload: str,
    connections: tuple[int, ...],
    is_logged: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Sample]:
    """Load each subject's server in turn, at each number of connections. The other servers run, but
    are idle."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running(s, serves, workload, settings.cores, environment, is_logged=is_logged)
            )
            for s in subjects
        ]
        for number in range(settings.rounds):
            for count in connections:
                for server in rotated(servers, number):
                    yield load_sample(server, workload, count, settings)


def proxied(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Load the subjects that call a service. The service runs on the generator's core."""
    with service(settings.cores) as url:
        yield from load(
            settings,
            subjects,
            serves="proxy",
            workload="call_add",
            connections=(16,),
            environment={"BENCH_SERVICE": url},
        )


def instructions(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Count instructions, if valgrind is installed."""
    if not counting.is_possible():
        yield Sample("", "", {}, ("no valgrind: instructions were not counted",))
        return
    for case, subject, count in counting.counted(subjects):
        yield Sample(case, subject, {"instructions": count})


def circumstances(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Load the gateway in several circumstances, alternately."""
    for subject in subjects:
        with served(subject, settings.cores) as rows:
            for number in range(settings.rounds):
                for row in rotated(rows, number):
                    name, headers = row.name, row.headers
                    yield load_sample(
                        row.server, row.workload, 16, settings, name=name, headers=headers
                    )


def verified(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Load servers whose callers have a JWT, which each server verifies once and remembers."""
    keys, signed = issued()
    with service(settings.cores, {"BENCH_KEYS": keys}) as url, ExitStack() as stack:
        known = {"BENCH_SERVICE": url, "GATEWAY_PUBLIC_URL": "http://127.0.0.1"}
        servers = [
            stack.enter_context(
                running(subject, "jwt", "call_add", settings.cores, known, headers=signed)
            )
            for subject in subjects
        ]
        for number in range(settings.rounds):
            for server in rotated(servers, number):
                yield load_sample(server, "call_add", 16, settings, headers=signed)


def load_sample(
    server: Server,
    workload: str,
    connections: int,
    settings: Settings,
    *,
    name: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Sample:
    """Load one server. `name` is the name of the row, by default the subject's; `headers` are added
    to each request."""
    order = Order(
        server.port,
        workload,
        connections,
        seconds=settings.seconds,
        warm_up_s=settings.warm_up_s,
        least_answers=settings.least_answers,
        headers=dict(headers),
    )
    began, cpu_before_s, waited_before_s = time.perf_counter(), server.cpu_s(), server.waited_s()
    outcome = drive(server, order, settings.cores)
    server_waited = (server.waited_s() - waited_before_s) / (time.perf_counter() - began)
    values = {
        "requests_per_s": outcome.requests_per_s,
        "p50_ms": outcome.p50_ms,
        "p99_ms": outcome.p99_ms,
        "server_cpu_us": 1e6 * (server.cpu_s() - cpu_before_s) / outcome.answered,
        "response_bytes": outcome.response_bytes,
        "generator_busy": outcome.generator_busy,
        "waited_percent": 100 * max(server_waited, outcome.generator_waited),
    }
    case = "1 connection" if connections == 1 else f"{connections} connections"
    return Sample(
        case,
        name or server.subject.name,
        values,
        tuple(_load_notes(server, outcome, values["waited_percent"])),
    )


def _load_notes(server: Server, outcome: Outcome, waited_percent: float) -> Iterator[str]:
    name = server.subject.name
    if waited_percent > 5:
        yield "something else kept the cores busy (see `waited %`): run again when the machine is quiet"
    if outcome.sse:
        yield f"{name} answers as an event stream"
    if outcome.generator_busy > 0.9:
        yield f"the generator was the limit for {name}: its figures are a lower bound"
    for missing in server.lacks():
        yield f"{name} runs without {missing}"


def start(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Start new processes, one at a time. The first process of each subject only warms byte code
    and the page cache."""
    for number in range(settings.starts + 1):
        for subject in rotated(subjects, number):
            with running(subject, "one_tool", "call_add", settings.cores) as server:
                if number > 0:
                    yield Sample(
                        "fresh process, byte code warm", subject.name, {"start_ms": server.start_ms}
                    )


def memory(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Read the memory of new processes, one at a time, after the first answer and after the same
    number of calls."""
    for number in range(settings.memory_rounds):
        for subject in rotated(subjects, number):
            with running(subject, "one_tool", "call_add", settings.cores) as server:
                time.sleep(0.3)
                yield Sample("idle, after the first answer", subject.name, asdict(server.memory()))
                order = Order(
                    server.port, "call_add", connections=16, requests=settings.memory_requests
                )
                drive(server, order, settings.cores)
                case = f"after {settings.memory_requests} calls on 16 connections"
                yield Sample(case, subject.name, asdict(server.memory()))


def inside(settings: Settings, subjects: Sequence[Subject]) -> Iterator[Sample]:
    """Run `bench.inside` with each subject's Python; yield its samples."""
    for subject in subjects:
        for _ in range(settings.rounds):
            command = [str(subject.environment.python), "-m", "bench.inside"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            for case, us in json.loads(done.stdout).items():
                yield Sample(case, subject.name, {"us": us})


def program(settings: Settings, subjects: Sequence[Subject], *, module: str) -> Iterator[Sample]:
    """Run a module of `bench` with each subject's Python; yield the samples that it prints.

    Raises:
        LoadFailedError: the module failed; the message is the last line of its output.
    """
    for subject in subjects:
        command = [str(subject.environment.python), "-m", module, json.dumps(asdict(settings))]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            with process:
                yield from (Sample(**json.loads(line)) for line in process.stdout or ())
            if process.returncode:
                errors.seek(0)
                output = errors.read().strip()
                print(output, file=sys.stderr)
                raise LoadFailedError(
                    f"{module}: {output.splitlines()[-1] if output else process.returncode}"
                )


def drive(server: Server, order: Order, cores: Cores) -> Outcome:
    """Run the load generator on its own core.

    Raises:
        LoadFailedError: the generator failed; the message is the last line of its output.
    """
    done = subprocess.run(
        [str(GENERATOR.python), "-m", "bench.load", json.dumps(asdict(order))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {cores.generator}),
    )
    if done.returncode:
        raise LoadFailedError(
            f"{server.subject.name}, {order.workload}: {done.stderr.strip().splitlines()[-1]}"
        )
    return Outcome(**json.loads(done.stdout))


def rotated(things: Sequence[T], by: int) -> list[T]:
    """Return the things in order, starting one further in each round, so each has changing
    neighbours."""
    first = by % len(things)
    return [*things[first:], *things[:first]]


_LOAD_COLUMNS = (
    Column("requests_per_s", "requests/s"),
    Column("p50_ms", "p50 ms", 2),
    Column("p99_ms", "p99 ms", 2),
    Column("server_cpu_us", "CPU µs/request"),
    Column("response_bytes", "body bytes"),
    Column("waited_percent", "waited %"),
)
_TASK_COLUMNS = (
    Column("tasks_per_s", "tasks/s"),
    Column("task_cpu_us", "CPU µs/task"),
    Column("looks", "tasks/get per task", 2),
    Column("sweep_ms", "sweep ms", 2),
    Column("delay_ms", "delay ms", 2),
    *_LOAD_COLUMNS,
)
_MEMORY_COLUMNS = (Column("rss_mib", "RSS MiB", 1), Column("pss_mib", "PSS MiB", 1))

MEASUREMENTS = (
    Measurement(
        "call",
        "tools/call of a tool that adds two integers",
        _LOAD_COLUMNS,
        is_more_better=True,
        sample=functools.partial(
            load, serves="one_tool", workload="call_add", connections=(1, 16, 64)
        ),
    ),
    Measurement(
        "logged",
        "tools/call, each with its own log line",
        _LOAD_COLUMNS,
        is_more_better=True,
        sample=functools.partial(
            load, serves="one_tool", workload="call_add", connections=(16,), is_logged=True
        ),
        subjects=("gateway", "sdk", "fastmcp", "fastapi", "starlette", "asgi"),
    ),
    Measurement(
        "instructions",
        "instructions of a tools/call, without sockets and kernel",
        (Column("instructions", "instructions"),),
        is_more_better=False,
        sample=instructions,
        subjects=("gateway", "fastapi", "asgi"),
    ),
    Measurement(
        "proxy",
        "tools/call that calls a service over HTTP",
        _LOAD_COLUMNS,
        is_more_better=True,
        sample=proxied,
        subjects=("gateway", "fastapi"),
    ),
    Measurement(
        "circumstances",
        "tools/call of a client with a session, with a JWT, with limits, of one of 100 tools, in a view with search",
        _LOAD_COLUMNS,
        is_more_better=True,
        sample=circumstances,
        subjects=("gateway",),
    ),
    Measurement(
        "verified",
        "tools/call of callers with a JWT that the server remembers",
        _LOAD_COLUMNS,
        is_more_better=True,
        sample=verified,
        subjects=("gateway", "fastapi"),
    ),
    Measurement(
        "list",
        "tools/list of 100 tools",
        _LOAD_COLUMNS,
        is_more_better=True,
        sample=functools.partial(
            load, serves="hundred_tools", workload="list_hundred", connections=(16,)
        ),
        subjects=("gateway", "sdk", "fastmcp", "fastapi", "starlette", "asgi"),
    ),
    Measurement(
        "start",
        "process start to the first correct tools/call",
        (Column("start_ms", "ms"),),
        is_more_better=False,
        sample=start,
        subjects=("gateway", "sdk", "fastmcp", "typescript", "fastapi"),
    ),
    Measurement(
        "inside",
        "inside the gateway's process",
        (Column("us", "µs", 1),),
        is_more_better=False,
        sample=inside,
        subjects=("gateway",),
    ),
    Measurement(
        "tasks",
        "tasks",
        _TASK_COLUMNS,
        is_more_better=True,
        sample=functools.partial(program, module="bench.tasks"),
        subjects=("gateway",),
    ),
    Measurement(
        "cold",
        "cold start on AWS Lambda",
        (Column("start_ms", "ms"), Column("import_ms", "ms", 1)),
        is_more_better=False,
        sample=functools.partial(program, module="bench.cold"),
        subjects=("gateway",),
    ),
    Measurement(
        "lambda",
        "warm invocation on AWS Lambda, in process",
        (
            Column("warm_us", "CPU µs", 1),
            Column("peak_kib", "KiB at once", 1),
            Column("garbage", "objects of garbage", 1),
            Column("rss_mib", "RSS MiB", 1),
        ),
        is_more_better=False,
        sample=functools.partial(program, module="bench.lambda_warm"),
        subjects=("gateway",),
    ),
    Measurement(
        "memory", "memory of the process", _MEMORY_COLUMNS, is_more_better=False, sample=memory
    ),
)
