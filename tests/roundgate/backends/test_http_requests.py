"""Where the arguments of an HTTP tool go, and what makes its declaration unusable: no I/O."""

import base64
import json
import string
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from roundgate.backends.http.config import HttpToolConfig
from roundgate.backends.http.endpoint import ToolEndpoint
from roundgate.backends.http.messages import Outgoing, ServiceAnswer
from roundgate.errors import BackendError, ToolError
from tests.support.long import examples


def declared(**config: Any) -> ToolEndpoint:
    return ToolEndpoint(
        HttpToolConfig.model_validate({"name": "t", "description": "d", "path": "/", **config})
    )


def sent(values: dict[str, Any], /, **config: Any) -> Outgoing:
    return declared(**config).request(values)


ANY: dict[str, Any] = {"schema": {}}


def test_a_path_argument_is_implied_by_the_path_and_always_required() -> None:
    tool = declared(
        path="/users/{user}/notes/{note-id}", arguments={"page": {"schema": {"type": "integer"}}}
    )
    assert tool.definition()["inputSchema"] == {
        "type": "object",
        "properties": {
            "user": {"type": "string"},
            "note-id": {"type": "string"},
            "page": {"type": "integer"},
        },
        "required": ["user", "note-id"],
        "additionalProperties": False,
    }
    assert tool.request({"user": "ann", "note-id": "7", "page": 2}) == Outgoing(
        *("GET", "/users/ann/notes/7", "page=2", {}, None),
        is_repeatable=True,
        route="/users/{user}/notes/{note-id}",
    )


def test_an_argument_under_another_name_takes_the_place_of_what_the_path_implies() -> None:
    config = {"path": "/{id}", "arguments": {"user": {"as": "id", "description": "Who."}}}
    schema = declared(**config).definition()["inputSchema"]
    assert schema["properties"] == {"user": {"type": "string", "description": "Who."}}
    assert schema["required"] == ["user"]
    assert sent({"user": "ann"}, **config).path == "/ann"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a b", "/v/a%20b/w"),
        ("%41", "/v/%2541/w"),
        ("a?b#c&d=e;f", "/v/a%3Fb%23c%26d%3De%3Bf/w"),
        ("é€😀", "/v/%C3%A9%E2%82%AC%F0%9F%98%80/w"),
        ("\r\nX: y", "/v/%0D%0AX%3A%20y/w"),
        ("{b}", "/v/%7Bb%7D/w"),
        ("...", "/v/.../w"),
        ("~-._", "/v/~-._/w"),
        (7, "/v/7/w"),
        (True, "/v/true/w"),
        (1.5, "/v/1.5/w"),
        (7.0, "/v/7/w"),
        (["a", 1], "/v/%5B%22a%22%2C1%5D/w"),
    ],
)
def test_a_path_value_is_percent_encoded_whole(value: Any, path: str) -> None:
    assert sent({"a": value}, path="/v/{a}/w", arguments={"a": ANY}).path == path


CLIMBING = [
    "", ".", "..", "../secret", "a/b", "../..", "%2e%2e", "%2F", "a%2fb", "..%2Fsecret", "%252e%252e%252fsecret",
    "//evil.example", "\\..\\", "..%5Csecret", "%25252525252e", "a\x00b", "a%00b", "..;", "..;a=b", " .. ",
    "..\u3000", "\uff0e\uff0e", "\uff0fsecret", "\u2025", "%c0%ae%c0%ae", "%c0%af", "%e0%80%af",
    "..%u002f", "..%U002Fsecret", "%u002e%u002e", "..%25u002f", "%u2025", "..%uff0fsecret", "%u005c", "%u0000",
]  # fmt: skip
"""Values of one argument that some server reads as another path."""


@pytest.mark.parametrize("value", CLIMBING)
def test_a_path_value_that_would_leave_its_place_is_refused(value: str) -> None:
    with pytest.raises(ToolError, match=r"arguments\.a: may not"):
        sent({"a": value}, path="/v/{a}")


def test_a_variable_may_stand_in_the_path_twice_and_beside_text() -> None:
    assert (
        sent({"a": "x?y", "b": "{a}"}, path="/{a}/v{b}.json/{a}").path
        == "/x%3Fy/v%7Ba%7D.json/x%3Fy"
    )


@examples(60)
@given(st.text(), st.text(min_size=3))
def test_a_path_value_stays_in_its_segment_and_comes_back_unless_it_is_refused(
    one: str, other: str
) -> None:
    try:
        segments = sent({"a": one, "b": other}, path="/x/{a}/{b}").path.split("/")
    except ToolError:
        return
    assert [unquote(segment) for segment in segments] == ["", "x", one, other]
    assert set("".join(segments)) <= set(string.ascii_letters + string.digits + "%-._~")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST", "PUT", "PATCH"])
def test_an_argument_without_place_goes_into_the_query_or_the_body_by_method(method: str) -> None:
    outgoing = sent({"a": "x"}, method=method, arguments={"a": {}})
    if method in ("GET", "HEAD", "DELETE"):
        assert (outgoing.query, outgoing.body) == ("a=x", None)
    else:
        assert (outgoing.query, outgoing.body) == ("", b'{"a":"x"}')
        assert outgoing.headers == {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("value", "query"),
    [
        ("x&y=z", [("q", "x&y=z")]),
        (7, [("q", "7")]),
        (False, [("q", "false")]),
        (["a", 1, True], [("q", "a"), ("q", "1"), ("q", "true")]),
        ([["a"], {"b": 1}], [("q", '["a"]'), ("q", '{"b":1}')]),
        ({"b": [1]}, [("q", '{"b":[1]}')]),
        ([], []),
        (None, []),
        (["a", None], [("q", "a")]),
    ],
)
def test_a_query_repeats_the_name_for_a_list_and_leaves_null_out(
    value: Any, query: list[tuple[str, str]]
) -> None:
    outgoing = sent({"a": value}, arguments={"a": {"as": "q", **ANY}}, query={"v": "1"})
    assert parse_qsl(outgoing.query) == [("v", "1"), *query]


FORM = {"method": "POST", "body": "form"}


@examples(40)
@given(
    st.dictionaries(st.sampled_from("abc"), st.text() | st.lists(st.text(), max_size=3) | st.none())
)
def test_a_form_says_the_same_as_a_query_would(arguments: dict[str, Any]) -> None:
    form = sent(arguments, arguments=dict.fromkeys("abc", ANY), **FORM)
    query = sent(arguments, arguments={name: {"in": "query", **ANY} for name in "abc"}).query
    assert form.body is not None
    assert form.body.decode() == query
    assert form.headers == {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("value", ["x", 7, None, [1, None], {"b": {"c": []}}, 10**30])
def test_a_body_member_is_the_value_as_it_is(value: Any) -> None:
    outgoing = sent(
        {"a": value}, method="POST", arguments={"a": {"as": "A-a", **ANY}, "unsent": ANY}
    )
    assert json.loads(outgoing.body or b"") == {"A-a": value}


def test_a_declared_body_is_an_empty_object_and_an_undeclared_one_is_no_body() -> None:
    assert sent({}, method="POST", arguments={"a": {}}).body == b"{}"
    assert sent({}, method="POST").body is None
    assert sent({}, arguments={"a": {}}, **FORM).body == b""


@pytest.mark.parametrize(
    ("value", "body", "content_type"),
    [
        ([1, {"a": None}], b'[1,{"a":null}]', "application/json"),
        (None, b"null", "application/json"),
        (5, b"5", "application/json"),
        ("é", "é".encode(), "text/plain; charset=utf-8"),
        ("", b"", "text/plain; charset=utf-8"),
    ],
)
def test_a_whole_body_is_one_value_and_a_string_is_plain_text(
    value: Any, body: bytes, content_type: str
) -> None:
    arguments = {"all": {"in": "whole_body", **ANY}, "q": {"in": "query"}}
    outgoing = sent({"all": value, "q": "1"}, method="PUT", arguments=arguments)
    assert (outgoing.body, outgoing.headers, outgoing.query) == (
        body,
        {"content-type": content_type},
        "q=1",
    )
    assert sent({}, method="PUT", arguments=arguments).body is None


@pytest.mark.parametrize(
    ("value", "header"), [("a b", "a b"), ("a\tb", "a\tb"), (7, "7"), ([1], "[1]"), ("~!", "~!")]
)
def test_a_header_argument_is_sent_as_it_is(value: Any, header: str) -> None:
    outgoing = sent(
        {"a": value}, arguments={"a": {"in": "header", "as": "X-A", **ANY}}, headers={"X-B": "b"}
    )
    assert outgoing.headers == {"X-B": "b", "X-A": header}


def test_null_leaves_a_header_out() -> None:
    assert sent({"a": None}, arguments={"a": {"in": "header", **ANY}}).headers == {}


HEADER: dict[str, Any] = {"arguments": {"a": {"in": "header"}}}


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        " a",
        "a ",
        "a\r\nHost: evil",
        "a\n",
        "\ra",
        "\x00",
        "é",
        "\x7f",
        "a\x0bb",
        "\u2028",
        "a\r\n b",
    ],
)
def test_a_header_value_that_could_end_the_header_is_refused(value: str) -> None:
    with pytest.raises(
        ToolError,
        match=r"arguments\.a: is sent in an HTTP header and may contain only visible ASCII",
    ):
        sent({"a": value}, **HEADER)


@given(st.text(st.characters(max_codepoint=130), max_size=5))
def test_a_header_value_is_refused_or_sent_as_it_is_and_then_harmless(value: str) -> None:
    try:
        outgoing = sent({"a": value}, **HEADER)
    except ToolError:
        return
    assert outgoing.headers == {"a": value}
    assert value
    assert set(value) <= set(string.printable) - set("\r\n\x0b\x0c")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"path": "/{a"}, "'{' is out of place"),
        ({"path": "/a}"}, "'}' is out of place"),
        ({"path": "/{}"}, "'{' is out of place"),
        ({"path": "/{a b}"}, "'{' is out of place"),
        ({"path": "/a?b=c"}, "'?' is out of place; variables are {name}, queries go into query"),
        ({"path": "/a#b"}, "'#' is out of place"),
        (
            {"path": "/{a}", "arguments": {"a": {"in": "query"}}},
            "needs ['a'], but the arguments in path are []",
        ),
        (
            {"path": "/", "arguments": {"a": {"in": "path"}}},
            "needs [], but the arguments in path are ['a']",
        ),
        (
            {"path": "/{a}", "arguments": {"x": {"as": "a"}, "a": {"in": "path"}}},
            "'x' and 'a' are both 'a' in path; set `as` of one of them",
        ),
        ({"arguments": {"x": {"as": "q"}, "q": {}}}, "'x' and 'q' are both 'q' in query"),
        (
            {"arguments": {"x": {"in": "header", "as": "X-A"}, "x-a": {"in": "header"}}},
            "are both 'x-a' in header",
        ),
        ({"arguments": {"a b": {"in": "header"}}}, "'a b' is not a header name; set `as`"),
        ({"arguments": {"a": {"in": "header", "as": "a\r\nb"}}}, "is not a header name"),
        (
            {"method": "POST", "arguments": {"a": {"in": "whole_body"}, "b": {}}},
            "whole_body is for one argument",
        ),
        (
            {"arguments": {"a": {"in": "whole_body"}, "b": {"in": "whole_body"}}},
            "whole_body is for one argument",
        ),
        ({"output_schema": {"type": "thing"}}, "not a usable JSON Schema"),
        ({"output_schema": {"$ref": "https://127.0.0.1:9/s"}}, "Retrieval is disabled"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(
    config: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  (what it says is checked below)
        declared(**config)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        {"path": "a"},
        {"path": ""},
        {"method": "TRACE"},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"a": "é"}},
        {"result": "a"},
        {"arguments": {"a": {"in": "cookie"}}},
        {"timeout_s": 0},
        {"description": ""},
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_the_configuration(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        declared(**config)


@pytest.mark.parametrize(
    ("method", "read_only", "destructive", "idempotent"),
    [
        ("GET", True, False, True),
        ("HEAD", True, False, True),
        ("POST", False, None, False),
        ("PUT", False, None, True),
        ("PATCH", False, None, False),
        ("DELETE", False, True, True),
    ],
)
def test_the_hints_follow_the_method_unless_they_are_set(
    method: str, read_only: bool, destructive: bool | None, idempotent: bool
) -> None:
    hints = {
        "readOnlyHint": read_only,
        "destructiveHint": destructive,
        "idempotentHint": idempotent,
    }
    said = {name: value for name, value in hints.items() if value is not None}
    assert declared(method=method).definition()["annotations"] == {**said, "openWorldHint": True}
    changed = declared(
        method=method,
        read_only=not read_only,
        destructive=not destructive,
        idempotent=not idempotent,
    )
    opposite = {name: not value for name, value in hints.items()}
    assert changed.definition()["annotations"] == {**opposite, "openWorldHint": True}


def test_a_definition_has_what_was_declared() -> None:
    config = {"title": "T", "description": "Does it.", "output_schema": {"type": "array"}}
    arguments = {
        "a": {"required": True, "description": "An a.", "schema": {"type": "integer", "minimum": 1}}
    }
    found = declared(arguments=arguments, **config).definition()
    assert (found["name"], found["title"], found["description"]) == ("t", "T", "Does it.")
    assert found["outputSchema"] == {"type": "array"}
    assert found["inputSchema"]["properties"] == {
        "a": {"type": "integer", "minimum": 1, "description": "An a."}
    }
    assert found["inputSchema"]["required"] == ["a"]


def result(
    body: Any, content_type: str = "application/json", status: int = 200, **config: Any
) -> dict[str, Any]:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        declared(**config).result(ServiceAnswer(status, "Reason", content_type, encoded)).to_wire()
    )


DOCUMENT = {"a": [{"b": 1}, "x"], "": {"/": 2, "~": 3, "~1": 4}, "0": 5, "n": None}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", DOCUMENT),
        ("/a", [{"b": 1}, "x"]),
        ("/a/0/b", 1),
        ("/a/1", "x"),
        ("//~1", 2),
        ("//~0", 3),
        ("//~01", 4),
        ("/0", 5),
        ("/n", None),
    ],
)
def test_a_json_pointer_chooses_the_result(pointer: str, value: Any) -> None:
    found = result(DOCUMENT, result=pointer)
    assert found["structuredContent"] == value
    text = found["content"][0]["text"]
    assert text == value if isinstance(value, str) else json.loads(text) == value


@pytest.mark.parametrize(
    "pointer",
    [
        "/b",
        "/a/2",
        "/a/-",
        "/a/-1",
        "/a/x",
        "/a/0/b/c",
        "/a/1/0",
        "/n/a",
        "/a/99999999999999999999",
    ],
)
def test_a_json_pointer_to_nothing_is_an_error_with_an_excerpt(pointer: str) -> None:
    with pytest.raises(BackendError) as refused:
        result(DOCUMENT, result=pointer)
    assert str(refused.value).startswith(f"The service's answer has nothing at {pointer}: {{")


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "text/json",
    ],
)
def test_json_is_known_by_its_media_type(media_type: str) -> None:
    for body in (b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}'):
        assert result(body, media_type)["structuredContent"] == {"a": 1}


@pytest.mark.parametrize(
    "body", [b"{", b"nope", b"{}{}", b'{"a":1,}', b"[nan]", b"\xff", b"[" * 300 + b"]" * 300]
)
def test_what_calls_itself_json_and_is_not_is_an_error(body: bytes) -> None:
    with pytest.raises(BackendError, match="The service's answer is not JSON"):
        result(body)


@pytest.mark.parametrize(
    ("body", "content_type", "block"),
    [
        ("é".encode(), "text/plain", {"type": "text", "text": "é"}),
        (b"\xe9", "text/plain; charset=ISO-8859-1", {"type": "text", "text": "é"}),
        (b"\xe9", 'text/plain;Charset="latin1"', {"type": "text", "text": "é"}),
        ("日本".encode("Shift_JIS"), "text/a; charset=Shift_JIS", {"type": "text", "text": "日本"}),
        ("x".encode("UTF-16"), 'text/plain; charset="UTF-16"', {"type": "text", "text": "x"}),
        (b"<a/>", "application/xml", {"type": "text", "text": "<a/>"}),
        (b"a,b", "", {"type": "text", "text": "a,b"}),
        (
            b"\x89PNG",
            "image/png; q=1",
            {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
        ),
        (b"RIFF", "audio/wav", {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}),
        (b"", "image/png", {"type": "text", "text": "200 Reason"}),
        (b"", "application/json", {"type": "text", "text": "200 Reason"}),
        (b"", "", {"type": "text", "text": "200 Reason"}),
    ],
)
def test_text_images_and_audio_become_content(
    body: bytes, content_type: str, block: dict[str, Any]
) -> None:
    assert result(body, content_type) == {"content": [block]}


@pytest.mark.parametrize(
    "content_type", ["application/pdf", "text/plain", "text/plain; charset=nonsense", ""]
)
def test_bytes_that_are_no_text_become_an_embedded_resource(content_type: str) -> None:
    (block,) = result(b"\xff\x00", content_type)["content"]
    assert block["type"] == "resource"
    assert base64.b64decode(block["resource"]["blob"]) == b"\xff\x00"
    assert block["resource"]["mimeType"] == (
        content_type.partition(";")[0] or "application/octet-stream"
    )


@pytest.mark.parametrize(
    ("body", "content_type", "said"),
    [
        (b"<p>", "text/html", "The service answered text/html where JSON was expected: <p>"),
        (b"x", "", "The service answered no content type where JSON was expected: x"),
        (b"", "application/json", "The service answered nothing where JSON was expected"),
    ],
)
@pytest.mark.parametrize("config", [{"result": "/a"}, {"output_schema": {"type": "object"}}])
def test_where_json_is_promised_anything_else_is_an_error(
    body: bytes, content_type: str, said: str, config: dict[str, Any]
) -> None:
    with pytest.raises(BackendError) as refused:
        result(body, content_type, **config)
    assert str(refused.value) == said


def test_an_answer_that_breaks_the_output_schema_is_an_error_that_says_where() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert result({"n": 1}, output_schema=schema)["structuredContent"] == {"n": 1}
    with pytest.raises(
        BackendError, match=r'not as declared: result\.n: "x" is not of type "integer"'
    ):
        result({"n": "x"}, output_schema=schema)


@pytest.mark.parametrize("status", [300, 304, 400, 404, 418, 500, 503, 599])
def test_a_status_of_300_or_more_is_an_error_with_an_excerpt_on_one_line(status: int) -> None:
    with pytest.raises(BackendError) as refused:
        result(b'{\n  "why":  "because"\r\n}', status=status)
    assert str(refused.value) == f'The service answered {status} Reason: {{ "why": "because" }}'


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "x" * 10_000])
def test_an_error_is_short_whatever_the_service_says(content_type: str) -> None:
    answer = ServiceAnswer(500, "r" * 10_000, content_type, ("é" * 100_000).encode())
    with pytest.raises(BackendError) as refused:
        declared(result="/a").result(answer)
    assert len(str(refused.value)) < 700
    assert str(refused.value).endswith("é…")
    with pytest.raises(BackendError) as refused:
        declared(result="/a").result(ServiceAnswer(200, "OK", content_type, b"\x00binary"))
    assert len(str(refused.value)) < 200
    assert "binary" not in str(refused.value)


@examples(60)
@given(
    st.binary(max_size=40),
    st.sampled_from(
        ["application/json", "text/plain", "image/png", "a/b", "", ";;", "text/x; charset=utf-16"]
    ),
)
def test_any_answer_is_a_result_or_a_back_end_error(body: bytes, content_type: str) -> None:
    try:
        found = result(body, content_type)
    except BackendError:
        return
    assert found["content"]
