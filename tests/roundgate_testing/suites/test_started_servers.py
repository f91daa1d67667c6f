"""The server that a suite starts: what is said if it does not come up, and that it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from roundgate.errors import ConnectionLost, UsageError
from roundgate_testing.suites.targets import SuiteTarget, started
from tests.support.clocks import pass_time

URL = "http://127.0.0.1:${port}/mcp"
LISTENS = """
import os, socket, sys, time
with open("pid", "w") as file:
    file.write(str(os.getpid()))
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(120)
"""


def running(folder: Path, code: str, **options: float) -> SuiteTarget:
    """A server that is this program; its port is the argument."""
    command = (sys.executable, "-c", code, "${port}")
    return SuiteTarget(URL, command, {}, folder, **options)  # type: ignore[arg-type]


async def test_a_server_that_listens_is_at_its_url_and_ends_with_the_run(tmp_path: Path) -> None:
    async with started(running(tmp_path, LISTENS)) as target:
        assert target.url.startswith("http://127.0.0.1:")
        assert "${port}" not in target.url
        process = int((tmp_path / "pid").read_text())
        os.kill(process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_the_environment_of_a_server_may_name_its_port(tmp_path: Path) -> None:
    code = LISTENS + "\n"
    code = code.replace('open("pid", "w") as file', 'open("port", "w") as file').replace(
        "str(os.getpid())", 'os.environ["LISTEN"]'
    )
    target = replace(running(tmp_path, code), environment={"LISTEN": "here:${port}"})
    async with started(target) as running_target:
        port = running_target.url.partition("127.0.0.1:")[2].partition("/")[0]
        assert (tmp_path / "port").read_text() == f"here:{port}"


async def test_a_port_that_somebody_takes_is_followed_by_another(tmp_path: Path) -> None:
    taken = f"""
import os, sys
if not os.path.exists("tried"):
    open("tried", "w").close()
    sys.exit("OSError: [Errno 98] Address already in use")
{LISTENS}"""
    async with started(running(tmp_path, taken)) as target:
        assert target.url.startswith("http://127.0.0.1:")
    assert (tmp_path / "tried").exists()


async def test_a_server_that_finds_every_port_taken_is_given_up(tmp_path: Path) -> None:
    with (tmp_path / "tries").open("a"):
        code = "import sys; open('tries', 'a').write('x'); sys.exit('address already in use')"
    with pytest.raises(ConnectionLost, match="No free port was found"):
        async with started(running(tmp_path, code)):
            pass
    assert (tmp_path / "tries").read_text() == "xxx"


async def test_a_server_that_ends_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match=r"status 3 before it listened:\n.*no gateway\.yaml"):
        async with started(running(tmp_path, "import sys; print('no gateway.yaml'); sys.exit(3)")):
            pass


async def test_a_server_that_never_listens_is_given_up_with_what_it_said(tmp_path: Path) -> None:
    code = """
import time
print("warming up", flush=True)
open("warm", "w").close()
time.sleep(120)
"""

    async def start() -> None:
        async with started(running(tmp_path, code, start_timeout_s=60)):
            pass

    starting = asyncio.create_task(start())
    while not (tmp_path / "warm").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    pass_time(61)
    with pytest.raises(ConnectionLost, match=r"after 60 s \(start_timeout_s\):\nwarming up"):
        await starting


async def test_a_command_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-command"):
        async with started(SuiteTarget(URL, ("no-such-command",), {}, tmp_path)):
            pass
