"""Which slips in arguments are repaired, and that nothing is repaired that could be meant."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.repairing import MAX_VALUES, repaired, without_names
from roundgate.protocol import Schema
from tests.support.json_values import objects

INTEGERS = {"type": "array", "items": {"type": "integer"}}
ORDER = {
    "type": "object",
    "properties": {"sum": {"type": "number"}, "note": {"type": "string"}},
    "required": ["sum"],
}


def args(**properties: Any) -> dict[str, Any]:
    """A schema with these optional arguments."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    ("member", "sent", "expected"),
    [
        (INTEGERS, "[1, 2]", [1, 2]),
        (INTEGERS, ["1", 2], [1, 2]),
        (ORDER, '{"sum": 5}', {"sum": 5}),
        (ORDER, {"sum": "5.5"}, {"sum": 5.5}),
        (ORDER, {"sum": 5, "note": None}, {"sum": 5}),
        (ORDER, '{"sum": 5, "note": null}', {"sum": 5}),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.0", 5.0),
        ({"type": "number"}, " 1e3 ", 1000.0),
        ({"type": "boolean"}, "true", True),
        ({"enum": [1, 2]}, "2", 2),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [ORDER, {"type": "null"}]}, '{"sum": 5}', {"sum": 5}),
        ({"anyOf": [ORDER, {"type": "null"}]}, {"sum": "5"}, {"sum": 5}),
        ({"allOf": [ORDER]}, {"sum": "5"}, {"sum": 5}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"x": "5"}, {"x": 5}),
        ({"$ref": "#/$defs/O"}, {"sum": "5"}, {"sum": 5}),
    ],
)
def test_a_slip_is_repaired(member: Any, sent: Any, expected: Any) -> None:
    schema = {**args(a=member), "$defs": {"O": ORDER}}
    result = repaired(schema, {"a": sent})
    assert result.arguments == {"a": expected}
    assert sum(result.repairs.values()) >= 1
    assert Schema.compile(schema).is_valid(result.arguments)


@pytest.mark.parametrize(
    ("member", "sent"),
    [
        ({"type": "string"}, "[1]"),
        ({}, "5"),
        ({"type": ["string", "integer"]}, "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 0}]}, "5"),
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, "1_000"),
        ({"type": "integer"}, '"5"'),
        ({"type": "number"}, "NaN"),
        ({"type": "number"}, "1e400"),
        ({"type": "boolean"}, "True"),
        ({"type": "boolean"}, "1"),
        ({"type": ["integer", "null"]}, "null"),
        (ORDER, '{"sum": 1, "sum": 2}'),
        (ORDER, "[1]"),
        (INTEGERS, "1, 2"),
        # which of two objects is meant is not known
        ({"anyOf": [ORDER, {"type": "object", "properties": {"x": {}}}]}, {"sum": "5"}),
        # texts that a nearer schema accepts
        ({"type": "array", "prefixItems": [{}], "items": {"type": "integer"}}, ["5"]),
        (
            {
                "type": "object",
                "patternProperties": {"^x": {}},
                "additionalProperties": {"type": "integer"},
            },
            {"x": "5"},
        ),
        # texts inside of a text
        (ORDER, '{"sum": "5"}'),
    ],
)
def test_nothing_is_repaired_where_there_is_a_doubt(member: Any, sent: Any) -> None:
    result = repaired(args(a=member), {"a": sent})
    expected = json.loads(sent) if sent == '{"sum": "5"}' else sent
    assert result.arguments == {"a": expected}
    assert not Schema.compile(args(a=member)).is_valid({"a": expected}) or not result.repairs


def test_null_is_left_out_only_for_an_optional_member_that_cannot_be_null() -> None:
    schema = {**args(a={"type": "string"}, b={"type": ["string", "null"]}, c={}), "required": ["c"]}
    sent = {"a": None, "b": None, "c": None, "d": None}
    assert repaired(schema, sent).arguments == {"b": None, "c": None, "d": None}
    required = {**args(a={"type": "string"}), "required": ["a"]}
    assert repaired(required, {"a": None}).arguments == {"a": None}


def test_many_values_are_not_repaired() -> None:
    sent = {"a": ["1"] * MAX_VALUES}
    assert repaired(args(a=INTEGERS), sent).arguments is sent


@pytest.mark.parametrize(
    ("schema", "is_left_out"),
    [
        (args(), True),
        ({"type": "object", "properties": {"a": {}}}, True),
        (args(toolCallId={"type": "string"}), False),
        ({"type": "object", "additionalProperties": True}, False),
        ({"type": "object", "patternProperties": {"Id$": {}}}, False),
        ({"type": "object", "additionalProperties": {}}, False),
        ({"type": "object", "unevaluatedProperties": {"type": "string"}}, False),
        ({"type": "object", "required": ["toolCallId"]}, False),
        ({"anyOf": [{"properties": {"toolCallId": {}}}, {"properties": {"a": {}}}]}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"toolCallId": {}}}}}, False),
    ],
)
def test_a_name_that_clients_add_is_left_out_unless_the_schema_wants_it(
    schema: Any, is_left_out: bool
) -> None:
    rest = without_names(schema, {"toolCallId": "c", "x": 1}, {"toolCallId", "sessionId"})
    assert ("toolCallId" not in rest) is is_left_out
    assert rest["x"] == 1


MEMBERS = st.sampled_from(
    [{"type": "integer"}, {"type": "string"}, INTEGERS, ORDER, {}, {"anyOf": [ORDER, INTEGERS]}]
)


@given(st.dictionaries(st.sampled_from("abc"), MEMBERS), objects())
def test_a_repair_ends_and_changes_no_value_that_is_valid(
    properties: dict[str, Any], sent: dict[str, Any]
) -> None:
    schema = args(**properties)
    result = repaired(schema, sent)
    again = repaired(schema, result.arguments)
    assert result.arguments.keys() <= sent.keys()
    if Schema.compile(schema).is_valid(sent):
        assert result.arguments == sent
        assert not result.repairs
    assert again.arguments.keys() <= result.arguments.keys()
