"""Names of tools without the characters that several clients refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundgate import tool
from roundgate.cli import main
from roundgate.errors import ConfigError
from roundgate.runtime import loading
from tests.support.asgi import config_file
from tests.support.openapi import OK, document, file_of
from tests.support.scripted import result, scripted, text
from tests.support.upstreams import Upstream, gateway_of, names
from tests.support.upstreams import tool as listed_tool

DOTS = {"names": {"dots": "_"}}


@tool(name="repos.get")
def get() -> str:
    """Get."""
    return "got"


@tool(name="repos_get")
def other() -> str:
    """Get something else."""
    return "else"


def test_names_of_any_back_end_lose_their_dots() -> None:
    override = {"repos_get": {"title": "Known by the name that is listed"}}
    backend = {"name": "my.api", "prefix": None, "override": override, **DOTS}
    catalog = loading.load(config_file(get, backend=backend)).catalog
    (served,) = catalog.tools.values()
    assert served.name == "my_api__repos_get"
    assert served.tool.definition["title"].startswith("Known")
    assert list(loading.load(config_file(get)).catalog.tools) == ["repos.get"]


def test_two_tools_with_one_name_are_refused_by_both_names() -> None:
    with pytest.raises(ConfigError) as caught:
        loading.load(config_file(get, other, backend=DOTS))
    problem = "tools 'repos.get', 'repos_get' would all be called 'repos_get'"
    assert problem in str(caught.value)
    dashes = config_file(get, other, backend={"names": {"dots": "-"}})
    assert list(loading.load(dashes).catalog.tools) == ["repos-get", "repos_get"]


async def test_tools_of_a_server_are_called_by_their_own_names() -> None:
    def call(asked: Any) -> Any:
        return result(asked, text(asked.params["name"]))

    tools = [listed_tool(name) for name in ("files/read", "a.b", "a_b", "plain")]
    async with (
        scripted(Upstream(call, tools=tools)) as server,
        gateway_of({"kind": "mcp", "name": "up", "url": server.url, "prefix": "", **DOTS}) as mcp,
    ):
        assert await names(mcp) == ["files_read", "plain"]
        assert await mcp.text("files_read", {}) == "files/read"


def test_operations_lose_their_dots_unless_they_are_to_keep_them(tmp_path: Path) -> None:
    paths = {
        f"/{number}": {"get": {"operationId": name, "responses": OK}}
        for number, name in enumerate(["pets.list", "pets.get", "pets_get"])
    }
    described = document(paths)

    def loaded(**backend: Any) -> list[str]:
        return list(loading.load(file_of(tmp_path, described, **backend)).catalog.tools)

    first, *clashing = loaded(include=[{"name": "pets_*"}])
    assert first == "pets_list"
    assert all(name.startswith("pets_get_") for name in clashing)
    assert len({*clashing}) == 2
    assert loaded(names={"dots": None}) == ["pets.list", "pets.get", "pets_get"]


def test_check_remarks_names_that_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = 'from roundgate import tool\n\n@tool(name="a.b")\ndef f() -> str:\n    "F."\n    return ""\n'
    (tmp_path / "tools.py").write_text(code)
    path = tmp_path / "gateway.yaml"
    path.write_text("backends: [{kind: python, name: t, prefix: '', path: tools.py}]\n")
    assert main(["check", "--file-only", str(path)]) == 0
    assert "a.b: several clients refuse names" in capsys.readouterr().out
    path.write_text(path.read_text().replace("}]", ", names: {dots: _}}]"))
    assert main(["check", "--file-only", str(path)]) == 0
    assert "several clients" not in capsys.readouterr().out
