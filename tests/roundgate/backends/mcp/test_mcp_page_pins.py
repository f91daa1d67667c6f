"""Pages of servers (MCP Apps) in the lock file: a page that changes after an operator has accepted it."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate import config
from roundgate.backends.mcp import pins as mcp_pins
from roundgate.backends.mcp.apps import page_definition
from roundgate.backends.mcp.lock import definition_digest
from roundgate.runtime import loading
from roundgate.runtime.protection import changes, protection
from roundgate.settings import Settings
from tests.roundgate.backends.mcp.test_mcp_lock import compiled, file_of, pinned, started, write
from tests.roundgate.backends.mcp.test_mcp_prompts_and_resources import Shelf, template, uris
from tests.support.asgi import Client, built, client, stoppable
from tests.support.scripted import Asked, error, result, scripted, text
from tests.support.upstreams import health, names, state, tool, until

PAGE, OURS = "ui://clock/app.html", "ui://up/clock/app.html"
HTML = "text/html;profile=mcp-app"


pytestmark = pytest.mark.usefixtures("brisk")


def page(html: str = "<p>the time</p>", **members: Any) -> dict[str, Any]:
    return {"uri": PAGE, "mimeType": HTML, "text": html, **members}


class Clock(Shelf):
    """A server with a tool that has a page. It lists the page, and may change it."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        super().__init__(resources=[{"uri": PAGE, "name": "page"}])
        self.tools = [tool("time", _meta={"ui": {"resourceUri": PAGE}})]
        self.pages = {one["uri"]: one for one in pages or (page(),)}

    def __call__(self, asked: Asked) -> Any:
        if self.is_down:
            return None
        match asked.rpc:
            case "tools/list":
                return result(asked, {"tools": self.tools, "ttlMs": self.ttl_ms})
            case "tools/call":
                return result(asked, text("done"))
            case "resources/read":
                if (contents := self.pages.get(asked.params["uri"])) is None:
                    return error(asked, -32602, "Resource not found")
                return result(asked, {"contents": [contents]})
        return super().__call__(asked)


async def html_of(mcp: Client, uri: str = OURS) -> str:
    """The text of a page, or the error of its read."""
    answer = (await mcp.post("resources/read", {"uri": uri})).json()
    shown: str = (
        answer["error"]["message"] if "error" in answer else answer["result"]["contents"][0]["text"]
    )
    return shown


async def test_a_page_that_changes_is_not_shown_until_it_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = Clock()
    async with pinned(tmp_path, server) as (mcp, _):
        assert "1 tools, 0 prompts, 0 templates, 0 skills, 1 resources, 1 pages pinned" in (
            capsys.readouterr().out
        )
        assert await html_of(mcp) == "<p>the time</p>"
        assert "changed" not in await health(mcp)
        server.pages[PAGE] = page("<script>steal()</script>")
        for _ in range(2):
            refused = await html_of(mcp)
            assert "up has changed the page ui://clock/app.html" in refused
            assert "roundgate compile" in refused
        assert (await health(mcp))["changed"] == [PAGE]
        assert await names(mcp) == ["up__time"]
        assert await mcp.text("up__time") == "done"
        (line,) = [one for one in caplog.records if "differ from its lock file" in one.message]
        assert line.fields == {"backend": "up", "n": 1, "names": [PAGE], "are_served": False}  # type: ignore[attr-defined]
        assert "steal" not in str([vars(record) for record in caplog.records])
        server.pages[PAGE] = page()
        assert await html_of(mcp) == "<p>the time</p>"
        assert "changed" not in await health(mcp)

        server.pages[PAGE] = page("<p>new</p>")
        assert "has changed" in await html_of(mcp)
        assert await compiled(tmp_path / "gateway.yaml") == 0
        assert f"changed: pages {PAGE}" in capsys.readouterr().out
        async with started(tmp_path / "gateway.yaml") as mcp:
            assert await html_of(mcp) == "<p>new</p>"


async def test_the_origins_and_permissions_of_a_page_are_pinned_too(tmp_path: Path) -> None:
    server = Clock()
    async with pinned(tmp_path, server) as (mcp, _):
        csp = {"connectDomains": ["https://evil.example"]}
        hop = {"io.modelcontextprotocol/serverInfo": {"version": "2"}}
        for changed in (
            page(_meta={"ui": {"csp": csp}}),
            page(_meta={"ui": {"permissions": {"camera": {}}}}),
            page(mimeType="text/html"),
            {"uri": PAGE, "mimeType": HTML, "blob": "PHA+"},
        ):
            server.pages[PAGE] = changed
            assert "has changed" in await html_of(mcp)
        server.pages[PAGE] = page(_meta=hop)
        assert await html_of(mcp) == "<p>the time</p>"

        server.resources[0]["_meta"] = {"ui": {"csp": csp}}
        await until([], lambda: uris(mcp))
        assert (await health(mcp))["changed"] == [PAGE]


async def test_no_uri_leads_to_a_page_that_was_not_accepted(tmp_path: Path) -> None:
    others = ["ui://clock/other.html", "UI://clock/app.html", "ui://clock/./app.html"]
    server = Clock(page(), *({**page("<p>evil</p>"), "uri": uri} for uri in others))
    server.templates = [template("u{+rest}"), template("U{+rest}"), template("ui://clock/{name}")]
    async with pinned(tmp_path, server) as (mcp, _):
        for uri in ("ui://up/clock/other.html", "ui://up/clock/./app.html", *others):
            assert "<p>" not in await html_of(mcp, uri)
        assert await html_of(mcp) == "<p>the time</p>"
        assert "changed" not in await health(mcp)
        server.tools.append(tool("late", _meta={"ui/resourceUri": others[0]}))

        await until(["late", others[0]], lambda: state(mcp, "changed"))


async def test_a_running_gateway_shows_a_page_once_it_is_accepted(tmp_path: Path) -> None:
    server = Clock()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) == 0
        file = config.load(path)
        app = await asyncio.to_thread(partial(built, file, Settings(reload=True)))
        async with stoppable(app), client(app) as mcp:
            server.pages[PAGE] = page("<p>new</p>")
            assert "has changed" in await html_of(mcp)
            assert await compiled(path) == 0

            await until("<p>new</p>", lambda: html_of(mcp))
            assert "changed" not in await health(mcp)


async def test_a_changed_page_stays_named_while_the_lists_change(tmp_path: Path) -> None:
    server = Clock()
    async with pinned(tmp_path, server) as (mcp, _):
        server.pages[PAGE] = page("<p>new</p>")
        assert "has changed" in await html_of(mcp)
        server.tools.append(tool("late"))
        await until(["late", PAGE], lambda: state(mcp, "changed"))


async def test_a_page_that_changes_is_announced_once_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Clock()
    async with pinned(tmp_path, server, changes="announce") as (mcp, _):
        server.pages[PAGE] = page("<p>new</p>")
        for _ in range(3):
            assert await html_of(mcp) == "<p>new</p>"
        assert (await health(mcp))["changed"] == [PAGE]
    (line,) = [one for one in caplog.records if "differ from its lock file" in one.message]
    assert line.fields["are_served"]  # type: ignore[attr-defined]


async def test_a_page_that_the_server_makes_anew_is_not_pinned(tmp_path: Path) -> None:
    server = Clock()
    server.resources.append({"uri": "ui://clock/secret.html", "name": "excluded"})
    settings = {"dynamic_pages": ["ui://clock/app*"], "resources": {"exclude": ["*secret*"]}}
    async with pinned(tmp_path, server, **settings) as (mcp, at):
        assert "resources/read" not in at.methods()
        for html in ("<p>1</p>", "<p>2</p>"):
            server.pages[PAGE] = page(html)
            assert await html_of(mcp) == html
        assert "not found" in await html_of(mcp, "ui://up/clock/secret.html")
        assert "changed" not in await health(mcp)


async def test_a_lock_file_without_pages_accepts_none(tmp_path: Path) -> None:
    server = Clock()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) == 0
        lock = tmp_path / "up.lock"
        older = {k: v for k, v in json.loads(lock.read_text()).items() if k in ("version", "tools")}
        lock.write_text(json.dumps({**older, "prompts": {}, "templates": {}}))
        async with started(path) as mcp:
            assert (await health(mcp))["left_out"] == {PAGE: "it is not in the lock file"}
            assert await uris(mcp) == []
            assert await names(mcp) == ["up__time"]
            assert "has changed" in await html_of(mcp)


async def test_nothing_is_pinned_if_a_page_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Clock()
    server.pages = {}
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) != 0
        said = capsys.readouterr().err
        assert f"page {PAGE}" in said
        assert "dynamic_pages" in said
        server.pages = {PAGE: page()}
        monkeypatch.setattr(mcp_pins, "MAX_PAGES", 0)
        assert await compiled(path) != 0
        assert "the server has 1 pages; 0 can be pinned" in capsys.readouterr().err
        assert not (tmp_path / "up.lock").exists()


async def test_no_caller_gets_a_changed_page_whatever_others_get(tmp_path: Path) -> None:
    class Flapping(Clock):
        reads = 0

        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "resources/read":
                self.reads += 1
                html = "<p>the time</p>" if self.reads % 2 else "<p>evil</p>"
                return result(asked, {"contents": [page(html)]})
            return super().__call__(asked)

    async with pinned(tmp_path, Flapping()) as (mcp, _):
        shown = await asyncio.gather(*(html_of(mcp) for _ in range(20)))
        assert shown.count("<p>the time</p>") == 10
        assert sum("has changed" in one for one in shown) == 10


async def test_a_page_becoming_dynamic_is_a_change_of_protection(tmp_path: Path) -> None:
    async with scripted(Clock()) as at:
        protections = []
        for pages in ([], ["ui://*"]):
            path = write(tmp_path, at, changes="quarantine", dynamic_pages=pages)
            assert await compiled(path) == 0
            file = file_of(path)
            snapshot = await asyncio.to_thread(loading.load, file)
            protections.append(protection(file, snapshot.catalog))
        assert list(changes(*protections)) == ["backends.up: dynamic_pages has changed"]


ITEM = st.dictionaries(
    st.sampled_from(["uri", "text", "blob", "mimeType", "_meta"]),
    st.none() | st.text() | st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
)


@given(st.lists(ITEM, max_size=2), st.lists(ITEM, max_size=2))
def test_pages_have_one_digest_only_if_they_are_equal(one: list[Any], other: list[Any]) -> None:
    digests = [definition_digest(page_definition(PAGE, each)) for each in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def test_a_text_that_is_not_unicode_has_a_digest() -> None:
    assert definition_digest(page_definition(PAGE, [page("\ud800")]))
