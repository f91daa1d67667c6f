"""One call through two replicas: it asks, continues as a task, and survives `kill -9` of the
process that runs it.

    python examples/travel/story.py

Both replicas are `roundgate serve` with the gateway.yaml of this directory; they share one SQLite
file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE_S = 120
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}


class Replica:
    """One process that serves the gateway."""

    def __init__(self, name: str, office: Path) -> None:
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        environment = os.environ | {
            "TRAVEL_OFFICE": str(office),
            "GATEWAY_STORE": f"sqlite:///{office / 'tasks.sqlite3'}",
        }
        command = [sys.executable, "-m", "roundgate.cli", "serve", str(HERE / "gateway.yaml")]
        command += ["--port", self.url.rpartition(":")[2]]
        self._log = (office / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log
        )

    def wait_until_ready(self) -> None:
        """Wait until the replica answers.

        Raises:
            SystemExit: the process ended, or does not answer in time.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/healthz", timeout=5).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise SystemExit(f"replica {self.name} did not start:\n{Path(self._log.name).read_text()}")

    def ask(self, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of one request, which contains everything needed to answer it.

        Raises:
            SystemExit: the answer is an error.
        """
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
            "Mcp-Name": name,
        }
        request = urllib.request.Request(f"{self.url}/mcp", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                result: dict[str, Any] = json.load(answer)["result"]
                return result
        except urllib.error.HTTPError as error:
            raise SystemExit(
                f"replica {self.name} refused {method}: {error.read().decode()}"
            ) from error

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
        self._log.close()


@contextmanager
def replicas(office: Path) -> Iterator[tuple[Replica, Replica]]:
    """Start two replicas, yield them once they answer, and stop them at the end of the block."""
    both = Replica("A", office), Replica("B", office)
    try:
        for replica in both:
            replica.wait_until_ready()
        yield both
    finally:
        for replica in both:
            replica.stop()


def poll(replica: Replica, task: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the state of a task once `until` holds for it.

    Raises:
        SystemExit: `until` does not hold in time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        state = replica.ask("tasks/get", task, {"taskId": task})
        if until(state):
            return state
        time.sleep(0.2)
    raise SystemExit(f"the task did not change in time: {state}")


def say(who: str, what: str) -> None:
    """Print one line of the story."""
    print(f"{who:<10} {what}", flush=True)


def main() -> None:
    """Play the story in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        office = Path(folder)
        (office / "hotels-closed").touch()
        with replicas(office) as (a, b):
            play(office, a, b)


def play(office: Path, a: Replica, b: Replica) -> None:
    """Play the story. Raise an error if it does not go as expected."""
    call: dict[str, Any] = {"name": "book_trip", "arguments": {"city": "Lisbon"}}
    first = a.ask("tools/call", "book_trip", call)
    question = first["inputRequests"]["confirm"]["params"]["message"]
    say("replica A", f"asks: {question} (and keeps nothing)")

    yes = {"confirm": {"action": "accept", "content": {"book": True}}}
    retry = call | {"inputResponses": yes, "requestState": first["requestState"]}
    task = b.ask("tools/call", "book_trip", retry)["taskId"]
    say("replica B", "has the answer, and continues as a task")

    state = poll(b, task, lambda state: "waiting for a hotel" in state.get("statusMessage", ""))
    say("task", f"{state['status']}: {state['statusMessage']}")
    worker = int((office / "ledger").read_text().split()[0])
    victim, survivor = (a, b) if worker == a.process.pid else (b, a)
    assert worker == victim.process.pid, "neither replica has booked the flight"
    victim.kill()
    say("kill -9", f"replica {victim.name}, in the middle of the next step")
    (office / "hotels-closed").unlink()

    state = poll(survivor, task, lambda state: state["status"] != "working")
    text = state["result"]["content"][0]["text"]
    say(f"replica {survivor.name}", f"{state['status']}: {text}")
    done = [line.split(maxsplit=1)[1] for line in (office / "ledger").read_text().splitlines()]
    say("ledger", ", ".join(done))
    assert done == ["flight to Lisbon", "hotel in Lisbon"], "something was not done exactly once"


if __name__ == "__main__":
    main()
