"""Responses are read from bytes however they are cut, and what is no
HTTP/1.1 is refused in words."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.client.http1 import Body, parse_head, request_head
from roundgate.errors import BadAnswer


def read(raw: bytes, sizes: list[int]) -> tuple[int, bytes, bool]:
    """Status, body and whether it is whole, fed in pieces of these sizes."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    parsed = parse_head(head)
    body = Body(parsed)
    parts: list[bytes] = []
    for size in sizes:
        parts.append(body.feed(rest[:size]))
        rest = rest[size:]
    parts.append(body.feed(rest))
    return parsed.status, b"".join(parts), body.end()


def chunked(pieces: list[bytes]) -> bytes:
    whole = b"".join(b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + whole
        + b"0\r\nTrailer: x\r\n\r\n"
    )


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 30), max_size=20))
def test_a_chunked_body_is_the_same_however_it_arrives(
    pieces: list[bytes], sizes: list[int]
) -> None:
    assert read(chunked(pieces), sizes) == (200, b"".join(pieces), True)


@given(st.binary(max_size=60), st.lists(st.integers(0, 20), max_size=8))
def test_a_body_of_known_length_is_the_same_however_it_arrives(
    whole: bytes, sizes: list[int]
) -> None:
    raw = b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(whole), whole)
    assert read(raw, sizes) == (400, whole, True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert read(b"HTTP/1.1 200 OK\r\n\r\nabc", [1]) == (200, b"abc", True)


def test_a_body_that_is_cut_short_is_not_whole() -> None:
    assert not read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", [])[2]
    assert not read(chunked([b"abcdef"])[:-9], [])[2]


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status: int) -> None:
    assert read(b"HTTP/1.1 %d Said\r\n\r\n" % status, [])[1:] == (b"", True)


def test_what_comes_behind_the_end_is_told_apart() -> None:
    body = Body(parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 2"))
    assert (body.feed(b"abcd"), body.left_over) == (b"ab", b"cd")


@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200",
        b"HTTP/1.1 99 Odd",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nspace : x",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b",
        b"HTTP/1.1 200 OK\r\nX: a\0b",
    ],
)
def test_what_is_no_head_is_refused(head: bytes) -> None:
    with pytest.raises(BadAnswer, match="server"):
        parse_head(head)


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Content-Length: -1",
        b"Content-Length: 1_0",
    ],
)
def test_a_body_whose_end_is_not_known_is_refused(headers: bytes) -> None:
    with pytest.raises(BadAnswer):
        Body(parse_head(b"HTTP/1.1 200 OK\r\n" + headers))


@pytest.mark.parametrize("chunks", [b"xyz\r\n", b"2\r\nabc\r\n", b"9" * 2000])
def test_malformed_chunks_are_refused(chunks: bytes) -> None:
    with pytest.raises(BadAnswer, match="chunk"):
        Body(parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked")).feed(chunks)


def test_trailers_without_end_are_refused() -> None:
    body = Body(parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"))
    body.feed(b"0\r\n")
    with pytest.raises(BadAnswer, match="trailers"):
        body.feed((b"X: " + b"x" * 200 + b"\r\n") * 1_000)


def test_a_header_of_blanks_takes_no_time() -> None:
    # Minutes, if blanks are looked for at every place where they could begin.
    began = time.process_time()
    with pytest.raises(BadAnswer, match="malformed header"):
        parse_head(b"HTTP/1.1 200 OK\r\nX:" + b" " * 5_000 + b"\n")
    assert parse_head(b"HTTP/1.1 200 OK\r\nX: a" + b" " * 60_000 + b"b").status == 200
    assert time.process_time() - began < 20


def test_a_body_in_chunks_of_one_byte_takes_time_in_proportion() -> None:
    body = Body(parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"))
    began, received = time.process_time(), 0
    for _ in range(8):  # each a minute or so, if what is left is copied for every chunk
        received += len(body.feed(b"1\r\nx\r\n" * 100_000))
    assert received == 800_000
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive, Close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
    ],
)
def test_whether_a_connection_stays_is_known(head: bytes, kept: bool) -> None:
    assert parse_head(head).keeps_alive is kept


@pytest.mark.parametrize("value", ["a\r\nInjected: 1", "a\nb", "a\0b"])
def test_no_header_can_smuggle_another(value: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        request_head("POST", "/", [("X", value)], 0)
