"""Events as a browser's parser reads them (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roundgate.http.exchange import KEEP_ALIVE, sse_event
from roundgate.json import encode
from tests.support import json_values


def read(stream: bytes) -> list[tuple[str, str]]:
    """(event type, data) of each event, by the letter of the standard."""
    events, kind, data = [], "", list[str]()
    for line in re.split("\r\n|\r|\n", stream.decode())[:-1]:
        field, _, value = line.partition(":")
        if not line:
            events += [(kind or "message", "\n".join(data))] if data else []
            kind, data = "", []
        elif field == "event":
            kind = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return events


def test_a_message_is_one_event_of_type_message() -> None:
    assert read(sse_event(b'{"jsonrpc":"2.0"}')) == [("message", '{"jsonrpc":"2.0"}')]


def test_an_event_says_nothing_about_resuming() -> None:
    assert sse_event(b"{}") == b"event: message\r\ndata: {}\r\n\r\n"


def test_a_keep_alive_is_a_comment_that_no_reader_sees() -> None:
    assert KEEP_ALIVE.startswith(b":")
    assert read(KEEP_ALIVE) == []
    assert read(KEEP_ALIVE + sse_event(b"1") + KEEP_ALIVE) == [("message", "1")]


@given(st.lists(json_values.values(), max_size=4))
def test_whatever_is_sent_arrives_message_by_message(messages: list[Any]) -> None:
    stream = KEEP_ALIVE.join(sse_event(encode(message)) for message in messages)
    assert repr([json.loads(data) for _, data in read(stream)]) == repr(messages)


@given(st.text(alphabet=":\r\n\x00\x0b\x85\u2028 ad", max_size=12))
def test_no_text_ends_an_event_early(text: str) -> None:
    assert read(sse_event(encode(text)) + sse_event(b"1"))[0] == ("message", encode(text).decode())
