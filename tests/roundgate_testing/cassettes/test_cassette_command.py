"""`roundgate cassette`: the proxy that records, the stand-in, verifying, recording again; and
the fixture of pytest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from roundgate.cli import main
from roundgate.client import Client, HttpRequest, HttpxTransport, Limits, Url
from roundgate.errors import ClientError, ConnectionLost, HttpRefused
from roundgate_testing.cassettes import Proxy, Recorder, StandIn, read, serving
from tests.roundgate_testing.cassettes.conftest import HERE, desk
from tests.roundgate_testing.cassettes.conversations import EXPECTED, INFO, held
from tests.support.command import Ran, own_pytest
from tests.support.scripted import Asked, http, scripted
from tests.support.server import running

ROOT = HERE.parents[2]
RECORDED = HERE / "recorded"


def roundgate(*words: str | Path) -> tuple[int, str, str]:
    """The command in this process: exit status, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(word) for word in words])
    return status, out.getvalue(), err.getvalue()


# -- the proxy, and the stand-in over sockets
# -------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["two_rounds", "task_with_a_question", "listening", "older_session"]
)
async def test_a_proxy_records_what_a_client_would(name: str, url: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.yaml"
    recorder = Recorder(file, url)
    proxy = Proxy(url, recorder)
    async with serving(proxy.answer, "127.0.0.1", 0) as port:
        proxy.listens_at(f"http://127.0.0.1:{port}")
        transport = HttpxTransport(Limits())
        assert await held(name, f"http://127.0.0.1:{port}/mcp", transport) == EXPECTED[name]
    await recorder.close()
    assert file.read_text() == (RECORDED / file.name).read_text()


@asynccontextmanager
async def stand_in(name: str) -> AsyncGenerator[str, None]:
    found = StandIn(read(RECORDED / f"{name}.yaml"))
    async with serving(
        lambda asked: found.answer(asked.method, asked.headers, asked.body), "127.0.0.1", 0
    ) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("name", ["task_with_a_question", "listening", "older_session", "progress"])
async def test_a_stand_in_serves_over_sockets(name: str) -> None:
    async with stand_in(name) as url:
        assert await held(name, url, HttpxTransport(Limits())) == EXPECTED[name]


@pytest.mark.parametrize("end", ["", "response: {status: 200, text: so far, end: cut}"])
async def test_a_response_that_was_lost_or_cut_is_incomplete_over_sockets(
    tmp_path: Path, end: str
) -> None:
    file = tmp_path / "lost.yaml"
    file.write_text(f"cassette: 1\ninteractions:\n- request: {{method: ping}}\n  {end}\n")
    found = StandIn(read(file))
    async with serving(
        lambda asked: found.answer(asked.method, asked.headers, asked.body), "127.0.0.1", 0
    ) as port:
        transport = HttpxTransport(Limits())
        body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        url = Url.parse(f"http://127.0.0.1:{port}/mcp")
        response = await transport.send(HttpRequest("POST", url, [], body))
        with pytest.raises(ConnectionLost):
            [part async for part in response.chunks()]
        await response.close()
        await transport.close()


async def test_a_redirect_to_another_host_does_not_get_through_the_proxy() -> None:
    def script(asked: Asked) -> bytes:
        there = (
            "http://elsewhere.example/mcp" if asked.target == "/mcp" else f"{server.origin}/here"
        )
        return http(307, Location=there)

    async with scripted(script) as server:
        recorder = Recorder(None, server.url)
        proxy = Proxy(server.url, recorder)
        async with serving(proxy.answer, "127.0.0.1", 0) as port:
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                with pytest.raises(ClientError, match="redirects to another host"):
                    await client.connect()
            async with Client(f"http://127.0.0.1:{port}/here") as client:
                with pytest.raises(HttpRefused, match="in a circle"):
                    await client.connect()
            await recorder.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nOrigin: https://evil.example\r\n\r\n", b"403"),
        (b"POST / HTTP/1.1\r\nHost: evil.example:8100\r\n\r\n", b"403"),
        (b"POST / HTTP/1.1\r\nHost: [::1]evil.example\r\n\r\n", b"403"),
        (b"POST / HTTP/1.1\r\nHost: [\r\n\r\n", b"403"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n{", b"400"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n", b"400"),
        (b"GET /mcp HTTP/1.1\r\n\r\n", b"405"),
    ],
)
async def test_what_is_no_request_is_refused(sent: bytes, status: bytes) -> None:
    async with stand_in("plain_call") as url, asyncio.timeout(60):
        port = int(url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert (await reader.readline()).split()[1] == status
        writer.close()
        await writer.wait_closed()


async def test_the_commands_serve_and_record_until_they_are_told_to_end(tmp_path: Path) -> None:
    """One process records what another plays, and a client between them notices nothing."""
    file = tmp_path / "again.yaml"
    command = [sys.executable, "-m", "roundgate.cli", "cassette"]
    processes: list[asyncio.subprocess.Process] = []

    async def begin(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *command, *words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        processes.append(process)
        assert process.stdout is not None
        return (await process.stdout.readline()).decode().strip()

    try:
        async with asyncio.timeout(120):
            played = await begin("serve", str(RECORDED / "plain_call.yaml"))
            recorded = await begin("record", str(file), played)
            async with Client(recorded, info=INFO) as client:
                assert (await client.call("add", a=2, b=40)).value == 42
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    again = [one.title for one in read(file).interactions]
    assert again[-1] == "tools/call add"


# -- verify, schema
# ---------------------------------------------------------------------------


def test_verify_says_what_differs_and_records_it_again(tmp_path: Path) -> None:
    file = tmp_path / "two_rounds.yaml"
    shutil.copy(RECORDED / file.name, file)
    with desk(tmp_path, "Refunded order", "Returned order") as url:
        status, out, err = roundgate("cassette", "verify", file, url)
        assert (status, err) == (1, "1 of 6 interactions differ\n")
        assert out.splitlines() == [
            "6: tools/call refund",
            "  result.content[0].text",
            '      recorded: "Refunded order 7"',
            '      now:      "Returned order 7"',
        ]
        assert roundgate("cassette", "verify", file, url, "--only", "5")[0] == 0
        assert roundgate("cassette", "verify", file, url, "--ignore", "content[*].text")[0] == 0
        before = file.read_text()
        assert roundgate("cassette", "verify", file, url, "--update", "--only", "6")[0] == 0
        assert file.read_text() == before.replace("Refunded order 7", "Returned order 7")
        status, _, err = roundgate("cassette", "verify", file, url)
        assert (status, err) == (0, "6 interactions, all as recorded\n")


def test_call_records_and_what_it_recorded_is_verified(url: str, tmp_path: Path) -> None:
    file = tmp_path / "call.yaml"
    assert roundgate("call", url, "add", "a=1", "b=2", "--cassette", file)[:2] == (0, "3\n")
    assert roundgate("cassette", "verify", file, url, url)[0] == 0
    assert "tools/call add\n" in file.read_text(), "each interaction has its title as a comment"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["serve", "absent.yaml"], "No such file"),
        (["verify", "absent.yaml", "http://127.0.0.1:9/mcp"], "give the path of a cassette"),
        (["serve", "plain.yaml", "--listen", "here"], "such as 127.0.0.1:8100"),
        (["verify", "plain.yaml", "http://127.0.0.1:9/mcp", "--only", "9"], "interactions 1 to 5"),
        (["verify", "plain.yaml", "http://a/", "http://b/", "--update"], "one URL"),
        (["verify", "plain.yaml", "http://a/", "--ignore", ".."], "is not a path"),
        (["record", "absent/x.yaml", "http://127.0.0.1:9/mcp"], "cannot be written"),
        (["record", "x.yaml", "http://127.0.0.1:9/mcp", "--rule", "order"], "NAME=PATTERN"),
        (["record", "x.yaml", "http://127.0.0.1:9/mcp", "--rule", "a=("], "NAME=PATTERN"),
        (["record", "x.yaml", "http://127.0.0.1:9/mcp", "--rule", "a=b*"], "NAME=PATTERN"),
        (["record", "x.yaml", "http://127.0.0.1:9/mcp", "--redact-env", "NO_SUCH"], "not set"),
    ],
)
def test_wrong_usage_is_status_2_and_says_how_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECORDED / "plain_call.yaml", "plain.yaml")
    status, out, err = roundgate("cassette", *words)
    assert (status, out) == (2, "")
    assert what in err


def test_a_server_that_is_not_there_differs(tmp_path: Path) -> None:
    status, out, _ = roundgate(
        "cassette", "verify", RECORDED / "plain_call.yaml", "http://127.0.0.1:9/mcp"
    )
    assert status == 1
    assert "No connection" in out


def test_the_schema_is_printed() -> None:
    status, out, _ = roundgate("cassette", "schema")
    assert status == 0
    assert json.loads(out)["title"] == "Roundgate cassette"


# -- the fixture of pytest
# --------------------------------------------------------------------------

QUIET = ("-q", "-p", "no:cacheprovider")
TEST = """
import os

async def test_add(cassette):
    async with cassette.client(os.environ["DESK"], info={"name": "t", "version": "1"}) as client:
        assert (await client.call("add", a=2, b=40)).value == 42
"""


def test_a_test_records_once_and_needs_no_server_after(url: str, tmp_path: Path) -> None:
    (tmp_path / "test_desk.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    file = tmp_path / "cassettes" / "test_desk" / "test_add.yaml"

    def pytest_says(mode: str, desk: str) -> Ran:
        return own_pytest(tmp_path, *QUIET, f"--cassettes={mode}", DESK=desk)

    nobody = "http://127.0.0.1:9/mcp"
    refused = pytest_says("replay", nobody)
    assert (refused.status, "--cassettes=record" in refused.out) == (1, True)
    assert pytest_says("once", url).status == 0
    recorded = file.read_text()
    assert pytest_says("once", nobody).status == 0
    assert pytest_says("record", url).status == 0
    assert file.read_text() == recorded, "so `git diff` shows what a server changed"


def test_the_example_replays_and_its_server_still_answers_so(tmp_path: Path) -> None:
    example = tmp_path / "cassette"
    shutil.copytree(
        ROOT / "examples/cassette", example, ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    done = own_pytest(example, *QUIET, "--cassettes=replay")
    assert (done.status, "1 passed" in done.out) == (0, True), done.out + done.err
    store = {"GATEWAY_STORE": f"sqlite:///{tmp_path}/store.sqlite3"}
    with running(example / "gateway.yaml", store) as server:
        file = example / "cassettes/test_refund/test_a_refund.yaml"
        assert roundgate("cassette", "verify", file, f"{server.url}/mcp")[0] == 0
