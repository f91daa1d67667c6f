"""Headers that tell services and servers who calls: of each caller its own, of nobody else, in a form
that no value can break out of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from roundgate import config
from roundgate.cli import main
from roundgate.errors import ConfigError
from roundgate.main import build_app
from tests.support.asgi import Client, client, stoppable
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, jwks, token
from tests.support.log_lines import log_lines
from tests.support.older_servers import CAPABLE, Asking
from tests.support.openapi import document, operation
from tests.support.rounds import accept
from tests.support.scripted import Asked, Scripted, result, scripted, text
from tests.support.services import Service, answer, service
from tests.support.task_client import DECLARED, TaskClient, task_settings
from tests.support.upstreams import Upstream, until

HEADERS = {
    "X-User": "${caller.subject}",
    "X-Issuer": "${caller.issuer}",
    "X-Client": "${caller.client}",
    "X-Call": "${caller.call}",
    "X-Email": "${caller.claims.email}",
    "X-Groups": "${caller.claims./realm_access/groups}",
    "X-Fixed": "always",
}
NAMES = ("user", "client", "email", "groups")
TOOL = {"name": "run", "path": "/run", "method": "POST", "description": "Run."}


@asynccontextmanager
async def gateway(
    folder: Path, *backends: dict[str, Any], auth: Any = None, **sections: Any
) -> AsyncIterator[Client]:
    """A gateway whose callers have tokens, with references in its file."""
    async with service(answer(jwks("ec"))) as keys:
        own = {"issuer": ISSUER, "jwks_url": f"{keys.url}/jwks", "audience": "all"}
        entries = [{"prefix": "", "headers": HEADERS, **backend} for backend in backends]
        path = folder / "gateway.json"
        value = {"backends": entries, "auth": auth or own, **sections}
        path.write_text(json.dumps(value))
        using = task_settings(folder, public_url=PUBLIC_URL)
        app = await asyncio.to_thread(build_app, config.load(path, {}), using)
        async with stoppable(app), client(app) as mcp:
            yield mcp


def of(subject: str, **claims: Any) -> dict[str, str | None]:
    return bearer(token(sub=subject, aud="all", **claims))


async def call(mcp: Client, headers: Any, name: str = "run", **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    body = (await mcp.post("tools/call", params, headers=headers)).json()
    assert "result" in body, body
    found: dict[str, Any] = body["result"]
    return found


def sent(told: Service, request: int = -1) -> dict[str, str]:
    """The values of the headers about the caller."""
    values = {name: told.header(f"x-{name}", request) for name in NAMES}
    assert all(len(found) < 2 for found in values.values())
    return {name: found[0] for name, found in values.items() if found}


async def test_a_service_learns_who_calls(tmp_path: Path) -> None:
    async with service() as told:
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [TOOL]}
        with log_lines() as lines:
            async with gateway(tmp_path, backend) as mcp:
                more = {"email": "ann@example.com", "realm_access": {"groups": ["b", "a"]}}
                await call(mcp, of("auth0|ann", **more))
        assert sent(told) == {
            "user": "auth0|ann",
            "client": "cli",
            "email": "ann@example.com",
            "groups": "a,b",
        }
        assert told.header("x-issuer") == [ISSUER]
        (line,) = [line for line in lines.of("request") if line.get("method") == "tools/call"]
        assert told.header("x-call") == [line["call"]]
        assert told.header("x-fixed") == ["always"]
        assert told.header("authorization") == []
        assert "ann@example.com" not in "".join(lines.text)


VALUES = (
    "a\r\nX-Admin: yes", "a\nb", "Ærø 🚀", "a,b", "%0d%0a", "a b", 'a"; role="admin', "+", "\x00",
)  # fmt: skip


async def test_no_value_forges_a_header(tmp_path: Path) -> None:
    async with service() as told:
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [TOOL]}
        async with gateway(tmp_path, backend) as mcp:
            for value in VALUES:
                await call(mcp, of(value, email=value, realm_access={"groups": [value, "other"]}))
                assert told.header("x-admin") == []
                (user,), (email,), (groups,) = (
                    told.header(f"x-{name}") for name in NAMES if name != "client"
                )
                assert unquote(user) == unquote(email) == value
                assert user.isascii()
                assert not set(user) & set('\r\n ,;"+')
                assert {unquote(part) for part in groups.split(",")} == {value, "other"}


async def test_an_unknown_or_empty_value_has_no_header(tmp_path: Path) -> None:
    async with service() as told:
        tool = {**TOOL, "headers": {"x-email": "of the tool"}}
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [tool]}
        async with gateway(tmp_path, backend) as mcp:
            claims: list[Any] = [None, "", [], {"a": 1}, "\ud800"]
            for claim in claims:
                await call(mcp, of("ann", client_id=None, email=claim))
                assert sent(told) == {"user": "ann"}, claim


async def test_without_authentication_a_caller_has_no_name(tmp_path: Path) -> None:
    async with service() as told:
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [TOOL]}
        async with gateway(tmp_path, backend, auth="none") as mcp:
            await call(mcp, {})
        assert sent(told) == {}
        assert told.header("x-issuer") == []
        assert len(told.header("x-call")) == 1


async def test_a_value_that_is_too_long_is_an_error_and_no_request(tmp_path: Path) -> None:
    async with service() as told:
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [TOOL]}
        async with gateway(tmp_path, backend) as mcp:
            failed = await call(mcp, of("ann", email="é" * 1_400))
        words = (
            "The header X-Email cannot be sent: caller.claims.email has more than 8,000 characters"
        )
        assert failed["content"][0]["text"] == words
        assert told.requests == []


async def test_operations_of_a_document_send_them_and_cannot_replace_them(tmp_path: Path) -> None:
    parameters = [
        {"name": name, "in": "header", "schema": {"type": "string"}}
        for name in ("x-user", "X_User", "X.User", "Transfer_Encoding", "X-Free")
    ]
    described = document(operation("get", "/x", parameters=parameters))
    (tmp_path / "api.json").write_text(json.dumps(described))
    async with service() as told:
        backend = {"kind": "openapi", "name": "api", "document": "api.json", "base_url": told.url}
        async with gateway(tmp_path, backend) as mcp:
            listed = (await mcp.result("tools/list", headers=of("ann")))["tools"]
            assert list(listed[0]["inputSchema"]["properties"]) == ["X-Free"]
            await call(mcp, of("ann"), "op")
            await call(mcp, of("bob"), "op")
        assert [sent(told, number)["user"] for number in range(2)] == ["ann", "bob"]


async def test_no_argument_has_a_header_that_a_service_may_take_for_one_of_them(
    tmp_path: Path,
) -> None:
    argument = {"who": {"in": "header", "as": "x_user"}}
    tool = {**TOOL, "arguments": argument}
    backend = {"kind": "http", "name": "api", "base_url": "http://127.0.0.1:9", "tools": [tool]}
    with pytest.raises(ConfigError, match="the header 'x_user' is reserved for the gateway"):
        async with gateway(tmp_path, backend):
            pass


async def test_retries_and_redirects_of_concurrent_callers_keep_their_own(tmp_path: Path) -> None:
    moved = answer(b"", "307 Temporary Redirect", Location="/moved")
    away = answer(b"", "503 Service Unavailable")
    async with service(*[moved, away] * 20, answer()) as told:
        tool = {**TOOL, "method": "GET", "arguments": {"who": {"in": "query"}}}
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [tool]}
        retry_ = {"attempts": 10, "pause_s": 0.01}
        async with gateway(tmp_path, {**backend, "retry": retry_}) as mcp:
            callers = [f"caller{number}" for number in range(8)]
            await asyncio.gather(*(call(mcp, of(who), who=who) for who in callers))
        for number, line in enumerate(told.request_lines):
            who = line.partition("who=")[2].partition(" ")[0]
            assert who in ("", sent(told, number)["user"])


async def test_another_host_gets_nothing(tmp_path: Path) -> None:
    async with service() as other:
        moved = answer(b"", "307 Temporary Redirect", Location=f"{other.url}/run")
        async with service(moved) as told:
            backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [TOOL]}
            async with gateway(tmp_path, backend) as mcp:
                assert (await call(mcp, of("ann")))["isError"]
        assert other.requests == []


@pytest.mark.parametrize("path", ["/mcp", "/small/mcp"])
async def test_a_task_keeps_the_named_claims_for_all_requests_of_its_job(
    tmp_path: Path, path: str
) -> None:
    job = {
        "poll": "/jobs/{id}",
        "variables": {"id": "/id"},
        "status": "/status",
        "succeeded": ["done"],
        "failed": ["broken"],
        "every_s": 0.1,
    }
    done = [answer(b'{"id":"j"}'), answer(b'{"status":"on"}'), answer(b'{"status":"done"}')]
    async with service(*done) as told:
        tool = {**TOOL, "task": "required", "job": job}
        backend = {"kind": "http", "name": "api", "base_url": told.url, "tools": [tool]}
        views = [{"name": "small", "include": [{"backend": "api"}]}]
        async with gateway(tmp_path, backend, views=views) as mcp:
            mcp.path = path
            headers = of("ann", email="a@x", realm_access={"groups": ["g"]}, secret="s3cret")
            ann = TaskClient(mcp, DECLARED, headers)
            task = await ann.over(await ann.begin("run"))
            assert task["status"] == "completed"
        expected = {"user": "ann", "client": "cli", "email": "a@x", "groups": "g"}
        assert [sent(told, number) for number in range(3)] == [expected] * 3
        assert len({told.header("x-call", number)[0] for number in range(3)}) == 1
    written = stored(tmp_path)
    assert b"a@x" in written
    assert b"s3cret" not in written


def stored(folder: Path) -> bytes:
    """Everything in the store."""
    return b"".join(file.read_bytes() for file in folder.glob("**/*sqlite*"))


def callers(asked: list[Asked]) -> list[tuple[str, str]]:
    """The method and the caller of each request."""
    return [(one.rpc, one.headers.get("x-user", "nobody")) for one in asked]


def lists(server: Scripted) -> set[str]:
    """The callers of all requests that belong to no caller."""
    shared = {
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/list",
        "GET",
        "DELETE",
    }
    return {who for rpc, who in callers(server.asked) if rpc in shared}


@dataclass
class Echo:
    """A tool that says who called, as the request did."""

    pause_s: float = 0.0

    def __call__(self, asked: Asked) -> Any:
        return result(asked, text(f"{asked.headers.get('x-user')} {asked.headers.get('x-email')}"))


@pytest.mark.parametrize("session", [None, "s1"], ids=["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("questions", [True, False])
async def test_each_caller_of_a_server_has_its_own(
    tmp_path: Path, session: str | None, questions: bool
) -> None:
    async with scripted(Upstream(Echo(), session=session)) as server:
        backend = {"kind": "mcp", "name": "up", "url": server.url, "questions": questions}
        async with gateway(tmp_path, backend) as mcp:

            async def said(who: str) -> str:
                headers = of(who, email=f"{who}@x")
                return str((await call(mcp, headers, "t"))["content"][0]["text"])

            async def is_listed() -> bool:
                return bool((await mcp.result("tools/list", headers=of("ann")))["tools"])

            await until(True, is_listed)
            who = [f"caller{number}" for number in range(8)]
            assert await asyncio.gather(*map(said, who)) == [f"{one} {one}@x" for one in who]
        assert lists(server) == {"nobody"}


async def test_answers_to_an_older_server_carry_them_too(tmp_path: Path) -> None:
    asking = Asking()
    async with scripted(Upstream(lambda asked: asking(asked), session="s1")) as server:
        asking.server = server
        backend = {"kind": "mcp", "name": "up", "url": server.url}
        async with gateway(tmp_path, backend) as mcp:

            async def is_listed() -> bool:
                return bool((await mcp.result("tools/list", headers=of("ann")))["tools"])

            await until(True, is_listed)
            params = {"name": "t", "arguments": {}}
            more = {"headers": of("ann"), "clientCapabilities": CAPABLE}
            first = (await mcp.post("tools/call", params, **more)).json()["result"]
            answers = {key: accept(name="Ada") for key in first["inputRequests"]}
            state = {"requestState": first["requestState"], "inputResponses": answers}
            done = (await mcp.post("tools/call", {**params, **state}, **more)).json()["result"]
            assert done["content"][0]["text"] == "done"
        own = {who for rpc, who in callers(server.asked) if rpc in ("tools/call", "(answer)")}
        assert own == {"ann"}
        assert lists(server) == {"nobody"}


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"X": "${caller.name}"}, "${caller.name} is not known"),
        ({"X": "${caller.claims.}"}, "${caller.claims.} is not known"),
        ({"X": "user ${caller.subject}"}, "${caller.subject} must be the whole value"),
        ({"X": "${caller.subject}${caller.client}"}, "${caller.subject} must be the whole value"),
        ({"X": "${caller.subject:-nobody}"}, "${caller.subject} must be the whole value"),
        ({"Authorization": "${caller.subject}"}, "headers.Authorization is set by the gateway"),
        ({"Mcp-Session-Id": "${caller.subject}"}, "headers.Mcp-Session-Id is set by the gateway"),
        ({"Idem": "${caller.subject}"}, "headers.Idem is set by the gateway"),
        (
            {"X-User": "${caller.subject}", "x-user": "fixed"},
            "headers.X-User and headers.x-user are one header",
        ),
        (
            {"X-User": "${caller.subject}", "x-user": "${caller.client}"},
            "headers.X-User and headers.x-user are one header",
        ),
        ({"A": "one", "a": "two"}, "headers.A and headers.a are one header"),
    ],
)
def test_check_refuses_other_references(
    tmp_path: Path, headers: dict[str, str], problem: str
) -> None:
    entry = {"kind": "http", "name": "api", "base_url": "http://x", "idempotency_key": "idem"}
    refused = refusal(tmp_path, {"backends": [{**entry, "tools": [TOOL], "headers": headers}]})
    assert problem in refused


def refusal(folder: Path, value: dict[str, Any]) -> str:
    (folder / "gateway.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError) as caught:
        config.load(folder / "gateway.json", {})
    return str(caught.value)


def with_tool(**members: Any) -> dict[str, Any]:
    tool = {**TOOL, **members}
    return {"kind": "http", "name": "api", "base_url": "http://x", "tools": [tool]}


@pytest.mark.parametrize(
    "value",
    [
        {"backends": [with_tool(fixed={"who": "${caller.subject}"})]},
        {"backends": [with_tool(headers={"X-User": "${caller.subject}"})]},
        {"backends": [with_tool(query={"who": "${caller.subject}"})]},
        {"backends": [{**with_tool(), "credential": {"bearer": "${caller.subject}"}}]},
        {"backends": [{**with_tool(), "base_url": "${caller.claims.tenant}"}]},
        {"backends": [with_tool()], "server": {"name": "${caller.subject}"}},
        {"backends": [with_tool()], "env": {"WHO": "${caller.subject}"}},
        {
            "backends": [
                {"kind": "mcp", "name": "m", "command": ["x"], "env": {"U": "${caller.subject}"}}
            ]
        },
    ],
    ids=["fixed", "tool", "query", "credential", "url", "section", "env", "process"],
)
def test_check_refuses_a_caller_where_no_request_has_one(
    tmp_path: Path, value: dict[str, Any]
) -> None:
    assert "may not be a reference to the caller" in refusal(tmp_path, value)


def test_a_process_has_no_headers(tmp_path: Path) -> None:
    entry = {"kind": "mcp", "name": "up", "command": ["x"], "headers": HEADERS}
    assert "headers: only for a server with a url" in refusal(tmp_path, {"backends": [entry]})


def test_check_remarks_that_no_caller_has_a_name_without_authentication(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = {"backends": [{**with_tool(), "headers": {"X-User": "${caller.subject}"}}]}
    (tmp_path / "gateway.json").write_text(json.dumps(value))
    assert main(["check", "--file-only", "gateway.json"]) == 0
    assert "callers have no names without `auth`" in capsys.readouterr().out
