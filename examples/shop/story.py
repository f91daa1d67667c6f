"""One order through two replicas: questions, a flaky payment, `kill -9`, a step that fails
permanently, and its retry.

    python examples/shop/story.py

Both replicas are `roundgate serve` with the gateway.yaml of this directory; they share one SQLite
file. Every line of the story is checked.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundgate.client import Client, Task

HERE = Path(__file__).parent
PATIENCE_S = 120
ROUNDGATE = (sys.executable, "-m", "roundgate.cli")
ANSWERS = {"amount": {"count": 2}, "address": {"city": "Lisbon"}}


class Shop:
    """A folder that two replicas share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = f"sqlite:///{folder / 'tasks.sqlite3'}"
        self._environment = os.environ | {"SHOP_FOLDER": str(folder), "GATEWAY_STORE": store}

    def start(self, name: str) -> Replica:
        """Start a replica."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*ROUNDGATE, "serve", str(HERE / "gateway.yaml"), "--port", str(port)],
                env=self._environment,
                stdout=file,
                stderr=file,
            )
        return Replica(name, f"http://127.0.0.1:{port}", process, log)

    def tasks(self, *arguments: str) -> str:
        """Run the operator's command `roundgate tasks`; return its output.

        Raises:
            SystemExit: the command fails.
        """
        done = subprocess.run(
            [*ROUNDGATE, "tasks", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            raise SystemExit(f"roundgate tasks {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def ledger(self) -> list[str]:
        """Return the entries of the ledger, which has one for each action, in order."""
        return (self.folder / "ledger").read_text().splitlines()

    def start_fault(self, name: str) -> None:
        """Start a fault, such as "carrier-closed", by creating its file in the shop's folder."""
        (self.folder / name).touch()

    def end_fault(self, name: str) -> None:
        """End a fault by deleting its file."""
        (self.folder / name).unlink()


class Replica:
    """One process that serves the gateway."""

    def __init__(self, name: str, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.url = f"{url}/mcp"
        self.process = process
        self._health = f"{url}/healthz"
        self._log = log

    def wait_until_ready(self) -> None:
        """Wait until the replica answers.

        Raises:
            SystemExit: the process ended, or does not answer in time.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(self._health, timeout=5).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise SystemExit(f"replica {self.name} did not start:\n{self._log.read_text()}")

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the replica's log."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def kill(self) -> None:
        """Kill the process with SIGKILL, as the kernel does if memory runs out."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the process gracefully, unless it has ended."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def replicas(shop: Shop) -> Iterator[Sequence[Replica]]:
    """Start two replicas, yield them once they answer, and stop them at the end of the block."""
    both = [shop.start("A"), shop.start("B")]
    try:
        for replica in both:
            replica.wait_until_ready()
        yield both
    finally:
        for replica in both:
            replica.stop()


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        SystemExit: the condition does not hold in time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"this did not happen in time: {what}")
        time.sleep(0.1)


async def until_asked(task: Task) -> None:
    """Wait until the task asks its customer a question.

    Raises:
        SystemExit: the task asks no question in time.
    """
    for _ in range(PATIENCE_S * 5):
        if (await task.get()).status == "input_required":
            return
        await asyncio.sleep(0.2)
    raise SystemExit("the task asked no question in time")


def say(who: str, what: str) -> None:
    """Print one line of the story."""
    print(f"{who:<10} {what}", flush=True)


async def play(shop: Shop, both: Sequence[Replica]) -> None:
    """Play the story. Raise an error if it does not go as expected."""
    shop.start_fault("packer-at-lunch")
    shop.start_fault("carrier-closed")
    async with Client(both[0].url) as client:
        task = await client.start("order", item="teapot", answers=ANSWERS)
        say("customer", "orders two teapots to Lisbon: two questions, then a task")
        await until_asked(task)
        assert shop.ledger() == ["reserve 2 teapot", "charge 20 EUR"], shop.ledger()
        say("payment", "timed out twice, was asked a third time, and charged once")
        await task.update({"day": {"day": "Friday"}})
        say("customer", "answers in the middle: on Friday")

    wait_for("somebody packs", (shop.folder / "packing").exists)
    packer = int((shop.folder / "packing").read_text())
    victim, survivor = both if packer == both[0].process.pid else (both[1], both[0])
    assert packer == victim.process.pid, "neither replica packs"
    victim.kill()
    say("kill -9", f"replica {victim.name}, while it packs")
    shop.end_fault("packer-at-lunch")

    async with Client(survivor.url) as client:
        task = client.resume(f"{survivor.url}#task={task.id}")
        failed = await task.wait()
        assert failed.is_error, failed
        say(f"replica {survivor.name}", "takes over and packs; the carrier is closed for good")
        failed_task = json.loads(shop.tasks("list", "--outcome", "step_failed", "--json"))
        assert failed_task["failedSteps"] == ["carrier"], failed_task
        assert shop.ledger() == ["reserve 2 teapot", "charge 20 EUR", "pack teapot"]
        say(
            "operator",
            f"finds the order: {failed_task['tool']} failed at {failed_task['failedSteps'][0]}",
        )
        check_log(survivor, failed_task["task"])

        shop.end_fault("carrier-closed")
        goes_on = shop.tasks("retry", failed_task["task"], "--json")
        going_on = json.loads(goes_on)["text"].partition("continues as ")[2].partition(":")[0]
        say("operator", "has the carrier open again, and retries")
        retried = client.resume(f"{survivor.url}#task={going_on.partition('.')[2]}")
        done = await retried.wait()
        assert done.text == "receipt: charge 20 EUR, send to Lisbon on Friday", done.text
        say(f"replica {survivor.name}", f"completed: {done.text}")

    assert shop.ledger() == [
        "reserve 2 teapot",
        "charge 20 EUR",
        "pack teapot",
        "send to Lisbon on Friday",
        "receipt: charge 20 EUR, send to Lisbon on Friday",
    ], "something was not done exactly once"
    say("ledger", "every step is there once")


def check_log(survivor: Replica, task: str) -> None:
    """Check that the log records the same events, under one id of the call."""
    lines = [line for line in survivor.lines() if line.get("task") == task]
    warnings = [line["msg"] for line in lines if line["level"] == "warning"]
    assert "a task is taken over" in warnings, warnings
    (ended,) = [line for line in lines if line["msg"] == "a failed step has ended a task"]
    assert (ended["tool"], ended["step"], ended["attempt"]) == ("order", "carrier", 2), ended
    assert len({line["call"] for line in lines if "call" in line}) == 1, lines
    say("log", f"says so, under the call's id {ended['call'][:6]}…")


def main() -> None:
    """Play the story in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder))
        with replicas(shop) as both:
            asyncio.run(play(shop, both))


if __name__ == "__main__":
    main()
