"""What a revision with sessions has no place for: written as text, or passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roundgate.protocol.v2025 import REVISIONS
from roundgate.protocol.v2025.asking import request_params
from roundgate.protocol.v2025.results import RESULT_FORMATS

EVERY = pytest.mark.parametrize("version", RESULT_FORMATS)
SPRING = "2025-03-26"


def written(version: str, result: dict[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(RESULT_FORMATS[version].write(result))
    return decoded


@EVERY
@pytest.mark.parametrize("value", [{"n": 1}, [1, "é"], 3, "text", False])
def test_a_structured_result_without_text_is_never_lost(version: str, value: Any) -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    for content in ([], [image]):
        result = written(version, {"content": content, "structuredContent": value})
        if version != SPRING and isinstance(value, dict):
            assert result == {"content": content, "structuredContent": value}
        else:
            *others, block = result["content"]
            assert others == content
            assert block["type"] == "text"
            assert json.loads(block["text"]) == value
            assert "structuredContent" not in result


@EVERY
def test_a_structured_result_with_text_is_not_repeated(version: str) -> None:
    content = [{"type": "text", "text": "three"}]
    assert written(version, {"content": content, "structuredContent": [3]}) == {"content": content}


@EVERY
@pytest.mark.parametrize(
    "block",
    [
        {"type": "json", "json": {"n": 1}},
        {"type": "json", "text": "1"},
        {"type": "video", "data": "aGk=", "mimeType": "video/mp4"},
        {"type": {"n": 1}},
        {"n": 1},
    ],
)
def test_a_block_of_an_unknown_type_is_written_as_text(version: str, block: dict[str, Any]) -> None:
    for result in (
        written(version, {"content": [block]})["content"],
        [
            written(version, {"messages": [{"role": "user", "content": block}]})["messages"][0][
                "content"
            ]
        ],
    ):
        (text,) = result
        assert text["type"] == "text"
        assert json.loads(text["text"]) == block


@EVERY
def test_members_that_no_revision_knows_pass_as_they_do_to_newer_clients(version: str) -> None:
    contents = {"uri": "a:b", "name": "one", "text": "hi"}
    assert written(version, {"contents": [contents]}) == {"contents": [contents]}
    block = {"type": "resource", "resource": contents, "x": 1}
    assert written(version, {"content": [block]}) == {"content": [block]}
    tool = {"name": "t", "inputSchema": {"type": "object"}, "x-cost": 2}
    entries = RESULT_FORMATS[version].entries("tools", json.dumps(tool).encode())
    assert json.loads(entries) == tool


def test_members_of_later_revisions_do_not_pass() -> None:
    contents = {"uri": "a:b", "text": "hi", "_meta": {"x": 1}}
    (passed,) = written(SPRING, {"contents": [contents]})["contents"]
    assert passed == {"uri": "a:b", "text": "hi"}
    tool = {
        "name": "t",
        "title": "T",
        "inputSchema": {"type": "object"},
        "icons": [],
        "_meta": {},
        "outputSchema": {"type": "object"},
    }
    for version, later in (
        (SPRING, {"title", "icons", "_meta", "outputSchema"}),
        ("2025-06-18", {"icons"}),
        ("2025-11-25", set[str]()),
    ):
        entries = RESULT_FORMATS[version].entries("tools", json.dumps(tool).encode())
        assert json.loads(entries).keys() == tool.keys() - later


def test_a_choice_without_values_is_asked_in_2025_06_18_as_text() -> None:
    form = {"properties": {"one": {"type": "string", "oneOf": []}}}
    params = request_params(
        REVISIONS["2025-06-18"], "elicitation/create", {"requestedSchema": form}, None
    )
    asked = params["requestedSchema"]["properties"]["one"]
    assert asked == {"type": "string"}
