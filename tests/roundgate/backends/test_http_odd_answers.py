"""Services and functions that write JSON loosely, and what a model learns of an answer that it does
not get: whether the call may have taken effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import odd_answers
from tests.support.lambdas import entry, gateway_with, use
from tests.support.odd_answers import EXPECTED, NAMES
from tests.support.services import answer, gateway_to, service

DOUBT = "the call may have taken effect, so check before you repeat it"
PLAIN = '{"t":"café ✓"}'
LATIN = '{"t":"café"}'


def assert_read(name: str, found: dict[str, Any]) -> None:
    shown = found["content"][0]["text"]
    if name in EXPECTED:
        value = found["structuredContent"]
        got = value["content"][0]["text"], value["structuredContent"]["n"]
        assert got == EXPECTED[name], name
    elif name in ("half_an_answer", "a_tab_in_a_text"):
        assert "is not JSON" in shown
        assert DOUBT in shown


def body(name: str) -> bytes:
    whole = odd_answers.result(name)
    if name == "byte_order_mark":
        return b"\xef\xbb\xbf" + whole
    return whole[:-20] if name == "half_an_answer" else whole


async def test_a_service_may_write_json_loosely() -> None:
    tool = {"name": "odd", "method": "POST"}
    async with service(*map(answer, map(body, NAMES))) as told, gateway_to(told.url, tool) as gate:
        for name in NAMES:
            assert_read(name, await gate.call("odd"))


@pytest.mark.usefixtures("own_aws_session")
async def test_a_function_may_write_json_loosely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(*map(answer, map(body, NAMES))) as told:
        use(monkeypatch, told.url)
        any_object = {"type": "object", "properties": {}}
        async with gateway_with(tmp_path, entry({"input_schema": any_object})) as gate:
            for name in NAMES:
                assert_read(name, await gate.call("tool"))


WRITTEN = [
    (LATIN.encode("latin-1"), "application/json; charset=ISO-8859-1", LATIN),
    (LATIN.encode("cp1252"), 'application/problem+json;charset="windows-1252"', LATIN),
    (PLAIN.encode("utf-16"), "application/json; charset=utf-16", PLAIN),
    (PLAIN.encode("utf-16-be"), "application/json; charset=UTF-16BE", PLAIN),
    (PLAIN.encode("utf-16"), "application/json", PLAIN),
    (PLAIN.encode("utf-32"), "application/json", PLAIN),
    (PLAIN.encode("utf-8-sig"), "application/json; charset=latin-1", PLAIN),
    (PLAIN.encode(), "application/json; charset=latin-1", PLAIN),  # JSON is UTF-8
    (LATIN.encode("latin-1"), "application/json; charset=punycode", '{"t":"caf\ufffd"}'),
    (LATIN.encode("latin-1"), "application/json", '{"t":"caf\ufffd"}'),
    ('{"t":"日本"}'.encode("iso2022_jp"), "application/json; charset=iso-2022-jp", '{"t":"日本"}'),
]


async def test_the_charset_of_a_service_is_decoded() -> None:
    answers = [answer(written, content_type=content_type) for written, content_type, _ in WRITTEN]
    async with service(*answers) as told, gateway_to(told.url, {"method": "POST"}) as gate:
        for _, content_type, expected in WRITTEN:
            found = (await gate.call("tool"))["structuredContent"]
            assert found == json.loads(expected), content_type


async def test_a_credential_is_removed_from_an_answer_of_any_charset() -> None:
    text = '{"you sent": "kkkkkkkküü", "and": "\\u006bkkkkkkküü"}'
    charsets = ("utf-8", "utf-16", "utf-32")
    answers = [
        answer(text.encode(charset), content_type=f"application/json; charset={charset}")
        for charset in charsets
    ]
    async with (
        service(*answers) as told,
        gateway_to(told.url, {}, headers={"X-Api-Key": "kkkkkkkk"}) as gate,
    ):
        for charset in charsets:
            assert "kkkkkkkk" not in await gate.text("tool"), charset


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"<p>", content_type="text/html"),
        answer(b"{}", length=1_000_000, Connection="close"),
        answer(b"x" * 3_000),
        answer(b"x", Content_Encoding="br"),
        b"",
    ],
)
async def test_what_may_have_taken_effect_is_said_after_a_post_only(reply: bytes) -> None:
    tool = {"result": "/a", "max_response_bytes": 2_000, "timeout_s": 5}
    post, get = {"name": "post", "method": "POST", **tool}, {"name": "get", **tool}
    async with service(reply) as told, gateway_to(told.url, post, get) as gate:
        assert DOUBT in await gate.text("post")
        assert "taken effect" not in await gate.text("get")
