"""The suite's own settings: what a module of tests leaves open fails the run, however long it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
KEEPS = """
import socket, sys

def test_that_keeps_a_socket():
    class Holder: pass
    sys.held = Holder()
    sys.held.itself, sys.held.socket = sys.held, socket.socket()
"""
DROPS = """
import sys

def test_that_lets_go_of_it():
    del sys.held
"""
RAISES = """
import sys

def test_that_keeps_what_cannot_be_deleted():
    class Holder:
        def __del__(self):
            raise ValueError("not deleted")
    sys.held = Holder()
    sys.held.itself = sys.held
"""


@pytest.mark.parametrize(
    ("workers", "keeps", "status", "told"),
    [
        (0, KEEPS, 1, "ResourceWarning: unclosed <socket.socket"),
        (1, KEEPS, 1, "ResourceWarning: unclosed <socket.socket"),
        (1, RAISES, 1, "ValueError('not deleted')"),
        (1, "import sys\n\ndef test(): sys.held = 1", 0, "2 passed"),
    ],
    ids=["socket", "socket in a worker", "error in a worker", "nothing"],
)
def test_what_outlives_its_module_fails_the_run(
    tmp_path: Path, workers: int, keeps: str, status: int, told: str
) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(CONFTEST.read_text())
    (tests / "test_a.py").write_text(keeps)
    (tests / "test_b.py").write_text(DROPS)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", f"{workers}", "tests"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stdout
    assert "2 passed" in done.stdout
