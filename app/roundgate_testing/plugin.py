"""Fixtures for pytest, available once roundgate is installed.

    async def test_refund(gateway):
        async with gateway:
            assert (await gateway.call("refund", order=7)).value == "refunded"

`gateway` serves the file that `roundgate_config` names in pytest's configuration, or the nearest
gateway.yaml in the test's directory or above.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from roundgate_testing.gateway import Gateway
    from roundgate_testing.instances import VirtualClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("roundgate_config", "the gateway.yaml of the `gateway` fixture", default="")


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """Return the clock of the `gateway` fixture."""
    from roundgate_testing.instances import VirtualClock

    return VirtualClock()


@pytest.fixture
def gateway(request: pytest.FixtureRequest, virtual_clock: VirtualClock) -> Gateway:
    """Return a gateway, which the test enters with `async with`."""
    from roundgate_testing.gateway import Gateway

    named = str(request.config.getini("roundgate_config"))
    file = request.config.rootpath / named if named else _nearest(request.path)
    return Gateway(file, clock=virtual_clock)


def _nearest(test: Path) -> Path:
    for directory in test.resolve().parents:
        if (file := directory / "gateway.yaml").is_file():
            return file
    pytest.fail(
        "no gateway.yaml in the test's directory or above; name one in pytest's configuration:"
        " roundgate_config = path/to/gateway.yaml",
        pytrace=False,
    )
