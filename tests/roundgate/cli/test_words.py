"""How words on a command line are read: options anywhere, arguments that begin with a dash."""

from __future__ import annotations

import pytest

from roundgate.auth import Principal, task_owner
from roundgate.cli import parse
from roundgate.storage import TaskRef

CALL = ["call", "https://h/mcp", "add"]


@pytest.mark.parametrize(
    "words",
    [
        [*CALL, "--json", "a=1", "b=2"],
        [*CALL, "a=1", "--json", "b=2"],
        ["call", "--json", "https://h/mcp", "add", "a=1", "b=2"],
        ["call", "https://h/mcp", "--json", "add", "a=1", "b=2"],
        [*CALL, "a=1", "b=2", "--json"],
    ],
    ids=" ".join,
)
def test_an_option_stands_anywhere(words: list[str]) -> None:
    read = parse(words)
    assert (read.url, read.tool, read.pairs, read.json) == (*CALL[1:], ["a=1", "b=2"], True)


def test_what_begins_with_a_dash_stands_behind_two_dashes() -> None:
    read = parse([*CALL, "--json", "--", "-a=1", "--b=2"])
    assert (read.pairs, read.json) == (["-a=1", "--b=2"], True)
    assert parse(["describe", "https://h/mcp", "--json", "--", "--odd"]).name == "--odd"


def test_the_value_of_an_option_is_no_argument() -> None:
    read = parse([*CALL, "--max-rounds", "3", "a=1", "--header", "X: y", "--no-input", "b=2"])
    assert (read.pairs, read.max_rounds, read.header) == (["a=1", "b=2"], 3, ["X: y"])


def test_an_option_of_a_command_with_actions_stands_anywhere() -> None:
    read = parse(["tasks", "cancel", "ua.1", "--yes", "ub.2", "--json"])
    assert [str(one) for one in read.task] == ["ua.1", "ub.2"]
    assert parse(["cassette", "verify", "f.yaml", "--timeout", "3", "http://a", "http://b"]).urls


@pytest.mark.parametrize(
    "words",
    [["list", "https://h/mcp", "--json", "tools"], ["list", "https://h/mcp", "tools", "--json"]],
)
def test_an_argument_that_may_be_left_out_is_read_behind_an_option(words: list[str]) -> None:
    assert (parse(words).kind, parse(words).json) == ("tools", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*CALL, "--jsno", "a=1"], "unrecognized arguments: --jsno"),
        (["call", "https://h/mcp"], "the following arguments are required: tool"),
        (["call", "--json"], "the following arguments are required: url, tool"),
        (["ping", "https://h/mcp", "https://i/mcp"], "unrecognized arguments: https://i/mcp"),
        ([*CALL, "--max-rounds", "x"], "argument --max-rounds: invalid int value"),
    ],
)
def test_a_mistake_is_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        parse(words)
    assert exited.value.code == 2
    assert said in capsys.readouterr().err


def test_no_owner_begins_with_a_dash() -> None:
    """So `roundgate tasks show OWNER.ID` never takes one for an option."""
    for number in range(300):
        for view in ("", "books"):
            owner = task_owner(Principal("issuer", f"user-{number}", "client"), view)
            assert not owner.startswith("-")
    ref = TaskRef(owner, "-Wr3nZ_w")
    assert parse(["tasks", "show", str(ref)]).task == ref
    assert parse(["tasks", "list", "--owner", owner]).owner == owner
