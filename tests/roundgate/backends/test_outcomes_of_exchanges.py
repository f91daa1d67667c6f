"""Outcomes of exchanges with back ends, as the journal keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.backends.dialogue import (
    Answering,
    HandedOver,
    Lacking,
    LastAnswer,
    McpRefusal,
    Outcome,
    PagesToOpen,
    Questions,
    Recorded,
    Result,
    outcome_from_json,
    recorded,
)

ASKS: dict[str, Any] = {"who": {"method": "roots/list"}}
OUTCOMES: list[Recorded] = [
    Result({"content": []}),
    HandedOver({"taskId": "t"}),
    Lacking({"sampling": {}}),
    McpRefusal("no", -32602, {"x": 1}, "error -32602"),
    PagesToOpen(ASKS),
    Questions(ASKS, "state"),
    Questions(ASKS, None, "id", 2, {"after": "7"}, pending=True),
]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_is_read_as_it_was_recorded(outcome: Recorded) -> None:
    assert outcome_from_json(recorded(outcome)) == outcome


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        ({"result": {"a": 1}}, Result({"a": 1})),
        ({"task": {"taskId": "t"}}, HandedOver({"taskId": "t"})),
        ({"required": {"roots": {}}}, Lacking({"roots": {}})),
        ({"error": "no", "code": -1, "data": None}, McpRefusal("no", -1)),
        ({"pages": ASKS}, PagesToOpen(ASKS)),
        ({"inputRequests": ASKS, "state": {"n": 1}}, Questions(ASKS, {"n": 1})),
        (
            {
                "inputRequests": ASKS,
                "state": None,
                "held": "id",
                "number": 1,
                "pending": {"since_ms": 5, "beat": None},
            },
            Questions(ASKS, None, "id", 1, pending=True),
        ),
        ({"status": 200, "body": ""}, LastAnswer({"status": 200, "body": ""})),
    ],
)
def test_journals_of_earlier_versions_are_read(kept: dict[str, Any], outcome: Outcome) -> None:
    assert outcome_from_json(kept) == outcome


def test_earlier_versions_find_the_members_that_they_read() -> None:
    assert recorded(Questions(ASKS, None)) == {
        "kind": "questions",
        "inputRequests": ASKS,
        "state": None,
    }
    assert {"error", "code", "data"} <= recorded(McpRefusal("no", -1)).keys()


def test_a_server_gets_only_what_there_is() -> None:
    assert Answering({}, None).params() == {}
    assert Answering({"who": {}}, "s").params() == {
        "inputResponses": {"who": {}},
        "requestState": "s",
    }
