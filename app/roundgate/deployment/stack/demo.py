"""`roundgate stack --demo`: one call with two rounds and one task with a question, replica by
replica. The tools are in demo_tools.py."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from roundgate.client import envelope, headers_of, message
from roundgate.deployment.stack.stack import Stack

CONFIG = Path(__file__).with_name("demo.yaml")

CAPABILITIES: dict[str, Any] = {
    "elicitation": {},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}
META = envelope("2026-07-28", {"name": "demo", "version": "1"}, CAPABILITIES)
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
class Stage:
    """The stack, and the lines that the audience reads."""

    stack: Stack
    http: httpx.AsyncClient
    begun: float = field(default_factory=time.monotonic)

    def say(self, who: str, what: str, color: str = "") -> None:
        print(
            f"{DIM}{time.monotonic() - self.begun:6.2f} s{PLAIN}  {color}{who:18}{PLAIN} {what}",
            flush=True,
        )

    async def ask(self, method: str, params: dict[str, Any], told: str) -> dict[str, Any]:
        """Send a request through the API; say which replica answered it."""
        asked = message(method, params, 1, META)
        self.say("client", f"{method} {told}", BOLD)
        response = await self.http.post(
            self.stack.url, json=asked, headers=headers_of(asked), timeout=40
        )
        self.say(self.stack.gateways.recent[-1], f"HTTP {response.status_code}", GREEN)
        result: dict[str, Any] = response.json()["result"]
        return result

    def kill(self, number: int) -> None:
        """Kill a replica."""
        victim = self.stack.gateways.environments[number]
        victim.kill()
        self.say(victim.name, "is killed", RED)


async def show(stack: Stack) -> int:
    """Run the demonstration on a stack; return an exit status."""
    async with httpx.AsyncClient(trust_env=False) as http:
        stage = Stage(stack, http)
        print(
            f"\n{BOLD}A call with two rounds.{PLAIN} Nothing is kept between them: any replica goes on.\n"
        )
        booked = await rounds(stage)
        print(
            f"\n{BOLD}A task with a question.{PLAIN} A worker carries it, and is free while it sleeps and asks.\n"
        )
        travelled = await task(stage)
    right = booked == "a room in Lisbon, 240 EUR" and travelled == "Ada goes to Porto for 200 EUR"
    print(
        f"\n{GREEN if right else RED}{'all as it should be' if right else 'that is not right'}{PLAIN}"
    )
    return 0 if right else 1


async def rounds(stage: Stage) -> str:
    params: dict[str, Any] = {"name": "book", "arguments": {}}
    for number in range(3):
        result = await stage.ask(
            "tools/call", params, "book" if number == 0 else "book, with the answer and the state"
        )
        if result["resultType"] != "input_required":
            break
        ((key, request),) = result["inputRequests"].items()
        sealed = f"{len(result['requestState'])} characters of sealed state"
        stage.say(
            "",
            f"asks {key!r}: {request['params']['message']}  {DIM}and sends {sealed}{PLAIN}",
            YELLOW,
        )
        stage.kill(number)
        answer = {key: {"action": "accept", "content": ANSWERS[key]}}
        params = {**params, "inputResponses": answer, "requestState": result["requestState"]}
    text: str = result["content"][0]["text"]
    stage.say("result", text, GREEN)
    return text


async def task(stage: Stage) -> str:
    created = await stage.ask(
        "tools/call", {"name": "travel", "arguments": {"city": "Porto"}}, "travel to Porto"
    )
    stage.say("", f"has become task {created['taskId']}", YELLOW)
    seen: tuple[Any, Any] | None = None
    for _ in range(200):
        await asyncio.sleep(0.25)
        now = await look(stage, created["taskId"])
        if (now["status"], now.get("statusMessage")) != seen:
            seen = now["status"], now.get("statusMessage")
            done_by = stage.stack.workers.recent[-1] if stage.stack.workers.recent else "nobody yet"
            stage.say(
                stage.stack.gateways.recent[-1],
                f"{seen[0]}: {seen[1] or ''}  {DIM}last: {done_by}{PLAIN}",
                GREEN,
            )
        if now["status"] == "input_required":
            ((key, request),) = now["inputRequests"].items()
            stage.say("", f"asks {key!r}: {request['params']['message']}", YELLOW)
            responses = {key: {"action": "accept", "content": ANSWERS[key]}}
            await stage.ask(
                "tasks/update", {"taskId": created["taskId"], "inputResponses": responses}, f"{key}"
            )
        if now["status"] == "completed":
            text: str = now["result"]["content"][0]["text"]
            stage.say("result", text, GREEN)
            return text
    return "it did not end"


async def look(stage: Stage, task_id: str) -> dict[str, Any]:
    asked = message("tasks/get", {"taskId": task_id}, 1, META)
    response = await stage.http.post(
        stage.stack.url, json=asked, headers=headers_of(asked), timeout=40
    )
    result: dict[str, Any] = response.json()["result"]
    return result
