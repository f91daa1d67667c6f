"""Older servers that remember their callers: no caller sees the session, or the process, of another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from roundgate.main import build_app
from tests.support.asgi import Client, client, config_of, stoppable
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, jwks, token
from tests.support.older_servers import CAPABLE
from tests.support.scripted import Asked, error, http, says, scripted, text
from tests.support.services import answer, service
from tests.support.task_client import task_settings
from tests.support.upstreams import PROGRAM, tool, until

CAPABILITIES = [{}, CAPABLE]
ANN, BOB = "ann", "bob"
PAIRS = [(f"ann{n}", f"bob{n}", own) for n, own in enumerate(CAPABILITIES)]
"""Two callers for each of `CAPABILITIES`, who have not called before."""


@dataclass
class Accounts:
    """A server of 2025-11-25 that remembers in each session who has logged in there, and then lists
    a tool more. Another tool has the number of the list in its name."""

    names: dict[str, str] = field(default_factory=dict)
    lists: int = 0

    def __call__(self, asked: Asked) -> Any:
        session = asked.headers.get("mcp-session-id", "")
        match asked.rpc:
            case "server/discover":
                return error(asked, -32000, "Bad Request: Server not initialized")
            case "initialize":
                session = f"s{len(self.names)}"
                self.names[session] = "nobody"
                lists = {name: {"listChanged": True} for name in ("tools", "prompts", "resources")}
                about = {"protocolVersion": "2025-11-25", "capabilities": lists}
                value = {**about, "serverInfo": {"name": "accounts", "version": "1"}}
                return _says(asked, value, Mcp_Session_Id=session)
            case "GET":
                return http(405)
            case "DELETE":
                return http(200)
            case "tools/list":
                self.lists += 1
                names = ["login", "whoami", "gone", f"list-{self.lists}"]
                mailbox = [] if self.names[session] == "nobody" else ["mailbox"]
                return _says(asked, {"tools": [tool(name) for name in [*names, *mailbox]]})
            case "prompts/list":
                return _says(asked, {"prompts": [{"name": "whoami"}]})
            case "resources/list":
                return _says(asked, {"resources": [{"uri": "me:name", "name": "whoami"}]})
            case "resources/templates/list":
                return _says(asked, {"resourceTemplates": []})
            case "prompts/get":
                content = {"type": "text", "text": self.names[session]}
                return _says(asked, {"messages": [{"role": "user", "content": content}]})
            case "resources/read":
                return _says(asked, {"contents": [{"uri": "me:name", "text": self.names[session]}]})
            case "tools/call" if asked.params["name"] == "gone":
                return error(asked, -32602, "Unknown tool")
            case "tools/call":
                self.names[session] = asked.params["arguments"].get("user", self.names[session])
                return _says(asked, text(self.names[session]))
        return http(202)


def _says(asked: Asked, value: Any, **headers: Any) -> bytes:
    return says({"jsonrpc": "2.0", "id": asked.message["id"], "result": value}, **headers)


@asynccontextmanager
async def gateway(folder: Path, entry: dict[str, Any], **settings: Any) -> AsyncIterator[Client]:
    """A gateway whose callers have tokens, and which lists the server's tools."""
    async with service(answer(jwks("ec"))) as keys:
        auth = {"issuer": ISSUER, "jwks_url": f"{keys.url}/jwks", "audience": "all"}
        backends = [{"kind": "mcp", "name": "up", **entry}]
        views = [{"name": "view", "include": [{"backend": "up"}], "bare_names": True}]
        file = config_of({"backends": backends, "views": views, "auth": auth})
        using = task_settings(folder, public_url=PUBLIC_URL, **settings)
        app = await asyncio.to_thread(build_app, file, using)
        async with stoppable(app), client(app) as mcp:

            async def is_listed() -> bool:
                return "up__whoami" in await listed(mcp, ANN)

            await until(True, is_listed)
            yield mcp


@asynccontextmanager
async def served(kind: str, folder: Path) -> AsyncIterator[Client]:
    """A gateway in front of a server that remembers who has logged in."""
    if kind != "command":
        on_lambda = kind == "lambda"
        async with (
            scripted(Accounts()) as at,
            gateway(folder, {"url": at.url}, on_lambda=on_lambda) as mcp,
        ):
            yield mcp
    else:
        command = [sys.executable, str(PROGRAM), "remembers"]
        async with gateway(folder, {"command": command, "questions": True}) as mcp:
            yield mcp


async def ask(mcp: Client, caller: str, method: str, params: Any, capabilities: Any) -> Any:
    headers = bearer(token(sub=caller, aud="all"))
    asked = await mcp.post(method, params, headers=headers, clientCapabilities=capabilities)
    return asked.json()


async def call(mcp: Client, caller: str, name: str, capabilities: Any, **arguments: Any) -> str:
    """The text of a call's result, or the error."""
    params = {"name": f"up__{name}", "arguments": arguments}
    body = await ask(mcp, caller, "tools/call", params, capabilities)
    said: str = (
        body["error"]["message"] if "error" in body else body["result"]["content"][0]["text"]
    )
    return said


async def listed(mcp: Client, caller: str) -> list[str]:
    body = await ask(mcp, caller, "tools/list", {}, {})
    return [one["name"] for one in body["result"]["tools"]]


@pytest.mark.parametrize("kind", ["url", "command"])
async def test_a_caller_has_the_session_of_no_other_caller(kind: str, tmp_path: Path) -> None:
    async with served(kind, tmp_path) as mcp:
        for number, (own, others) in enumerate(product(CAPABILITIES, repeat=2)):
            ann, bob = f"ann{number}", f"bob{number}"
            assert await call(mcp, ann, "login", own, user=ann) == ann
            assert await call(mcp, ann, "whoami", own) == ann
            assert await call(mcp, bob, "whoami", others) == "nobody"
            assert await call(mcp, bob, "login", others, user=bob) == bob
            assert await call(mcp, ann, "whoami", own) == ann
            assert await call(mcp, bob, "whoami", others) == bob


async def test_prompts_and_resources_are_of_the_callers_own_session(tmp_path: Path) -> None:
    async with served("url", tmp_path) as mcp:
        for ann, bob, own in PAIRS:
            await call(mcp, ann, "login", own, user=ann)
            for caller, name in ((bob, "nobody"), (ann, ann)):
                got = await ask(mcp, caller, "prompts/get", {"name": "up__whoami"}, own)
                assert got["result"]["messages"][0]["content"]["text"] == name
                got = await ask(mcp, caller, "resources/read", {"uri": "me:name"}, own)
                assert got["result"]["contents"][0]["text"] == name


async def test_a_function_of_aws_lambda_shares_no_session_between_callers(tmp_path: Path) -> None:
    async with served("lambda", tmp_path) as mcp:
        for ann, bob, own in PAIRS:
            assert await call(mcp, ann, "login", own, user=ann) == ann
            for caller in (bob, ann):
                assert await call(mcp, caller, "whoami", own) == "nobody"


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("kind", ["url", "command"])
async def test_a_caller_changes_the_lists_of_no_caller(kind: str, tmp_path: Path) -> None:
    async with served(kind, tmp_path) as mcp:
        view = Client(mcp.http, "/view/mcp")
        for ann, bob, own in PAIRS:
            assert await call(mcp, ann, "login", own, user=ann) == ann
            before = await listed(mcp, ann)
            await call(mcp, ann, "gone", own)  # the gateway reads the lists again
            async with asyncio.timeout(60):
                while await listed(mcp, ann) == before:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.02)
            for caller in (ann, bob):
                assert "up__mailbox" not in await listed(mcp, caller)
                assert "Unknown tool" in await call(mcp, caller, "mailbox", own)
                assert "whoami" in await listed(view, caller)
                assert "mailbox" not in await listed(view, caller)


@pytest.mark.parametrize("kind", ["url", "command"])
async def test_calls_of_callers_at_once_never_meet(kind: str, tmp_path: Path) -> None:
    async with served(kind, tmp_path) as mcp:

        async def calls(caller: str, capabilities: Any) -> set[str]:
            names = {await call(mcp, caller, "login", capabilities, user=caller)}
            return names | {await call(mcp, caller, "whoami", capabilities) for _ in range(5)}

        callers = [(caller, each) for caller in (ANN, BOB, "cy") for each in CAPABILITIES]
        seen = await asyncio.gather(*(calls(*one) for one in callers))
        for (caller, _), names in zip(callers, seen, strict=True):
            assert caller in names
            assert names <= {caller, "nobody"}
