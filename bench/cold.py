"""Cold starts of the two Lambda functions compared with others: `python -m bench.cold SETTINGS`.

The built zips run under AWS's runtime client on the template's Python, with DynamoDB Local and
moto's SQS where needed. The clock starts with the function's process. The time therefore covers the
init phase and the first invocation, on one core. All functions are packaged alike: with byte code
in the zip, as `roundgate package` does, and without, as most tools do. The runtime's own boto3 has
byte code in both cases.

Run with the gateway's own Python. Prints one `Sample` per line, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.dynamodb import why_not
from bench.measurements import Sample, Settings, rotated
from bench.servers import Cores
from bench.subjects import ROOT
from bench.wire import KNOWS_TASKS, http_request
from roundgate.auth import LOCAL, task_owner
from roundgate_aws import machine, packaging
from roundgate_aws.stack.functions import Account, Environment, EnvironmentPool, unpack
from roundgate_aws.stack.services import LocalAws, make_resources, services
from roundgate_aws.stack.stack import build_zips, find_tools
from roundgate_aws.template import StackTemplate, TemplateFunction

WITH_BYTE_CODE = "byte code in the zips"
WITHOUT = "sources alone in the zips"
BREAKDOWN_OF = ("gateway", "worker", "fastapi + Mangum")
SHOWN = 12
"""The number of packages with their own row in an import breakdown."""

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Cold:
    """A row of the table: a function, its first event, and the check of its answer."""

    name: str
    code: str
    """The directory of the built code, in the folder of the measurement."""
    handler: str
    event: Mapping[str, Any]
    is_right: Check


def main() -> None:
    """Print the samples of all measurements."""
    facts = json.loads(sys.argv[1])
    settings = Settings(
        **{**facts, "cores": Cores(**facts["cores"]), "table_sizes": tuple(facts["table_sizes"])}
    )
    for sample in samples(settings):
        print(json.dumps(asdict(sample)), flush=True)


def samples(settings: Settings) -> Iterator[Sample]:
    """Yield the samples of all measurements."""
    if reason := why_not():
        yield Sample("cold", "gateway", {}, (f"no cold starts: {reason}",))
        return
    python = find_tools()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / ".cache/bench")))
        aws = stack.enter_context(services(folder))
        resources = make_resources(aws, StackTemplate({}, {}))
        known = {**resources, "Queue": "https://" + resources["Queue"].partition("://")[2]}
        template = StackTemplate({"PublicUrl": "https://mcp.example.com"}, known)
        with redirect_stdout(sys.stderr):  # standard output is only for samples
            build(folder)
        measure = Measure(settings, python, template, aws, folder)
        yield from measure.starts(WITH_BYTE_CODE, COLD, settings.cold_starts)
        yield from measure.breakdowns()
        for path in folder.glob("*/**/__pycache__"):
            shutil.rmtree(path)
        yield from measure.starts(
            WITHOUT, [start for start in COLD if "task" not in start.name], settings.rounds
        )


# The measured functions and events


def request(tool: str) -> dict[str, Any]:
    """Return the event of an HTTP API with a call of a tool."""
    params = {"name": tool, "arguments": {"a": 2, "b": 3}}
    raw = http_request("tools/call", params, 1, capabilities=KNOWS_TASKS)
    head, _, body = raw.decode().partition("\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
    http = {
        "method": "POST",
        "path": "/mcp",
        "protocol": "HTTP/1.1",
        "sourceIp": "127.0.0.1",
        "userAgent": "bench",
    }
    context = {
        "http": http,
        "stage": "$default",
        "routeKey": "ANY /mcp",
        "domainName": "mcp.example.com",
    }
    event = {"version": "2.0", "routeKey": "ANY /mcp", "rawPath": "/mcp", "rawQueryString": ""}
    return {
        **event,
        "headers": headers,
        "requestContext": context,
        "body": body,
        "isBase64Encoded": False,
    }


def result(answer: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(answer["body"])["result"]
    return content


def is_sum(answer: Any) -> bool:
    return bool(json.loads(result(answer)["content"][0]["text"]) == 5)


def is_task(answer: Any) -> bool:
    return bool(result(answer)["resultType"] == "task")


def is_done(answer: Any) -> bool:
    return bool(answer == {"batchItemFailures": []})


MESSAGE = {"messageId": "1", "body": f"{task_owner(LOCAL)}.{'A' * 22}", "eventSource": "aws:sqs"}
"""The message of a task that does not exist, which costs a worker the least work."""

COLD = (
    Cold("gateway", "gateway", "roundgate_aws.http.handler", request("add"), is_sum),
    Cold(
        "gateway, first call becomes a task",
        "gateway",
        "roundgate_aws.http.handler",
        request("add_later"),
        is_task,
    ),
    Cold("worker", "worker", "roundgate_aws.worker.handler", {"Records": [MESSAGE]}, is_done),
    Cold("fastapi + Mangum", "floor", "bench.apps.lambda_fastapi.handler", request("add"), is_sum),
    Cold(
        "fastapi + Mangum + DynamoDB",
        "floor",
        "bench.apps.lambda_fastapi_dynamodb.handler",
        request("add"),
        is_sum,
    ),
    Cold("sdk + Mangum", "sdk", "bench.apps.lambda_sdk.handler", request("add"), is_sum),
)


def build(folder: Path) -> None:
    """Build the code of every function into `folder`, unpacked as on AWS."""
    build_zips(ROOT / "bench/cold_gateway/gateway.yaml", folder)
    for name in ("gateway", "worker"):
        unpack(folder / f"{name}.zip", folder / name)
    pins = re.findall(r"^([a-z0-9-]+)==(\S+)", machine.LOCK.read_text("utf-8"), re.MULTILINE)
    locked = dict(pins)
    mangum = f"mangum=={locked['mangum']}"
    floor = [f"{name}=={locked[name]}" for name in ("fastapi", "starlette", "pydantic")]
    handlers = [f"apps/{path.stem}" for path in (ROOT / "bench/apps").glob("lambda_*.py")]
    for subject, requirements in {
        "floor": [*floor, mangum],
        "sdk": ["mcp>=2.3,<2.4", mangum],
    }.items():
        staging = folder / subject
        target = ["--target", str(staging), "--no-compile", "--quiet"]
        done = machine.pip(
            ["install", *target, *machine.pip_options(machine.architecture()), *requirements]
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        (staging / "bench/apps").mkdir(parents=True)
        for name in (
            "__init__",
            "catalogue",
            "apps/__init__",
            "apps/fastapi",
            "apps/sdk",
            *handlers,
        ):
            shutil.copy(ROOT / f"bench/{name}.py", staging / f"bench/{name}.py")
        packaging.compile_code(staging)


@dataclass(frozen=True)
class Measure:
    """The measurements. Each starts functions one at a time."""

    settings: Settings
    python: Path
    template: StackTemplate
    aws: LocalAws
    folder: Path

    def starts(self, case: str, rows: Sequence[Cold], count: int) -> Iterator[Sample]:
        """Yield the time of each first answer. A row's first start only warms the page cache."""
        for number in range(count + 1):
            for row in rotated(rows, number):
                start_ms = self.start_ms(row)
                if number > 0:
                    yield Sample(f"first answer, {case}", row.name, {"start_ms": start_ms})

    def start_ms(self, row: Cold) -> float:
        """Return the milliseconds until a new environment answers.

        Raises:
            RuntimeError: the answer is wrong.
        """
        environment = self.environment(row)
        answer, took_ms = asyncio.run(self._first_answer(environment, row))
        if not row.is_right(answer):
            raise RuntimeError(
                f"{row.name} answers {answer}; its log:\n{environment.log.read_text()[-2000:]}"
            )
        return took_ms

    async def _first_answer(self, environment: Environment, row: Cold) -> tuple[Any, float]:
        """Return the first answer of an environment, and the milliseconds since its start."""
        await environment.listen()
        began = time.perf_counter()
        os.sched_setaffinity(0, {self.settings.cores.server})  # inherited by the started processes
        environment.start()
        os.sched_setaffinity(0, {self.settings.cores.generator})
        pool = EnvironmentPool([environment], Account(1))
        try:
            return await pool.invoke(row.event), 1000 * (time.perf_counter() - began)
        finally:
            pool.close()

    def environment(self, row: Cold) -> Environment:
        """Return an execution environment for a row's function."""
        described = self.template.function(
            "WorkerFunction" if row.name == "worker" else "GatewayFunction"
        )
        code = self.folder / row.code
        function = TemplateFunction(**{**vars(described), "handler": row.handler, "zip": code})
        variables = {
            **self.aws.environment,
            "TABLE": "tasks",
            "GATEWAY_ALLOW_ANONYMOUS": "true",
            "GATEWAY_LOG_LEVEL": "warning",
        }
        return Environment(
            function, 1, code, self.python, variables, self.folder / f"{row.code}.log"
        )

    def breakdowns(self) -> Iterator[Sample]:
        """Yield the import time of the init phase by package, as the sum over the package's
        modules."""
        for row in [start for start in COLD if start.name in BREAKDOWN_OF]:
            rounds = [self.imports(row) for _ in range(self.settings.rounds)]
            shown = sorted(name for name, _ in rounds[0].most_common(SHOWN))
            for spent in rounds:
                values = {name: spent[name] for name in shown}
                values |= {
                    "all others": spent.total() - sum(values.values()),
                    "together": spent.total(),
                }
                for name, ms in values.items():
                    yield Sample(f"imports of {row.name}", name, {"import_ms": ms})

    def imports(self, row: Cold) -> Counter[str]:
        """Return the import time in milliseconds by package, in a process that makes the
        handler."""
        environment = self.environment(row)
        module, _, name = row.handler.rpartition(".")
        command = [str(self.python), "-X", "importtime", "-c", f"from {module} import {name}"]
        variables = environment.environ()
        done = subprocess.run(
            command, cwd=environment.code, env=variables, capture_output=True, text=True, check=True
        )
        spent: Counter[str] = Counter()
        for line in done.stderr.splitlines():
            if match := re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", line):
                spent[package_from_module(match[2])] += int(match[1]) / 1000  # type: ignore[assignment]
        return spent


def package_from_module(module: str) -> str:
    """Return the row of the breakdown to which a module belongs."""
    top = module.partition(".")[0]
    return (
        "standard library"
        if top.lstrip("_") in {module_name.lstrip("_") for module_name in sys.stdlib_module_names}
        else top
    )


if __name__ == "__main__":
    main()
