"""What holds for all tests: what a module of tests leaves open fails the run, however long it lives, and no
client waits only as long as httpx does by default, 5 s, which a busy machine takes to start a process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import sources

CONFTEST = Path(__file__).with_name("conftest.py")
CLIENTS = {"AsyncClient", "Client", "delete", "get", "post", "put", "request", "stream"}
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
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(CONFTEST.read_text())
    (tests / "test_a.py").write_text(keeps)
    (tests / "test_b.py").write_text(DROPS)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", f"{workers}", "tests"],
        cwd=tmp_path,
        env=environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stdout
    assert "2 passed" in done.stdout


def test_each_client_of_httpx_has_a_time_out_of_its_own() -> None:
    for source in sources(CONFTEST.parent):
        for call in source.nodes(ast.Call) if "httpx" in source.text else ():
            match call:
                case ast.Call(ast.Attribute(ast.Name("httpx" | "httpx2"), name), _, keywords) if (
                    name in CLIENTS
                ):
                    given = {keyword.arg for keyword in keywords}
                    at = f"{source.path}:{call.lineno}"
                    assert given & {"timeout", "transport"}, f"{at}: timeout=60"
