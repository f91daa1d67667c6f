"""The commands that talk to a server, as processes against a gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli.remote import NO_CONNECTION
from tests.support.command import roundgate
from tests.support.scripted import Asked, error, http, scripted
from tests.support.server import Server, serving
from tests.support.terminal import Terminal, needs_tmux
from tests.support.upstreams import Upstream, tool

COMMAND = [sys.executable, "-m", "roundgate.cli"]
CONFIG = """\
server: {name: cli, version: "1"}
backends: [{kind: python, name: tools, prefix: "", path: served.py}]
tasks: {poll_interval_ms: 100}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cli")
    with serving(folder, CONFIG, Path(__file__).with_name("served.py")) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}/mcp"


@pytest.fixture
def answers(tmp_path: Path) -> str:
    file = tmp_path / "answers.yaml"
    file.write_text("order: {seats: 2, meal: vegan}\nline: roses are red\n")
    return str(file)


def test_a_call_prints_the_bare_result(url: str) -> None:
    done = roundgate("call", url, "add", "a=2", "b=40")
    assert (done.status, done.out, done.err) == (0, "42\n", "")


async def test_the_time_of_a_call_counts_from_its_first_request() -> None:
    busy = http(429, b"Later", "text/plain", Retry_After="30")
    async with scripted(lambda asked: busy) as server:
        done = await asyncio.to_thread(roundgate, "call", server.url, "add", "--timeout", "0.2")
    assert done.status == NO_CONNECTION
    assert done.err == "No result of add within 0.2 s (--timeout)\n"


def test_a_tool_that_fails_is_status_1(url: str) -> None:
    done = roundgate("call", url, "fail")
    assert (done.status, done.out.strip()) == (1, "The printer is on fire")


def test_json_has_the_whole_result(url: str) -> None:
    done = roundgate("call", url, "add", "a=1", "--json")
    assert json.loads(done.out)["content"] == [{"type": "text", "text": "2"}]


@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (["add", "a=two"], 2, "a: 'two' is not an integer"),
        (["ad", "a=2"], 3, "it has add"),
        (["book", "city=Paris", "--answers", "/nowhere.yaml"], 2, "/nowhere.yaml cannot be read"),
    ],
)
def test_what_is_wrong_is_said_on_standard_error(
    url: str, words: list[str], status: int, what: str
) -> None:
    done = roundgate("call", url, *words)
    assert (done.status, done.out) == (status, ""), done.err
    assert what in done.err


def test_nobody_there_is_status_5() -> None:
    assert roundgate("ping", "http://127.0.0.1:9/mcp").status == 5


def test_a_file_answers(url: str, answers: str) -> None:
    done = roundgate("call", url, "book", "city=Paris", "--answers", answers)
    assert (done.status, done.out) == (0, "2 to Paris, meal: vegan\n")
    assert done.err == "these answers matched no question: line\n"


def test_an_answer_that_does_not_fit_is_status_2(url: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('{"order": {"seats": 10, "meal": "vegan"}}')
    done = roundgate("call", url, "book", "city=Paris", "--answers", str(file))
    assert (done.status, done.out) == (2, "")
    assert "seats" in done.err


def test_a_question_that_nobody_answers_is_on_standard_output(url: str) -> None:
    done = roundgate("call", url, "book", "city=Paris")
    asked = json.loads(done.out)
    assert done.status == 4
    assert [one["key"] for one in asked["questions"]] == ["order"]
    assert asked["questions"][0]["params"]["message"] == "How many seats to Paris?"
    assert asked["requestState"]


def test_a_detached_task_is_gone_on_with_elsewhere(url: str, answers: str) -> None:
    handle = roundgate("call", url, "slowly", "city=Rome", "--detach").out.strip()
    assert handle.startswith(f"{url}#task=")
    asked = roundgate("wait", handle)
    assert asked.status == 4
    done = roundgate("wait", handle, "--answers", answers)
    assert (done.status, done.out) == (0, "2 to Rome, slowly\n")


def test_a_task_that_asks_without_input_keeps_its_handle(url: str, answers: str) -> None:
    asked = roundgate("call", url, "slowly", "city=Rome", "--no-input")
    assert (asked.status, len(json.loads(asked.out)["questions"])) == (4, 1)
    *_, handle = re.findall(r"roundgate wait '?([^'\s]+)", asked.err)
    assert roundgate("wait", handle, "--answers", answers).out == "2 to Rome, slowly\n"


def test_the_bytes_of_a_file_are_sent_where_the_schema_wants_bytes(
    url: str, tmp_path: Path
) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG\xff")
    assert roundgate("call", url, "measure", f"photo=@{photo}").out == "5\n"
    as_text = roundgate("call", url, "book", f"city=@{photo}")
    assert (as_text.status, as_text.out) == (2, "")
    assert "photo.png is not text" in as_text.err


def test_a_description_has_nested_members_choices_and_formats(url: str) -> None:
    described = roundgate("describe", url, "ship").out
    for line in (
        "  to (object, required)",
        "    city (string, required)",
        '    country (one of FR, IT, default "FR")',
        "  when (string, date, required)",
        "  size (one of S, L)",
    ):
        assert line in described.splitlines()


class Scoped(Upstream):
    """A server that lists a dozen tools, and calls of another one need a scope."""

    def __init__(self) -> None:
        super().__init__(self.answer, [tool(f"t{n}") for n in range(12)])

    def answer(self, asked: Asked) -> Any:
        if asked.params["name"] == "pay":
            challenge = 'Bearer error="insufficient_scope", scope="till:pay"'
            return http(403, WWW_Authenticate=challenge)
        return error(asked, -32602, "Unknown tool")


async def test_a_missing_scope_is_no_missing_tool() -> None:
    async with scripted(Scoped()) as server:
        url = f"{server.url}"
        refused = await asyncio.to_thread(roundgate, "call", url, "pay", "sum=3")
        unknown = await asyncio.to_thread(roundgate, "call", url, "zzz")
    assert "the token lacks the scope till:pay" in refused.err
    assert "The server has no tool 'zzz' for this caller; it has t0, t1" in unknown.err
    assert "t9 and 2 more" in unknown.err


async def test_a_list_does_not_ask_for_what_the_server_denies() -> None:
    async with scripted(Upstream()) as server:
        listed = await asyncio.to_thread(roundgate, "list", server.url)
        assert (listed.status, listed.out) == (0, "tools\tt\n")
        assert [name for name in server.methods() if name.endswith("/list")] == ["tools/list"]


def test_a_task_can_be_cancelled(url: str) -> None:
    handle = roundgate("call", url, "slowly", "city=Rome", "--detach").out.strip()
    assert roundgate("wait", handle, "--cancel").out.strip() == "cancelled"
    done = roundgate("wait", handle)
    assert (done.status, done.out) == (1, "")


def test_no_handle_is_status_2() -> None:
    assert roundgate("wait", "task-1").status == 2


def test_lists_and_descriptions(url: str) -> None:
    assert "tools\tadd\tAdd two numbers." in roundgate("list", url).out.splitlines()
    assert roundgate("list", url, "tools").out.startswith("add\t")
    assert {
        one["name"] for one in json.loads(roundgate("list", url, "tools", "--json").out)["tools"]
    } >= {"add"}
    described = roundgate("describe", url, "add").out
    assert (
        "  a (integer, required): The first.\n  b (integer, default 1): The second.\n" in described
    )
    assert roundgate("describe", url).out.startswith("cli 1, revision 2026-07-28\n")
    assert roundgate("describe", url, "nothing").status == 3


def test_a_transcript_has_each_message(url: str, tmp_path: Path) -> None:
    file = tmp_path / "transcript.ndjson"
    assert roundgate("call", url, "add", "a=1", "--transcript", str(file)).status == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    called = [line for line in lines if line["message"].get("method") == "tools/call"]
    assert [line["direction"] for line in called] == ["sent"]
    assert lines[-1]["direction"] == "received"
    assert lines[-1]["status"] == 200


def test_a_token_is_taken_from_the_environment_and_stands_nowhere(url: str, tmp_path: Path) -> None:
    file = tmp_path / "transcript.ndjson"
    done = roundgate(
        "call", url, "add", "a=1", "--transcript", str(file), ROUNDGATE_TOKEN="se-cr-et"
    )
    assert done.status == 0
    assert "se-cr-et" not in done.out + done.err + file.read_text()


def test_listening_ends_when_it_is_interrupted(url: str, tmp_path: Path) -> None:
    transcript = tmp_path / "transcript.ndjson"
    command = [*COMMAND, "listen", url, "tools", "--transcript", str(transcript)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 60
        while not transcript.exists() or "subscriptions/acknowledged" not in transcript.read_text():
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


@needs_tmux
class TestDialogue:
    """A person at a terminal, as tmux draws it."""

    def test_a_form_with_a_wrong_value_and_a_choice(self, terminal: Terminal, url: str) -> None:
        terminal.start("call", url, "book", "city=Paris")
        terminal.sees("How many seats to Paris?")
        terminal.sees("seats")
        terminal.types("10", "Enter")
        terminal.sees("maximum")
        terminal.types("C-u", "3", "Enter")
        terminal.sees("vegan")
        terminal.types("Down", "Enter")
        terminal.sees("Decline")
        terminal.types("Enter")
        terminal.sees("3 to Paris, meal: vegan")
        terminal.sees("status 0")

    def test_a_question_that_is_declined(self, terminal: Terminal, url: str) -> None:
        terminal.start("call", url, "book", "city=Paris")
        terminal.sees("seats")
        terminal.types("3", "Enter")
        terminal.sees("vegan")
        terminal.types("Enter")
        terminal.sees("Decline")
        terminal.types("Down", "Down", "Enter")
        terminal.sees("status 1")

    def test_a_task_is_interrupted_and_gone_on_with(self, terminal: Terminal, url: str) -> None:
        terminal.start("call", url, "slowly", "city=Rome")
        terminal.sees("How many seats to Rome?")
        terminal.sees("seats")
        terminal.types("C-c")
        terminal.sees("status 130")
        screen = terminal.sees("#task=").replace("\n", "")
        handle = screen.partition("roundgate wait ")[2].partition("status")[0].strip().strip("'")
        terminal.start("wait", handle)
        terminal.sees("seats")
        terminal.types("2", "Enter")
        terminal.sees("vegan")
        terminal.types("Enter")
        terminal.sees("Decline")
        terminal.types("Enter")
        terminal.sees("2 to Rome, slowly")
