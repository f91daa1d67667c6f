"""The job of the quickstart with every section that functions serve, on both kinds of API: `roundgate
stack` packs it and runs it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from subprocess import Popen

import pytest

from roundgate.client import Client
from roundgate_aws.stack.functions import why_not
from tests.support.audit import KEY
from tests.support.everything import OF_FUNCTIONS, job, written
from tests.support.server import COMMAND, end, start

START_S = 300
"""To pack two functions and start their stack takes a minute on two free cores."""


def url_of(process: Popen[bytes], log: Path) -> str:
    """The URL that `roundgate stack` prints once it is up."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"^(http://127\.0\.0\.1:\d+/mcp)$", log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.2)
    raise AssertionError(log.read_text())


@pytest.mark.stack
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("api", ["http", "rest"])
async def test_the_job_of_the_quickstart_with_every_section(tmp_path: Path, api: str) -> None:
    config, log = written(tmp_path / "repository", OF_FUNCTIONS), tmp_path / "stack.log"
    command = [*COMMAND, "stack", str(config), "--api", api, "--directory", str(tmp_path / "up")]
    process = start(command, log, {"AUDIT_KEY": KEY})
    try:
        async with Client(url_of(process, log)) as client:
            await job(client)
        process.terminate()
        process.wait(60)
    finally:
        end(process)
    logs = {file.stem: file.read_text() for file in (tmp_path / "up").glob("*Function-*.log")}
    assert any('"event":"called"' in text for name, text in logs.items() if "Gateway" in name)
    assert any('"event":"turn"' in text for name, text in logs.items() if "Worker" in name)
