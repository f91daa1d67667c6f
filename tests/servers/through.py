"""`scripts/servers --through`: a gateway in front of servers that other people wrote.

Their lists and results through the gateway must be equal to direct ones, but for the names of tools
and the members that belong to one hop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roundgate.client import Client, Progress
from roundgate.errors import ClientError, RpcError
from tests.servers.subjects import CALL_S, PROGRAMS, SUBJECTS, Check, served
from tests.support.server import running

COLUMNS = ("tools", "list", "call", "stream", "question", "task", "task that asks")
HOP = "io.modelcontextprotocol/"


async def main(names: Sequence[str]) -> int:
    """Print a table of all servers whose names have one of `names` in them; return the status."""
    rows: list[tuple[str, str, dict[str, str]]] = []
    for subject in SUBJECTS:
        if not names or any(name in subject.name for name in names):
            async with served(subject) as url:
                found = await examined({"url": url}, subject.checks, url, subject.revision)
                rows.append((subject.name, *found))
    for name, command, checks in PROGRAMS:
        if not names or any(part in name for part in names):
            rows.append((name, *await examined({"command": command}, checks, None, "")))
    print(f"| server | revision | {' | '.join(COLUMNS)} |")
    print(f"|---|---|{'---|' * len(COLUMNS)}")
    for name, revision, outcomes in rows:
        print(f"| {name} | {revision} | {' | '.join(outcomes.get(c, '') for c in COLUMNS)} |")
    failures = [one for *_, row in rows for one in row.values() if one.startswith("NO")]
    return 0 if rows and not failures else 1


async def examined(
    settings: dict[str, Any], checks: Sequence[Check], direct_url: str | None, revision: str
) -> tuple[str, dict[str, str]]:
    """Return the revision that the gateway speaks with a server, and the outcome of each column.
    Questions of another `revision` than that are left out."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.json"
        backend = {"kind": "mcp", "name": "up", **settings}
        config.write_text(json.dumps({"backends": [backend]}))
        environment = {"GATEWAY_STORE": f"sqlite:///{folder}/store.sqlite3"}
        with running(config, environment) as gateway:
            async with Client(f"{gateway.url}/mcp", answers=_anything(checks)) as through:
                upstream = await _up(through, gateway.url)
                outcomes = {"tools": str(len(await through.tools()))}
                if direct_url is None:
                    for check in checks:
                        outcomes[check.column] = await _answers(through, check)
                    return upstream, outcomes
                async with Client(direct_url, answers=_anything(checks)) as direct:
                    outcomes["list"] = _equal(await _listed(direct), await _listed(through))
                    for check in checks:
                        if check.column in ("call", "stream"):
                            outcomes[check.column] = await _compared(direct, through, check)
                        elif check.column == "question" and revision in ("", upstream):
                            outcomes["question"] = await _answers(through, check)
                        elif upstream == revision >= "2026-07-28":
                            outcomes[check.column] = await _followed(through, check)
                    return upstream, outcomes


async def _up(client: Client, url: str) -> str:
    """Return the server's revision once the gateway lists its tools."""
    import httpx

    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            (server,) = (await http.get(f"{url}/healthz")).json()["upstreams"]
            if server["status"] == "up" and await client.tools():
                return str(server["revision"])
            await asyncio.sleep(0.1)


async def _listed(client: Client) -> list[Any]:
    listed = [
        {key: value for key, value in tool.raw.items() if key != "execution"}
        for tool in await client.tools()
    ]
    for read in (client.prompts, client.resources, client.resource_templates):
        with suppress(RpcError):  # a server need not have them; through the gateway, it has none
            listed += [entry.raw for entry in await read()]
    return [_without_hop({**one, "name": one["name"].removeprefix("up__")}) for one in listed]


async def _compared(direct: Client, through: Client, check: Check) -> str:
    """Compare results and progress of the same call."""
    results = []
    for client, name in ((direct, check.tool), (through, f"up__{check.tool}")):
        progress: list[Progress] = []
        call = client.call(name, check.arguments, on_progress=progress.append)
        try:
            raw = (await asyncio.wait_for(call, CALL_S)).raw
        except (ClientError, TimeoutError) as error:
            return f"NO: {error}"
        steps = [(one.progress, one.total, one.message) for one in progress]
        results.append((_without_hop({**raw, "resultType": "complete"}), steps))
    return _equal(*results)


async def _answers(through: Client, check: Check) -> str:
    try:
        text = (await through.call(f"up__{check.tool}", check.arguments)).text
    except ClientError as error:
        return f"NO: {error}"
    return "yes" if check.expected in text else f"NO: {text[:100]}"


async def _followed(through: Client, check: Check) -> str:
    """Start a task of the server, and follow it by its handle."""
    try:
        task = await through.start(f"up__{check.tool}", check.arguments)
        if task.handle is None:
            return "NO: no task"
        text = (await through.resume(task.handle).wait(answers=check.answers)).text
    except ClientError as error:
        return f"NO: {error}"
    return "yes" if check.expected in text else f"NO: {text[:100]}"


def _without_hop(value: dict[str, Any]) -> dict[str, Any]:
    meta = {k: v for k, v in (value.get("_meta") or {}).items() if not k.startswith(HOP)}
    others = {key: member for key, member in value.items() if key != "_meta"}
    return {**others, "_meta": meta} if meta else others


def _equal(one: Any, other: Any) -> str:
    if one == other:
        return "equal"
    print(
        f"direct:  {json.dumps(one)[:2000]}\nthrough: {json.dumps(other)[:2000]}", file=sys.stderr
    )
    return "NO"


def _anything(checks: Sequence[Check]) -> list[Any]:
    return [check.answers for check in checks if check.answers]
