"""Results in the format of another revision: what the handlers say does not
depend on who writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from roundgate import settings
from roundgate.clock import Clock
from roundgate.errors import InternalError
from roundgate.json import encode
from roundgate.methods.parts import Replies
from roundgate.methods.rounds import InputRequired
from roundgate.protocol import revision, v2026_07_28

INFO = {"name": "roundgate", "version": "1"}
META = {"io.modelcontextprotocol/serverInfo": INFO}
HINT = settings.CacheSection(ttl_ms=5, scope="private")


class Plain:
    """Results as revisions before 2026-07-28 have them: nothing is added."""

    def write(self, result: Mapping[str, Any], cache: revision.CacheHint | None = None) -> bytes:
        return encode(dict(result))

    def rest(self, cache: revision.CacheHint | None = None) -> bytes:
        return b"}"

    def entries(self, member: str, entries: bytes) -> bytes:
        return entries

    def input_required(self, requests: Mapping[str, Any], request_state: str) -> bytes:
        raise TypeError("there are no rounds")


@pytest.fixture
def plain() -> Replies:
    return Replies(Plain(), Clock())


@pytest.fixture
def current() -> Replies:
    return Replies(v2026_07_28.Results(INFO), Clock())


def test_a_result_has_what_its_revision_adds(plain: Replies, current: Replies) -> None:
    assert json.loads(plain.reply({"a": 1}, HINT).result) == {"a": 1}
    added = {"resultType": "complete", "ttlMs": 5, "cacheScope": "private", "_meta": META}
    assert json.loads(current.reply({"a": 1}, HINT).result) == {"a": 1, **added}


def test_members_of_meta_that_a_handler_gives_stay(current: Replies) -> None:
    assert json.loads(current.reply({"_meta": {"x": 1}}).result)["_meta"] == {"x": 1, **META}


def test_what_cannot_be_written_is_an_internal_error(plain: Replies, current: Replies) -> None:
    for results in (plain, current):
        with pytest.raises(InternalError):
            results.reply({"a": object()})
    with pytest.raises(InternalError):
        plain.input_required(InputRequired({}, "state"))
