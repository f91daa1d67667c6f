"""Where the answers of `roundgate call` come from when nobody is at a terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli import remote
from roundgate.client import Kind, Question
from roundgate.errors import UsageError

SAMPLE = Question("poem", Kind.SAMPLING, {"messages": [], "maxTokens": 5})
FORM = Question("who", Kind.FORM, {"message": "Who?"})


def given(**options: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"answers": None, "sample_command": None, "no_input": True, **options}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("[1, 2]", "has to be a mapping from keys of questions to answers"),
        ("a: &a [*a]", "cannot be read: contains itself"),
        ("1: x", "has to be a mapping from keys of questions to answers"),
    ],
)
def test_a_file_that_has_no_answers_is_refused_by_name(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "answers.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=f"--answers: {path} {said}"):
        remote.answers(given(answers=path), lambda: None)


async def test_a_command_writes_samples_and_nothing_else() -> None:
    script = "import json, sys; print(json.load(sys.stdin)['maxTokens'], 'words')"
    command = remote.SampleCommand(f'{sys.executable} -c "{script}"')
    assert await command(SAMPLE) == "5 words"
    assert await command(FORM) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nowhere/writes", "/nowhere/writes cannot be run"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", "ended with status 3"),
    ],
)
async def test_a_command_that_fails_says_so(command: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--sample-command: .*{said}"):
        await remote.SampleCommand(command)(SAMPLE)


async def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SAMPLE_S", 0.2)
    with pytest.raises(TimeoutError):
        await remote.SampleCommand(f"{sys.executable} -c 'import time; time.sleep(60)'")(SAMPLE)


def test_no_command_is_no_command() -> None:
    with pytest.raises(UsageError, match="give a command"):
        remote.answers(given(sample_command=" "), lambda: None)
