"""A warm invocation on AWS Lambda, without the emulator: `python -m bench.lambda_warm SETTINGS`.

The event of an HTTP API (payload 2.0) with a `tools/call` is passed to the handler, which returns
the response, both as decoded JSON, as in the runtime. `gateway` is Roundgate, `fastapi + Mangum` is
one path operation of FastAPI. Each subject runs in its own process, alternately.

Run with the gateway's own Python. Prints one `Sample` per line, as JSON.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SUBJECTS = ("gateway", "fastapi + Mangum")
WARM_UP, COUNT = 200, 2_000
CASE = "a warm invocation, tools/call of a tool that adds"
Handler = Callable[[Any, Any], Any]


class Context:
    """The part of AWS Lambda's context object that the handlers use."""

    aws_request_id = "request"

    def get_remaining_time_in_millis(self) -> int:
        return 29_000


def main() -> None:
    """Measure all subjects, or the named subject, and print the samples."""
    if len(sys.argv) > 2:
        with tempfile.TemporaryDirectory() as folder:
            handler = handler_of(sys.argv[2], Path(folder))
            json.dump(measured(handler, json.load(sys.stdin)), sys.stdout)
        return
    rounds: int = json.loads(sys.argv[1])["rounds"]
    from bench.cold import request  # not imported in the measured processes

    event = json.dumps(request("add"))
    for number in range(rounds):
        for name in (*SUBJECTS[number % len(SUBJECTS) :], *SUBJECTS[: number % len(SUBJECTS)]):
            print(
                json.dumps({"case": CASE, "subject": name, "values": of_a_process(name, event)}),
                flush=True,
            )


def of_a_process(name: str, event: str) -> dict[str, float]:
    """Return the values that a subject measures in its own process."""
    command = [sys.executable, "-m", "bench.lambda_warm", "{}", name]
    done = subprocess.run(command, input=event, capture_output=True, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def handler_of(name: str, folder: Path) -> Handler:
    """Return a subject's handler."""
    if name == "fastapi + Mangum":
        from bench.apps.lambda_fastapi import handler as floor

        return floor
    tools = {"kind": "python", "name": "tools", "prefix": "", "path": os.path.abspath(TOOLS)}
    (folder / "gateway.json").write_text(json.dumps({"backends": [tools]}))
    os.environ.update(
        {
            **ENVIRONMENT,
            "GATEWAY_CONFIG": str(folder / "gateway.json"),
            "GATEWAY_STATE_KEYS": base64.b64encode(bytes(32)).decode(),
            "GATEWAY_STORE": f"sqlite:///{folder}/gateway.sqlite3",
        }
    )
    from roundgate_aws import http as lambda_http

    return lambda_http.handler


TOOLS = "bench/cold_gateway/tools.py"
ENVIRONMENT: Mapping[str, str] = {
    "AWS_LAMBDA_FUNCTION_NAME": "gateway",
    "GATEWAY_ALLOW_ANONYMOUS": "true",
    "GATEWAY_LOG_LEVEL": "warning",
}


def measured(handler: Handler, event: Any) -> dict[str, float]:
    """Return the cost of an invocation (processor time, peak memory, and objects that only the
    garbage collector frees), and the process's memory at the end. Check each status."""
    context = Context()

    def invoke(times: int) -> None:
        for _ in range(times):
            answer = handler(event, context)
            assert answer["statusCode"] == 200, answer

    result = json.loads(handler(event, context)["body"])["result"]
    assert json.loads(result["content"][0]["text"]) == 5, result
    invoke(WARM_UP)
    gc.collect()
    began = time.process_time()
    invoke(COUNT)
    used_s = time.process_time() - began
    gc.collect()
    gc.disable()
    invoke(100)
    garbage = gc.collect() / 100
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    invoke(1)
    _, peak = tracemalloc.get_traced_memory()
    return {
        "warm_us": 1e6 * used_s / COUNT,
        "peak_kib": (peak - before) / 1024,
        "garbage": garbage,
        "rss_mib": pages * resource.getpagesize() / 2**20,
    }


if __name__ == "__main__":
    main()
