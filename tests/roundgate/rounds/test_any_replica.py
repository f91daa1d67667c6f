"""Every round of a call in another process: same result, and each step ran once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import httpx2
import mcp_types as types
import pytest
from mcp import Client as OfficialClient
from mcp.client.streamable_http import streamable_http_client

from tests.roundgate.rounds.conftest import Effects, Start
from tests.support.asgi import Client
from tests.support.rounds import Conversation, accept, names_in, sampled, tool
from tests.support.server import Server

ANSWERS = {
    "who": accept(name="Ada"),
    "blurb": sampled("bright"),
    "folders": {"roots": [{"uri": "file:///trips"}]},
}
STEPS = ["offer Oslo", "hold for Ada", "print bright", "save in file:///trips"]
RESULT = "[offer Oslo] [hold for Ada] [print bright] [save in file:///trips]"
ASKED = [["who"], ["blurb"], ["folders"]]


@pytest.fixture(scope="module")
def fleet(start: Start) -> Sequence[Server]:
    """Four gateways that share nothing but GATEWAY_STATE_KEYS."""
    return start(4)


@asynccontextmanager
async def clients(servers: Iterable[Server]) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        opened = [httpx.AsyncClient(base_url=server.url, timeout=60) for server in servers]
        yield [Client(await stack.enter_async_context(http)) for http in opened]


async def test_each_round_in_another_process_which_keeps_nothing(
    fleet: Sequence[Server], effects: Effects
) -> None:
    before = [names_in(server.log.parent) for server in fleet]
    call = Conversation(ANSWERS)
    async with clients(fleet) as four:
        result = await call.have(four, *tool("book", city="Oslo"))
    assert (result["content"][0]["text"], call.asked, effects()) == (RESULT, ASKED, STEPS)
    assert effects.processes() == [server.process.pid for server in fleet]
    assert [names_in(server.log.parent) for server in fleet] == before
    names = {name for each in before for name in each}
    assert not [name for name in names if "sqlite" in name or name.endswith(".key")]


class Tour(httpx2.AsyncBaseTransport):
    """Sends each tools/call to the next of several gateways; `before(n)` is called before the nth."""

    def __init__(
        self, servers: Sequence[Server], before: Callable[[int], None] = lambda number: None
    ) -> None:
        self._ports = [server.port for server in servers]
        self._before = before
        self._inner = httpx2.AsyncHTTPTransport()
        self.calls = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("mcp-method") == "tools/call":
            self._before(self.calls)
            self.calls += 1
        request.url = request.url.copy_with(port=self._ports[max(0, self.calls - 1)])
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def officially_booked(tour: Tour) -> str:
    """What the official client gets for `book`, answering with callbacks."""

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        assert "for whom" in params.message
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        said = types.TextContent(type="text", text="bright")
        return types.CreateMessageResult(role="assistant", content=said, model="parrot")

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///trips")])

    async with (
        httpx2.AsyncClient(transport=tour) as http,
        OfficialClient(
            streamable_http_client("http://127.0.0.1/mcp", http_client=http),
            elicitation_callback=elicit,
            sampling_callback=sample,
            list_roots_callback=roots,
        ) as official,
    ):
        result = await official.call_tool("book", {"city": "Oslo"})
    text: str = result.content[0].text  # type: ignore[union-attr]
    return text


async def test_the_official_client_does_not_notice_that_each_round_is_another_process(
    fleet: Sequence[Server], effects: Effects
) -> None:
    tour = Tour(fleet)
    assert await officially_booked(tour) == RESULT
    assert (tour.calls, effects()) == (4, STEPS)
    assert effects.processes() == [server.process.pid for server in fleet]


async def test_the_official_client_does_not_notice_that_a_process_is_killed(
    fleet: Sequence[Server], start: Start, effects: Effects
) -> None:
    (victim,) = start()

    def kill(number: int) -> None:
        if number == 1:
            victim.process.kill()
            victim.process.wait()

    assert await officially_booked(Tour([victim, *fleet], kill)) == RESULT
    assert (effects(), victim.process.returncode) == (STEPS, -9)
