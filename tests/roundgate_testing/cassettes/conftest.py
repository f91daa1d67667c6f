"""A gateway with the tools of the recorded conversations."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import running

HERE = Path(__file__).parent


@contextmanager
def desk(folder: Path, old: str = "", new: str = "") -> Iterator[str]:
    """Serve the desk, one word of its handlers changed; its endpoint."""
    shutil.copy(HERE / "gateway.yaml", folder / "gateway.yaml")
    (folder / "desk.py").write_text((HERE / "desk.py").read_text().replace(old, new))
    store = {"GATEWAY_STORE": f"sqlite:///{folder}/store.sqlite3"}
    with running(folder / "gateway.yaml", store) as server:
        yield f"{server.url}/mcp"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with desk(tmp_path_factory.mktemp("desk")) as url:
        yield url
