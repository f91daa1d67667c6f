"""What `scripts/clients` makes of what drivers tell, and the balancer that it puts in
front of the replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.clients import documented
from tests.clients.__main__ import (
    EXPECTED,
    EXPECTED_AFTER_A_KILL,
    EXPECTED_ON_THE_STACK,
    extra,
)
from tests.clients.capabilities import NO_MEANS, RIGHT, YES, judged
from tests.clients.matrix import SERVED, replicas
from tests.clients.subjects import EXTRA, SUBJECTS
from tests.support.round_robin import RoundRobin
from tests.support.rounds import KEYS
from tests.support.sessions import BOTH, calling, opening

FILES = pytest.mark.parametrize(
    "file", [EXPECTED, EXPECTED_AFTER_A_KILL, EXPECTED_ON_THE_STACK], ids=lambda one: one.stem
)


def test_the_page_has_what_was_driven() -> None:
    assert documented.in_page() == documented.table()


@FILES
def test_every_client_has_its_row_and_its_driver(file: Path) -> None:
    expected = json.loads(file.read_text())
    assert list(expected) == [subject.name for subject in SUBJECTS]
    for subject in SUBJECTS:
        assert subject.driver_path.exists()
        row = expected[subject.name]
        assert (row["client"], row["version"]) == (subject.client, subject.version)


@FILES
def test_every_version_between_has_its_row(file: Path) -> None:
    kept = json.loads(extra(file).read_text())
    assert [(row["client"], row["version"]) for row in kept.values()] == [
        (subject.client, subject.version) for subject in EXTRA
    ]


def test_an_answer_is_right_or_it_is_told_what_came_instead() -> None:
    told = {name: {"value": right} for name, right in RIGHT.items()}
    assert set(judged(told).values()) == {YES}
    cells = judged({**told, "call": {"value": "said no"}, "form": {"error": "Oh"}, "sample": None})
    assert cells["call"] == 'not "said hello": "said no"'
    assert (cells["form"], cells["sample"], cells["tools"]) == ("Oh", NO_MEANS, YES)


def test_a_client_that_does_not_connect_can_do_nothing() -> None:
    assert set(judged({"connection": {"error": "no"}}).values()) == {"no"}


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    with ExitStack() as stack:
        shared = {"GATEWAY_STORE": f"sqlite:///{tmp_path}/store.sqlite3", "GATEWAY_WORKER": "off"}
        yield stack.enter_context(replicas(shared | {"GATEWAY_STATE_KEYS": KEYS}, tmp_path))


def test_each_request_goes_to_the_next_replica(urls: list[str]) -> None:
    assert (SERVED / "gateway.yaml").exists()
    with RoundRobin(urls) as balancer, httpx.Client(timeout=60, trust_env=False) as http:
        headers = {"accept": BOTH}
        opened = http.post(balancer.url, json=opening(), headers=headers)
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        for number in range(1, 6):
            message = calling("echo", number, text="hello")
            answer = http.post(balancer.url, json=message, headers=headers).json()
            assert answer["result"]["content"][0]["text"] == "said hello"
        assert http.get(balancer.url, headers={"host": "evil.example"}).status_code == 403
        assert balancer.seen.posts == dict.fromkeys(urls, 2)
        assert (balancer.seen.gets, list(balancer.seen.revisions)) == (1, ["2025-11-25"])
