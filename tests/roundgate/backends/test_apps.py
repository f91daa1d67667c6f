"""Pages of Python tools (MCP Apps): served as they are on disk, and refused at the start if a host could not show
them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.python.backend import MAX_BYTES
from roundgate.cli import main
from roundgate.errors import ConfigError, Problem
from tests.support.asgi import Client, built, client, config_of

HTML = "text/html;profile=mcp-app"
PAGE = "<!DOCTYPE html><title>Größe</title>"
TOOLS = """
from roundgate import App, tool

@tool({options})
def chart() -> str:
    "Draw."
    return "drawn"
"""


def served(folder: Path, source: str, **sections: Any) -> Any:
    (folder / "tools.py").write_text(source)
    backend = {"kind": "python", "name": "own", "path": "tools.py"}
    return built(config_of({"backends": [backend], **sections}, folder))


def chart(folder: Path, options: str, **sections: Any) -> Any:
    return served(folder, TOOLS.replace("{options}", options), **sections)


def problem_of(folder: Path, options: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        chart(folder, options)
    (problem,) = caught.value.problems
    return problem


async def tool_meta(mcp: Client) -> Any:
    (listed,) = (await mcp.result("tools/list"))["tools"]
    return listed["_meta"]["ui"]


async def test_a_host_finds_and_reads_the_page_of_a_tool(tmp_path: Path) -> None:
    (tmp_path / "chart.html").write_text(PAGE)
    async with client(chart(tmp_path, 'ui="chart.html"')) as mcp:
        assert await tool_meta(mcp) == {"resourceUri": "ui://own/chart.html"}
        (entry,) = (await mcp.result("resources/list"))["resources"]
        assert (entry["uri"], entry["mimeType"]) == ("ui://own/chart.html", HTML)
        (page,) = (await mcp.result("resources/read", {"uri": "ui://own/chart.html"}))["contents"]
        assert page == {"uri": "ui://own/chart.html", "mimeType": HTML, "text": PAGE}
        extensions = (await mcp.result("server/discover"))["capabilities"]["extensions"]
        assert extensions["io.modelcontextprotocol/ui"] == {}


async def test_the_options_of_a_page_reach_the_host(tmp_path: Path) -> None:
    (tmp_path / "chart.html").write_text(PAGE)
    options = """meta={"a": 1}, ui=App(
        "chart.html",
        csp={"connectDomains": ["https://api.example.com"]},
        permissions=["camera", "clipboardWrite"],
        prefers_border=False,
        visibility=["app"],
    )"""
    async with client(chart(tmp_path, options)) as mcp:
        (listed,) = (await mcp.result("tools/list"))["tools"]
        assert listed["_meta"] == {
            "a": 1,
            "ui": {"resourceUri": "ui://own/chart.html", "visibility": ["app"]},
        }
        expected = {
            "csp": {"connectDomains": ["https://api.example.com"]},
            "permissions": {"camera": {}, "clipboardWrite": {}},
            "prefersBorder": False,
        }
        (page,) = (await mcp.result("resources/read", {"uri": "ui://own/chart.html"}))["contents"]
        assert page["_meta"] == {"ui": expected}


async def test_a_tool_of_other_pages_needs_no_page(tmp_path: Path) -> None:
    async with client(chart(tmp_path, 'ui=App(visibility=["app"])')) as mcp:
        assert await tool_meta(mcp) == {"visibility": ["app"]}
        assert "extensions" not in (await mcp.result("server/discover"))["capabilities"]
        assert await mcp.text("own__chart") == "drawn"


async def test_two_tools_share_a_page_in_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    (tmp_path / "ä #1%").mkdir()
    (tmp_path / "ä #1%/a?b.html").write_text(PAGE)
    source = TOOLS.replace("{options}", 'ui="ä #1%/a?b.html"')
    source += source.replace("def chart", "def plot")
    async with client(served(tmp_path, source)) as mcp:
        (entry,) = (await mcp.result("resources/list"))["resources"]
        assert entry["uri"] == "ui://own/%C3%A4%20%231%25/a%3Fb.html"
        (page,) = (await mcp.result("resources/read", {"uri": entry["uri"]}))["contents"]
        assert page["text"] == PAGE


async def test_two_tools_cannot_give_one_page_different_options(tmp_path: Path) -> None:
    (tmp_path / "chart.html").write_text(PAGE)
    source = TOOLS.replace("{options}", 'ui="chart.html"')
    other = 'ui=App("chart.html", prefers_border=True)'
    source += TOOLS.replace("{options}", other).replace("def chart", "def plot")
    with pytest.raises(ConfigError, match="other options"):
        served(tmp_path, source)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.html", "cannot be read: there is no such file"),
        ("folder", "cannot be read"),
        ("../outside.html", "is not a path below"),
        ("folder/../page.html", "is not a path below"),
        ("link.html", "is not a path below"),
        ("loop.html", "not a path below|cannot be read"),
        ("/etc/passwd", "is not a path below"),
        ("a\\x00b.html", "is not a path below"),
        ("latin.html", "is not UTF-8"),
        ("large.html", "more than 4,000,000 bytes"),
        ("x" * 300, "cannot be read|is no path below"),
    ],
)
def test_a_page_that_cannot_be_served_fails_the_start(
    tmp_path: Path, name: str, reason: str
) -> None:
    folder = tmp_path / "project"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "outside.html").write_text(PAGE)
    (folder / "page.html").write_text(PAGE)
    (folder / "link.html").symlink_to(tmp_path / "outside.html")
    (folder / "loop.html").symlink_to(folder / "loop.html")
    (folder / "latin.html").write_bytes("Größe".encode("latin-1"))
    (folder / "large.html").write_bytes(b"x" * (MAX_BYTES + 1))
    problem = problem_of(folder, f'ui="{name}"')
    assert problem.path == "chart(): @tool(ui=…)"
    assert (Path(problem.file).name, problem.line) == ("tools.py", 4)
    assert re.search(reason, problem.message), problem.message
    assert problem.remedy


@pytest.mark.parametrize(
    "option",
    [
        "ui=5",
        'ui=""',
        'ui=App("p.html", visibility="app")',
        'ui=App("p.html", visibility=["user"])',
        'ui=App("p.html", permissions=["usb"])',
        'ui=App("p.html", csp={"connect": ["https://a.example"]})',
        'ui=App("p.html", csp={"connectDomains": "https://a.example"})',
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, option: str) -> None:
    (tmp_path / "p.html").write_text(PAGE)
    assert problem_of(tmp_path, option).path == "chart(): @tool(ui=…)"


BOTH = """
from roundgate import App, tool

@tool(ui="p.html")
def show() -> str:
    "Show the numbers."
    return "shown"

@tool(ui=App(visibility=["app"]))
def refresh() -> str:
    "Refresh the numbers."
    return "fresh"

@tool
def count() -> str:
    "Count the numbers."
    return "3"
"""


async def test_models_do_not_find_the_tools_of_pages(tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text(PAGE)
    async with client(served(tmp_path, BOTH, search={})) as mcp:
        names = [tool["name"] for tool in (await mcp.result("tools/list"))["tools"]]
        assert names == ["search_tools", "describe_tool", "call_tool", "own__refresh"]
        found = await mcp.text("search_tools", {"query": "numbers"})
        assert "own__show" in found
        assert "own__refresh" not in found
        for through in ("describe_tool", "call_tool"):
            assert "There is no tool" in await mcp.text(through, {"name": "own__refresh"})
        assert await mcp.text("own__refresh") == "fresh"


async def test_a_view_has_the_pages_of_its_tools_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text(PAGE)
    views = [
        {"name": "with", "include": [{"name": "own__show"}]},
        {"name": "without", "include": [{"name": "own__count"}]},
    ]
    async with client(served(tmp_path, BOTH, views=views)) as mcp:
        mcp.path = "/with/mcp"
        assert (await mcp.result("resources/read", {"uri": "ui://own/p.html"}))["contents"]
        assert len((await mcp.result("resources/list"))["resources"]) == 1
        mcp.path = "/without/mcp"
        response = await mcp.post("resources/read", {"uri": "ui://own/p.html"})
        assert response.json()["error"]["code"] in (-32601, -32602)
        assert "extensions" not in (await mcp.result("server/discover"))["capabilities"]


async def test_a_page_without_a_path_opens_no_view(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        TOOLS.replace("{options}", 'meta={"ui": {"resourceUri": "ui://chart"}}')
    )
    for path in ("billing/refunds", "secret"):
        (tmp_path / "skills" / path).mkdir(parents=True)
        name = path.rpartition("/")[2]
        text = f"---\nname: {name}\ndescription: A skill.\n---\n"
        (tmp_path / "skills" / path / "SKILL.md").write_text(text)
    backends = [
        {"kind": "python", "name": "own", "path": "tools.py"},
        {"kind": "skills", "name": "team", "path": "skills"},
    ]
    views = [{"name": "some", "resources": ["skill://team/billing/*"]}]
    app = built(config_of({"backends": backends, "views": views}, tmp_path))
    async with client(app) as mcp:
        mcp.path = "/some/mcp"
        inside = {"uri": "skill://team/billing/refunds/SKILL.md"}
        assert (await mcp.result("resources/read", inside))["contents"]
        for method in ("resources/read", "skills/get"):
            response = await mcp.post(method, {"uri": "skill://team/secret/SKILL.md"})
            assert response.json()["error"]["code"] == -32602


async def test_two_folders_cannot_have_pages_of_one_name(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "odd_pages_package"):
        folder.mkdir(exist_ok=True)
        (folder / "chart.html").write_text(f"{PAGE}{folder.name}")
    source = TOOLS.replace("{options}", 'ui="chart.html"')
    (tmp_path / "odd_pages_package/plots.py").write_text(source.replace("chart()", "plot()"))
    with pytest.raises(ConfigError, match=r"has the URI of .*odd_pages_package/chart\.html"):
        served(tmp_path, f"from odd_pages_package.plots import plot\n{source}")


def test_check_remarks_pages_that_cannot_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chart.html").write_text(PAGE)
    (tmp_path / "tools.py").write_text(TOOLS.replace("{options}", 'ui="chart.html"'))
    path = tmp_path / "gateway.yaml"
    entry = "{kind: python, name: own, prefix: '', path: tools.py%s}"

    def remarks(more: str = "", sections: str = "") -> str:
        path.write_text(f"backends: [{entry % more}]\n{sections}")
        assert main(["check", "--file-only", str(path)]) == 0
        return capsys.readouterr().out

    unpinned, cut = "chart: hosts show no page", "chart: max_result removes structuredContent"
    assert unpinned in remarks(sections="search: {}\n")
    assert unpinned in remarks(sections="views: [{name: v, search: {}}]\n")
    assert cut in remarks(", override: {chart: {max_result: 500}}")
    plain = remarks(sections="search: {pinned: [chart]}\n")
    assert unpinned not in plain
    assert cut not in plain
