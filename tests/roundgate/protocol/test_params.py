"""Params of each method: what is required, what may be left out, what is ignored,
and how a refusal reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from roundgate.errors import InvalidParams
from roundgate.methods.extensions import TaskParams, UpdateTaskParams
from roundgate.protocol.jsonrpc import validate
from roundgate.protocol.params import (
    CallToolParams,
    CompleteParams,
    GetPromptParams,
    ListenParams,
    ListParams,
    Params,
    PromptReference,
    ReadResourceParams,
    ResourceReference,
)
from tests.support import json_values

COMPLETE = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}}
LEAST: list[tuple[type[Params], dict[str, Any]]] = [
    (ListParams, {}),
    (CallToolParams, {"name": ""}),
    (GetPromptParams, {"name": "p"}),
    (ReadResourceParams, {"uri": "file:///a"}),
    (CompleteParams, COMPLETE),
    (ListenParams, {"notifications": {}}),
    (TaskParams, {"taskId": "t"}),
    (UpdateTaskParams, {"taskId": "t", "inputResponses": {}}),
]


def refusal(model: type[Params], params: dict[str, Any]) -> str:
    with pytest.raises(InvalidParams) as caught:
        validate(model, params)
    return str(caught.value)


@pytest.mark.parametrize(("model", "params"), LEAST)
def test_the_least_that_is_needed_is_enough(model: type[Params], params: dict[str, Any]) -> None:
    assert json_values.includes(to_builtins(validate(model, params)), params)


@pytest.mark.parametrize(("model", "params"), LEAST)
def test_members_that_we_do_not_read_are_ignored(
    model: type[Params], params: dict[str, Any]
) -> None:
    more = {**params, "_meta": {"a": 1}, "task": {}, "x": [None]}
    assert validate(model, more) == validate(model, params)


@pytest.mark.parametrize(("model", "params"), [pair for pair in LEAST if pair[1]])
def test_each_required_member_is_missed_by_its_name(
    model: type[Params], params: dict[str, Any]
) -> None:
    for name in params:
        without = {key: value for key, value in params.items() if key != name}
        assert (
            refusal(model, without)
            == f"Invalid params: params: Object missing required field `{name}`"
        )


@pytest.mark.parametrize(
    ("model", "params", "wrong"),
    [
        (ListParams, {"cursor": 5}, "cursor"),
        (CallToolParams, {"name": 5}, "name"),
        (CallToolParams, {"name": "a", "arguments": 0}, "arguments"),
        (CallToolParams, {"name": "a", "arguments": []}, "arguments"),
        (CallToolParams, {"name": "a", "arguments": "{}"}, "arguments"),
        (ReadResourceParams, {"uri": None}, "uri"),
        (CompleteParams, {**COMPLETE, "ref": 5}, "ref"),
        (CompleteParams, {**COMPLETE, "ref": {"name": "p"}}, "ref"),
        (CompleteParams, {**COMPLETE, "ref": {"type": "ref/prompt"}}, "ref"),
        (CompleteParams, {**COMPLETE, "ref": {"type": "ref/resource", "name": "p"}}, "ref"),
        (CompleteParams, {**COMPLETE, "argument": {"name": "a", "value": 1}}, "argument.value"),
        (
            CompleteParams,
            {**COMPLETE, "context": {"arguments": {"b": 1}}},
            "context.arguments[...]",
        ),
        (ListenParams, {"notifications": True}, "notifications"),
        (TaskParams, {"taskId": 5}, "taskId"),
        (UpdateTaskParams, {"taskId": None, "inputResponses": {}}, "taskId"),
        (UpdateTaskParams, {"taskId": "t", "inputResponses": None}, "inputResponses"),
        (UpdateTaskParams, {"taskId": "t", "inputResponses": []}, "inputResponses"),
    ],
)
def test_a_member_of_the_wrong_shape_is_named(
    model: type[Params], params: dict[str, Any], wrong: str
) -> None:
    assert refusal(model, params).startswith(f"Invalid params: params.{wrong}: ")


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [
        ({"toolsListChanged": 1}, "toolsListChanged"),
        ({"promptsListChanged": "true"}, "promptsListChanged"),
        ({"resourceSubscriptions": "a"}, "resourceSubscriptions"),
        ({"resourceSubscriptions": [1]}, "resourceSubscriptions[0]"),
        ({"resourceSubscriptions": ["a"] * 1001}, "resourceSubscriptions"),
        ({"taskIds": "t"}, "taskIds"),
        ({"taskIds": [None]}, "taskIds[0]"),
        ({"taskIds": ["t"] * 101}, "taskIds"),
    ],
)
def test_a_member_of_a_filter_of_the_wrong_shape_is_named(
    wanted: dict[str, Any], wrong: str
) -> None:
    told = refusal(ListenParams, {"notifications": wanted})
    assert told.startswith(f"Invalid params: params.notifications.{wrong}: ")


def test_each_wrong_member_is_named() -> None:
    assert refusal(CallToolParams, {"arguments": [], "inputResponses": 5}) == (
        "Invalid params: params.inputResponses: Expected `object | null`, got `int`;"
        " params: Object missing required field `name`;"
        " params.arguments: Expected `object | null`, got `array`"
    )
    both = {"toolsListChanged": 1, "taskIds": ["t", 1]}
    assert refusal(ListenParams, {"notifications": both}) == (
        "Invalid params: params.notifications.toolsListChanged: Expected `bool`, got `int`;"
        " params.notifications.taskIds[1]: Expected `str`, got `int`"
    )


@pytest.mark.parametrize("kind", ["hunter2", {"hunter2": 1}, ["hunter2"]])
def test_a_refusal_does_not_repeat_values(kind: Any) -> None:
    assert "hunter2" not in refusal(ListParams, {"cursor": {"secret": kind}})
    assert "hunter2" not in refusal(CompleteParams, {**COMPLETE, "ref": {"type": kind}})


def test_a_refusal_is_short_whatever_was_sent() -> None:
    context = {"arguments": {"k" * 100_000: 1}}
    assert len(refusal(CompleteParams, {**COMPLETE, "context": context})) < 1100


def test_answers_to_a_task_may_be_of_any_shape() -> None:
    responses = {"a": None, "b": {"ignored": True}, "c": [1], "": "x"}
    assert (
        validate(UpdateTaskParams, {"taskId": "t", "inputResponses": responses}).input_responses
        == responses
    )


def test_a_cursor_may_be_null_or_empty() -> None:
    assert validate(ListParams, {"cursor": None}).cursor is None
    assert validate(ListParams, {"cursor": ""}).cursor == ""


def test_arguments_that_are_left_out_are_empty_and_shared_by_no_one() -> None:
    first, second = validate(CallToolParams, {"name": "a"}), validate(CallToolParams, {"name": "a"})
    first.arguments["b"] = 1
    assert second.arguments == {}


def test_a_reference_is_to_a_prompt_or_to_a_resource() -> None:
    assert validate(CompleteParams, COMPLETE).ref == PromptReference(name="p")
    resource = ResourceReference(uri="file:///{a}")
    assert (
        validate(
            CompleteParams, {**COMPLETE, "ref": {"type": "ref/resource", "uri": "file:///{a}"}}
        ).ref
        == resource
    )


@pytest.mark.parametrize(
    "asked", ["toolsListChanged", "promptsListChanged", "resourcesListChanged"]
)
def test_what_a_listener_does_not_ask_for_it_does_not_get(asked: str) -> None:
    nothing = dict.fromkeys(
        ["toolsListChanged", "promptsListChanged", "resourcesListChanged"], False
    )
    notifications = validate(ListenParams, {"notifications": {asked: True}}).notifications
    lists: dict[str, list[str]] = {"resourceSubscriptions": [], "taskIds": []}
    assert to_builtins(notifications) == {**nothing, **lists, asked: True}


KEYS = st.sampled_from(
    [
        *(
            "name",
            "arguments",
            "uri",
            "cursor",
            "ref",
            "type",
            "argument",
            "value",
            "context",
            "notifications",
        ),
        *(
            "toolsListChanged",
            "resourceSubscriptions",
            "taskIds",
            "taskId",
            "inputResponses",
            "_meta",
        ),
    ]
)


@given(st.sampled_from([model for model, _ in LEAST]), json_values.objects(KEYS))
def test_any_object_is_params_or_invalid_params(
    model: type[Params], params: dict[str, Any]
) -> None:
    try:
        assert isinstance(validate(model, params), model)
    except InvalidParams as error:
        assert str(error).startswith("Invalid params: params")  # noqa: PT017
