"""docs/appendix-messages.md has every message of the log, docs/observability.md every metric, and
no others. Messages that need no explanation are in `support/clear_log.txt` instead."""

from __future__ import annotations

import re

from roundgate.auth import Principal
from roundgate_console.timeline import MAPPERS
from tests.support.documents import ROOT
from tests.support.said import Said, logged, measured

PAGE = (ROOT / "docs" / "observability.md").read_text()
MESSAGES = (ROOT / "docs" / "appendix-messages.md").read_text()
CLEAR = (ROOT / "tests" / "support" / "clear_log.txt").read_text()


def compare(code: list[Said], told: list[tuple[str, str]], row: str, page: str) -> None:
    """Fail with the row that is missing, or too many."""
    places = {(said.kind, said.template): said.at for said in code}
    missing = [
        f"add to it (from {at}): {row.format(*one)}"
        for one, at in places.items()
        if one not in told
    ]
    surplus = [
        f"take out of it, no code says it: {row.format(*one)}" for one in told if one not in places
    ]
    assert not missing + surplus, "\n".join(
        [f"docs/{page} is not what the code says:", *missing, *surplus]
    )
    assert len(told) == len(set(told)), f"a row of docs/{page} stands there twice"


def test_every_message_of_the_log_is_in_the_documentation() -> None:
    rows = re.findall(r"^\| `(debug|info|warning|error)` \| `([^`]+)` \|", MESSAGES, re.MULTILINE)
    clear = re.findall(r"^(debug|info|warning|error) (.+)$", CLEAR, re.MULTILINE)
    compare(
        list(logged()),
        [*rows, *clear],
        "| `{}` | `{}` | when, and what to do |",
        "appendix-messages.md",
    )


def test_each_message_with_a_moment_of_its_own_in_the_console_is_one_of_the_log() -> None:
    """A message that is reworded would become a note in a line of time."""
    assert MAPPERS.keys() <= {said.template for said in logged()}


def test_every_metric_is_in_the_documentation() -> None:
    rows = re.findall(r"^\| (counter|histogram|gauge)[^|]*\| `([^`]+)` \|", PAGE, re.MULTILINE)
    compare(list(measured()), rows, "| {} | `{}` | attributes | meaning |", "observability.md")


def test_every_outcome_of_a_turn_is_in_the_documentation() -> None:
    from roundgate.tasks.turn import TurnResult

    table = PAGE.partition("### A turn")[2].partition("\n##")[0]
    told = {
        word
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for word in re.findall(r"`([^`]+)`", row)
    }
    never_a_line = {TurnResult.NOT_CLAIMED, TurnResult.SUSPECT}
    assert told == {turn.value for turn in TurnResult if turn not in never_a_line}


def test_every_member_of_a_request_line_is_in_the_documentation() -> None:
    source = (ROOT / "app" / "roundgate" / "http" / "exchange.py").read_text()
    line = source.partition("def write_line")[2].partition("record = ")[0]
    members = set(re.findall(r"^ {12}(\w+)=", line, re.MULTILINE))
    assert "self.principal.names" in line
    members |= Principal("issuer", "subject", "client").names.keys()
    table = PAGE.partition("### A request")[2].partition("###")[0]
    told = {
        word
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for word in re.findall(r"`([^`]+)`", row)
    }
    assert "outcome" in members
    assert told - {"request"} == members
