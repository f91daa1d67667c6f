"""What is a message and what is not: the strict side of JSON, the rules of ids, and
answers that fit on one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.errors import InvalidRequest, ParseError
from roundgate.json import decode, encode
from roundgate.protocol import jsonrpc
from roundgate.protocol.jsonrpc import Notification, Request
from tests.support import json_values, wire

REQUEST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def refusal(message: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        wire.parse(json.dumps(message).encode())
    return caught.value


# --- messages ---


def test_a_request_has_id_method_and_params() -> None:
    body = b' {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "add"}}\r\n'
    assert wire.parse(body) == Request("a", "tools/call", {"name": "add"})


def test_params_that_are_not_sent_are_an_empty_object() -> None:
    assert wire.parse(json.dumps(REQUEST).encode()) == Request(1, "tools/list", {})


def test_a_notification_has_no_id() -> None:
    body = b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}'
    assert wire.parse(body) == Notification("notifications/cancelled", {"requestId": 1})


def test_members_that_json_rpc_does_not_know_are_ignored() -> None:
    assert wire.parse(json.dumps({**REQUEST, "trace": [1]}).encode()) == Request(
        1, "tools/list", {}
    )


@pytest.mark.parametrize("request_id", ["", "1", "ünï", 0, -1, 2**63 - 1, -(2**63)])
def test_ids_keep_their_value_and_their_type(request_id: str | int) -> None:
    message = wire.parse(json.dumps({**REQUEST, "id": request_id}).encode())
    assert isinstance(message, Request)
    assert (message.id, type(message.id)) == (request_id, type(request_id))


@pytest.mark.parametrize(
    "request_id", [None, True, False, 1.0, 1.5, 1e300, 2**63, -(2**63) - 1, [], {}]
)
def test_an_id_is_a_string_or_a_64_bit_integer(request_id: Any) -> None:
    error = refusal({**REQUEST, "id": request_id})
    assert error.request_id is None
    assert '"id" must be' in str(error)


def test_a_notification_must_not_carry_a_null_id() -> None:
    assert '"id" must be' in str(
        refusal({"jsonrpc": "2.0", "id": None, "method": "notifications/cancelled"})
    )


def test_a_request_without_an_id_is_told_so() -> None:
    error = refusal({"jsonrpc": "2.0", "method": "tools/list"})
    assert '"id" is missing' in str(error)


@pytest.mark.parametrize("version", ["1.0", "2", 2.0, 2, None, ["2.0"]])
def test_the_version_is_the_string_2_0_and_the_refusal_carries_the_id(version: Any) -> None:
    assert refusal({**REQUEST, "id": "a", "jsonrpc": version}).request_id == "a"


def test_a_message_without_jsonrpc_is_refused() -> None:
    assert '"jsonrpc"' in str(refusal({"id": 1, "method": "tools/list"}))


@pytest.mark.parametrize("method", [None, 1, True, ["tools/list"], {}])
def test_a_method_is_a_string(method: Any) -> None:
    error = refusal({**REQUEST, "method": method})
    assert (error.request_id, str(error)) == (1, '"method" must be a string')


@pytest.mark.parametrize("params", [None, [], ["a"], "a", 1, False])
def test_params_are_an_object(params: Any) -> None:
    error = refusal({**REQUEST, "params": params})
    assert (error.request_id, str(error)) == (1, '"params" must be an object')


@pytest.mark.parametrize("batch", [[], [REQUEST], [REQUEST, REQUEST]])
def test_a_batch_is_told_to_come_in_pieces(batch: list[Any]) -> None:
    assert "a separate POST" in str(refusal(batch))


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "tools/list"])
def test_a_scalar_is_no_message(value: Any) -> None:
    assert "one JSON-RPC object" in str(refusal(value))


@pytest.mark.parametrize("answer", [{"result": {}}, {"error": {"code": 1, "message": ""}}])
def test_a_response_is_told_where_answers_go(answer: dict[str, Any]) -> None:
    error = refusal({"jsonrpc": "2.0", "id": 5, **answer})
    assert error.request_id == 5
    assert "params.inputResponses" in str(error)


def test_a_refusal_does_not_repeat_a_long_method() -> None:
    assert len(str(refusal({"jsonrpc": "2.0", "method": "m" * 100_000}))) < 300


# --- strict JSON ---


@pytest.mark.parametrize(
    "body",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1, "b": 2, "\\u0061": 3}',
        '{"params": {"name": "safe", "name": "other"}}',
        '[{"a": [{"": 1, "": 2}]}]',
    ],
)
def test_no_key_comes_twice_in_an_object(body: str) -> None:
    with pytest.raises(ParseError, match="duplicate key"):
        decode(body.encode())


def test_a_key_may_come_again_in_another_object() -> None:
    assert decode(b'{"a": {"a": [{"a": 1}, {"a": 2}]}}') == {"a": {"a": [{"a": 1}, {"a": 2}]}}


@pytest.mark.parametrize(
    "body",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "[NaN]",
        "1e309",
        "-1E309",
        "1e+400",
        "1.5e0400",
        "0.1e400",
        pytest.param("9" * 400 + ".0", id="400 digits"),
        pytest.param("9" * 300 + "e99", id="300 digits and e99"),
        pytest.param("2" + "0" * 209 + "e99", id="2e308 as 210 digits and e99"),
        '{"a": [0, {"b": 1e999}]}',
    ],
)
def test_no_number_is_infinite_or_not_a_number(body: str) -> None:
    with pytest.raises(ParseError):
        decode(body.encode())


@pytest.mark.parametrize(
    "body",
    [
        "1e308",
        "-1.7976931348623157e308",
        "1e-999",
        "1e0001",
        pytest.param("1" + "0" * 209 + "e99", id="1e308 as 210 digits and e99"),
        pytest.param("9" * 400, id="400 digits"),
        "18446744073709551616",
        "-0.0",
    ],
)
def test_finite_numbers_keep_their_value(body: str) -> None:
    value, expected = decode(body.encode()), json.loads(body)
    assert (value, type(value)) == (expected, type(expected))


def test_what_only_looks_like_a_huge_number_is_let_through() -> None:
    value = {"1e999": "1E+999", "b": "9" * 400 + ".0"}
    assert decode(json.dumps(value).encode()) == value


def test_an_integer_beyond_what_python_writes_is_refused() -> None:
    with pytest.raises(ParseError):
        decode(b"9" * 5000)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_two_hundred_levels_are_read_and_many_more_are_not(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    decode((opening * 199 + "[]" + closing * 199).encode())
    for depth in (250, 100_000):
        with pytest.raises(ParseError, match="recursion limit"):
            decode((opening * depth + "[]" + closing * depth).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"{} {}",
        b"{}\x00",
        b"\xef\xbb\xbf{}",
        '{"a": "b"}'.encode("utf-16"),
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\n"',
        b'"\x00"',
        b'{"a": 1,}',
        b"[1,]",
        b"{'a': 1}",
        b"{a: 1}",
        b"// a\n{}",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"0x1",
        b"True",
        b"undefined",
    ],
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(ParseError, match=r"^Parse error: "):
        decode(body)


def test_a_parse_error_repeats_little_of_the_body() -> None:
    key = '"' + "k" * 100_000 + '"'
    with pytest.raises(ParseError) as caught:
        decode(f"{{{key}: 1, {key}: 2}}".encode())
    assert len(str(caught.value)) < 300


@given(value=json_values.values(), ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_all_json_is_read_as_the_standard_library_reads_it(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert repr(decode(text.encode())) == repr(json.loads(text))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a key came twice"
    return dict(pairs)


@st.composite
def nearly_json(draw: st.DrawFn) -> str:
    """A JSON text into which a few characters were put, or from which a few were taken."""
    text = json.dumps(draw(json_values.values(keys=st.sampled_from(["a", "b"]))))
    at = draw(st.integers(0, len(text)))
    put, taken = draw(st.text(alphabet='{}[]",:\\ue+-.09a \n', max_size=2)), draw(st.integers(0, 2))
    return text[:at] + put + text[at + taken :]


@given(nearly_json())
def test_nothing_is_read_that_the_standard_library_would_not_read(text: str) -> None:
    try:
        value = decode(text.encode())
    except ParseError:
        return
    assert repr(value) == repr(json.loads(text, object_pairs_hook=unique))


@given(
    st.one_of(
        st.binary(max_size=60), json_values.values().map(lambda value: json.dumps(value).encode())
    )
)
def test_any_bytes_are_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        message = wire.parse(body)
    except (ParseError, InvalidRequest):
        return
    assert isinstance(message, (Request, Notification))


# --- writing ---


@given(json_values.values())
def test_what_is_written_is_one_line_that_reads_back_the_same(value: Any) -> None:
    written = encode(value)
    assert not {b"\r"[0], b"\n"[0]} & set(written)
    assert repr(json.loads(written)) == repr(value)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30])
def test_integers_of_any_size_are_written_in_full(number: int) -> None:
    assert encode({"n": [number]}) == b'{"n":[%d]}' % number


def test_a_lone_surrogate_becomes_a_question_mark_and_nothing_else_changes() -> None:
    assert (
        encode({"\udfffé": ["a\ud800b", 2**64, "\r\n😀"]})
        == '{"?é":["a?b",18446744073709551616,"\\r\\n😀"]}'.encode()
    )


@pytest.mark.parametrize("half", [0xD800, 0xDBFF, 0xDC00, 0xDFFF])
def test_a_lone_surrogate_in_a_members_name_is_written_as_valid_utf_8(
    half: int,
) -> None:
    assert encode({f"a{chr(half)}b": "íㅀ힣\ud7ff\ue000"}) == '{"a?b":"íㅀ힣\ud7ff\ue000"}'.encode()


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", [1j], [2**64, float("inf")]])
def test_what_is_not_json_is_not_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_values_deeper_than_any_body_are_written() -> None:
    value: list[Any] = []
    for _ in range(400):
        value = [value]
    assert encode(value) == b"[" * 401 + b"]" * 401


@pytest.mark.parametrize("request_id", [0, -(2**63), "", 'a"\n'])
def test_a_result_carries_the_id_of_its_request(request_id: str | int) -> None:
    response = json.loads(jsonrpc.result_response(request_id, b'{"resultType":"complete"}'))
    assert response == {"jsonrpc": "2.0", "id": request_id, "result": {"resultType": "complete"}}


def test_a_notification_that_we_send_has_no_id() -> None:
    sent = json.loads(jsonrpc.notification("notifications/progress", {"progress": 1}))
    assert sent == {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
