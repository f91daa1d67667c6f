"""One back end that cannot be served does not take the others with it, is named,
and comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import config
from roundgate.backends.shaping import ConfiguredBackend
from roundgate.errors import ConfigError
from roundgate.main import build_app
from roundgate.runtime import loading, reload
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import STATE_KEY, Client, Exchange, client, stoppable
from tests.support.openapi import INTERNAL, LOOK_AND_PURGE
from tests.support.task_client import DECLARED, TaskClient, task_settings

GOOD = "from roundgate import tool\n@tool\ndef hello() -> str:\n    return 'WORD'\n"
CONFIG = """
backends:
  - {kind: python, name: well, path: well.py}
  - {kind: python, name: ill, path: ill.py}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration of which one back end is there and the other is not."""
    (tmp_path / "well.py").write_text(GOOD)
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    return tmp_path


def app_of(folder: Path, **settings: Any) -> FastAPI:
    store = f"sqlite:///{folder / 'gateway.sqlite3'}"
    using = Settings(store=store, state_keys=STATE_KEY, **settings)
    return build_app(config.load(folder / "gateway.yaml"), using)


async def names(mcp: Client) -> list[str]:
    return [one["name"] for one in (await mcp.result("tools/list"))["tools"]]


async def until(expected: Any, ask: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while await ask() != expected:  # noqa: ASYNC110 - a file is watched
            await asyncio.sleep(0.02)


async def test_the_rest_is_served_and_what_is_missing_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(app_of(folder)) as mcp:
        assert await names(mcp) == ["well__hello"]
        assert await mcp.text("well__hello") == "WORD"
        assert (await mcp.http.get("/healthz")).json()["missing"] == ["ill"]
        status, error = await mcp.error("tools/call", {"name": "ill__hello", "arguments": {}})
        assert (status, error["message"]) == (
            503,
            "The back end ill is not served just now; try later",
        )
        _, unknown = await mcp.error("tools/call", {"name": "other", "arguments": {}})
        assert unknown["code"] == -32602
    [told] = [
        one for one in caplog.records if one.msg == "cannot serve a back end; the others are served"
    ]
    fields: dict[str, Any] = told.__dict__["fields"]
    assert fields["backend"] == "ill"
    assert "ill.py" in fields["problems"][0]


async def test_a_view_and_the_search_do_not_take_it_for_unknown(folder: Path) -> None:
    views = "views: [{name: v}, {name: other, include: [{backend: well}]}]\n"
    (folder / "gateway.yaml").write_text(CONFIG + "search: {}\n" + views)
    direct: dict[str, Any] = {"name": "ill__hello", "arguments": {}}
    async with client(app_of(folder)) as mcp:
        status, _ = await Client(mcp.http, "/v/mcp").error("tools/call", direct)
        assert status == 503
        _, error = await Client(mcp.http, "/other/mcp").error("tools/call", direct)
        assert error["code"] == -32602
        through = {"name": "call_tool", "arguments": {"name": "ill__hello"}}
        status, error = await mcp.error("tools/call", through)
        assert (status, "try later" in error["message"]) == (503, True)
        unknown = await mcp.call("call_tool", {"name": "other"})
        assert "There is no tool 'other'" in unknown["content"][0]["text"]


async def test_health_says_nothing_of_what_is_there(folder: Path) -> None:
    (folder / "ill.py").write_text(GOOD)
    async with client(app_of(folder)) as mcp:
        assert "missing" not in (await mcp.http.get("/healthz")).json()


def test_strict_fails(folder: Path) -> None:
    (folder / "gateway.yaml").write_text(CONFIG + "limits: {strict: true}\n")
    with pytest.raises(ConfigError, match=r"ill\.py"):
        app_of(folder)


def test_a_check_fails(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"ill\.py"):
        loading.load(config.load(folder / "gateway.yaml"))


def test_nothing_at_all_is_a_failure(folder: Path) -> None:
    (folder / "well.py").unlink()
    with pytest.raises(ConfigError) as caught:
        app_of(folder)
    assert len(caught.value.problems) == 2


def test_what_is_wrong_between_back_ends_is_a_failure_all_the_same(folder: Path) -> None:
    (folder / "gateway.yaml").write_text(
        CONFIG + "  - {kind: python, name: twin, prefix: well, path: well.py}\n"
    )
    with pytest.raises(ConfigError, match="is offered by 'well' too"):
        app_of(folder)


async def test_tasks_of_what_is_missing_can_still_be_had(folder: Path) -> None:
    (folder / "ill.py").write_text(GOOD.replace("@tool", "@tool(task='required')"))
    path = folder / "gateway.yaml"
    async with (
        stoppable(build_app(config.load(path), task_settings(folder))) as app,
        client(app) as mcp,
    ):
        knows = TaskClient(mcp, DECLARED)
        task_id = await knows.begin("ill__hello")
        assert await knows.text(task_id) == "WORD"
    (folder / "ill.py").unlink()
    async with client(build_app(config.load(path), task_settings(folder))) as mcp:
        assert await TaskClient(mcp, DECLARED).text(task_id) == "WORD"


async def test_a_view_of_what_is_missing_has_nothing_for_now(folder: Path) -> None:
    view = "{name: v, include: [{backend: ill}], override: {ill__hello: {title: Hi}}}"
    (folder / "gateway.yaml").write_text(CONFIG + f"views: [{view}]\n")
    async with client(app_of(folder)) as mcp:
        found = await Client(mcp.http, "/v/mcp").post("tools/list")
        assert "ill" not in found.text
        assert found.json()["result"]["tools"] == []


async def test_an_unexpected_failure_is_told_without_its_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "ill.py").write_text(GOOD)
    offer = ConfiguredBackend.offer

    async def broken(backend: ConfiguredBackend) -> Any:
        if backend.name == "ill":
            raise RuntimeError("with a secret")
        return await offer(backend)

    monkeypatch.setattr(ConfiguredBackend, "offer", broken)
    file = config.load(folder / "gateway.yaml")
    served = loading.load(file, may_be_missing=["ill"]).catalog
    [problem] = served.missing["ill"].problems
    assert "it failed with RuntimeError" in str(problem)
    assert "secret" not in str(problem)
    with pytest.raises(RuntimeError):
        loading.load(file)


async def test_it_is_served_when_it_can_be_and_clients_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "HEAL_S", 0.05)
    app = app_of(folder)
    asked = wire.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with stoppable(app), client(app) as mcp, Exchange(app, asked) as stream:
        assert (await stream.event() or {})["method"] == "notifications/subscriptions/acknowledged"
        # nobody has asked for a reload
        (folder / "well.py").write_text(GOOD.replace("WORD", "another"))
        (folder / "ill.py").write_text(GOOD)
        while (event := await stream.event()) is None:
            """A comment."""
        assert event["method"] == "notifications/tools/list_changed"
        assert await names(mcp) == ["well__hello", "ill__hello"]
        assert await mcp.text("ill__hello") == await mcp.text("well__hello") == "WORD"
        assert "missing" not in (await mcp.http.get("/healthz")).json()


async def test_it_is_served_again_if_it_selects_its_tools(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "HEAL_S", 0.05)
    selecting = CONFIG.replace("ill.py", "ill.py, include: [{name: hello}]")
    (folder / "gateway.yaml").write_text(selecting)
    app = app_of(folder)
    async with stoppable(app), client(app) as mcp:
        assert await names(mcp) == ["well__hello"]
        (folder / "ill.py").write_text(GOOD)
        await until(["well__hello", "ill__hello"], lambda: names(mcp))


async def test_what_else_changes_is_served_while_something_is_missing(folder: Path) -> None:
    app = app_of(folder, reload=True)
    async with stoppable(app), client(app) as mcp:
        await asyncio.sleep(0)  # it has begun to watch
        (folder / "well.py").write_text(GOOD.replace("WORD", "another"))
        await until("another", lambda: mcp.text("well__hello"))
        assert (await mcp.http.get("/healthz")).json()["missing"] == ["ill"]


async def test_trying_again_takes_nothing_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "HEAL_S", 0.05)
    app = app_of(folder)
    tried = asyncio.Event()
    again = loading.load_again

    async def seen(*given: Any) -> Any:
        tried.set()
        return await again(*given)

    async with stoppable(app), client(app) as mcp:
        (folder / "well.py").unlink()
        (folder / "ill.py").write_text(GOOD)
        monkeypatch.setattr(loading, "load_again", seen)
        async with asyncio.timeout(60):
            await tried.wait()
        assert "well__hello" in await names(mcp)
        assert await mcp.text("well__hello") == "WORD"


async def test_a_retry_exposes_nothing_that_a_half_written_document_no_longer_hides(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "HEAL_S", 0.05)
    said = "missing back ends stay missing: serving them would change protection; reload to accept that"
    (folder / "shop.yaml").write_text(LOOK_AND_PURGE + INTERNAL)
    (folder / "gateway.yaml").write_text(CONFIG + SHOP)
    app = app_of(folder)

    async def told() -> bool:
        return said in caplog.text

    async with stoppable(app), client(app) as mcp:
        before = ["well__hello", "shop__look"]
        assert await names(mcp) == before
        (folder / "shop.yaml").write_text(LOOK_AND_PURGE)
        (folder / "ill.py").write_text(GOOD)
        await until(True, told)
        assert await names(mcp) == before
        (folder / "shop.yaml").write_text(LOOK_AND_PURGE + INTERNAL)
        await until(["well__hello", "ill__hello", "shop__look"], lambda: names(mcp))


SHOP = """
  - kind: openapi
    name: shop
    document: shop.yaml
    base_url: http://127.0.0.1:9
    exclude: [{extension: x-internal}]
"""
