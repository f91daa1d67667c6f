"""`roundgate shell`: lines that are piped in, a prompt with keys from a pipe, and a
terminal that tmux draws."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from roundgate.cli import main
from roundgate.cli.dialogue.history import MAX_LINES, FileHistory, default_path
from roundgate.cli.dialogue.lines import Lines
from roundgate.cli.shell import Shell
from roundgate.client import Client
from tests.support.server import Server, serving
from tests.support.terminal import Terminal, needs_tmux

CONFIG = """\
server: {name: sheltered, version: "1"}
backends: [{kind: python, name: tools, prefix: "", path: served.py}]
tasks: {poll_interval_ms: 100}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("shell")
    with serving(folder, CONFIG, Path(__file__).with_name("served.py")) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}/mcp"


@pytest.fixture
def piped(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Pipes lines into a shell; returns status, output and errors."""

    def piped(*lines: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        status = main(["shell", url, *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return piped


Piped = Callable[..., tuple[int, str, str]]


def test_lines_are_done_one_after_the_other(piped: Piped) -> None:
    status, out, err = piped("# a comment", "", "call add a=1", "list tools --json", "ping")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2"
    assert lines[1].startswith('{"tools":')
    assert lines[2].endswith(" ms")


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("call fail", 1, ""),
        ("call add a=x", 2, "'x' is not an integer"),
        ("cal add", 2, "there is no command 'cal': help lists them"),
        ("call", 2, "the following arguments are required: tool"),
        ("call add a='1", 2, "No closing quotation"),
        ("call ad a=1", 3, "it has add"),
        ("call book city=Paris", 4, "no answer was given"),
        ("read nowhere://x", 3, "not found"),
    ],
)
def test_what_goes_wrong_ends_the_line_and_not_the_shell(
    piped: Piped, line: str, status: int, said: str
) -> None:
    ended, _, err = piped(line)
    assert ended == status
    assert said in err
    assert piped(line, "call add a=1")[0] == 0


def test_exit_ends_it(piped: Piped) -> None:
    assert piped("call fail", "exit", "call add a=1") == (1, "The printer is on fire\n", "")


def test_what_is_said_can_be_recorded(piped: Piped, tmp_path: Path) -> None:
    cassette = tmp_path / "cassette.yaml"
    assert piped("call add a=1", options=("--cassette", str(cassette))) == (0, "2\n", "")
    assert "tools/call" in cassette.read_text()


def test_help_has_every_command(piped: Piped) -> None:
    _, out, _ = piped("help", "help call")
    assert [line.split()[0] for line in out.splitlines()[:4]] == [
        "call",
        "wait",
        "list",
        "describe",
    ]
    assert "tasks     the tasks that calls of this shell have become" in out
    assert "KEY=VALUE" in out
    assert "--token-env" not in out


def test_tasks_of_the_shell_are_listed_and_gone_on_with(piped: Piped, url: str) -> None:
    _, out, _ = piped("call slowly city=Rome --detach", "tasks")
    handle, listed = out.splitlines()
    task, target, status = listed.split("\t")
    assert (task, target) == (handle, "slowly")
    assert status.startswith(("working", "input_required"))
    assert piped(f"wait '{handle}' --cancel")[:2] == (0, "cancelled\n")
    assert piped("wait http://127.0.0.1:9/mcp#task=x")[0] == 2


def test_no_lines_are_nothing_to_do(piped: Piped) -> None:
    assert piped() == (0, "", "")


class TestLine:
    """The prompt, with keys from a pipe."""

    async def test_tab_completes_and_the_line_is_kept(self, url: str, tmp_path: Path) -> None:
        history = FileHistory(tmp_path / "state" / "history")
        async with Client(url) as client:
            shell = Shell(client)
            with create_pipe_input() as pipe:
                lines = Lines("x", shell.suggesting, history, pipe, DummyOutput())
                typed = asyncio.create_task(lines.next())
                pipe.send_text("call ad\t")
                async with asyncio.timeout(60):
                    while lines.typed != "call add":  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                pipe.send_text(" a=4\r")
                assert await typed == "call add a=4"
                pipe.send_text("call add a=5 password=geheim\r")
                await lines.next()
                pipe.send_text(" call add a=6\r")
                await lines.next()
                pipe.send_text("\x04")
                with pytest.raises(EOFError):
                    await lines.next()
                pipe.send_text("abc\x03")
                with pytest.raises(KeyboardInterrupt):
                    await lines.next()
        written = (tmp_path / "state" / "history").read_text()
        assert written.splitlines() == ['"call add a=4"']
        assert "geheim" not in written
        assert "a=6" not in written


class TestHistory:
    """The file."""

    def test_only_its_owner_can_read_it(self, tmp_path: Path) -> None:
        path = tmp_path / "state" / "history"
        FileHistory(path).keep("one")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.chmod(0o644)
        FileHistory(path).keep("two\nlines")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(FileHistory(path).load_history_strings()) == ["two\nlines", "one"]

    def test_it_does_not_grow_for_ever(self, tmp_path: Path) -> None:
        path = tmp_path / "history"
        history = FileHistory(path)
        path.write_text('"x"\n' * 300_000)
        history.keep("last")
        lines = path.read_text().splitlines()
        assert (len(lines), lines[-1]) == (MAX_LINES // 2, '"last"')
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_what_is_broken_is_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "history"
        path.write_bytes(b'"a"\n{\n17\n\xff\xfe\n"b"\n"half')
        assert list(FileHistory(path).load_history_strings()) == ["b", "a"]

    def test_a_place_that_cannot_be_written_does_no_harm(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        history = FileHistory(tmp_path / "file" / "history")
        history.keep("one")
        assert list(history.load_history_strings()) == []

    def test_where_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert default_path() == tmp_path / "roundgate" / "history"
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert default_path() == tmp_path / ".local/state/roundgate/history"


@needs_tmux
def test_a_person_at_the_prompt(terminal: Terminal, url: str, tmp_path: Path) -> None:
    terminal.start("shell", url, XDG_STATE_HOME=str(tmp_path))
    terminal.sees("sheltered 1, revision 2026-07-28")
    terminal.sees("sheltered>")
    terminal.types("call bo", "Tab")
    terminal.sees("call book")
    terminal.types(" city=Paris", "Enter")
    terminal.sees("How many seats to Paris?")
    terminal.sees("seats")
    terminal.types("2", "Enter")
    terminal.sees("vegan")
    terminal.types("Enter")
    terminal.sees("Decline")
    terminal.types("Enter")
    terminal.sees("2 to Paris, meal: none")
    terminal.types("call slowly city=Rome", "Enter")  # a task, left while it asks
    terminal.sees("How many seats to Rome?")
    terminal.sees("seats")
    terminal.types("C-c")
    terminal.sees("The task goes on without you")
    terminal.sees("interrupted")
    terminal.types("tasks", "Enter")
    terminal.sees("input_required")
    terminal.types("C-d")
    terminal.sees("status 0")
    kept = (tmp_path / "roundgate" / "history").read_text().splitlines()
    assert kept == ['"call book city=Paris"', '"call slowly city=Rome"', '"tasks"']
    assert os.stat(tmp_path / "roundgate" / "history").st_mode & 0o077 == 0
