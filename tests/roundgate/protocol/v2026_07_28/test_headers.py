"""Values in headers: what survives HTTP goes as it is, the rest in base64; what is
read is read strictly."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as official

from roundgate.errors import HeaderMismatch
from roundgate.protocol import v2026_07_28
from roundgate.protocol.jsonrpc import Headers
from roundgate.protocol.v2026_07_28 import decode_value, encode_value
from tests.support import json_values

HEADER = "Mcp-Name"


# --- the codec ---


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        # "Encoding examples" of streamable-http
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        # and ours
        ("", ""),
        ("a b\tc~", "a b\tc~"),
        ("\t", "=?base64?CQ==?="),
        ("a\r\nX-Evil: 1", "=?base64?YQ0KWC1FdmlsOiAx?="),
        ("\x7f", "=?base64?fw==?="),
        ("\x00", "=?base64?AA==?="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
    ],
)
def test_a_value_and_its_header(value: str, encoded: str) -> None:
    assert encode_value(value) == encoded
    assert decode_value(HEADER, encoded) == value


def test_a_value_in_which_prefix_and_suffix_overlap_matches_the_sentinel_too() -> None:
    # "starts with =?base64? and ends with ?="
    assert encode_value("=?base64?=") == "=?base64?PT9iYXNlNjQ/PQ==?="


@given(json_values.TEXT | st.text("=?base64 \t~\x7fé\n", max_size=14))
def test_every_text_comes_back_from_a_header_that_http_leaves_alone(text: str) -> None:
    encoded = encode_value(text)
    assert decode_value(HEADER, encoded) == text
    assert encoded == encoded.strip()
    assert all(" " <= character <= "~" or character == "\t" for character in encoded)


@given(json_values.TEXT | st.text("=?base64 ~é\n", max_size=14))
def test_the_official_client_and_we_read_each_other(text: str) -> None:
    assert decode_value(HEADER, official.encode_header_value(text)) == text
    assert official.decode_header_value(encode_value(text)) == text


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("SGVsbG8", id="no padding"),
        pytest.param("SGVsbG8==", id="too much padding"),
        pytest.param("SGVs!!!bG8=", id="not of the alphabet"),
        pytest.param("SGVs bG8=", id="white space inside"),
        pytest.param(" SGVsbG8=", id="white space in front"),
        pytest.param("SGVs\nbG8=", id="a line end inside"),
        pytest.param("_-8=", id="the URL-safe alphabet"),
        pytest.param("SGVsbG9=", id="bits behind the last byte"),
        pytest.param("SGVsbG8=SGVsbG8=", id="two in one"),
        pytest.param("/w==", id="not UTF-8"),
        pytest.param("7aCA", id="a surrogate in UTF-8"),
        pytest.param("SGVsbG8=?=", id="a suffix inside"),
        pytest.param("é", id="not ASCII"),
    ],
)
def test_base64_is_read_strictly(payload: str) -> None:
    with pytest.raises(HeaderMismatch, match="Mcp-Name is not well-formed base64"):
        decode_value(HEADER, f"=?base64?{payload}?=")


@pytest.mark.parametrize("value", ["é", "a\x00", "a\nb", "a\r", "\x7f", "=?base64?é", "\x0b"])
def test_a_plain_value_is_visible_ascii(value: str) -> None:
    with pytest.raises(HeaderMismatch, match="outside visible ASCII"):
        decode_value(HEADER, value)


@pytest.mark.parametrize(
    "value",
    ["SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "x=?base64?SGVsbG8=?=", "=?Base64?QQ==?="],
)
def test_without_both_markers_a_value_means_itself(value: str) -> None:
    assert decode_value(HEADER, value) == value


def test_an_empty_sentinel_is_an_empty_value() -> None:
    assert decode_value(HEADER, "=?base64??=") == ""


@given(st.binary(max_size=12), st.booleans())
def test_any_header_is_a_text_or_a_mismatch(raw: bytes, in_sentinel: bool) -> None:
    text = f"=?base64?{raw.decode('latin-1')}?=" if in_sentinel else raw.decode("latin-1")
    try:
        decoded = decode_value(HEADER, text)
    except HeaderMismatch:
        return
    assert decode_value(HEADER, encode_value(decoded)) == decoded


@given(st.binary(max_size=12))
def test_bytes_in_base64_are_their_text_or_a_mismatch(data: bytes) -> None:
    sent = f"=?base64?{base64.b64encode(data).decode()}?="
    try:
        assert decode_value(HEADER, sent).encode() == data
    except HeaderMismatch:
        with pytest.raises(UnicodeDecodeError):
            data.decode()


# --- the headers of a request ---


def read(raw: list[tuple[bytes, bytes]], name: bytes) -> str | None:
    return v2026_07_28.read_header(Headers.of(raw), name)


def test_a_header_that_is_not_sent_is_none() -> None:
    assert read([(b"mcp-method", b"tools/call")], b"mcp-name") is None


def test_white_space_around_a_value_is_not_part_of_it() -> None:
    raw = [(b"mcp-method", b" \ttools/list\t "), (b"mcp-name", b" a b ")]
    assert [read(raw, name) for name, _ in raw] == ["tools/list", "a b"]


def test_only_the_white_space_of_http_is_taken_off() -> None:
    assert read([(b"mcp-name", b"\x0b\xa0a\xa0\x0c")], b"mcp-name") == "\x0b\xa0a\xa0\x0c"


def test_an_empty_value_is_there_and_empty() -> None:
    assert read([(b"mcp-name", b"")], b"mcp-name") == ""


@pytest.mark.parametrize(
    "name", [b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-region"]
)
@pytest.mark.parametrize("second", [b"other", b"same"])
def test_a_mirroring_header_that_comes_twice_is_noticed(name: bytes, second: bytes) -> None:
    raw = [(b"accept", b"*/*"), (name, b"same"), (b"accept", b"*/*"), (name, second)]
    assert v2026_07_28.repeated_header(Headers.of(raw)) == name.decode()


def test_other_headers_may_come_twice() -> None:
    raw = [
        (b"accept", b"a"),
        (b"accept", b"b"),
        (b"mcp-session-id", b"a"),
        (b"mcp-session-id", b"b"),
        (b"mcp-name", b"x"),
    ]
    assert v2026_07_28.repeated_header(Headers.of(raw)) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"mcp-name", b"mcp-param-", b"mcp-param-a", b"x"]) | st.binary(),
            st.binary(),
        )
    )
)
def test_any_headers_can_be_read(raw: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in raw if name == b"mcp-name" or name.startswith(b"mcp-param-")]
    assert (v2026_07_28.repeated_header(Headers.of(raw)) is None) == (len(names) == len(set(names)))
    for name, _ in raw:
        assert read(raw, name) is not None


def test_a_lone_surrogate_is_a_question_mark_in_the_header_as_it_is_in_the_body() -> None:
    assert decode_value("Mcp-Name", encode_value("a\ud800")) == "a?"
