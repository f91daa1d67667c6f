"""The fixtures that pytest has once roundgate is installed, in a user's own repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.long import sampled

TOOLS = """
from pydantic import BaseModel
from roundgate import Context, tool

class Confirm(BaseModel):
    go: bool

@tool
async def refund(ctx: Context, order: int) -> str:
    answer = await ctx.elicit("confirm", "Sure?", Confirm)
    return f"refunded {order}" if answer.go else "kept"
"""
TESTS = """
import pytest

@pytest.mark.anyio
async def test_refund(gateway, virtual_clock):
    async with gateway:
        assert gateway.clock is virtual_clock
        result = await gateway.call(
            "refund", order=7, answers={"confirm": {"go": True}}, crash="everywhere"
        )
        assert result.value == "refunded 7"

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def _pytest(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:xdist"]
    return subprocess.run(
        [*command, str(directory)], cwd=directory, capture_output=True, text=True, timeout=120
    )


def test_the_gateway_of_the_repository_is_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_tools.py").write_text(TESTS)
    without = _pytest(tmp_path)
    assert "no gateway.yaml in the test's directory or above" in without.stdout, without.stdout
    (tmp_path / "gateway.yaml").write_text(
        "backends: [{kind: python, name: shop, prefix: '', path: tools.py}]\n"
    )
    done = _pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


SHOP = """
from roundgate import Context, tool

@tool
async def charge(ctx: Context, amount: int) -> str:
    return await ctx.step("pay", pay, amount)

def pay(amount: int) -> str:
    raise RuntimeError("the real service was called")
"""
FAKES = """
import pytest
{at_the_top}

@pytest.mark.anyio
async def test_charge(gateway, monkeypatch):
    async with gateway:
        {within}
        monkeypatch.setattr({name}, "pay", lambda amount: f"{{amount}} paid")
        result = await gateway.call("charge", amount=7, crash="everywhere")
        assert result.value == "7 paid"
        monkeypatch.undo()
        assert (await gateway.call("charge", amount=7)).is_error

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.parametrize(
    ("source", "file", "imported", "name"),
    sampled(
        [
            ("path: shop/tools.py", "shop/tools.py", "import shop.tools", "shop.tools"),
            ("path: tools.py", "tools.py", "import tools", "tools"),
            ("module: tools", "tools.py", "import tools", "tools"),
            ("path: src/tools.py", "src/tools.py", "import tools", "tools"),
        ]
    ),
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_fake_is_what_the_gateway_calls_whatever_gateway_yaml_says(
    tmp_path: Path, source: str, file: str, imported: str, name: str, is_late: bool
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = . src\n")
    (tmp_path / "gateway.yaml").write_text(
        f"backends: [{{kind: python, name: shop, prefix: '', {source}}}]\n"
    )
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(
        FAKES.format(
            at_the_top="" if is_late else imported, within=imported if is_late else "", name=name
        )
    )
    done = _pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


FAKED_IN_A_CRASH = """
from unittest.mock import AsyncMock, MagicMock
import pytest
import tools

def recorder(done):
    def fake(amount):
        done.append(amount)
        return f"{amount} paid"
    return fake

FAKES = [
    lambda done: lambda amount: done.append(amount) or f"{amount} paid",
    recorder,
    lambda done: MagicMock(side_effect=recorder(done)),
    lambda done: AsyncMock(side_effect=recorder(done)),
]

@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.anyio
async def test_charge(gateway, monkeypatch, fake):
    done = []
    monkeypatch.setattr(tools, "pay", fake(done))
    async with gateway:
        result = await gateway.call(
            "charge", amount=7, crash="everywhere", observe=lambda: done, reset=done.clear
        )
        assert result.value == "7 paid"

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def test_a_fake_may_have_any_name_where_a_process_dies(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "tools.py").write_text(SHOP)
    (tmp_path / "gateway.yaml").write_text(
        "backends: [{kind: python, name: shop, prefix: '', path: tools.py}]\n"
    )
    (tmp_path / "test_tools.py").write_text(FAKED_IN_A_CRASH)
    done = _pytest(tmp_path)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
