"""Bodies of every kind, and which arguments they are made of."""

import base64
from email import message_from_bytes
from email.policy import HTTP
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.http.messages import Outgoing
from roundgate.errors import ToolError
from roundgate.protocol.schemas import Schema
from tests.support.openapi import Compiled, compiled, document, operation

TWO = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array"}},
    "required": ["a"],
}


def posting(
    folder: Path, content: dict[str, Any], required: bool = True, **backend: Any
) -> Compiled:
    paths = operation("post", requestBody={"content": content, "required": required})
    return Compiled(compiled(folder, document(paths), **backend))


def sent(one: Compiled, **arguments: Any) -> Outgoing:
    assert Schema.compile(one.schema).problems(arguments, "arguments") == []
    return one.plan.request(arguments)


def parts(outgoing: Outgoing) -> list[tuple[Any, ...]]:
    """Name, file name, media type and bytes of each part, as Python's own parser reads them."""
    head = f"Content-Type: {outgoing.headers['content-type']}\r\n\r\n".encode()
    whole = message_from_bytes(head + (outgoing.body or b""), policy=HTTP)
    return [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part.get_content_type(),
            part.get_payload(decode=True),
        )
        for part in whole.iter_parts()
    ]


def test_members_of_a_plain_object_are_arguments(tmp_path: Path) -> None:
    one = posting(tmp_path, {"application/json": {"schema": TWO}})
    assert one.schema["required"] == ["a"]
    outgoing = sent(one, a="x", b=[{"c": None}])
    assert (outgoing.body, outgoing.headers["content-type"]) == (
        b'{"a":"x","b":[{"c":null}]}',
        "application/json",
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {**TWO, "additionalProperties": {"type": "string"}},
        {"oneOf": [TWO, {"type": "string"}]},
        {"allOf": [TWO, {"required": ["b"]}]},
        True,
    ],
)
def test_anything_else_is_one_argument_and_nothing_of_it_is_lost(
    tmp_path: Path, schema: Any
) -> None:
    one = posting(tmp_path, {"application/json": {"schema": schema}})
    assert list(one.schema["properties"]) == ["body"]
    assert one.schema["required"] == ["body"]
    value = (
        ["x"] if isinstance(schema, dict) and schema.get("type") == "array" else {"a": "x", "b": []}
    )
    assert sent(one, body=value).body == (b'["x"]' if value == ["x"] else b'{"a":"x","b":[]}')


PARTS = "multipart/form-data"
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("kind", [PARTS, FORM])
@pytest.mark.parametrize(
    "schema", [{"type": "string", "format": "binary"}, {"type": "array", "items": TWO}]
)
def test_a_form_without_members_leaves_its_operation_out(
    tmp_path: Path, kind: str, schema: dict[str, Any]
) -> None:
    """As Jira describes its upload of attachments."""
    form = operation("post", requestBody={"content": {kind: {"schema": schema}}})
    index = compiled(tmp_path, document({**form, "/other": {"get": {}}}))
    assert [row.path for row in index.rows] == ["/other"]
    (problem,) = index.problems
    assert f"no usable media type: {kind} (a form needs the schema of an object)" in problem.message


@pytest.mark.parametrize("kind", [PARTS, FORM])
def test_a_list_is_sent_as_json_where_a_form_cannot_have_it(tmp_path: Path, kind: str) -> None:
    """As Jira describes its columns."""
    media = {"schema": {"type": "array", "items": {"type": "string"}}}
    outgoing = sent(posting(tmp_path, {kind: media, "*/*": media}), body=["summary"])
    assert (outgoing.body, outgoing.headers["content-type"]) == (b'["summary"]', "application/json")


@pytest.mark.parametrize("kind", [PARTS, FORM])
def test_a_form_that_may_be_something_else_is_an_object(tmp_path: Path, kind: str) -> None:
    schema = {"oneOf": [{**TWO, "nullable": True}, {"type": "string"}]}
    one = posting(tmp_path, {kind: {"schema": schema}}, required=False)
    assert Schema.compile(one.schema).is_valid({"body": {"a": "x"}})
    for value in ("x", None, ["x"]):
        assert not Schema.compile(one.schema).is_valid({"body": value})


def test_an_object_is_sent_as_a_merge_patch_rather_than_a_json_patch(tmp_path: Path) -> None:
    """As Kubernetes, whose patches all have the schema of an object."""
    kinds = ("json-patch+json", "merge-patch+json", "strategic-merge-patch+json")
    content = {f"application/{kind}": {"schema": {"type": "object"}} for kind in kinds}
    outgoing = sent(posting(tmp_path, content), body={"spec": {}})
    assert outgoing.headers["content-type"] == "application/merge-patch+json"


def test_a_member_called_as_a_parameter_keeps_the_body_whole(tmp_path: Path) -> None:
    parameters = [{"name": "a", "in": "query", "schema": {"type": "string"}}]
    body = {"content": {"application/json": {"schema": TWO}}, "required": True}
    one = Compiled(
        compiled(tmp_path, document(operation("post", parameters=parameters, requestBody=body)))
    )
    outgoing = sent(one, a="q", body={"a": "b"})
    assert (outgoing.query, outgoing.body) == ("a=q", b'{"a":"b"}')


def test_a_body_that_is_optional_is_left_out_with_its_members(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    one = posting(tmp_path, {"application/json": {"schema": schema}}, required=False)
    assert sent(one).body is None
    assert "content-type" not in sent(one).headers
    assert sent(posting(tmp_path, {"application/json": {"schema": schema}})).body == b"{}"


def test_names_that_no_client_takes_are_changed_for_the_model_alone(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"filter[a]": {}, "$x": {}}}
    one = posting(tmp_path, {"application/json": {"schema": schema}})
    assert sent(one, filter_a=1, x=2).body == b'{"filter[a]":1,"$x":2}'


def test_a_form_is_written_as_its_encoding_says(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "l": {"type": "array"},
            "c": {"type": "array"},
            "o": {"type": "object"},
            "d": {},
            "t": {},
        },
    }
    encoding = {
        "c": {"style": "form", "explode": False},
        "d": {"style": "deepObject", "explode": True},
    }
    one = posting(
        tmp_path, {"application/x-www-form-urlencoded": {"schema": schema, "encoding": encoding}}
    )
    outgoing = sent(
        one, l=[1, 2], c=["a", "b"], o={"k": [1]}, d={"items": [{"price": "p&1"}]}, t=True
    )
    assert outgoing.headers["content-type"] == "application/x-www-form-urlencoded"
    assert outgoing.body == (
        b"l=1&l=2&c=a,b&o=%7B%22k%22%3A%5B1%5D%7D&d%5Bitems%5D%5B0%5D%5Bprice%5D=p%261&t=true"
    )


def test_files_arrive_with_their_names_and_types(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "required": ["photo"],
        "properties": {
            "photo": {"type": "string", "format": "binary", "description": "A picture."},
            "more": {"type": "array", "items": {"type": "string", "format": "binary"}},
            "meta": {"type": "object"},
            "note": {"type": "string"},
        },
    }
    encoding = {"photo": {"contentType": "image/png, image/jpeg"}}
    one = posting(tmp_path, {"multipart/form-data": {"schema": schema, "encoding": encoding}})
    assert one.schema["properties"]["photo"]["description"] == "A picture."
    data = base64.b64encode(b"\x89PNG\r\n--").decode()
    outgoing = sent(
        one,
        photo={"base64": data, "file_name": 'a"b\r\nX: y.png'},
        more=[{"text": "é", "file_name": "e.txt"}, {"base64": "", "media_type": "application/pdf"}],
        meta={"k": [1]},
        note="n",
    )
    assert parts(outgoing) == [
        ("photo", "a%22b%0D%0AX: y.png", "image/png", b"\x89PNG\r\n--"),
        ("more", "e.txt", "text/plain", "é".encode()),
        ("more", "more", "application/pdf", b""),
        ("meta", None, "application/json", b'{"k":[1]}'),
        ("note", None, "text/plain", b"n"),
    ]
    assert sent(one, photo={"text": "x"}) == sent(
        one, photo={"text": "x"}
    )  # a step that is run again


def test_a_file_that_is_no_base64_is_an_error_that_says_so(tmp_path: Path) -> None:
    one = posting(
        tmp_path, {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    )
    with pytest.raises(ToolError, match=r"arguments\.body: base64 is invalid"):
        one.plan.request({"body": {"base64": "?"}})
    outgoing = sent(one, body={"base64": "AAE="})
    assert (outgoing.body, outgoing.headers["content-type"]) == (
        b"\x00\x01",
        "application/octet-stream",
    )


def test_any_type_of_file_takes_the_callers_word_for_it(tmp_path: Path) -> None:
    one = posting(tmp_path, {"*/*": {"schema": {"type": "string", "format": "binary"}}})
    outgoing = sent(one, body={"base64": "AAE=", "media_type": "image/gif"})
    assert outgoing.headers["content-type"] == "image/gif"


def test_text_is_sent_as_it_is(tmp_path: Path) -> None:
    outgoing = sent(
        posting(tmp_path, {"text/x-markdown": {"schema": {"type": "string"}}}), body="# é"
    )
    assert (outgoing.body, outgoing.headers["content-type"]) == (
        "# é".encode(),
        "text/x-markdown; charset=utf-8",
    )


def test_of_several_media_types_the_configuration_prefers_one(tmp_path: Path) -> None:
    content = {
        "text/plain": {},
        "application/x-www-form-urlencoded": {"schema": TWO},
        "application/json": {"schema": TWO},
    }
    assert posting(tmp_path, content).plan.body.media_type == "application/json"  # type: ignore[union-attr]
    preferred = posting(tmp_path, content, media_types=["application/x-*"])
    assert preferred.plan.body.media_type == "application/x-www-form-urlencoded"  # type: ignore[union-attr]


def test_json_of_another_name_is_sent_under_that_name(tmp_path: Path) -> None:
    outgoing = sent(
        posting(tmp_path, {"application/merge-patch+json": {"schema": {}}}), body={"a": 1}
    )
    assert (outgoing.body, outgoing.headers["content-type"]) == (
        b'{"a":1}',
        "application/merge-patch+json",
    )
