"""What a client can do is what this one request says, and what is missing is told exactly."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.errors import InvalidParams, MissingCapability
from roundgate.protocol.jsonrpc import ClientCapabilities

TASKS = "io.modelcontextprotocol/tasks"


def missing(required: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
    """What a client that declares `declared` lacks of `required`."""
    try:
        ClientCapabilities.parse(declared).require(required, "the test")
    except MissingCapability as error:
        return dict(error.missing)
    return {}


@pytest.mark.parametrize(
    ("required", "declared", "lacking"),
    [
        ({}, {}, {}),
        ({"sampling": {}}, {"sampling": {}}, {}),
        ({"sampling": {}}, {"sampling": {"tools": {}}, "roots": {}}, {}),
        ({"sampling": {}}, {}, {"sampling": {}}),
        ({"sampling": {}}, {"roots": {}}, {"sampling": {}}),
        ({"sampling": {"tools": {}}}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": {}}}, {"sampling": {"context": {}}}, {"sampling": {"tools": {}}}),
        (
            {"sampling": {"tools": {}, "context": {}}},
            {"sampling": {"tools": {}}},
            {"sampling": {"context": {}}},
        ),
        ({"sampling": {}, "roots": {}}, {"roots": {"listChanged": True}}, {"sampling": {}}),
        ({"extensions": {TASKS: {}}}, {"extensions": {TASKS: {"polling": True}}}, {}),
        ({"extensions": {TASKS: {}}}, {"extensions": {}}, {"extensions": {TASKS: {}}}),
        ({"extensions": {TASKS: {}}}, {"tasks": {}}, {"extensions": {TASKS: {}}}),
        ({"extensions": {TASKS: {}}}, {"extensions": {TASKS: None}}, {"extensions": {TASKS: {}}}),
        ({"extensions": {TASKS: {}}}, {"extensions": {TASKS: True}}, {"extensions": {TASKS: {}}}),
    ],
)
def test_what_is_missing_is_exactly_what_is_not_declared(
    required: dict[str, Any], declared: dict[str, Any], lacking: dict[str, Any]
) -> None:
    assert missing(required, declared) == lacking


@pytest.mark.parametrize(
    ("declared", "lacking"),
    [
        ({"elicitation": {}}, {"elicitation": {"url": {}}}),
        ({"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ({"elicitation": {"form": {}, "url": {}}}, {}),
        ({"elicitation": {"other": {}}}, {"elicitation": {"form": {}, "url": {}}}),
        ({}, {"elicitation": {"form": {}, "url": {}}}),
    ],
)
def test_an_empty_elicitation_means_form_mode_and_nothing_else_does(
    declared: dict[str, Any], lacking: dict[str, Any]
) -> None:
    assert missing({"elicitation": {"form": {}, "url": {}}}, declared) == lacking


def test_a_tool_that_needs_any_elicitation_takes_any() -> None:
    modes: list[dict[str, Any]] = [{}, {"form": {}}, {"url": {}}]
    for mode in modes:
        assert missing({"elicitation": {}}, {"elicitation": mode}) == {}


def test_settings_of_an_extension_are_compared_by_value() -> None:
    required = {"extensions": {"com.example/ui": {"mimeTypes": ["text/html"], "depth": 2}}}
    assert missing(required, required) == {}
    declared = {"extensions": {"com.example/ui": {"mimeTypes": ["text/plain"], "depth": 2}}}
    assert missing(required, declared) == {
        "extensions": {"com.example/ui": {"mimeTypes": ["text/html"]}}
    }


def test_the_error_says_what_needs_it() -> None:
    with pytest.raises(MissingCapability, match="tool ask needs client capabilities") as caught:
        ClientCapabilities.parse({}).require({"sampling": {}}, "tool ask")
    assert caught.value.data == {"requiredCapabilities": {"sampling": {}}}


def test_requirements_may_be_any_mapping() -> None:
    required: Mapping[str, Any] = MappingProxyType({"sampling": MappingProxyType({"tools": {}})})
    ClientCapabilities.parse({"sampling": {"tools": {}}}).require(required, "the test")


@pytest.mark.parametrize("capability", [None, True, False, 1, "yes", [], [{}]])
def test_each_capability_is_an_object(capability: Any) -> None:
    with pytest.raises(InvalidParams, match=r'clientCapabilities"\]\.sampling must be an object'):
        ClientCapabilities.parse({"roots": {}, "sampling": capability})


def test_capabilities_that_no_one_knows_are_kept() -> None:
    assert (
        missing({"experimental": {"x": {}}, "new": {}}, {"experimental": {"x": {}}, "new": {}})
        == {}
    )


TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def merged(left: Any, right: Any) -> Any:
    return {key: merged(left.get(key, {}), right.get(key, {})) for key in {**left, **right}}


@given(TREES, TREES)
def test_declaring_what_was_missing_as_well_is_enough_and_needed(
    required: Any, declared: Any
) -> None:
    lacking = missing(required, declared)
    assert missing(required, merged(declared, lacking)) == {}
    assert missing(lacking, declared) == lacking


@pytest.mark.parametrize(
    ("required", "remedy"),
    [
        ({"elicitation": {"form": {}}}, "set fallback.ask_in_words: true in the server's gateway"),
        ({"sampling": {}}, "set fallback.ask_in_words: true in"),
        (
            {"extensions": {TASKS: {}}},
            "set fallback.without_tasks: wait in",
        ),
        (
            {"roots": {}, "extensions": {TASKS: {}}},
            "ask_in_words: true and fallback.without_tasks: wait in",
        ),
        ({"extensions": {"x/y": {}}}, "Use a client that has them"),
    ],
)
def test_the_text_says_what_to_do(required: dict[str, Any], remedy: str) -> None:
    with pytest.raises(MissingCapability) as caught:
        ClientCapabilities({}).require(required, "tool t")
    said = str(caught.value)
    assert "Use a client that has them" in said
    assert remedy in said
    with pytest.raises(MissingCapability) as caught:
        ClientCapabilities({}).require(required, "approving", has_substitute=False)
    assert "fallback" not in str(caught.value)
