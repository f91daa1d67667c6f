"""The specification's own examples: requests are let in, results are what our values write.

`spec_examples.json` holds those files of schema/2026-07-28/examples in the
modelcontextprotocol repository that say what a server reads or what values it writes: `{type:
{name of the file: its JSON}}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from roundgate import errors
from roundgate.methods.extensions import ROUTES
from roundgate.protocol import jsonrpc, params
from roundgate.protocol.content import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    Completion,
    EmbeddedResource,
    ImageContent,
    PromptMessage,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolResult,
)
from roundgate.protocol.jsonrpc import ClientCapabilities, Headers, Request
from roundgate.protocol.v2026_07_28 import TABLE, validate_request
from tests.support import json_values, wire

EXAMPLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("spec_examples.json").read_text("utf-8")
)
FEATURES = frozenset({"tools", "resources", "prompts", "completions", "subscriptions"})
MODELS: dict[str, type[params.Params]] = {
    "tools/list": params.ListParams,
    "tools/call": params.CallToolParams,
    "resources/list": params.ListParams,
    "resources/templates/list": params.ListParams,
    "resources/read": params.ReadResourceParams,
    "prompts/list": params.ListParams,
    "prompts/get": params.GetPromptParams,
    "completion/complete": params.CompleteParams,
    "subscriptions/listen": params.ListenParams,
}
CLIENT_REQUESTS = [
    (kind, example)
    for kind in EXAMPLES
    if kind.endswith("Request")
    for example in EXAMPLES[kind].values()
]
PARAMS = [
    ("CallToolRequestParams", params.CallToolParams),
    ("GetPromptRequestParams", params.GetPromptParams),
    ("CompleteRequestParams", params.CompleteParams),
    ("PaginatedRequestParams", params.ListParams),
]
ERRORS = {
    "ParseError": errors.ParseError,
    "InvalidParamsError": errors.InvalidParams,
    "MethodNotFoundError": errors.MethodNotFound,
    "InternalError": errors.InternalError,
    "HeaderMismatchError": errors.HeaderMismatch,
    "MissingRequiredClientCapabilityError": errors.MissingCapability,
    "UnsupportedProtocolVersionError": errors.UnsupportedVersion,
}
PNG = EXAMPLES["ImageContent"]["image-png-content-with-annotations"]["data"]
WAV = EXAMPLES["AudioContent"]["audio-wav-content"]["data"]


def example(kind: str, name: str) -> Any:
    return EXAMPLES[kind][name]


@pytest.mark.parametrize(("kind", "request_"), CLIENT_REQUESTS)
def test_every_request_of_the_specification_passes(kind: str, request_: dict[str, Any]) -> None:
    message = wire.parse(json.dumps(request_).encode())
    assert isinstance(message, Request)
    raw = [(name.encode(), value.encode()) for name, value in wire.headers(request_).items()]
    passed = validate_request(message, Headers.of(raw), FEATURES, ROUTES)
    assert passed.method == request_["method"]
    if passed.method in MODELS:
        jsonrpc.validate(MODELS[passed.method], passed.params)


def test_the_specification_has_an_example_for_every_method() -> None:
    assert {request["method"] for _, request in CLIENT_REQUESTS} == {*MODELS, "server/discover"}


@pytest.mark.parametrize(("kind", "model"), PARAMS)
def test_what_params_say_is_what_is_read(kind: str, model: type[params.Params]) -> None:
    for sent in EXAMPLES[kind].values():
        read = to_builtins(jsonrpc.validate(model, sent))
        sent = {name: value for name, value in sent.items() if name != "_meta"}
        assert json_values.includes(read, sent)


@pytest.mark.parametrize(
    "declared", EXAMPLES["ClientCapabilities"].values(), ids=EXAMPLES["ClientCapabilities"]
)
def test_capabilities_that_are_declared_may_be_required(declared: dict[str, Any]) -> None:
    ClientCapabilities.parse(declared).require(declared, "the test")


@pytest.mark.parametrize(("kind", "cls"), ERRORS.items())
def test_our_codes_are_those_of_the_examples(kind: str, cls: type[errors.GatewayError]) -> None:
    for answer in EXAMPLES[kind].values():
        assert TABLE[cls].code == answer.get("error", answer)["code"]


def test_every_error_of_the_specification_is_one_of_ours() -> None:
    assert {kind for kind in EXAMPLES if kind.endswith("Error")} == ERRORS.keys()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TextContent("Tool result text"), example("TextContent", "text-content")),
        (
            ImageContent(
                PNG, "image/png", annotations=Annotations(audience=["user"], priority=0.9)
            ),
            example("ImageContent", "image-png-content-with-annotations"),
        ),
        (AudioContent(WAV, "audio/wav"), example("AudioContent", "audio-wav-content")),
        (
            EmbeddedResource(
                TextResourceContents(
                    "file:///project/src/main.rs",
                    'fn main() {\n    println!("Hello world!");\n}',
                    "text/x-rust",
                ),
                annotations=Annotations(
                    audience=("user", "assistant"),
                    priority=0.7,
                    last_modified="2025-05-03T14:30:00Z",
                ),
            ),
            example("EmbeddedResource", "embedded-file-resource-with-annotations"),
        ),
        (
            ResourceLink(
                "file:///project/src/main.rs",
                "main.rs",
                description="Primary application entry point",
                mime_type="text/x-rust",
            ),
            example("ResourceLink", "file-resource-link"),
        ),
        (
            TextResourceContents("file:///example.txt", "Resource content", "text/plain"),
            example("TextResourceContents", "text-file-contents"),
        ),
        (
            BlobResourceContents("file:///example.png", PNG, "image/png"),
            example("BlobResourceContents", "image-file-contents"),
        ),
        (
            PromptMessage(
                "user", "Please review this Python code:\ndef hello():\n    print('world')"
            ),
            example("GetPromptResult", "code-review-prompt")["messages"][0],
        ),
        (
            Completion(["python", "pytorch", "pyside"], 10, True),
            example("CompleteResult", "multiple-completion-values-with-more-available")[
                "completion"
            ],
        ),
        (
            Completion(["flask"], 1, False),
            example("CompleteResult", "single-completion-value")["completion"],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_our_values_write_the_examples(value: Any, expected: dict[str, Any]) -> None:
    assert value.to_wire() == expected


@pytest.mark.parametrize("name", EXAMPLES["CallToolResult"])
def test_tool_results_write_the_examples(name: str) -> None:
    expected = {
        key: value for key, value in EXAMPLES["CallToolResult"][name].items() if key != "resultType"
    }
    texts = [block["text"] for block in expected["content"]]
    structured = (
        {"structured_content": expected["structuredContent"]}
        if "structuredContent" in expected
        else {}
    )
    written = ToolResult(texts, is_error=expected.get("isError", False), **structured).to_wire()
    assert {"isError": False, **written} == {"isError": False, **expected}
