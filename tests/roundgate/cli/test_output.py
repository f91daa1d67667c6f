"""What is shown on a terminal, and what in a pipe: colours, widths, characters that a
terminal would act on."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli import reading
from roundgate.cli.output import OutputStatus, columns, cut
from roundgate.client import Log, Progress, TaskState
from roundgate.observability import Style
from tests.support.command import roundgate


class Screen(io.StringIO):
    """A terminal that remembers what was written to it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Hours:
    """A clock that is as late as a test says."""

    def __init__(self) -> None:
        self.ms = 0.0

    def monotonic_ms(self) -> float:
        return self.ms


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 10, "short"),
        ("exactly ten", 11, "exactly ten"),
        ("much too long", 5, "much…"),
        ("東京都", 6, "東京都"),
        ("東京都", 5, "東京…"),
        ("東京都", 4, "東…"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
    ],
)
def test_texts_are_cut_by_columns(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected
    assert columns(expected) <= width


@pytest.mark.parametrize(
    ("environment", "is_on"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_can_be_turned_off(
    environment: dict[str, str], is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Style(Screen()).is_on is is_on
    assert Style(io.StringIO()).is_on is False


async def test_the_line_of_a_task_says_how_long_it_has_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    screen, hours = Screen(), Hours()
    raw: dict[str, Any] = {
        "taskId": "t",
        "status": "working",
        "statusMessage": "x\x1b[2J" + "y" * 90,
    }
    with OutputStatus(screen, hours) as status:  # type: ignore[arg-type]
        status.task(TaskState.read(raw))
        first = screen.getvalue().rpartition("\x1b[2K")[2]
        hours.ms = 83_000
        status.task(TaskState.read(raw))
        later = screen.getvalue().rpartition("\x1b[2K")[2]
    assert first.startswith("working: x\\u001b[2Jyy")
    assert columns(first) == columns(later) == 39
    assert later.endswith("… (1:23)")
    assert screen.getvalue().endswith("\r\x1b[2K")  # the line is gone


async def test_the_line_is_drawn_again_while_nothing_happens() -> None:
    screen, hours = Screen(), Hours()
    with OutputStatus(screen, hours) as status:  # type: ignore[arg-type]
        status.show("running")
        hours.ms = 5_000
        async with asyncio.timeout(60):
            while "(5 s)" not in screen.getvalue():  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_progress_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    with OutputStatus(screen) as status:
        status.progressed(Progress(1, 4, "copying"))
        assert "█████░░░░░░░░░░░░░░░  25% copying" in screen.getvalue()
        status.progressed(Progress(9, 4, None))
        assert "100%" in screen.getvalue()
        status.logged(Log("info", None, "hello\x1b"))
        assert "info: hello\\u001b\n" in screen.getvalue()


async def test_a_log_has_a_line_for_each_change_and_no_bar() -> None:
    file = io.StringIO()
    with OutputStatus(file) as status:
        status.progressed(Progress(1, 4, "copying"))
        for state in ("working", "working", "completed"):
            status.task(TaskState.read({"taskId": "t", "status": state, "result": {}}))
    assert file.getvalue() == "working\ncompleted\n"


async def test_a_log_message_does_not_make_an_unchanged_state_a_new_one() -> None:
    file = io.StringIO()
    with OutputStatus(file) as status:
        for _ in range(2):
            status.task(TaskState.read({"taskId": "t", "status": "working"}))
            status.logged(Log("info", None, "hello"))
    assert file.getvalue() == "working\ninfo: hello\ninfo: hello\n"


def test_a_list_has_columns_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("tools", "add", "Adds two numbers, whatever they are"), ("tools", "東京\x1b", "")]
    reading.show_list([*rows, ("prompts", "greet", "Hello")], has_kinds=True)
    assert screen.getvalue().count("\x1b[1m") == 2  # two heads
    monkeypatch.setenv("NO_COLOR", "1")
    screen.seek(0)
    screen.truncate()
    reading.show_list(rows, has_kinds=False)
    lines = screen.getvalue().splitlines()
    assert lines == ["  add         Adds two numbers, whatev…", "  東京\\u001b"]
    assert columns(lines[0]) <= 39


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, "string or null"),
        ({"enum": ["a", "b"], "default": "a"}, 'one of a, b, default "a"'),
        ({"type": "string", "format": "date"}, "string, date"),
        ({"type": "array", "items": {"enum": ["a"]}}, "array of one of a"),
        ({}, "any"),
    ],
)
def test_an_argument_says_what_it_may_be(schema: dict[str, Any], expected: str) -> None:
    assert reading.argument_type(schema, {}) == expected


def test_who_has_read_enough_is_no_error(tmp_path: Path) -> None:
    # 100 KB do not fit into a pipe, so the command is still writing when its reader goes
    suite = tmp_path / "suite.yaml"
    cases = "".join(f"  - {{name: {'x' * 190}{n}, list: tools}}\n" for n in range(500))
    suite.write_text(f"cases:\n{cases}")
    command = [sys.executable, "-m", "roundgate.cli", "test", str(suite), "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        process.wait(120)
    assert (process.returncode, said) == (141, b"")


def tasks_listed_into(sink: int, directory: Path) -> tuple[int, str]:
    """The exit status of `roundgate tasks list`, and what it says on standard error."""
    (directory / "gateway.sqlite3").touch()
    done = subprocess.run(
        [sys.executable, "-m", "roundgate.cli", "tasks", "list"],
        env={**os.environ, "GATEWAY_STORE": f"sqlite:///{directory}/gateway.sqlite3"},
        stdout=sink,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(sink)
    return done.returncode, done.stderr


def test_a_list_of_tasks_whose_reader_has_read_enough_is_no_error(tmp_path: Path) -> None:
    source, sink = os.pipe()
    os.close(source)  # as `roundgate tasks list | head -1` does after the first line
    assert tasks_listed_into(sink, tmp_path) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, of Linux")
def test_a_full_disk_below_standard_output_is_a_sentence(tmp_path: Path) -> None:
    sink = os.open("/dev/full", os.O_WRONLY)
    said = (1, "roundgate tasks: [Errno 28] No space left on device\n")
    assert tasks_listed_into(sink, tmp_path) == said


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_stream_that_lacks_a_sign_gets_it_in_ascii(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "gateway.yaml").write_text("backends: [{kind: python, name: own, path: own.py}]\n")
    tools = "from roundgate import tool\n\n\n@tool\ndef go() -> str:\n    'Go → “there”…'\n    return ''\n"
    (tmp_path / "own.py").write_text(tools)
    ran = roundgate("check", directory=tmp_path, PYTHONIOENCODING=encoding)
    assert (ran.status, ran.err) == (0, "")
    assert r"Go -> \u201cthere\u201d..." in ran.out
    wrong = roundgate("check", "nowhere.yaml", directory=tmp_path, PYTHONIOENCODING=encoding)
    assert "    -> " in wrong.err
