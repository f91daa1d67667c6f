"""The overview, the limits and the audit log, and texts of others in them."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate_console.audit import AuditRecords
from roundgate_console.frame import ConsolePage
from tests.roundgate_console.in_browser import Served
from tests.roundgate_console.shop import Shop
from tests.roundgate_console.test_in_browser import CHECKED
from tests.support.asgi import built, config_of
from tests.support.console import Browser, browser_of, elements, local, with_auth
from tests.support.documents import ROOT
from tests.support.services import answer, service

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@tool
async def hello() -> str:
    """Says hello."""
    return "hello"


async def test_the_overview_shows_health_endpoints_and_the_kind_of_the_store() -> None:
    async with local(hello, views=[{"name": "some", "include": [{"name": "hello"}]}]) as browser:
        page = await browser.page()
        report = (await browser.get("/api/overview")).json()
    assert "Healthy" in page
    assert "/some/mcp" in page
    assert [endpoint["tools"] for endpoint in report["endpoints"]] == [1, 1]
    (backend,) = report["backends"]
    assert (backend["name"], backend["state"], backend["tools"]) == ("python", "served", 1)
    assert report["store"] == "sqlite", "an address may have a password"


async def test_a_back_end_that_is_missing_is_shown_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "from roundgate import tool\n\n@tool\ndef a() -> int:\n    return 1\n"
    )
    backends = [
        {"kind": "python", "name": "own", "path": "tools.py"},
        {"kind": "python", "name": "broken", "path": "none.py"},
    ]
    app = built(config_of({"backends": backends, "console": {}}, tmp_path))
    async with browser_of(app) as browser:
        await browser.get(f"/enter?token={app.state.console.sessions.seal_link()}")
        report = (await browser.get("/api/overview")).json()
        page = await browser.page()
    assert [backend["state"] for backend in report["backends"]] == ["served", "missing"]
    assert [backend["is_served"] for backend in report["backends"]] == [True, False]
    assert "none.py" in page


async def test_limits_show_their_present_use() -> None:
    rate = {"calls_per_minute": 10, "tools": {"hello": {"concurrent": 2}}}
    async with local(hello, rate=rate) as browser:
        assert "No caller has used a limit" in await browser.page("/limits")
        await browser.submit("/tools/hello/call", {})
        found = (await browser.get("/api/limits")).json()
    assert [limit["name"] for limit in found["limits"]] == ["callers", "tools hello"]
    assert [(use["name"], use["subject"], use["left"]) for use in found["uses"]] == [
        ("callers", "127.0.0.1", 9)
    ]


async def test_limits_of_back_ends_show_their_running_and_waiting_calls() -> None:
    async with local(hello, backend={"limits": {"concurrent": 2}}) as browser:
        found = (await browser.get("/api/limits")).json()
        assert found["backends"] == [{"name": "python", "running": 0, "waiting": 0}]
        assert "Back ends and their tools" in await browser.page("/limits")


async def test_a_back_end_whose_requests_are_paused_is_failing(tmp_path: Path) -> None:
    async with service(answer(status="503 Service Unavailable")) as api:
        read = {"name": "read", "description": "Reads.", "method": "GET", "path": "/"}
        http = {
            "kind": "http",
            "name": "api",
            "prefix": "",
            "base_url": api.url,
            "breaker": {"failures": 2},
            "tools": [read],
        }
        app = built(config_of({"backends": [http], "console": {}}, tmp_path))
        async with browser_of(app) as browser:
            await browser.get(f"/enter?token={app.state.console.sessions.seal_link()}")
            for _ in range(2):
                await browser.submit("/tools/read/call", {})
            (backend,) = (await browser.get("/api/overview")).json()["backends"]
            host = api.url.removeprefix("http://")
            assert backend["state"] == "failing"
            assert backend["problems"] == [f"requests to {host} are paused: it answered 503"]


async def test_a_call_beyond_a_limit_is_shown_as_an_error() -> None:
    async with local(hello, rate={"calls_per_minute": 1}) as browser:
        await browser.submit("/tools/hello/call", {})
        assert "Too many" in (await browser.submit("/tools/hello/call", {})).text


async def test_shared_limits_are_counted_by_the_store() -> None:
    async with local(hello, rate={"calls_per_minute": 10, "shared": True}) as browser:
        await browser.submit("/tools/hello/call", {})
        found = (await browser.get("/api/limits")).json()
    assert (found["shared"], found["uses"]) == (True, [])


async def test_pages_update_themselves_two_hundred_times() -> None:
    async with local(hello) as browser:
        for path in ("", "/calls", "/tasks", "/limits"):
            for query in ("", "?left=2", "?left=1", "?left=0"):
                page = elements(await browser.page(path + query))
                polled = [each["hx-get"] for _, each in page if "hx-get" in each]
                left = int(query.partition("=")[2] or 200)
                assert polled == [f"/console{path}?left={left - 1}"] * (left > 0)
        assert "<code>rate</code>" in await browser.page("/limits")  # there are no limits


async def test_the_audit_log_shows_the_records_of_a_call(tmp_path: Path) -> None:
    async with local(hello, audit={"directory": str(tmp_path)}) as browser:
        call = (await browser.submit("/tools/hello/call", {})).text
        await browser.submit("/tools/hello/call", {})
        call_id = next(
            str(each["href"]).rpartition("/")[2]
            for _, each in elements(call)
            if "/calls/" in (each.get("href") or "")
        )

        async def events() -> list[str]:
            found = (await browser.get(f"/api/audit?call={call_id}")).json()
            return [record["event"] for record in found["records"]]

        assert await events() == ["ended", "called"]
        whole = (await browser.get("/api/audit")).json()
        assert (whole["is_whole"], len(whole["records"])) == (True, 6)
        assert (await browser.get("/api/audit?subject=nobody")).json()["records"] == []
        assert call_id in await browser.page("/audit?subject=local")


async def test_one_request_at_a_time_reads_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    def newest(*sought: Any) -> AuditRecords:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return AuditRecords(is_whole=True, records=[])

    monkeypatch.setattr("roundgate_console.audit._newest", newest)
    async with local(hello, audit={"directory": str(tmp_path)}) as browser:
        await asyncio.gather(*(browser.page("/audit") for _ in range(3)))
    assert most == 1


async def test_a_search_for_tools_reads_a_short_text_only() -> None:
    async with local(hello) as browser:
        found = (await browser.get(f"/api/tools?text={'hello ' * 100}nothing")).json()
    assert found["total"] == 1


async def test_the_chains_are_verified_from_the_page(tmp_path: Path) -> None:
    async with local(hello, audit={"directory": str(tmp_path)}) as browser:
        await browser.submit("/tools/hello/call", {})
        assert "No problems" in (await browser.submit("/audit", {})).text
        _change_a_record(tmp_path)
        assert "does not follow" in (await browser.submit("/audit", {})).text


def _change_a_record(directory: Path) -> None:
    file = next(file for file in directory.glob("*.jsonl") if file.name != "heads.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"called"', b'"cancel"'))


@pytest.mark.parametrize(
    ("audit", "text"),
    [
        ({}, "There is no audit log"),
        ({"audit": {"to": "stdout", "key": "A" * 43 + "="}}, "standard output"),
    ],
)
async def test_without_files_the_page_of_the_audit_log_says_so(
    audit: dict[str, Any], text: str
) -> None:
    async with local(hello, **audit) as browser:
        page = await browser.get("/audit")
        assert (page.status_code, text in page.text) == (404, True)
        assert text in (await browser.get("/api/audit")).json()["error"]


async def evil_pages(browser: Browser) -> list[str]:
    """The pages on which texts of others are shown."""
    called = await browser.submit("/tools/evil/call", {"argument/text": EVIL})
    failed = await browser.submit("/tools/evil/call", {"json": EVIL})
    asked = await browser.submit("/tools/ask/call", {})
    return [
        await browser.page("/tools"),
        await browser.page(f"/tools?text={EVIL}"),
        await browser.page("/tools/evil"),
        await browser.page(f"/audit?call={EVIL}&subject={EVIL}"),
        await browser.page("/audit"),
        await browser.page(),
        *(response.text for response in (called, failed, asked)),
    ]


async def test_texts_of_tools_questions_results_and_subjects_are_no_markup(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "title": EVIL,
        "properties": {
            "text": {"type": "string", "title": EVIL, "description": EVIL, "default": EVIL},
            EVIL: {"enum": [EVIL], "description": EVIL},
        },
    }

    @tool(title=EVIL, description=EVIL, input_schema=schema)
    async def evil(**arguments: Any) -> dict[str, Any]:
        return {EVIL: [EVIL], "text": arguments.get("text")}

    @tool(description=EVIL)
    async def ask(ctx: Context) -> str:
        question = {
            "type": "object",
            "properties": {"why": {"type": "string", "title": EVIL, "description": EVIL}},
        }
        await ctx.elicit("q", EVIL, question)
        return EVIL

    async with with_auth(
        evil, ask, audit={"directory": str(tmp_path)}, server={"name": EVIL, "title": EVIL}
    ) as browser:
        await browser.sign_in(sub=EVIL)
        pages = await evil_pages(browser)
    for page in pages:
        assert "alert(1)" in page
        for tag, each in elements(page):
            assert tag != "img"
            assert "onerror" not in each
            if tag == "script":
                assert (each.get("src") or "").startswith("/console/static/")
        assert page.count("<script") == 2


async def test_a_question_cannot_link_to_a_script() -> None:
    @tool
    async def ask(ctx: Context, url: str) -> str:
        await ctx.elicit_url("q", "Sign in", url)
        return "done"

    async with local(ask) as browser:
        for url in ("javascript:alert(1)", "data:text/html,x", "vbscript:x"):
            page = (await browser.submit("/tools/ask/call", {"argument/url": url})).text
            links = [str(each.get("href")) for _, each in elements(page)]
            assert not [link for link in links if link.startswith(url[:4])]


async def test_the_path_operations_are_in_the_openapi_document() -> None:
    async with local(hello, http={"docs": True}) as browser:
        document = (await browser.http.get("/openapi.json")).json()
    paths = {
        path: operations
        for path, operations in document["paths"].items()
        if path.startswith("/console")
    }
    assert "/console/api/tools/{name}/call" in paths
    for path, operations in paths.items():
        assert path.startswith("/console/api/")
        for operation in operations.values():
            assert operation["tags"] == ["console"]
            assert operation["summary"]


PAGE = (ROOT / "docs/own-pages.md").read_text()
FORECAST = PAGE.partition("```python\n")[2].partition("```")[0]
TEMPLATE = PAGE.partition("```html\n")[2].partition("```")[0]


def add_pages(folder: Path, monkeypatch: pytest.MonkeyPatch, **pages: str) -> None:
    """Install a distribution with modules of pages and their entry points."""
    for name, source in pages.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    metadata = folder / "forecast-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: forecast\nVersion: 1.0\n")
    lines = ["[roundgate.pages]", *(f"{name} = {name}:PAGE" for name in pages)]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))


async def test_a_page_of_another_package_is_one_file_its_template_and_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forecast.html").write_text(TEMPLATE)
    add_pages(tmp_path, monkeypatch, forecast=FORECAST)
    async with local(hello) as browser:
        page = await browser.page("/forecast")
        assert "<h1>rain</h1>" in page
        assert 'hx-get="/console/forecast?left=199"' in page
        assert (await browser.get("/api/forecast")).json() == {"weather": "rain", "tools": 1}
        overview = await browser.page()
    labels = ["Overview", "Calls", "Tasks", "Tools", "Limits", "Audit log", "Forecast"]
    assert [overview.index(f">{label}<") for label in labels] == sorted(
        overview.index(f">{label}<") for label in labels
    )


BROKEN = {
    "import nothing_of_this_name": "it failed with ModuleNotFoundError",
    "PAGE = '/forecast'": "it is no ConsolePage but a str",
    FORECAST.replace("return router", "raise OSError('secret')"): "it failed with OSError",
    FORECAST.replace("return router", ""): "it failed with AttributeError",
    FORECAST.replace("/forecast", "/tasks"): "another page has the path /console/tasks",
    FORECAST.replace("/forecast", "/tools/own"): "another page has the path /console/tools/own",
    FORECAST.replace("/forecast", "/sign-in"): "another page has the path /console/sign-in",
    FORECAST.replace('Page("/forecast"', 'Page("/other"'): "its router has no GET /console/other",
    FORECAST.replace("make_router, t", "make_router, '1', t"): "it failed with TypeError",
}


async def test_broken_pages_of_other_packages_are_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {f"broken{number}": source for number, source in enumerate(BROKEN)}
    add_pages(tmp_path, monkeypatch, **sources)
    async with local(hello) as browser:
        overview = await browser.page()
        left_out = (await browser.get("/api/overview")).json()["left_out"]
        assert "<h1>Tasks</h1>" in await browser.page("/tasks")
    assert ">Tasks</a>" in overview
    assert "Forecast" not in overview
    for line, name, reason in zip(left_out, sources, BROKEN.values(), strict=True):
        assert line.startswith(f"page {name}: {reason}")
        assert "secret" not in line
    records = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert {each.getMessage() for each in records} == {"cannot load a page of the console"}
    assert [vars(each)["fields"]["page"] for each in records] == [*sources]


async def test_a_page_whose_lifespan_fails_is_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begins = "async def begin(app):\n    raise OSError('secret')\n    yield\n\n\nPAGE ="
    broken = FORECAST.replace("router()", "router(asynccontextmanager(begin))")
    broken = broken.replace("PAGE =", f"from contextlib import asynccontextmanager\n\n{begins}")
    add_pages(tmp_path, monkeypatch, broken=broken)
    async with local(hello) as browser:
        overview = await browser.page()
        (line,) = (await browser.get("/api/overview")).json()["left_out"]
        assert (await browser.get("/forecast")).status_code == 404
        assert (await browser.get("/api/forecast")).status_code == 404
    assert ">Forecast</a>" not in overview
    assert line == "page broken: it failed with OSError; the log has the cause"
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == "cannot load a page of the console"


def pages_of_the_console() -> list[ConsolePage]:
    """Return the pages that pyproject.toml names."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        names = tomllib.load(file)["project"]["entry-points"]["roundgate.pages"]
    modules = (value.partition(":") for value in names.values())
    return [getattr(import_module(module), name) for module, _, name in modules]


@pytest.mark.parametrize("page", pages_of_the_console(), ids=lambda page: page.label)
def test_each_page_has_a_picture_a_check_in_the_browser_and_a_line_in_the_document(
    page: ConsolePage,
) -> None:
    shop = Shop(Served("", FastAPI()), defaultdict(str), "")
    assert page.path in shop.pages().values(), "add it to Shop.pages(), for its pictures"
    assert page.path in CHECKED, "add it to CHECKED of test_in_browser.py"
    assert f"| [{page.label}](" in (ROOT / "docs/console.md").read_text()


async def test_templates_of_a_page_come_first_for_this_page_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "error.html").write_text("<h1>rain and {{ forecast.weather }}</h1>")
    (tmp_path / "overview.html").write_text("<h1>rain</h1>")
    add_pages(tmp_path, monkeypatch, forecast=FORECAST.replace("forecast.html", "error.html"))
    async with local(hello) as browser:
        assert await browser.page("/forecast") == "<h1>rain and rain</h1>"
        assert "<h1>This did not work</h1>" in (await browser.get("/tasks/nothing")).text
        assert "<h1>Overview</h1>" in await browser.page()
