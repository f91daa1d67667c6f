"""JSON Pointers and references within a document."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.json import at_pointer, at_reference

DOCUMENT = {
    "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "m~n": 8, "$defs": {"A b": {"type": "null"}}
}  # fmt: skip


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("", DOCUMENT), ("/foo", ["bar", "baz"]), ("/foo/0", "bar"), ("/", 0), ("/a~1b", 1), ("/m~0n", 8)],
)  # fmt: skip
def test_a_pointer_leads_to_a_part(pointer: str, value: Any) -> None:
    assert at_pointer(DOCUMENT, pointer) == value


@pytest.mark.parametrize("pointer", ["/none", "/foo/2", "/foo/-1", "/foo/bar", "/a~1b/0"])
def test_a_pointer_that_leads_nowhere_is_a_lookup_error(pointer: str) -> None:
    with pytest.raises(LookupError):
        at_pointer(DOCUMENT, pointer)


def test_a_reference_is_a_pointer_in_a_fragment() -> None:
    assert at_reference(DOCUMENT, "#") is DOCUMENT
    assert at_reference(DOCUMENT, "#/$defs/A%20b") == {"type": "null"}
    assert at_reference(DOCUMENT, "#/c%25d") == 2


@pytest.mark.parametrize(
    "reference", ["", "#anchor", "#/none", "other.json", "other.json#/foo", "#foo/0"]
)
def test_other_references_are_lookup_errors(reference: str) -> None:
    with pytest.raises(LookupError):
        at_reference(DOCUMENT, reference)
