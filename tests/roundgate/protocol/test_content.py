"""What handlers return, as JSON that the official models read without losing a member."""

from __future__ import annotations

import base64
from types import MappingProxyType
from typing import Any

import pytest
from mcp_types import _v2026_07_28 as official
from msgspec.structs import replace

from roundgate.json import encode
from roundgate.protocol.content import (
    ABSENT,
    Annotations,
    AudioContent,
    BlobResourceContents,
    Completion,
    EmbeddedResource,
    Icon,
    ImageContent,
    PromptMessage,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolResult,
)

ANNOTATIONS = Annotations(
    audience=("user", "assistant"), priority=0.7, last_modified="2025-05-03T14:30:00Z"
)
META = MappingProxyType({"com.example/a": [1]})
TEXT = TextResourceContents("file:///a.rs", "fn main() {}", "text/x-rust", META)
BLOB = BlobResourceContents("file:///a.png", b"\x89PNG", "image/png", META)
ICON = Icon("https://example.com/a.png", "image/png", ("48x48", "any"), "dark")

# Every class with every member, and with no more than it needs.
VALUES: list[tuple[Any, Any]] = [
    (official.Annotations, ANNOTATIONS),
    (official.Annotations, Annotations()),
    (official.Annotations, Annotations(audience=[], priority=0.0)),
    (official.Icon, ICON),
    (official.Icon, Icon("data:image/png;base64,AA==")),
    (official.TextContent, TextContent("hello", annotations=ANNOTATIONS, meta=META)),
    (official.TextContent, TextContent("")),
    (
        official.ImageContent,
        ImageContent(b"\x89PNG", "image/png", annotations=ANNOTATIONS, meta=META),
    ),
    (official.ImageContent, ImageContent("", "image/png")),
    (official.AudioContent, AudioContent(b"RIFF", "audio/wav", annotations=ANNOTATIONS, meta=META)),
    (official.AudioContent, AudioContent(b"", "audio/wav")),
    (official.TextResourceContents, TEXT),
    (official.TextResourceContents, TextResourceContents("file:///a", "")),
    (official.BlobResourceContents, BLOB),
    (official.BlobResourceContents, BlobResourceContents("file:///a", b"")),
    (official.EmbeddedResource, EmbeddedResource(TEXT, annotations=ANNOTATIONS, meta=META)),
    (official.EmbeddedResource, EmbeddedResource(BLOB)),
    (
        official.ResourceLink,
        ResourceLink(
            "file:///a",
            "a",
            "A",
            "The first",
            "text/plain",
            0,
            (ICON,),
            annotations=ANNOTATIONS,
            meta=META,
        ),
    ),
    (official.ResourceLink, ResourceLink("file:///a", "a")),
    (official.PromptMessage, PromptMessage("user", "hello")),
    (official.PromptMessage, PromptMessage("assistant", ImageContent(b"\x89PNG", "image/png"))),
    (official.Completion, Completion(["a", "b"], 10, True)),
    (official.Completion, Completion([])),
]


@pytest.mark.parametrize(("model", "value"), VALUES, ids=lambda value: type(value).__name__)
def test_the_official_model_reads_every_member(model: Any, value: Any) -> None:
    written = value.to_wire()
    read = model.model_validate_json(encode(written), strict=True)
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == written


def test_optional_members_are_absent_never_null() -> None:
    assert TextContent("hello").to_wire() == {"type": "text", "text": "hello"}
    assert ResourceLink("file:///a", "a").to_wire() == {
        "type": "resource_link",
        "uri": "file:///a",
        "name": "a",
    }
    assert TextResourceContents("file:///a", "").to_wire() == {"uri": "file:///a", "text": ""}
    assert Annotations().to_wire() == {}


@pytest.mark.parametrize("data", [b"\xfb\xff\x00", bytearray(b"\xfb\xff\x00"), "+/8A"])
def test_bytes_become_base64_and_text_is_taken_to_be_base64(data: bytes | str) -> None:
    assert ImageContent(data, "image/png").to_wire()["data"] == "+/8A"
    assert AudioContent(data, "audio/wav").to_wire()["data"] == "+/8A"
    assert BlobResourceContents("file:///a", data).to_wire()["blob"] == "+/8A"


def test_an_image_comes_back_byte_for_byte() -> None:
    data = bytes(range(256))
    assert (
        base64.b64decode(ImageContent(data, "image/png").to_wire()["data"], validate=True) == data
    )


def test_a_value_does_not_change_with_what_was_made_of_it() -> None:
    block = TextContent("hello", meta={"a": 1})
    block.to_wire()["_meta"]["b"] = 2
    assert block.to_wire()["_meta"] == {"a": 1}


# --- tool results ---


def result(value: ToolResult) -> dict[str, Any]:
    """The JSON of a tool result, once the official model has read all of it."""
    written = value.to_wire()
    read = official.CallToolResult.model_validate({**written, "resultType": "complete"})
    content = read.model_dump(mode="json", by_alias=True, exclude_none=True)["content"]
    assert content == written["content"]
    return written


def test_a_result_holds_blocks_of_every_kind_and_strings_are_text() -> None:
    written = result(
        ToolResult(
            [
                "a",
                TextContent("b"),
                ImageContent(b"", "i/p"),
                AudioContent(b"", "a/w"),
                EmbeddedResource(TEXT),
                ResourceLink("file:///a", "a"),
            ]
        )
    )
    kinds = [block["type"] for block in written["content"]]
    assert kinds == ["text", "text", "image", "audio", "resource", "resource_link"]
    assert written["content"][0] == {"type": "text", "text": "a"}


def test_an_empty_result_still_has_content() -> None:
    assert result(ToolResult()) == {"content": []}


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, {"a": [1]}])
def test_any_json_is_a_structured_result_also_null(value: Any) -> None:
    assert result(ToolResult(structured_content=value)) == {
        "content": [],
        "structuredContent": value,
    }


def test_absent_is_not_null() -> None:
    assert "structuredContent" not in ToolResult(structured_content=ABSENT).to_wire()


def test_a_failure_says_so_and_a_success_says_nothing() -> None:
    assert result(ToolResult.error("try again")) == {
        "content": [{"type": "text", "text": "try again"}],
        "isError": True,
    }
    assert "isError" not in result(replace(ToolResult.error("fine after all"), is_error=False))


def test_a_result_may_carry_meta() -> None:
    assert result(ToolResult(meta=META))["_meta"] == {"com.example/a": [1]}


# --- completions ---


def test_at_most_a_hundred_completions_are_sent_and_the_cut_is_told() -> None:
    written = Completion([str(n) for n in range(101)]).to_wire()
    assert written["values"] == [str(n) for n in range(100)]
    assert (written["total"], written["hasMore"]) == (101, True)


def test_a_hundred_completions_are_not_cut() -> None:
    assert Completion(["a"] * 100).to_wire() == {"values": ["a"] * 100}


def test_a_cut_overrules_what_was_said_about_more_but_not_the_total() -> None:
    written = Completion(["a"] * 101, total=5000, has_more=False).to_wire()
    assert (len(written["values"]), written["total"], written["hasMore"]) == (100, 5000, True)


def test_the_total_may_be_said_without_a_cut() -> None:
    assert Completion(["flask"], 1, False).to_wire() == {
        "values": ["flask"],
        "total": 1,
        "hasMore": False,
    }
