"""docs/cli.md has every command, every option and every exit status that
there is, and no others."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundgate.cli import make_parser, remote
from roundgate_testing import suites
from roundgate_testing.suites import models
from roundgate_testing.suites.expecting import MATCHERS
from tests.support.documents import blocks

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def commands() -> dict[str, argparse.ArgumentParser]:
    return _actions(make_parser())


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found.choices)


def of_servers() -> dict[str, argparse.ArgumentParser]:
    modules = {"roundgate.cli.call", "roundgate.cli.reading", "roundgate_testing.suite_command"}
    return {
        name: command
        for name, command in commands().items()
        if getattr(command.get_default("run"), "__module__", "") in modules
    }


def test_every_command_is_on_the_page() -> None:
    told = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)[ `]", cell)
    }
    assert not set(commands()) - told, "add the command to the tables at the top of docs/cli.md"


def options(command: argparse.ArgumentParser) -> set[str]:
    """Its long options."""
    return {
        option
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }


def test_every_option_of_a_command_that_talks_to_a_server_is_on_the_page() -> None:
    there = {
        option
        for name, command in of_servers().items()
        if name != "test"
        for option in options(command)
    }
    table = PAGE.partition("## Options")[2].partition("## ")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == there, "mend the table in docs/cli.md"


def with_examples() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parsers that need examples: the actions of `tasks`, `audit`, `policy` and `cassette`, else commands."""
    for name, command in commands().items():
        if name in ("tasks", "audit", "policy"):
            yield from ((f"{name} {action}", one) for action, one in _actions(command).items())
        elif name != "cassette":
            yield name, command


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*one, id=one[0]) for one in with_examples()]
)
def test_every_command_has_examples_that_can_be_typed(
    name: str, command: argparse.ArgumentParser
) -> None:
    title, *examples = (command.epilog or "").splitlines()
    assert (title, bool(examples)) == ("examples:", True)
    for line in examples:
        words = shlex.split(re.split(r" [|<>] ", line)[0])[1:]
        read = make_parser().parse_args(words)
        assert name in (read.command, f"{read.command} {getattr(read, 'action', '')}")
        assert line in command.format_help()


def test_every_exit_status_is_on_the_page() -> None:
    table = PAGE.partition("## Exit statuses")[2]
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    there = {
        value for name, value in vars(remote).items() if name.isupper() and isinstance(value, int)
    }
    assert told == there


def words(page: str, heading: str) -> set[str]:
    """What stands as code in the first column of the tables under a heading."""
    section = re.split(rf"^## {heading}$", page, flags=re.MULTILINE)[1].partition("\n## ")[0]
    cells = re.findall(r"^\| ((?:[^|\\]|\\.)*) \|", section, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`(\$?-*[\w-]+)", cell)}


class TestTesting:
    """docs/testing.md has everything that a suite and `roundgate test` may have."""

    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()

    def test_every_option(self) -> None:
        of_tests = of_servers()["test"]
        shared = options(of_servers()["ping"]) - {"--json"}
        told = {word for word in words(self.page, "Options") if word.startswith("--")}
        assert told == options(of_tests) - shared

    def test_every_setting_of_a_server(self) -> None:
        assert words(self.page, "The server") == fields(models.SuiteServer) | {"server"}

    def test_every_action_of_a_step(self) -> None:
        told = words(self.page, "Cases and steps")
        assert set(models.ACTIONS) <= told
        everything = fields(models.SuiteStep) | fields(models.Case) | fields(models.Suite)
        assert [name for name in everything if f"`{name}" not in self.page] == []

    def test_every_part_of_a_rule(self) -> None:
        assert words(self.page, "Answers") == fields(models.AnswerRule)

    def test_every_expectation_and_every_matcher(self) -> None:
        told = words(self.page, "What is expected")
        assert {word for word in told if not word.startswith("$")} == {
            *fields(models.Expect),
            "expect",
        }
        assert {word for word in told if word.startswith("$")} == set(MATCHERS)

    def test_the_suite_on_the_page_can_be_read(self, tmp_path: Path) -> None:
        (suite,) = blocks(self.page, "yaml")
        (tmp_path / "suite.yaml").write_text(suite)
        suites.load(tmp_path / "suite.yaml")


def fields(model: type[models.SuiteModel]) -> set[str]:
    """The names of a model's fields, by the words of the file."""
    return {field.alias or name for name, field in model.model_fields.items()}
