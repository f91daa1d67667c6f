"""Hypothesis strategies for JSON: what a body may hold, however strange."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Text without lone surrogates, which no UTF-8 body can hold."""

INTEGERS = st.one_of(
    st.integers(), st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400])
)
NUMBERS = st.one_of(INTEGERS, st.floats(allow_nan=False, allow_infinity=False))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)


def values(
    scalars: st.SearchStrategy[Any] = SCALARS, keys: st.SearchStrategy[str] = TEXT
) -> st.SearchStrategy[Any]:
    """Any JSON value from these scalars and keys."""
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=12,
    )


def objects(keys: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[dict[str, Any]]:
    """Any JSON object with these keys, at every depth."""
    return st.dictionaries(keys, values(keys=keys), max_size=6)


def includes(whole: Any, part: Any) -> bool:
    """Whether an object has all members of another, at every depth; other values are equal."""
    if not isinstance(part, dict):
        return bool(whole == part)
    return all(name in whole and includes(whole[name], value) for name, value in part.items())
