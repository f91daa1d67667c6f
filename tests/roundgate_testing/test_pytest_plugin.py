"""The fixtures that pytest has once roundgate is installed, in a user's own repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import own_pytest
from tests.support.long import sampled

CONFIG = "backends: [{{kind: python, name: shop, prefix: '', {source}}}]\n"
SHOP = """
from pydantic import BaseModel
from roundgate import Context, tool

class Confirm(BaseModel):
    go: bool

@tool
async def refund(ctx: Context, order: int) -> str:
    answer = await ctx.elicit("confirm", "Sure?", Confirm)
    return f"refunded {order}" if answer.go else "kept"

@tool
async def charge(ctx: Context, amount: int) -> str:
    return await ctx.step("pay", pay, amount)

def pay(amount: int) -> str:
    raise RuntimeError("the real service was called")
"""
ASYNCIO = """
import pytest

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
TESTS = f"""{ASYNCIO}
async def test_refund(gateway, virtual_clock):
    async with gateway:
        assert gateway.clock is virtual_clock
        result = await gateway.call(
            "refund", order=7, answers={{"confirm": {{"go": True}}}}, crash="everywhere"
        )
        assert result.value == "refunded 7"
"""
FAKED_IN_A_CRASH = f"""{ASYNCIO}
from unittest.mock import AsyncMock, MagicMock
import tools

def recorder(done):
    def fake(amount):
        done.append(amount)
        return f"{{amount}} paid"
    return fake

FAKES = [
    lambda done: lambda amount: done.append(amount) or f"{{amount}} paid",
    lambda done: MagicMock(side_effect=recorder(done)),
    lambda done: AsyncMock(side_effect=recorder(done)),
]

@pytest.mark.parametrize("fake", FAKES)
async def test_charge(gateway, monkeypatch, fake):
    done = []
    monkeypatch.setattr(tools, "pay", fake(done))
    async with gateway:
        result = await gateway.call(
            "charge", amount=7, crash="everywhere", observe=lambda: done, reset=done.clear
        )
        assert result.value == "7 paid"
"""


def pytest_says(folder: Path, files: dict[str, str]) -> str:
    """Write files into a folder, and return the output of pytest there."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return own_pytest(folder, "-q", "-p", "no:asyncio", "-p", "no:xdist").out


def test_the_gateway_of_the_repository_is_a_fixture_and_fakes_may_have_any_name(
    tmp_path: Path,
) -> None:
    said = pytest_says(
        tmp_path,
        {
            "pytest.ini": "[pytest]\npythonpath = shop\n",
            "shop/gateway.yaml": CONFIG.format(source="path: tools.py"),
            "shop/tools.py": SHOP,
            "shop/tests/test_tools.py": TESTS,
            "shop/tests/test_fakes.py": FAKED_IN_A_CRASH,
            "elsewhere/test_without.py": TESTS,
        },
    )
    assert "no gateway.yaml in the test's directory or above" in said, said
    assert ("4 passed" in said, "1 error" in said) == (True, True), said


FAKES = """
{at_the_top}

async def test_charge(gateway, monkeypatch):
    async with gateway:
        {within}
        monkeypatch.setattr({name}, "pay", lambda amount: f"{{amount}} paid")
        result = await gateway.call("charge", amount=7, crash="everywhere")
        assert result.value == "7 paid"
        monkeypatch.undo()
        assert (await gateway.call("charge", amount=7)).is_error
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
    at_the_top, within = ("", imported) if is_late else (imported, "")
    test = FAKES.format(at_the_top=at_the_top, within=within, name=name)
    said = pytest_says(
        tmp_path,
        {
            "pytest.ini": "[pytest]\npythonpath = . src\n",
            "gateway.yaml": CONFIG.format(source=source),
            file: SHOP,
            "test_shop.py": ASYNCIO + test,
        },
    )
    assert "1 passed" in said, said
