"""The tools of docs/tasks.md do what the page says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from roundgate import config
from roundgate.main import build_app
from roundgate.protocol.tasks import EXTENSION
from roundgate.runtime import loading
from roundgate.settings.process import Settings
from tests.support.asgi import Client, client, stoppable
from tests.support.rounds import CAPABILITIES, KEYS, accept, retry

PAGE = (Path(__file__).parents[3] / "docs/tasks.md").read_text()
TASKS = CAPABILITIES | {"extensions": {EXTENSION: {}}}


@pytest.fixture
async def mcp(tmp_path: Path) -> AsyncIterator[Client]:
    served = []
    for number, snippet in enumerate(
        re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    ):
        (tmp_path / f"guide{number}.py").write_text(snippet.replace("sleep(2)", "sleep(1.2)"))
        served.append(
            {"kind": "python", "name": f"guide{number}", "prefix": "", "path": f"guide{number}.py"}
        )
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump({"backends": served}))
    using = Settings(state_keys=KEYS, store=f"sqlite:///{tmp_path / 'gateway.sqlite3'}")
    app = build_app(config.load(tmp_path / "gateway.yaml"), using)
    async with stoppable(app), client(app) as mcp:
        yield mcp


async def post(mcp: Client, method: str, **params: Any) -> dict[str, Any]:
    result: dict[str, Any] = (await mcp.post(method, params, clientCapabilities=TASKS)).json()[
        "result"
    ]
    return result


async def until(mcp: Client, task_id: str, status: str) -> dict[str, Any]:
    """The task once it is in a status; on the way there it may only be working."""
    for _ in range(1000):
        task = await post(mcp, "tasks/get", taskId=task_id)
        if task["status"] == status:
            return task
        assert task["status"] == "working", task
        await asyncio.sleep(0.02)
    raise AssertionError(f"never {status}")


async def test_deploy_asks_in_a_round_and_then_inside_its_task(mcp: Client) -> None:
    params = {"name": "deploy", "arguments": {"env": "production"}}
    asked = await post(mcp, "tools/call", **params)
    assert list(asked["inputRequests"]) == ["confirm"]
    created = await post(mcp, "tools/call", **retry(params, asked, confirm=accept(go=True)))
    assert created["resultType"] == "task"
    waiting = await until(mcp, created["taskId"], "input_required")
    assert "statusMessage" not in waiting, "the step that it was about has ended"
    assert list(waiting["inputRequests"]) == ["notify"]
    await post(
        mcp, "tasks/update", taskId=created["taskId"], inputResponses={"notify": accept(name="Ada")}
    )
    done = await until(mcp, created["taskId"], "completed")
    text = "applied 2 services, 1 database to production; told Ada"
    assert done["result"]["content"] == [{"type": "text", "text": text}]


async def test_a_client_without_tasks_gets_the_same_in_rounds(mcp: Client) -> None:
    params: dict[str, Any] = {"name": "deploy", "arguments": {"env": "production"}}
    for key, answer in (("confirm", accept(go=True)), ("notify", accept(name="Ada"))):
        asked = (await mcp.post("tools/call", params, clientCapabilities=CAPABILITIES)).json()[
            "result"
        ]
        assert list(asked["inputRequests"]) == [key]
        params = retry(params, asked, **{key: answer})
    result = (await mcp.post("tools/call", params, clientCapabilities=CAPABILITIES)).json()[
        "result"
    ]
    assert result["content"][0]["text"].endswith("told Ada")


async def test_report_sleeps_and_polls(mcp: Client) -> None:
    created = await post(mcp, "tools/call", name="report", arguments={"number": 7})
    done = await until(mcp, created["taskId"], "completed")
    assert done["result"]["content"][0]["text"] == "report 7"


def test_the_job_of_the_page_is_a_configuration(tmp_path: Path) -> None:
    example, with_cancel = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "gateway.yaml").write_text(example)
    file = config.load(tmp_path / "gateway.yaml")
    (served,) = loading.load(file).catalog.tools.values()
    assert served.tool.task == "optional"
    before = example.partition("        job:\n")[0]
    (tmp_path / "gateway.yaml").write_text(before + with_cancel)
    assert config.load(tmp_path / "gateway.yaml").backends
