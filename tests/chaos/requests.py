"""`scripts/chaos requests`: generated requests by the million, in as many
processes as there are processors.

What is sent and what must hold of the answers is in `tests/roundgate/http/test_any_request.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.chaos.fleet import ROOT
from tests.chaos.orders import table


def main(arguments: argparse.Namespace) -> bool:
    """Every share of the requests; whether all were answered as they must be."""
    processes = os.cpu_count() or 1
    share = -(-arguments.count // processes)
    begun = time.monotonic()
    running = [_start(share, f"{arguments.seed}-{number}") for number in range(processes)]
    ended = [(process.communicate()[0], process.returncode) for process in running]
    failed = [said for said, status in ended if status != 0]
    rows = {
        "requests to be sent": share * processes,
        "processes": processes,
        "of them stopped by a wrong answer": len(failed),
        "seconds": round(time.monotonic() - begun),
    }
    table("generated requests", rows)
    for said in failed:
        print(said[-3_000:])
    return not failed


def _start(count: int, seed: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "--show-capture=no",
        "-o",
        "faulthandler_timeout=0",
    ]
    command += ["-p", "no:cacheprovider", "tests/roundgate/http/test_any_request.py"]
    environment = {**os.environ, "FUZZ_CASES": str(count), "FUZZ_SEED": seed}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
