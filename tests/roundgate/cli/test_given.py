"""`key=value` on a command line becomes the arguments of a tool."""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st

from roundgate.backends.http.bodies import FILE
from roundgate.cli.call import parse_arguments as arguments
from roundgate.errors import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "level": {"enum": ["1", "2"]},
        "address": {"$ref": "#/$defs/Address"},
        "filter": {"type": "object"},
        "free": {},
        "loop": {"$ref": "#/$defs/Loop"},
    },
    "$defs": {
        "Address": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
        },
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]},
    },
}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["text=5"], {"text": "5"}),
        (["text="], {"text": ""}),
        (["text=a=b"], {"text": "a=b"}),
        (["text=\\@home"], {"text": "@home"}),
        (["count=5"], {"count": 5}),
        (["share=5"], {"share": 5}),
        (["share=0.5"], {"share": 0.5}),
        (["on=yes"], {"on": True}),
        (["on=False"], {"on": False}),
        (["tags=a"], {"tags": ["a"]}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (['tags=["a","b"]'], {"tags": ["a", "b"]}),
        (["tags:=[]"], {"tags": []}),
        (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=3"], {"maybe": 3}),
        (["either=3"], {"either": 3}),
        (["either=three"], {"either": "three"}),
        (["level=2"], {"level": "2"}),
        (["address.city=Paris", "address.zip=75001"], {"address": {"city": "Paris", "zip": 75001}}),
        (['filter={"a": [1]}'], {"filter": {"a": [1]}}),
        (["free=5"], {"free": "5"}),
        (["free:=5"], {"free": 5}),
        (["unknown=5"], {"unknown": "5"}),
        (["un.known=5"], {"un.known": "5"}),
    ],
)
def test_what_is_said_has_the_type_that_the_schema_gives(
    said: list[str], expected: dict[str, Any]
) -> None:
    assert arguments(said, SCHEMA) == expected


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (["text"], "write key=value"),
        (["=5"], "write key=value"),
        (["count=five"], "count: 'five' is not an integer"),
        (["count=0.5"], "not an integer"),
        (["count=true"], "not an integer"),
        (["share=NaN"], "not a number"),
        (["on=perhaps"], "not true or false"),
        (["sizes=one"], "sizes: 'one' is not an integer"),
        (["count=1", "count=2"], "set twice"),
        (["text:={"], "not JSON"),
        (["free:=NaN"], "not JSON"),
        (["tags:=1", "tags=b"], "both as JSON and item by item"),
        (["address=1"], "not an object"),
        (["address:=1", "address.city=Paris"], "address already has another value"),
        (["text=@/nowhere/at/all"], "cannot be read"),
        (["count=" + "9" * 400 + "x"], "…"),
    ],
)
def test_what_cannot_be_used_is_said(said: list[str], what: str) -> None:
    with pytest.raises(UsageError) as raised:
        arguments(said, SCHEMA)
    assert what in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_value_may_be_in_a_file_or_on_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter, numbers = tmp_path / "letter.txt", tmp_path / "numbers.json"
    letter.write_text("Dear all,\nbye")
    numbers.write_text("[1, 2]")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    said = [f"text=@{letter}", f"sizes:=@{numbers}", "free=@-"]
    assert arguments(said, SCHEMA) == {
        "text": "Dear all,\nbye",
        "sizes": [1, 2],
        "free": "from a pipe",
    }


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    assert arguments(["loop=x"], {**SCHEMA, "properties": {"loop": {"$ref": "#/$defs/Loop"}}}) == {
        "loop": "x"
    }


@any_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one, max_size=3)
    )
)
def test_any_json_arrives_as_it_was_said(value: Any) -> None:
    assert arguments([f"free:={json.dumps(value)}"], SCHEMA) == {"free": value}


@any_of(st.text())
def test_any_text_is_an_argument_or_a_usage_error(said: str) -> None:
    with suppress(UsageError):
        arguments([said], SCHEMA)


def test_a_file_of_any_bytes_fills_a_file_argument(tmp_path: Path) -> None:
    photo = tmp_path / "a.png"
    photo.write_bytes(b"\xff\x00")
    whole = {"base64": "/wA=", "file_name": "a.png"}
    properties = {
        "one": dict(FILE),
        "maybe": {"anyOf": [dict(FILE), {"type": "null"}]},
        "many": {"type": "array", "items": dict(FILE)},
        "encoded": {"type": "string", "contentEncoding": "base64"},
    }
    words = [f"{name}=@{photo}" for name in properties]
    given = arguments([*words, f"many=@{photo}"], {"type": "object", "properties": properties})
    assert given == {"one": whole, "maybe": whole, "many": [whole, whole], "encoded": "/wA="}
