"""Values in headers: what survives HTTP goes as it is, the rest in base64; what is read is read strictly."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as official

from roundgate.errors import HeaderMismatch
from roundgate.protocol.v2026_07_28.headers import McpHeaders, decode_value, encode_value
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
    "value", ["SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "x=?base64?SGVsbG8=?=", "=?Base64?QQ==?="]
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


def test_the_mirroring_headers_are_picked_out_and_the_rest_is_left() -> None:
    raw = [
        (b"host", b"127.0.0.1"),
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", b"add"),
        (b"mcp-param-region", b"eu"),
        (b"mcp-session-id", b"old"),
    ]
    assert McpHeaders.read(raw) == McpHeaders("2026-07-28", "tools/call", "add", {"region": "eu"})


def test_headers_that_are_not_sent_are_none() -> None:
    assert McpHeaders.read([]) == McpHeaders(None, None, None, {}, None)


def test_white_space_around_a_value_is_not_part_of_it() -> None:
    received = McpHeaders.read([(b"mcp-method", b" \ttools/list\t "), (b"mcp-name", b" a b "), (b"mcp-param-a", b" 1")])
    assert (received.method, received.name, received.params) == ("tools/list", "a b", {"a": "1"})


def test_only_the_white_space_of_http_is_taken_off() -> None:
    assert McpHeaders.read([(b"mcp-name", b"\x0b\xa0a\xa0\x0c")]).name == "\x0b\xa0a\xa0\x0c"


def test_an_empty_value_is_there_and_empty() -> None:
    assert McpHeaders.read([(b"mcp-name", b"")]).name == ""


@pytest.mark.parametrize("name", [b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-region"])
@pytest.mark.parametrize("second", [b"other", b"same"])
def test_a_mirroring_header_that_comes_twice_is_noticed(name: bytes, second: bytes) -> None:
    raw = [(name, b"same"), (b"accept", b"*/*"), (name, second)]
    assert McpHeaders.read(raw).repeated == name.decode()


def test_other_headers_may_come_twice() -> None:
    raw = [
        (b"accept", b"a"),
        (b"accept", b"b"),
        (b"mcp-session-id", b"a"),
        (b"mcp-session-id", b"b"),
        (b"mcp-name", b"x"),
    ]
    assert McpHeaders.read(raw).repeated is None


@given(
    st.lists(st.tuples(st.sampled_from([b"mcp-name", b"mcp-param-", b"mcp-param-a", b"x"]) | st.binary(), st.binary()))
)
def test_any_headers_can_be_read(raw: list[tuple[bytes, bytes]]) -> None:
    received = McpHeaders.read(raw)
    names = [name for name, _ in raw if name == b"mcp-name" or name.startswith(b"mcp-param-")]
    assert (received.repeated is None) == (len(names) == len(set(names)))
