"""Pages: walking them gives the list, whatever its length, and no cursor that a
client invents does harm."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.errors import InvalidParams
from roundgate.protocol.params import Page, Pages
from tests.support import json_values


def items(keys: Sequence[str]) -> list[tuple[str, bytes]]:
    return [(key, str(index).encode()) for index, key in enumerate(keys)]


def pages(keys: str, size: int) -> Pages:
    return Pages(items(keys), size)


def walk(pages: Pages) -> list[bytes]:
    """The entries of all pages from the first to the last."""
    entries, cursor = b"", None
    for _ in range(len(pages.items) + 1):
        page = pages.page(cursor)
        entries += page.entries + b","
        cursor = page.next_cursor
        if cursor is None:
            return [entry for entry in entries.split(b",") if entry]
    raise AssertionError("the cursors lead in a circle")


def cursor_after(key: str) -> str:
    cursor = Pages(items([key, "another " + key]), 1).page(None).next_cursor
    assert cursor is not None
    return cursor


KEYS = st.lists(json_values.TEXT, unique=True, max_size=12)


@given(KEYS, st.integers(1, 14))
def test_walking_all_pages_gives_the_list_once_and_in_order(keys: list[str], size: int) -> None:
    assert walk(Pages(items(keys), size)) == [entry for _, entry in items(keys)]


@given(KEYS, st.integers(1, 14))
def test_no_page_is_larger_than_its_size_and_only_the_last_is_smaller(
    keys: list[str], size: int
) -> None:
    whole = Pages(items(keys), size)
    page, full = whole.page(None), 0
    while page.next_cursor is not None:
        assert len(page.entries.split(b",")) == size
        page, full = whole.page(page.next_cursor), full + 1
    assert full == max(0, len(keys) - 1) // size


def test_an_empty_list_is_one_empty_page() -> None:
    assert Pages([], 10).page(None) == Page(b"", None)


def test_a_list_that_just_fits_is_one_page() -> None:
    assert pages("abc", 3).page(None) == Page(b"0,1,2", None)
    assert pages("abcd", 3).page(None).next_cursor is not None


def test_a_cursor_is_opaque_text_that_survives_any_transport() -> None:
    for key in ("add", "größe", "a/b?c=d e", "", "x" * 100):
        assert re.fullmatch(r"[A-Za-z0-9_-]*", cursor_after(key))


def test_cursors_are_the_same_every_time_and_on_every_replica() -> None:
    one, other = pages("abcdef", 2), pages("abcdef", 2)
    assert one.page(None) == one.page(None) == other.page(None)
    assert (
        one.page(cursor_after("b"))
        == other.page(cursor_after("b"))
        == Page(b"2,3", cursor_after("d"))
    )


def test_pages_that_cursors_lead_to_are_kept() -> None:
    whole = pages("abcdef", 2)
    assert whole.page(cursor_after("b")) is whole.page(cursor_after("b"))


def test_pages_that_start_elsewhere_are_right_and_cost_no_memory() -> None:
    whole = pages("abcdef", 2)
    assert whole.page(cursor_after("a")) == Page(b"1,2", cursor_after("c"))
    assert whole.page(cursor_after("a")) is not whole.page(cursor_after("a"))


def test_a_cursor_goes_on_after_its_entry_in_another_page_size() -> None:
    cursor = pages("abcdef", 2).page(None).next_cursor
    assert pages("abcdef", 3).page(cursor).entries == b"2,3,4"


def test_a_cursor_goes_on_after_its_entry_when_the_list_has_changed() -> None:
    cursor = pages("abcdef", 2).page(None).next_cursor
    assert pages("xaybzcdef", 2).page(cursor).entries == b"4,5"


def test_a_cursor_after_the_last_entry_gives_an_empty_last_page() -> None:
    assert pages("abc", 2).page(cursor_after("c")) == Page(b"", None)
    assert pages("abcd", 2).page(cursor_after("d")) == Page(b"", None)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        " ",
        "a",
        "1",
        "!!!!",
        "é",
        "\x00",
        "YQ\n",
        "_w",
        "=" * 5,
        cursor_after("gone"),
        cursor_after("a") + "!!!!",
        cursor_after("\0"),
        base64.b64encode(b"a\xff").decode(),
        "A" * 100_000,
    ],
    ids=lambda cursor: repr(cursor)[:12],
)
def test_a_cursor_that_was_not_given_out_is_invalid(cursor: str) -> None:
    with pytest.raises(InvalidParams, match="Invalid cursor"):
        pages("abc", 2).page(cursor)


@given(
    st.text(max_size=12)
    | st.binary(max_size=6).map(lambda raw: base64.b64encode(raw).decode().rstrip("="))
)
def test_any_cursor_leads_to_the_end_of_the_list_or_is_invalid(cursor: str) -> None:
    try:
        page = pages("abcdef", 10).page(cursor)
    except InvalidParams:
        return
    assert b"0,1,2,3,4,5".endswith(page.entries)
    assert page.next_cursor is None


def test_the_empty_string_is_a_cursor_where_a_key_is_empty() -> None:
    # "an empty string is a valid cursor and thus MUST NOT be treated as the end of results"
    whole = Pages(items(["", "a"]), 1)
    assert whole.page(None).next_cursor == ""
    assert whole.page("").entries == b"1"
