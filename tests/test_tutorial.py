"""docs/start.md and docs/tutorial.md are run, block by block: files are written, commands run, and
they print what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer

import pytest

from roundgate_aws.machine import reserved_port
from tests.support.documents import ROOT

BLOCK = re.compile(
    r"(?:^`(?P<file>[\w.]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
ELSEWHERE = re.compile(r"^(pip install|python -m venv|roundgate (stack|deploy))", re.MULTILINE)
"""Commands that need an index of packages, minutes, or an account; cli/test_wheel_alone.py has the first two."""
OVER = "the block is over"
PATIENCE_S = 280


class Shell:
    """One bash in a folder, as a reader has it."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "errors"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=os.environ | {"PATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def run(self, commands: str) -> str:
        """What they print."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{commands}\necho {OVER}\n")
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            if line == f"{OVER}\n":
                return printed
            printed += line
        raise AssertionError(f"{commands}\nprinted {printed}\n{self._errors.read_text()}")

    def end(self) -> None:
        """Kill it, and what it has begun."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """One that ends with the test, or when that takes too long."""
    made = Shell(tmp_path)
    timer = Timer(PATIENCE_S, made.end)
    timer.start()
    yield made
    timer.cancel()
    made.end()


def matches(shown: str, printed: str) -> bool:
    """Whether something was printed as it is shown; "…" stands for anything, further lines included."""
    return (
        re.fullmatch(re.escape(shown.strip()).replace("…", ".*"), printed.strip(), re.DOTALL)
        is not None
    )


@pytest.fixture
def free_port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.mark.parametrize("name", ["start", "tutorial"])
def test_every_block_of_the_page_does_what_it_says(
    shell: Shell, tmp_path: Path, free_port: int, name: str
) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    port = str(free_port)
    printed, log = "", tmp_path / "gateway.log"
    kinds = []
    for block in BLOCK.finditer(page):
        text = block["text"].replace("8000", port)
        kinds.append("file" if block["file"] else block["language"])
        match kinds[-1]:
            case "file":
                (tmp_path / block["file"]).write_text(text)
            case "sh" if ELSEWHERE.search(text):
                continue
            case "sh":
                printed = shell.run(text)
            case "text":
                told = log.read_text() if log.exists() else ""
                assert matches(text, printed), (
                    f"the page shows:\n{text}\nprinted was:\n{printed}\n{told}"
                )
            case other:
                raise AssertionError(
                    f"a block of {other} is neither a file (`NAME`: above it), nor sh, nor text"
                )
    assert {"sh", "text"} <= set(kinds)
