"""What a process does whose event loop stands still, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

PROGRAM = """
import asyncio, json, os, re, signal, sys, threading, time
from roundgate.tasks.watchdog import RUNNING, Watchdog

class Lease:
    def __init__(self, name): self.name = name
    def facts(self): return {"task": self.name}

guilty, innocent = Lease("guilty"), Lease("innocent")
held = [guilty, innocent]

async def let_go(leases, blamed):
    assert threading.current_thread() is not threading.main_thread()
    print(json.dumps([[one.name for one in leases], blamed and blamed.name]), flush=True)

async def branch():
    await asyncio.sleep(0.05)
    misbehave()

async def handler():
    RUNNING.set(guilty)
    await asyncio.gather(asyncio.sleep(600), branch())

async def other():
    RUNNING.set(innocent)
    await asyncio.sleep(600)

async def main():
    dog = Watchdog(0.4, lambda: held, let_go, bound_s=1.0)
    dog.start()
    print("started", flush=True)
    await asyncio.gather(handler(), other())
"""
BLOCKS = "def misbehave(): time.sleep(600)\n"


def begun(*, more: str) -> subprocess.Popen[str]:
    program = textwrap.dedent(PROGRAM) + more + "\nasyncio.run(main())\n"
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def told(process: subprocess.Popen[str]) -> tuple[Any, str]:
    """What it let go of, and its log."""
    out, err = process.communicate(timeout=60)
    lines = out.splitlines()
    assert lines[0] == "started"
    return (json.loads(lines[1]) if len(lines) > 1 else None), err


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_blocked_process_releases_all_leases_blames_the_blocking_task_and_exits(
    loop: str,
) -> None:
    process = begun(more=BLOCKS + ("import uvloop; uvloop.install()" if loop == "uvloop" else ""))
    leases, err = told(process)
    assert leases == [["guilty", "innocent"], "guilty"]
    assert process.returncode == 70
    assert "the event loop is blocked" in err


def test_a_block_that_is_no_tasks_is_blamed_on_nobody() -> None:
    process = begun(more="def misbehave(): asyncio.get_running_loop().call_soon(time.sleep, 600)\n")
    leases, _ = told(process)
    assert leases == [["guilty", "innocent"], None]
    assert process.returncode == 70


def test_a_process_that_is_stopped_as_a_whole_and_goes_on_is_left_alone() -> None:
    process = begun(more="def misbehave(): asyncio.get_running_loop().call_later(3, os._exit, 5)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "")


def test_a_process_that_holds_no_lease_is_left_alone() -> None:
    process = begun(more="held.clear()\ndef misbehave():\n    time.sleep(1.5)\n    os._exit(5)\n")
    leases, _ = told(process)
    assert (process.returncode, leases) == (5, None)


def test_letting_go_takes_a_bounded_time() -> None:
    process = begun(more=BLOCKS + "async def let_go(leases, blamed): await asyncio.sleep(600)\n")
    told(process)
    assert process.returncode == 70


def test_a_handler_that_holds_the_interpreters_lock_is_ended_by_the_system() -> None:
    process = begun(more="def misbehave(): re.match(r'(a+)+$', 'a' * 64 + 'b')\n")
    leases, _ = told(process)
    assert (process.returncode, leases) == (-signal.SIGVTALRM, None)


def test_one_that_does_so_before_the_watchdog_has_seen_its_lease_is_ended_too() -> None:
    """The process was idle, and the thread gets no other turn."""
    begins = """
from roundgate.tasks import watchdog

async def main():
    held.clear()
    Watchdog(0.4, lambda: held, let_go, bound_s=1.0).start()
    print("started", flush=True)
    await asyncio.sleep(0.2)
    held.append(guilty)
    watchdog.attend()
    re.match(r"(a+)+$", "a" * 64 + "b")
"""
    process = begun(more=begins)
    leases, _ = told(process)
    assert (process.returncode, leases) == (-signal.SIGVTALRM, None)
