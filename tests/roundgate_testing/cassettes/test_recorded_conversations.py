"""Conversations recorded once: today's code records the same bytes on any Python, and
replays them as either side.

`python -m tests.roundgate_testing.cassettes.record` records them anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundgate.protocol.schemas import Schema
from roundgate_testing.cassettes import SCHEMA, Cassette, CassetteVerifier, Player, Recorder, read
from roundgate_testing.cassettes.files import as_text
from tests.roundgate_testing.cassettes.conftest import HERE, desk
from tests.roundgate_testing.cassettes.conversations import ALL, EXPECTED, held

RECORDED = HERE / "recorded"
NOWHERE = "http://nobody.example/mcp"
EACH = pytest.mark.parametrize("name", ALL)


async def differing(cassette: Cassette, *urls: str, **options: Any) -> dict[int, list[str]]:
    """What verifying tells, by the number of the interaction."""
    outcomes = [
        one async for one in CassetteVerifier(cassette, urls, timeout_s=60, **options).run()
    ]
    assert [one.number for one in outcomes] == list(range(1, len(cassette.interactions) + 1))
    return {
        one.number: [str(found) for found in one.differences] for one in outcomes if one.differences
    }


@EACH
async def test_a_conversation_is_recorded_byte_for_byte(
    name: str, url: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.yaml"
    assert await held(name, url, Recorder(file, url)) == EXPECTED[name]
    assert file.read_text() == (RECORDED / file.name).read_text()


@EACH
async def test_the_server_still_answers_as_recorded(name: str, url: str) -> None:
    assert await differing(read(RECORDED / f"{name}.yaml"), url) == {}


async def test_another_text_of_a_question_of_a_task_is_a_difference(
    url: str, tmp_path: Path
) -> None:
    file = tmp_path / "asked.yaml"
    text = (RECORDED / "task_with_a_question.yaml").read_text()
    file.write_text(text.replace("Apply to prod?", "Deploy to prod?"))
    found = [line for lines in (await differing(read(file), url)).values() for line in lines]
    assert found
    assert all("Deploy to prod?" in line and "Apply to prod?" in line for line in found)


@EACH
async def test_a_stand_in_holds_the_same_conversation_without_a_server(name: str) -> None:
    file = RECORDED / f"{name}.yaml"
    recorder = Recorder(None, NOWHERE, transport=Player(file))
    assert await held(name, NOWHERE, recorder) == EXPECTED[name]
    assert as_text(recorder.cassette) == file.read_text()


@EACH
def test_what_is_read_is_written_as_it_was(name: str) -> None:
    file = RECORDED / f"{name}.yaml"
    cassette = read(file)
    assert as_text(cassette) == file.read_text()
    from roundgate_testing.cassettes.files import to_document

    assert Schema.compile(SCHEMA).problems(to_document(cassette), "cassette") == []


def test_every_conversation_is_recorded_and_nothing_else() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(ALL)


async def test_a_handler_that_changed_in_one_word_is_told_in_words(tmp_path: Path) -> None:
    with desk(tmp_path, "Refunded order", "Returned order") as url:
        found = await differing(read(RECORDED / "two_rounds.yaml"), url)
        assert list(found) == [6]
        assert found[6] == [
            "result.content[0].text\n"
            '    recorded: "Refunded order 7"\n'
            '    now:      "Returned order 7"'
        ]
        older = await differing(read(RECORDED / "older_session.yaml"), url)
        assert "events[2].result.content[0].text" in older[4][0]
        assert "Refund order 8" not in str(older)
        ignoring = replace(read(RECORDED / "two_rounds.yaml"), ignore=("content[*].text",))
        assert await differing(ignoring, url) == {}


async def test_rounds_may_go_to_a_replica_each(url: str, tmp_path: Path) -> None:
    """Two addresses of one server are two replicas that share their keys."""
    other = url.replace("127.0.0.1", "localhost")
    for name in ("two_rounds", "task_with_a_question"):
        assert await differing(read(RECORDED / f"{name}.yaml"), url, other) == {}
