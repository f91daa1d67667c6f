"""The handlers of docs/rounds.md do what the page says, round by round."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import config
from roundgate.main import build_app
from roundgate.settings.process import Settings
from tests.support.asgi import Client, client
from tests.support.rounds import KEYS, Conversation, accept, sampled, tool

PAGE = Path(__file__).parents[3] / "docs" / "rounds.md"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    tmp_path = tmp_path_factory.mktemp("guide")
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    served = []
    for number, snippet in enumerate(snippets):
        (tmp_path / f"guide{number}.py").write_text(snippet)
        served.append(f"{{kind: python, name: guide{number}, prefix: '', path: guide{number}.py}}")
    (tmp_path / "gateway.yaml").write_text(f"backends: [{', '.join(served)}]")
    using = Settings(state_keys=KEYS, store=f"sqlite:///{tmp_path / 'store.sqlite3'}")
    return build_app(config.load(tmp_path / "gateway.yaml"), using)


@pytest.fixture
async def mcp(app: FastAPI) -> AsyncIterator[Client]:
    async with client(app) as mcp:
        yield mcp


async def text_of(
    mcp: Client, called: str, arguments: dict[str, Any], /, **answers: Any
) -> tuple[str, list[list[str]]]:
    """What the tool says in the end, and the keys it asked under in each round."""
    conversation = Conversation(answers)
    result = await conversation.have(itertools.repeat(mcp), *tool(called, **arguments))
    return result["content"][0]["text"], conversation.asked


async def test_deploy_asks_once_and_applies(mcp: Client) -> None:
    text, asked = await text_of(mcp, "deploy", {"env": "production"}, confirm=accept(go=True))
    assert (text, asked) == ("applied 2 services, 1 database to production", [["confirm"]])


async def test_deploy_does_nothing_without_consent(mcp: Client) -> None:
    text, _ = await text_of(mcp, "deploy", {"env": "production"}, confirm=accept(go=False))
    assert text == "nothing done"


async def test_order_asks_both_things_in_one_round(mcp: Client) -> None:
    text, asked = await text_of(mcp, "order", {}, size=accept(size="M"), motto=sampled("be kind"))
    assert (text, asked) == ("M: be kind", [["size", "motto"]])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (accept(city="Ulm"), "14.00, delivered to Ulm"),
        ({"action": "decline"}, "12.50, to be picked up"),
        ({"action": "cancel"}, "12.50, to be picked up"),
    ],
    ids=["accepted", "declined", "cancelled"],
)
async def test_quote_goes_on_whatever_the_answer(
    mcp: Client, answer: dict[str, Any], text: str
) -> None:
    assert (await text_of(mcp, "quote", {}, address=answer))[0] == text


async def test_survey_tells_answers_apart(mcp: Client) -> None:
    text, _ = await text_of(mcp, "survey", {}, home=accept(city="Ulm"), work={"action": "decline"})
    assert text == "home: accept, work: decline"


async def test_greet_asks_whom_it_can(mcp: Client) -> None:
    assert (await text_of(mcp, "greet", {}, name=accept(name="Ada")))[0] == "Hello, Ada"
    response = await mcp.post("tools/call", {"name": "greet"}, clientCapabilities={"sampling": {}})
    assert list(response.json()["result"]["inputRequests"]) == ["guess"]


async def test_add_up_keeps_its_sum_between_rounds(mcp: Client) -> None:
    params: dict[str, Any] = {"name": "add_up", "arguments": {}}
    for number in (3, 4, 0):
        asked = (
            await mcp.post("tools/call", params, clientCapabilities={"elicitation": {}})
        ).json()["result"]
        (key,) = asked["inputRequests"]
        params |= {"inputResponses": {key: accept(n=number)}, "requestState": asked["requestState"]}
    result = (await mcp.post("tools/call", params, clientCapabilities={"elicitation": {}})).json()[
        "result"
    ]
    assert result["content"][0]["text"] == "the sum is 7"
