"""`roundgate stack --demo`: one call with two rounds and one task with a question, showing the
replica of each step. The tools are in demo_tools.py."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from roundgate.client import Client, Question, TaskState
from roundgate_aws.stack.stack import Stack

CONFIG = Path(__file__).with_name("demo.yaml")
ANSWERS: dict[str, dict[str, Any]] = {
    "where": {"city": "Lisbon"},
    "agree": {"go": True},
    "who": {"name": "Ada"},
}
BOLD, DIM, GREEN, YELLOW, RED, PLAIN = (
    ("\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m", "\033[0m")
    if sys.stdout.isatty()
    else ("",) * 6
)


@dataclass
class DemoStage:
    """The stack, and the lines that the demonstration prints."""

    stack: Stack
    begun: float = field(default_factory=time.monotonic)
    killed: int = 0
    seen: tuple[str, str | None] | None = None

    def say(self, who: str, what: str, color: str = "") -> None:
        seconds = f"{time.monotonic() - self.begun:6.2f} s"
        print(f"{DIM}{seconds}{PLAIN}  {color}{who:18}{PLAIN} {what}", flush=True)

    def observe(self, direction: str, message: Any, status: int | None) -> None:
        """Show a request of a call, or the replica that answered it."""
        method = message.get("method", "")
        if direction == "sent" and method in ("tools/call", "tasks/update"):
            state = message["params"].get("requestState")
            sealed = f" with {len(state)} characters of sealed state" if state else ""
            self.say("client", f"{method}{sealed}", BOLD)
        elif (result := message.get("result")) and {"content", "requestState"} & result.keys():
            kind = result["resultType"]
            self.say(self.stack.gateways.recent[-1], f"HTTP {status}, {kind}", GREEN)

    def answer(self, question: Question) -> dict[str, Any]:
        """Show a question, kill the next replica, and return the answer."""
        self.say("", f"asks {question.key!r}: {question.message}", YELLOW)
        victim = self.stack.gateways.environments[self.killed]
        self.killed = (self.killed + 1) % len(self.stack.gateways.environments)
        victim.kill()
        self.say(victim.name, "is killed", RED)
        return ANSWERS[question.key]

    def follow(self, state: TaskState) -> None:
        """Show a task if it changed, and the worker that ran it last."""
        if (now := (state.status, state.message)) != self.seen:
            self.seen = now
            workers = self.stack.workers.recent
            last = workers[-1] if workers else "none yet"
            self.say("task", f"{state.status}: {state.message or ''}  {DIM}last: {last}{PLAIN}")


async def show(stack: Stack) -> int:
    """Run the demonstration on a stack; return the exit status."""
    stage = DemoStage(stack)
    async with (
        httpx.AsyncClient(trust_env=False, timeout=40) as http,
        Client(stack.url, http=http, observer=stage.observe, answers=stage.answer) as client,
    ):
        print(
            f"\n{BOLD}A call with two rounds.{PLAIN} No replica keeps its state: any replica continues it.\n"
        )
        booked = await client.call("book")
        stage.say("result", booked.text, GREEN)
        print(
            f"\n{BOLD}A task with a question.{PLAIN} A worker runs it, and is free while the task sleeps and asks.\n"
        )
        travelled = await client.call("travel", city="Porto", on_task=stage.follow)
        stage.say("result", travelled.text, GREEN)
    texts = booked.text, travelled.text
    is_right = texts == ("a room in Lisbon, 240 EUR", "Ada goes to Porto for 200 EUR")
    verdict = (
        "both results are as expected" if is_right else "a result differs from the expected one"
    )
    print(f"\n{GREEN if is_right else RED}{verdict}{PLAIN}")
    return 0 if is_right else 1
