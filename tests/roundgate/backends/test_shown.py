"""Arguments as they are shown for approval: each of them, however they are nested,
and no two calls alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.approvals import MAX_CHARS, MAX_LINES, MAX_TEXT, shown
from roundgate.errors import ToolError
from tests.support.json_values import objects

NAMES = st.sampled_from(["a", "b", "a.b", "a[0]", "[0]", "", "a: 1", "- a", "\n- b", "x" * 30])
LEAVES = st.sampled_from(["", "y" * 150, "y" * 151, "1", "\n- a: 1", 'q"', 1, 1.5, True, None])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
CALLS = st.dictionaries(NAMES, NESTED, max_size=4)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


@given(CALLS, CALLS)
def test_two_calls_that_differ_are_shown_differently(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    if repr(one) != repr(other):
        assert shown(one) != shown(other) or one == other


@given(CALLS)
def test_every_line_is_one_of_ours(call: dict[str, Any]) -> None:
    lines = shown(call).split("\n") if call else []
    assert all(line.startswith("- ") for line in lines)
    assert len(lines) >= len(call)


@given(objects())
def test_any_arguments_are_shown_or_refused_within_bounds(call: dict[str, Any]) -> None:
    with suppress(ToolError):
        text = shown(call)
        assert len(text.split("\n")) <= MAX_LINES
        assert len(text) <= MAX_CHARS + MAX_LINES


@given(st.lists(st.text(alphabet="xyz", min_size=150, max_size=MAX_TEXT), min_size=1, max_size=20))
def test_no_member_of_a_long_list_is_left_out(items: list[str]) -> None:
    text = shown({"items": items})
    assert all(item in text for item in items)


@pytest.mark.parametrize("size", [MAX_TEXT + 1, 10_000, 4_000_000])
def test_a_long_text_is_shown_by_its_ends_its_length_and_its_digest(size: int) -> None:
    one = shown({"text": "b" + "x" * (size - 2) + "e"})
    other = shown({"text": "b" + "x" * (size // 2 - 1) + "y" + "x" * (size - size // 2 - 2) + "e"})
    assert f"{size:,} characters" in one
    assert '"bxxx' in one
    assert 'xxxe"' in one
    assert one != other
    assert len(one) < 500


def test_a_name_that_nobody_can_read_is_refused() -> None:
    with pytest.raises(ToolError, match="a name of 5,000 characters"):
        shown({"to": {"n" * 5_000: "x" * 300}})


def deep(levels: int) -> dict[str, Any]:
    value: Any = "end"
    for _ in range(levels):
        value = {"down": value}
    return {"top": value}


def test_depth_is_no_way_to_hide() -> None:
    assert "end" in shown(deep(190))
