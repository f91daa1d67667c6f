"""Clients of the revisions with sessions, and gateways that die while a question is open."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.fleet.conftest import SERVED
from tests.support.rounds import KEYS, accept
from tests.support.server import Server, running
from tests.support.sessions import Event, Session, calling, opening

CALLS = 8
PATIENCE_S = 60


class Stream:
    """The events of one open HTTP answer."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def message(self) -> Event:
        """The next event that has a message.

        Raises:
            httpx.TransportError: the server is gone.
        """
        fields: dict[str, str] = {}
        async for line in self._lines:
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif fields.get("data"):
                return Event(fields.get("id"), json.loads(fields["data"]))
            else:
                fields = {}
        raise httpx.RemoteProtocolError("the stream has ended")


class Caller:
    """One session, whose requests go to any gateway."""

    def __init__(self, http: httpx.AsyncClient, session: Session) -> None:
        self._http = http
        self._session = session

    @classmethod
    async def opened(cls, http: httpx.AsyncClient, at: Server) -> Caller:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        response = await http.post(f"{at.url}/mcp", json=opening(), headers=headers)
        return cls(
            http,
            Session(
                response.headers["mcp-session-id"], response.json()["result"]["protocolVersion"]
            ),
        )

    @asynccontextmanager
    async def call(self, at: Server, message: dict[str, Any]) -> AsyncIterator[Stream]:
        headers = self._session.headers()
        async with self._http.stream(
            "POST", f"{at.url}/mcp", json=message, headers=headers
        ) as response:
            yield Stream(response)

    @asynccontextmanager
    async def resume(self, at: Server, event_id: str | None) -> AsyncIterator[Stream]:
        assert event_id is not None
        headers = self._session.headers(**{"last-event-id": event_id})
        async with self._http.stream("GET", f"{at.url}/mcp", headers=headers) as response:
            yield Stream(response)

    async def answer(self, at: Server, question: Event, name: str) -> None:
        message = {"jsonrpc": "2.0", "id": question.asked["id"], "result": accept(name=name)}
        response = await self._http.post(
            f"{at.url}/mcp", json=message, headers=self._session.headers()
        )
        assert response.status_code == 202, response.text


async def travel(
    caller: Caller, one: Server, two: Server, three: Server, log: Path, asked: asyncio.Event
) -> str:
    """A call that is asked at one gateway, which dies, answered at a second, and gone on with at a third."""
    async with caller.call(one, calling("journey", log=str(log))) as stream:
        who = await stream.message()
        asked.set()
        try:
            await stream.message()
            raise AssertionError("nobody has answered yet")
        except httpx.TransportError:
            pass
    await caller.answer(two, who, "Ann")
    async with caller.resume(three, who.id) as stream:
        where = await stream.message()
        await caller.answer(two, where, "Rome")
        message = (await stream.message()).message
    assert message is not None
    text: str = message["result"]["content"][0]["text"]
    return text


async def test_a_call_whose_gateway_dies_on_the_answer_continues_at_another(
    tmp_path: Path,
) -> None:
    log = tmp_path / "trip.log"
    with ExitStack() as stack:
        one, two = served(stack, tmp_path, 2)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http, asyncio.timeout(PATIENCE_S):
            caller = await Caller.opened(http, two)
            async with caller.call(one, calling("journey", log=str(log), slow=600)) as stream:
                who = await stream.message()
                await caller.answer(one, who, "Ann")
                while "left" not in log.read_text():  # noqa: ASYNC110 — of another process
                    await asyncio.sleep(0.01)
                one.process.send_signal(signal.SIGKILL)
            async with caller.resume(two, who.id) as stream:
                where = await stream.message()
                await caller.answer(two, where, "Rome")
                message = (await stream.message()).message
    assert message is not None
    assert message["result"]["content"][0]["text"] == "Ann in Rome"
    # a step in which a process dies is begun again, and what was finished before is not
    assert log.read_text().split() == ["packed", "left", "Ann", "left", "Ann"]


def served(stack: ExitStack, directory: Path, count: int) -> list[Server]:
    """Gateways on one store."""
    shared = {"GATEWAY_STORE": f"sqlite:///{directory}/shared.sqlite3", "GATEWAY_STATE_KEYS": KEYS}
    shared["GATEWAY_WORKER"] = "off"
    places = [shutil.copytree(SERVED, directory / str(number)) for number in range(count)]
    return [stack.enter_context(running(place / "gateway.yaml", shared)) for place in places]


async def test_calls_whose_gateway_is_killed_while_a_question_is_open_go_on_at_another(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        one, two, three = servers = served(stack, tmp_path, 3)
        logs = [tmp_path / f"{number}.log" for number in range(CALLS)]
        asked = [asyncio.Event() for _ in logs]
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http, asyncio.timeout(PATIENCE_S):
            callers = [await Caller.opened(http, servers[number % 3]) for number in range(CALLS)]
            trips = [
                asyncio.create_task(travel(caller, one, two, three, log, event))
                for caller, log, event in zip(callers, logs, asked, strict=True)
            ]
            await asyncio.gather(*(event.wait() for event in asked))
            one.process.send_signal(signal.SIGKILL)
            assert await asyncio.gather(*trips) == ["Ann in Rome"] * CALLS
    assert [log.read_text().split("\n") for log in logs] == [["packed", "left Ann", ""]] * CALLS
