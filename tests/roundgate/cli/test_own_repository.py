"""A user's repository that has a package `app` of its own, beside the wheel: commands,
servers and tests find both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]

TOOLS = '''"""Tools of a shop."""

from roundgate import tool


@tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"
'''

ASKED = """
import asyncio, httpx
from app.tools import greet
from uvicorn.importer import import_from_string

application = import_from_string("roundgate.main:create_app")()

async def names():
    of = "io.modelcontextprotocol/"
    versions = {of + "protocolVersion": "2026-07-28", of + "clientCapabilities": {}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
               "Mcp-Method": "tools/list"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": versions}}
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        answer = (await client.post("/mcp", headers=headers, json=body)).json()
    return [tool["name"] for tool in answer["result"]["tools"]]

def test_both_are_there():
    assert greet("Ada") == "Hello Ada"
    assert asyncio.run(names()) == ["greet"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel of this tree is installed."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)], check=True)
    (wheel,) = wheels.glob("roundgate-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    return site


@pytest.fixture(params=["module: app.tools", "path: app/tools.py"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Somebody's own, with a package `app` that the configuration names as a module or as a file."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__init__.py").write_text("")
    (tmp_path / "app/tools.py").write_text(TOOLS)
    (tmp_path / "gateway.yaml").write_text(
        f'backends:\n  - {{kind: python, name: shop, prefix: "", {request.param}}}\n'
    )
    (tmp_path / "test_tools.py").write_text(ASKED)
    return tmp_path


def run(site: Path, repository: Path, *command: str, **environ: str) -> str:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GATEWAY_", "PYTEST_"))
    }
    variables: Mapping[str, str] = {
        **kept,
        "PYTHONPATH": str(site),
        "GATEWAY_STORE": "sqlite:///here.sqlite3",
        **environ,
    }
    done = subprocess.run(
        command,
        cwd=repository,
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_four_packages_with_types(site: Path) -> None:
    packages = {"roundgate", "roundgate_aws", "roundgate_console", "roundgate_testing"}
    folders = {path.name for path in site.iterdir() if path.is_dir()}
    assert {name for name in folders if not name.endswith(".dist-info")} == packages | {"bin"}
    assert (site / "roundgate/py.typed").exists()


def test_the_command_finds_their_package(site: Path, repository: Path) -> None:
    assert "greet" in run(
        site, repository, sys.executable, str(site / "bin/roundgate"), "check", "gateway.yaml"
    )


def test_pytest_and_a_server_find_their_package(site: Path, repository: Path) -> None:
    where = run(
        site, repository, sys.executable, "-c", "import roundgate; print(roundgate.__file__)"
    )
    assert Path(where.strip()).is_relative_to(site)
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_tools.py")
    assert "1 passed" in run(
        site, repository, *pytest_, GATEWAY_CONFIG=str(repository / "gateway.yaml")
    )
