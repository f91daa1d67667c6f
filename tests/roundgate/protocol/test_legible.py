"""Text as a person can see it: nothing hidden is left, nothing is lost, and no
text looks like another."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.protocol.legible import MAX_MARKS, visible, visible_json
from tests.support.json_values import values


def hidden(text: str) -> list[str]:
    """Its characters that nobody sees, or that move others."""
    return [char for char in text if unicodedata.category(char)[0] in "CZ" and char != " "]


@given(st.text())
def test_nothing_hidden_is_left_in_any_text(text: str) -> None:
    shown = visible(text)
    assert hidden(shown) == []
    assert shown.isprintable()


@given(values())
def test_a_value_can_be_read_back_so_no_two_values_look_alike(value: Any) -> None:
    assert json.loads(visible_json(value)) == value


@given(st.text(alphabet="a\u0301\u0336\u0489 ", max_size=60))
def test_marks_never_pile_up(text: str) -> None:
    run = 0
    for char in visible(text):
        run = run + 1 if unicodedata.category(char)[0] == "M" else 0
        assert run <= MAX_MARKS


PLAIN = ["plain", "Grüße", "日本語", "مرحبا", "e\u0301", "🙂", "a b", 'tab and \\ and "']


@pytest.mark.parametrize("text", PLAIN)
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
