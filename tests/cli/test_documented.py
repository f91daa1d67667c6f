"""docs/cli.md has every command, every option and every exit status that there is, and no others."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from roundgate.cli import _parser, remote, remote_options

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = [one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found.choices)


def of_servers() -> dict[str, argparse.ArgumentParser]:
    ours = argparse.ArgumentParser().add_subparsers()
    remote_options.add_commands(ours)
    return dict(ours.choices)


def test_every_command_is_on_the_page() -> None:
    told = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)[ `]", cell)
    }
    assert not set(commands()) - told, "add the command to the tables at the top of docs/cli.md"


def test_every_option_of_a_command_that_talks_to_a_server_is_on_the_page() -> None:
    there = {
        option
        for command in of_servers().values()
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    table = PAGE.partition("## Options")[2].partition("## ")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == there, "mend the table in docs/cli.md"


def test_every_exit_status_is_on_the_page() -> None:
    table = PAGE.partition("## Exit statuses")[2]
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    there = {
        value for name, value in vars(remote).items() if name.isupper() and isinstance(value, int)
    }
    assert told == there
