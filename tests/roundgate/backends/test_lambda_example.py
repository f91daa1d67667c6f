"""`examples/orders`: the function that its reader runs, behind the gateway
that its reader serves."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from roundgate import config
from roundgate.cli import main
from roundgate.main import build_app
from roundgate_aws import machine
from roundgate_aws.stack.functions import why_not
from roundgate_aws.stack.lambda_api import functions_at
from tests.support.asgi import client
from tests.support.documents import ROOT
from tests.support.lambdas import use
from tests.support.rounds import Conversation, accept, tool
from tests.support.task_client import TaskClient, task_settings

ORDERS = ROOT / "examples/orders"


async def test_the_example_finds_asks_exports_and_cancels_once_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    file = shutil.copytree(ORDERS, tmp_path / "orders") / "gateway.yaml"
    python = await asyncio.to_thread(machine.runtime)
    async with functions_at(file.parent / "functions/functions.yaml", tmp_path, python) as (url, _):
        use(monkeypatch, url)
        assert await asyncio.to_thread(main, ["compile", str(file)]) == 0
        app = build_app(config.load(file), task_settings(tmp_path, worker="on"))
        async with app.router.lifespan_context(app), client(app) as mcp:
            assert (await mcp.call("orders__find", {"order": "7"}))["structuredContent"] == {
                "order": "7",
                "items": ["shirt"],
                "sent": False,
            }
            assert "There is no order 9" in await mcp.text("orders__find", {"order": "9"})
            where = {"where": accept(street="Elm St 1", city="Oslo")}
            moved = await Conversation(where).have([mcp] * 2, *tool("orders__redirect", order="7"))
            assert moved["structuredContent"]["to"]["city"] == "Oslo"
            yes = {"approve": accept(approve=True)}
            gone = await Conversation(yes).have([mcp] * 2, *tool("orders__cancel", order="7"))
            assert gone["structuredContent"]["by"] == "local"
            (label,) = (await mcp.call("orders__label", {"order": "7"}))["content"]
            assert label["mimeType"] == "image/png"
            tasks = TaskClient(mcp)
            ended = await tasks.over(await tasks.begin("orders__export"))
            assert len(ended["result"]["structuredContent"]) == 2
