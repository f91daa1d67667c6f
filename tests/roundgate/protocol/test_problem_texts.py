"""What is said of a value that fits no alternative of a union: what a model can act on."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from pydantic import BaseModel, Field

from roundgate.backends.http.bodies import FILE
from roundgate.backends.signature import describe
from roundgate.protocol import Schema
from tests.support.json_values import objects


class Size(enum.Enum):
    S = "s"
    L = "l"


class Card(BaseModel):
    kind: Literal["card"]
    number: int


class Cash(BaseModel):
    kind: Literal["cash"]
    coins: int


def take(
    size: Size | None = None,
    count: int | None = None,
    paid: Annotated[Card | Cash, Field(discriminator="kind")] | None = None,
    either: Card | Cash | None = None,
    ids: list[int | str] | None = None,
    on: int | Size | None = None,
) -> None: ...


SCHEMA = {**describe(take).input_schema}
SCHEMA["properties"] |= {"file": FILE, "all": {"oneOf": [{"minimum": 1}, {"maximum": 9}]}}


@pytest.mark.parametrize(
    ("sent", "problems"),
    [
        ({"size": "x"}, ['size: "x" is not one of "s" or "l"']),
        ({"count": "x"}, ['count: "x" must be of type integer or of type null']),
        ({"paid": {"kind": "card"}}, ['paid: "number" is a required property']),
        ({"paid": {"kind": "x"}}, ['paid.kind: "x" must be "card" or "cash"']),
        (
            {"either": {"kind": "cash", "coins": "x"}},
            ['either.coins: "x" is not of type "integer"'],
        ),
        ({"ids": [1, {}]}, ["ids[1]: {} must be of type integer or of type string"]),
        ({"on": "x"}, ['on: "x" is not one of "s" or "l"']),
        ({"all": 5}, ["all: fits several alternatives of the schema; make it fit exactly one"]),
        ({"file": {}}, ['file: must have exactly one of "base64", "text", "resource"']),
        (
            {"file": {"base64": "", "text": ""}},
            ['file: must have exactly one of "base64", "text", "resource"'],
        ),
        (
            {"file": "a.txt"},
            [
                'file: "a.txt" is not of type "object"',
                'file: must have exactly one of "base64", "text", "resource"',
            ],
        ),
    ],
)
def test_a_problem_says_what_is_wanted(sent: dict[str, Any], problems: list[str]) -> None:
    found = Schema.compile(SCHEMA).problems(sent, "arguments")
    assert found == [f"arguments.{problem}" for problem in problems]


@given(objects())
def test_an_invalid_value_has_a_problem_and_a_valid_one_has_none(sent: dict[str, Any]) -> None:
    schema = Schema.compile(
        {**SCHEMA, "additionalProperties": {"anyOf": [{"type": "null"}, {}, {"const": 1}]}}
    )
    assert bool(schema.problems(sent, "arguments")) is not schema.is_valid(sent)
