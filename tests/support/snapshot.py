"""A process that is to both functions what a snapshot of AWS Lambda is: initialised
once, then continued twice.

Run as a program. It makes both handlers, says on standard output what it holds (one line of JSON),
and forks two clones when it reads its first line. Each line is `[clone, "http" or "worker",
event]`; its answer is one line.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any, Final

from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker

CLONES: Final = 2


class Context:
    """The context object of AWS Lambda, as far as we use it."""

    aws_request_id = "request"

    def get_remaining_time_in_millis(self) -> int:
        return 29_000


def open_sockets() -> list[str]:
    """What this process is connected to."""
    opened = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    names = [
        os.readlink(one) for one in opened if one.is_symlink()
    ]  # the one that lists them is gone
    return [name for name in names if name.startswith("socket:")]


def continued(requests: int, answers: int, functions: dict[str, Any]) -> None:
    """One clone: an event a line, until there are no more."""
    with os.fdopen(requests) as lines, os.fdopen(answers, "w") as out:
        for line in lines:
            kind, event = json.loads(line)
            print(json.dumps(functions[kind](event, Context())), file=out, flush=True)


def cloned(functions: dict[str, Any]) -> tuple[Any, Any]:
    """A clone's ends: what it reads and what it writes."""
    (reads, asks), (hears, writes) = os.pipe(), os.pipe()
    seeded = random.getstate()
    if os.fork() == 0:
        random.setstate(seeded)  # Python seeds anew after a fork; nobody does after a snapshot
        os.close(asks)
        os.close(hears)
        continued(reads, writes, functions)
        os._exit(0)
    os.close(reads)
    os.close(writes)
    return os.fdopen(asks, "w"), os.fdopen(hears)


def main() -> None:
    functions = {"http": lambda_http.handler, "worker": lambda_worker.handler}
    print(json.dumps({"sockets": open_sockets(), "threads": threading.active_count()}), flush=True)
    clones: list[tuple[Any, Any]] = []
    for line in sys.stdin:
        clones = clones or [cloned(functions) for _ in range(CLONES)]
        number, kind, event = json.loads(line)
        asks, hears = clones[number]
        print(json.dumps([kind, event]), file=asks, flush=True)
        print(hears.readline().strip(), flush=True)


if __name__ == "__main__":
    main()
