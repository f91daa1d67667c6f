"""`scripts/servers --through`: a gateway in front of servers that other people wrote.

Their lists and results through the gateway must be equal to direct ones, with the members of objects
in the same order, but for the names of tools, the URIs of pages, the members of one hop, and the
order of a result's own members.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from roundgate.client import VERSIONS, Client, Progress, envelope
from roundgate.client.types import without_nulls
from roundgate.errors import ClientError, RpcError
from tests.servers.subjects import CACHE, CALL_S, PROGRAMS, SUBJECTS, Check, served
from tests.support.server import running

Request: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

COLUMNS = (
    *("tools", "list", "read", "call", "stream"),
    *("question", "older question", "task", "task that asks"),
)
HOP = "io.modelcontextprotocol/"
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
UP_S = 180
"""Seconds within which the gateway lists a server's tools; some servers take a minute to start."""
MAX_LINE = 64 * 1024 * 1024
MAX_READ = 5
"""The number of resources of a server that are read."""


class ProgramEnded(Exception):
    """A server on its standard streams has ended."""


async def main(names: Sequence[str]) -> int:
    """Print a table of all servers whose names have one of `names` in them; return the status."""
    rows: list[tuple[str, str, dict[str, str]]] = []
    for subject in SUBJECTS:
        if not names or any(name in subject.name for name in names):
            async with served(subject) as url:
                settings = {"url": url, "headers": dict(subject.headers)}
                if subject.is_named and subject.revision != VERSIONS[0]:
                    settings["revision"] = subject.revision
                found = await examined(settings, subject.checks, subject.revision)
            rows.append((subject.name, *found))
    for program in PROGRAMS:
        if not names or any(part in program.name for part in names):
            if not program.is_installed:
                print(f"skipped: {program.name} is not installed", file=sys.stderr)
                continue
            settings = {"command": list(program.command), "env": dict(program.environment)}
            try:
                found = await examined(settings, program.checks, "")
            except (ProgramEnded, RpcError, TimeoutError) as error:
                found = "", {"list": f"NO: {type(error).__name__}: {error}"}
            rows.append((f"{program.name}, stdio", *found))
    print(f"| server | revision | {' | '.join(COLUMNS)} |")
    print(f"|---|---|{'---|' * len(COLUMNS)}")
    for name, revision, outcomes in rows:
        print(f"| {name} | {revision} | {' | '.join(outcomes.get(c, '') for c in COLUMNS)} |")
    failures = [one for *_, row in rows for one in row.values() if one.startswith("NO")]
    return 0 if rows and not failures else 1


async def examined(
    settings: dict[str, Any], checks: Sequence[Check], revision: str
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
                async with AsyncExitStack() as stack:
                    if "url" in settings:
                        answers = _anything(checks)
                        client = Client(
                            settings["url"],
                            answers=answers,
                            versions=[upstream],
                            headers=settings["headers"],
                        )
                        direct: Client | None = await stack.enter_async_context(client)
                        request: Request = client.request
                    else:
                        direct = None
                        program = piped(settings["command"], settings["env"], upstream)
                        request = await stack.enter_async_context(program)
                    outcomes = {"tools": str(len(await through.tools()))}
                    lists = await _listed(request), await _listed(through.request)
                    outcomes["list"] = _equal(*lists)
                    outcomes["read"] = await _all_read(lists[0], request, through.request)
                    for check in checks:
                        if check.column == "call" and direct is None:
                            outcomes["call"] = await _same_call(check, request, through.request)
                        elif check.column in ("call", "stream") and direct is not None:
                            outcomes[check.column] = await _compared(direct, through, check)
                        elif check.column == "question" and revision in ("", upstream):
                            outcomes["question"] = await _answers(through, check)
                        elif check.column == "older question":
                            # the first call finds that the tool asks in an older revision
                            await through.call(f"up__{check.tool}", check.arguments)
                            outcomes[check.column] = await _answers(through, check)
                        elif upstream == revision >= "2026-07-28":
                            outcomes[check.column] = await _followed(through, check)
                    return upstream, outcomes


@asynccontextmanager
async def piped(
    command: list[str], environment: dict[str, str], revision: str
) -> AsyncGenerator[Request, None]:
    """Run a server on its standard streams; yield a function that sends a request.

    This is not the client library, so that a defect of the library cannot be on both sides.
    """
    is_modern = revision >= "2026-07-28"
    info = {"name": "through", "version": "1"}
    meta = envelope(revision, info, {})
    log = CACHE / f"{Path(command[-1]).name or 'program'}-direct.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=MAX_LINE,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    sent = 0

    def send(message: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
        nonlocal sent
        assert process.stdout is not None
        sent += 1
        whole = {**params, "_meta": meta} if is_modern else params
        send({"id": sent, "method": method, "params": whole})
        async with asyncio.timeout(CALL_S):
            while line := await process.stdout.readline():
                with suppress(ValueError):
                    answer = json.loads(line)
                    if answer.get("id") == sent and "method" not in answer:
                        if "error" in answer:
                            raise RpcError(answer["error"]["code"], answer["error"]["message"])
                        result: dict[str, Any] = answer["result"]
                        return result
        raise ProgramEnded(f"see {log}")

    try:
        if not is_modern:
            hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": info}
            await request("initialize", hello)
            send({"method": "notifications/initialized"})
        yield request
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _up(client: Client, url: str) -> str:
    """Return the server's revision once the gateway lists its tools."""
    async with asyncio.timeout(UP_S), httpx.AsyncClient(timeout=60) as http:
        while True:
            (server,) = (await http.get(f"{url}/healthz")).json()["upstreams"]
            if server["status"] == "up" and await client.tools():
                return str(server["revision"])
            await asyncio.sleep(0.1)


async def _listed(request: Request) -> list[dict[str, Any]]:
    """Return the entries of all lists, as the server wrote them, but for null members."""
    entries = []
    for method, member in LISTS.items():
        cursor: dict[str, Any] = {}
        with suppress(
            RpcError
        ):  # a server need not have the list; through the gateway, it is empty
            while True:
                page = await request(method, cursor)
                entries += page[member]
                if not page.get("nextCursor"):
                    break
                cursor = {"cursor": page["nextCursor"]}
    for entry in entries:
        entry["name"] = entry["name"].removeprefix("up__")
        entry.pop("execution", None)
    return [without_nulls(_without_hop(entry)) for entry in entries]


async def _all_read(entries: list[dict[str, Any]], direct: Request, through: Request) -> str:
    """Compare the contents of listed resources and of the tools' pages."""
    uris = {entry["uri"]: entry["uri"] for entry in entries if "uri" in entry}
    for entry in entries:
        page = (entry.get("_meta") or {}).get("ui", {}).get("resourceUri", "")
        uris |= {page: page} if page else {}
    outcome = ""
    for uri in list(uris)[:MAX_READ]:
        ours = uri.replace("ui://", "ui://up/", 1)
        one = await direct("resources/read", {"uri": uri})
        other = await through("resources/read", {"uri": ours})
        contents = one["contents"], other["contents"]
        outcome = _equal(
            [_without_hop(each) for each in contents[0]],
            [_without_hop(each) for each in contents[1]],
        )
        if outcome == "NO":
            return outcome
    return outcome


async def _same_call(check: Check, direct: Request, through: Request) -> str:
    """Compare the results of a call."""
    one = await direct("tools/call", {"name": check.tool, "arguments": check.arguments})
    name = f"up__{check.tool}"
    other = await through("tools/call", {"name": name, "arguments": check.arguments})
    if check.varies:
        is_right = all(check.expected in json.dumps(each) for each in (one, other))
        return "yes" if is_right else _equal(one, other)
    return _equal(_members(one), _members(other))


async def _compared(direct: Client, through: Client, check: Check) -> str:
    """Compare results and progress of the same call."""
    if check.varies:
        return await _answers(through, check)
    results = []
    for client, name in ((direct, check.tool), (through, f"up__{check.tool}")):
        progress: list[Progress] = []
        call = client.call(name, check.arguments, on_progress=progress.append)
        try:
            raw = (await asyncio.wait_for(call, CALL_S)).raw
        except (ClientError, TimeoutError) as error:
            return f"NO: {error}"
        steps = [(one.progress, one.total, one.message) for one in progress]
        results.append((_members(raw), steps))
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
    """Return an object without the members of one hop: `resultType`, and some of `_meta`."""
    meta = {k: v for k, v in (value.get("_meta") or {}).items() if not k.startswith(HOP)}
    others = {key: member for key, member in value.items() if key not in ("_meta", "resultType")}
    return {**others, "_meta": meta} if meta else others


def _members(result: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a result by their names, without those of one hop."""
    return dict(sorted(_without_hop(result).items()))


def _equal(one: Any, other: Any) -> str:
    """Compare values with the order of their members, but for the URIs of pages."""
    texts = json.dumps(one), json.dumps(other).replace("ui://up/", "ui://")
    if texts[0] == texts[1]:
        return "equal"
    print(f"direct:  {texts[0][:2000]}\nthrough: {texts[1][:2000]}", file=sys.stderr)
    return "NO"


def _anything(checks: Sequence[Check]) -> list[Any]:
    return [check.answers for check in checks if check.answers]
