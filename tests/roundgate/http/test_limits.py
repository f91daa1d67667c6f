"""How many values are in a body: counted without parsing it, and the same as by
reading every character."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.http.bodies import count_nodes

STRINGS = st.text(st.sampled_from('{[,:"\\é x'), max_size=30)
VALUES = st.recursive(
    STRINGS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(STRINGS, inner, max_size=6),
    max_leaves=40,
)


def read(text: bytes) -> int:
    """One, and every bracket, comma and colon that is in no string."""
    count, is_string, is_escaped = 1, False, False
    for byte in text:
        if is_string:
            is_string = is_escaped or byte != ord('"')
            is_escaped = not is_escaped and byte == ord("\\")
        else:
            is_string = byte == ord('"')
            count += byte in b"{[,:"
    return count


@given(VALUES, st.integers(1, 60))
def test_a_body_has_too_many_values_exactly_if_reading_it_finds_so_many(
    value: Any, limit: int
) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    assert (count_nodes(body, limit) > limit) == (read(body) > limit)


@pytest.mark.parametrize("filler", ["{,:[" * 5_000, '\\"' * 5_000, "\\" * 9_999, '"' * 10_000])
def test_what_is_in_strings_is_never_counted_wherever_the_beginning_of_a_body_ends(
    filler: str,
) -> None:
    for length in range(64):
        body = json.dumps(["x" * length, filler, filler]).encode()
        assert count_nodes(body, 10) <= 10
