"""The garbage collector is held back while a process starts, and at work again when it serves."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundgate.starting import kept


@pytest.fixture(autouse=True)
def _examine_again() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_within_the_block_nothing_is_collected() -> None:
    with kept():
        assert not gc.isenabled()
        with kept():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_at_work_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), kept():
        raise ValueError("no")
    assert gc.isenabled()


def test_what_serves_is_looked_at_no_more(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("")
    backend = {"kind": "python", "name": "tools", "path": "tools.py"}
    (tmp_path / "gateway.json").write_text(json.dumps({"backends": [backend]}))
    code = "import gc, roundgate.main as m; m.create_app(); print(gc.isenabled(), gc.get_freeze_count() > 50_000)"
    environ = {
        **os.environ,
        "GATEWAY_CONFIG": "gateway.json",
        "GATEWAY_STORE": "sqlite:///s.sqlite3",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.stdout == "True True\n", done.stderr
