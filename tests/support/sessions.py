"""A client of a revision with sessions: it opens one, posts messages, and reads
streams event by event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx
from fastapi import FastAPI

from tests.support.asgi import Exchange, client
from tests.support.wire import events

BOTH = "application/json, text/event-stream"
NEWEST = "2025-11-25"
CAPABILITIES: dict[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}}


def request(
    method: str, params: dict[str, Any] | None = None, request_id: Any = 1
) -> dict[str, Any]:
    """A request as a JSON value."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


def calling(name: str, request_id: Any = 1, **arguments: Any) -> dict[str, Any]:
    """A call of a tool."""
    return request("tools/call", {"name": name, "arguments": arguments}, request_id)


def telling(name: str, request_id: Any = 1, **arguments: Any) -> dict[str, Any]:
    """A call whose client is told of its progress."""
    asked = calling(name, request_id, **arguments)
    asked["params"]["_meta"] = {"progressToken": "p"}
    return asked


def cancelling(request_id: Any) -> dict[str, Any]:
    """The notification that cancels a request."""
    params = {"requestId": request_id}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


def text(response: dict[str, Any]) -> str:
    """The text of the first block of a tool's result."""
    said: str = response["result"]["content"][0]["text"]
    return said


def opening(requested: str = NEWEST, capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
    """`initialize`."""
    declared = CAPABILITIES if capabilities is None else capabilities
    client = {"name": "tests", "version": "1"}
    return request(
        "initialize",
        {"protocolVersion": requested, "capabilities": declared, "clientInfo": client},
        0,
    )


@dataclass
class Event:
    """One event of a stream: its id, if it has one, and its message, if it has one."""

    id: str | None
    message: dict[str, Any] | None

    @property
    def asked(self) -> dict[str, Any]:
        """The message, which is a question."""
        assert self.message is not None
        assert "method" in self.message
        assert "id" in self.message, self.message
        return self.message


class Stream(Exchange):
    """One request to one gateway, whose answer is read as it comes."""

    def whole(self) -> Self:
        """With its body ended."""
        self.feed(b"", more=False)
        return self

    async def next(self) -> Event:
        """The next event; comments are left out."""
        while True:
            while b"\r\n\r\n" not in self._buffer:
                self._buffer += await self._next_body()
            block, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            lines = [line.partition(": ") for line in block.decode().split("\r\n")]
            fields = {name: value for name, _, value in lines if name}
            if fields:
                data = fields.get("data")
                return Event(fields.get("id"), json.loads(data) if data else None)

    async def message(self) -> dict[str, Any]:
        """The next event that has a message."""
        while (event := await self.next()).message is None:
            pass
        return event.message

    async def asked(self) -> Event:
        """The next event, which has a question."""
        while (event := await self.next()).message is None or "id" not in event.message:
            pass
        return event

    async def over(self) -> list[dict[str, Any]]:
        """The messages that are left once the answer has ended."""
        await asyncio.wait_for(asyncio.shield(self.running), 60)
        body = (await self.body()).decode()
        data = [
            line.removeprefix("data: ") for line in body.split("\r\n") if line.startswith("data: ")
        ]
        return [json.loads(one) for one in data if one]


class Session:
    """A session of a caller, whichever gateway its requests reach."""

    def __init__(self, session_id: str, version: str) -> None:
        self.id = session_id
        self.version = version

    def headers(self, **more: str) -> dict[str, str]:
        """Of a request of the session."""
        named = {"content-type": "application/json", "accept": BOTH, "mcp-session-id": self.id}
        return {**named, "mcp-protocol-version": self.version, **more}

    def stream(self, app: FastAPI, asked: dict[str, Any], **headers: str) -> Stream:
        """POST a message to a gateway and read the answer as it comes."""
        return Stream(app, json.dumps(asked).encode(), self.headers(**headers)).whole()

    def resumed(self, app: FastAPI, last_event_id: str | None = None) -> Stream:
        """GET the rest of a stream, or the stream of changes, from a gateway."""
        more = {} if last_event_id is None else {"last-event-id": last_event_id}
        return Stream(app, b"", self.headers(**more), method="GET").whole()

    async def send(self, app: FastAPI, message: Any, **headers: str) -> httpx.Response:
        """POST anything to a gateway and wait for the whole answer."""
        async with _http(app) as http:
            return await http.post(
                "/mcp", content=json.dumps(message), headers=self.headers(**headers)
            )

    async def answer(self, app: FastAPI, question: Event, result: dict[str, Any]) -> httpx.Response:
        """Answer a question, at any gateway."""
        return await self.send(
            app, {"jsonrpc": "2.0", "id": question.asked["id"], "result": result}
        )

    async def result(
        self, app: FastAPI, method: str, params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The result of a request that is answered with one JSON object."""
        response = await self.send(app, request(method, params))
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        assert "result" in response.json(), response.text
        result: dict[str, Any] = response.json()["result"]
        return result

    async def error(
        self, app: FastAPI, method: str, params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The error of a request that fails under its id."""
        response = await self.send(app, request(method, params))
        assert (response.status_code, response.json()["id"]) == (200, 1)
        error: dict[str, Any] = response.json()["error"]
        return error

    async def end(self, app: FastAPI) -> httpx.Response:
        """DELETE it."""
        async with _http(app) as http:
            return await http.delete("/mcp", headers=self.headers())


async def opened(
    app: FastAPI, requested: str = NEWEST, capabilities: dict[str, Any] | None = None
) -> Session:
    """A session that a gateway has opened."""
    async with _http(app) as http:
        headers = {"content-type": "application/json", "accept": BOTH}
        response = await http.post("/mcp", json=opening(requested, capabilities), headers=headers)
    assert response.status_code == 200, response.text
    return Session(response.headers["mcp-session-id"], response.json()["result"]["protocolVersion"])


@asynccontextmanager
async def _http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=30
    ) as http:
        yield http


async def called(
    app: FastAPI, version: str, name: str, /, *, can: Any = None, **arguments: Any
) -> dict[str, Any]:
    """The result of a call by a client of any revision, which can do nothing unless it is told."""
    if version == "2026-07-28":
        async with client(app) as mcp:
            return await mcp.call(name, arguments, clientCapabilities=can or {})
    session = await opened(app, version, can or {})
    response = await session.send(app, calling(name, **arguments))
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    result: dict[str, Any] = (events(response.text)[-1] if is_stream else response.json())["result"]
    return result


async def tools_of(app: FastAPI, version: str) -> dict[str, Any]:
    """The tools that a client of any revision sees that can do nothing, by name."""
    if version == "2026-07-28":
        async with client(app) as mcp:
            result = await mcp.result("tools/list")
    else:
        result = await (await opened(app, version, {})).result(app, "tools/list")
    return {one["name"]: one for one in result["tools"]}
