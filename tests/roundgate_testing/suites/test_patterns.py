"""Patterns: what fits, what does not, where the difference is, and which patterns are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate_testing.suites.expecting import MATCHERS, described, differences, exact, problems

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)

FITS: list[tuple[Any, Any]] = [
    (1, 1.0),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": {"$absent": True}}, {"b": 1}),
    ({"a": {"$any": True}}, {"a": None}),
    ({"$$ref": "#/x"}, {"$ref": "#/x"}),
    ([1, {"$type": "string"}], [1, "x"]),
    ({"$contains": "or"}, "word"),
    ({"$contains": {"a": 1}}, [{"a": 2}, {"a": 1, "b": 1}]),
    ({"$exactly": {"$ref": 1}}, {"$ref": 1}),
    ({"$min": 2, "$max": 2.5}, 2),
    ({"$regex": "b+"}, "abba"),
    ({"$schema": {"minimum": 3}}, 3),
    ({"$type": ["null", "object"]}, {}),
]  # fmt: skip

DIFFERS: list[tuple[Any, Any, str]] = [
    (1, True, "v"),
    (0, False, "v"),
    ("1", 1, "v"),
    (None, 0, "v"),
    ({"a": 1}, {"b": 1}, "v.a"),
    ({"a": 1}, [1], "v"),
    ({"a": {"$absent": True}}, {"a": 1}, "v.a"),
    ({"a": {"$any": True}}, {}, "v.a"),
    ([1, 2], [1], "v[1]"),
    ([1], [1, 2], "v[1]"),
    ([1], 1, "v"),
    ({"$contains": "x"}, "word", "v"),
    ({"$contains": 1}, 1, "v"),
    ({"$exactly": {"a": 1}}, {"a": 1, "b": 2}, "v.b"),
    ({"$exactly": [1, 2]}, [1], "v[1]"),
    ({"$max": 3}, "2", "v"),
    ({"$min": 3}, 2, "v"),
    ({"$regex": "^b"}, "ab", "v"),
    ({"$regex": "^(a+)+$"}, "a" * 60 + "b", "v"),
    ({"$regex": r"(a|aa)+\1$"}, "a" * 90 + "b", "v"),
    ({"$schema": {"properties": {"a": {"type": "string"}}}}, {"a": 1}, "v.a"),
    ({"$type": "integer"}, True, "v"),
    ({"$min": 1, "$max": 3}, 4, "v"),
    ({"$exactly": {"a": 1}}, [1], "v"),
]


@pytest.mark.parametrize(("pattern", "value"), FITS)
def test_a_value_that_fits_has_no_differences(pattern: Any, value: Any) -> None:
    assert differences(pattern, value, "v") == []
    assert list(problems(pattern)) == []


@pytest.mark.parametrize(("pattern", "value", "path"), DIFFERS)
def test_a_value_that_differs_says_where(pattern: Any, value: Any, path: str) -> None:
    found = differences(pattern, value, "v")
    assert found
    assert found[0].path == path


def test_every_matcher_is_seen_to_fit_and_to_differ() -> None:
    fits, differs = str([pattern for pattern, _ in FITS]), str([one[0] for one in DIFFERS])
    assert [name for name in MATCHERS if f"'{name}'" not in fits] == []
    assert [name for name in MATCHERS if f"'{name}'" not in differs] == []


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ({"$regx": "a"}, "did you mean $regex"),
        ({"a": 1, "$min": 1}, "both members and matchers"),
        ({"$regex": "("}, "not a valid regular expression"),
        ({"$type": "text"}, "not a usable JSON Schema"),
        ({"$min": []}, "not a usable JSON Schema"),
        ({"$schema": {"type": "nothing"}}, "not a usable JSON Schema"),
        ({"$absent": False}, "must be true"),
        ([{"$contains": {"$regex": "("}}], "not a valid regular expression"),
    ],
)
def test_what_is_no_pattern_is_said(pattern: Any, what: str) -> None:
    assert [said for _, said in problems(pattern) if what in said]


def test_texts_of_several_lines_are_compared_line_by_line() -> None:
    (found,) = differences("one\ntwo\n", "one\n2\n", "text")
    assert [line for line in found.lines if line[:1] in "+-"] == ["-two", "+2"]


def test_differences_are_bounded_and_so_is_what_is_shown() -> None:
    found = differences([1] * 1_000, [0] * 1_000, "v")
    assert len(found) == 20
    (long,) = differences("x", "y" * 100_000, "v")
    assert len(long.actual) < 3_000


def test_a_pattern_is_told_in_words() -> None:
    assert described({"$min": 1, "$max": 3}) == "at least 1 and at most 3"
    assert described({"$contains": {"$min": 2}}) == "a text or list that contains at least 2"
    assert described({"a": 1}) == '{"a": 1}'


@given(VALUES)
def test_every_value_is_exactly_itself(value: Any) -> None:
    assert exact(value, value, "v") == []
    assert differences({"$exactly": value}, value, "v") == []


@given(VALUES, VALUES)
def test_exactness_goes_both_ways(one: Any, other: Any) -> None:
    assert (exact(one, other, "v") == []) == (exact(other, one, "v") == [])
