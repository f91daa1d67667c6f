"""Where the answers of `roundgate call` come from when nobody is at a terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli import remote
from roundgate.errors import UsageError


def given(**options: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"answers": None, "no_input": True, **options})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("[1, 2]", "must be a mapping from keys of questions to answers"),
        ("a: &a [*a]", "cannot be read: contains itself"),
        ("1: x", "must be a mapping from keys of questions to answers"),
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
