"""Forms from JSON Schemas: any schema has a form, and any text in it is a value or a problem."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate_console.forms import make_form, read_form, read_json

TEXTS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = {
    "type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
    | st.lists(st.sampled_from(["string", "null", "integer"]), max_size=2)
    | JSON,
    "enum": st.lists(JSON, max_size=3) | JSON,
    "enumNames": st.lists(TEXTS, max_size=3) | JSON,
    "oneOf": st.lists(st.fixed_dictionaries({"const": JSON, "title": JSON}), max_size=2) | JSON,
    "anyOf": st.lists(st.just({"type": "null"}) | st.just({"type": "string"}), max_size=3) | JSON,
    "items": st.fixed_dictionaries({"enum": st.lists(TEXTS, max_size=2)}) | JSON,
    "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/x", "other.json", "#/properties/0"])
    | JSON,
    "format": JSON,
    "title": JSON,
    "description": JSON,
    "default": JSON,
}
RULES = st.fixed_dictionaries({}, optional=KEYWORDS) | JSON
SCHEMAS = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from("abc"), RULES, max_size=3) | JSON},
    optional={"required": st.lists(TEXTS, max_size=3) | JSON, "additionalProperties": JSON},
)


@given(SCHEMAS, st.lists(TEXTS, max_size=3))
def test_any_schema_has_a_form_that_can_be_read(schema: dict[str, Any], texts: list[str]) -> None:
    form = make_form(schema, "x/")
    posted = {field.name: texts for field in form.fields}
    read = read_form(schema, posted, "x/")
    assert read.value.keys() <= {field.field.name for field in form.fields}
    assert read.problems.keys() <= posted.keys()
    again = make_form(schema, "x/", posted, read.problems)
    assert [list(field.values) for field in again.fields] == [texts] * len(form.fields)


@given(SCHEMAS)
def test_the_defaults_of_a_form_can_be_read(schema: dict[str, Any]) -> None:
    form = make_form(schema)
    read = read_form(schema, {field.name: field.values for field in form.fields})
    for field in form.fields:
        if field.field.kind == "json" and field.values:
            assert field.name not in read.problems


@pytest.mark.parametrize(
    ("rules", "text", "value"),
    [
        ({"type": "string"}, "a", "a"),
        ({"type": "string"}, "1", "1"),
        ({"type": "integer"}, " 12 ", 12),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": ["string", "null"]}, "a", "a"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"$ref": "#/$defs/Size"}, '"S"', "S"),
        ({"enum": [1, "1"]}, "1", 1),
        ({"enum": [1, "1"]}, '"1"', "1"),
        ({"type": "boolean"}, "false", False),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({}, "[1]", [1]),
    ],
)
def test_a_text_becomes_a_value_of_its_type(rules: Any, text: str, value: Any) -> None:
    schema = {"properties": {"p": rules}, "$defs": {"Size": {"enum": ["S", "L"]}}}
    read = read_form(schema, {"p": [text]})
    assert (read.value, read.problems) == ({"p": value}, {})
    assert type(read.value["p"]) is type(value)


@pytest.mark.parametrize("text", ["x", "true", "1e999", "NaN", "[", '"1"'])
def test_a_text_that_is_no_number_is_a_problem(text: str) -> None:
    read = read_form({"properties": {"p": {"type": "number"}}}, {"p": [text]})
    assert (read.value, read.problems) == ({}, {"p": "must be a number"})


def test_a_choice_that_is_not_offered_is_a_problem() -> None:
    schema = {
        "properties": {"p": {"enum": ["a"]}, "q": {"type": "array", "items": {"enum": ["b"]}}}
    }
    read = read_form(schema, {"p": ['"z"'], "q": ['"b"', '"z"']})
    assert (read.value, sorted(read.problems)) == ({}, ["p", "q"])


def test_an_empty_field_is_left_out_unless_it_is_a_required_text() -> None:
    schema = {
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "integer"}},
        "required": ["b", "c"],
    }
    assert read_form(schema, {"a": [""], "b": [""], "c": [""]}).value == {"b": ""}


@given(st.text(max_size=20))
def test_any_text_is_an_object_or_a_problem(text: str) -> None:
    try:
        value: Any = read_json(text)
    except ValueError as error:
        value = {"problem": str(error)}
    assert isinstance(value, dict)


@pytest.mark.parametrize("rules", [{"format": "password"}, {"writeOnly": True}])
def test_a_secret_is_typed_unseen_and_never_shown_again(rules: dict[str, Any]) -> None:
    schema = {"properties": {"p": {"type": "string", "default": "hunter2", **rules}}}
    for posted in (None, {"p": ["swordfish"]}):
        (field,) = make_form(schema, posted=posted).fields
        assert (field.type, field.value) == ("password", "")
    assert read_form(schema, {"p": ["swordfish"]}).value == {"p": "swordfish"}


def test_no_field_has_the_name_of_a_class() -> None:
    size = {"title": "SizeOfCup", "enum": ["S", "L"]}
    optional = {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}
    own = {"$ref": "#/$defs/Size", "title": "Size of the cup"}
    properties = {"size": {"$ref": "#/$defs/Size"}, "other": optional, "own": own}
    form = make_form({"properties": properties, "$defs": {"Size": size}})
    assert [field.field.label for field in form.fields] == ["size", "other", "Size of the cup"]


def test_a_choice_without_a_title_has_its_description_as_its_label() -> None:
    size = {"title": "SizeOfCup", "enum": ["S", "L"], "description": "How large?"}
    own = {"$ref": "#/$defs/Size", "description": "Which one?"}
    text = {"type": "string", "description": "Anything"}
    properties = {"size": {"$ref": "#/$defs/Size"}, "own": own, "text": text}
    form = make_form({"properties": properties, "$defs": {"Size": size}})
    labels = [(field.field.label, field.field.description) for field in form.fields]
    assert labels == [("How large?", ""), ("Which one?", ""), ("text", "Anything")]
