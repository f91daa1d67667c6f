"""Every optional section at once, and any three with and without each other: what works alone works together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import httpx
import pytest
from opentelemetry.test.globals_test import reset_metrics_globals

from roundgate import config
from roundgate.client import Client
from roundgate.runtime import checks, loading
from roundgate.settings import Settings
from roundgate_testing import Gateway
from tests.support.asgi import STATE_KEY, built
from tests.support.audit import records, verified
from tests.support.command import roundgate
from tests.support.everything import SECTIONS, SUBSETS, job, written
from tests.support.server import running

TRACED = Path(__file__).parent / "traced"


@pytest.fixture(autouse=True)
def no_metrics_afterwards() -> Iterator[None]:
    """Other tests in this process set up metrics of their own."""
    yield
    reset_metrics_globals()


async def test_the_job_of_the_quickstart_with_every_section(tmp_path: Path) -> None:
    """Under `serve`, on a file, with OpenTelemetry's SDK in the process."""
    file = written(tmp_path, SECTIONS)
    environ = {
        "GATEWAY_STORE": f"sqlite:///{tmp_path}/store.sqlite3",
        "GATEWAY_STATE_KEYS": STATE_KEY,
        "GATEWAY_LOG_FORMAT": "json",
        "PYTHONPATH": str(TRACED),
        "SPANS": str(tmp_path / "spans.jsonl"),
        "OTEL_SERVICE_NAME": "everything",
    }
    checked = roundgate("check", directory=tmp_path, **environ)
    assert checked.status == 0, checked.err
    with running(file, environ) as server:
        async with Client(f"{server.url}/mcp") as client:
            await job(client)
        async with Client(f"{server.url}/sums/mcp") as sums:
            assert [tool.name for tool in await sums.tools()] == ["calculate"]
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            assert "roundgate" in (await http.get("/metrics")).text
            assert (await http.get("/console")).status_code == 303, "to its page for signing in"
            assert (await http.get("/docs")).status_code == 200
        server.stop()
    directory = tmp_path / ".roundgate/audit"
    assert {record["name"] for record in records(directory, "called")} >= {"calculate", "order"}
    assert verified(directory).problems == []
    assert '"name": "tools/call order"' in (tmp_path / "spans.jsonl").read_text()
    assert [line for line in server.lines() if line["level"] == "error"] == []


async def test_the_job_of_the_quickstart_in_a_test_with_every_section(tmp_path: Path) -> None:
    """In `roundgate_testing`, whose audit log is nowhere."""
    async with Gateway(written(tmp_path, SECTIONS)) as gateway:
        await job(gateway.client())
    assert not (tmp_path / ".roundgate").exists()


def test_any_three_sections_have_every_combination() -> None:
    for three in combinations(SECTIONS, 3):
        assert len({tuple(name in subset for name in three) for subset in SUBSETS}) == 2**3


@pytest.mark.parametrize("sections", SUBSETS)
def test_sections_are_checked_and_start(tmp_path: Path, sections: dict[str, object]) -> None:
    file = config.load(written(tmp_path, sections))
    using = Settings(config=file.origin.located.file, state_keys=STATE_KEY)
    assert checks.problems(file, using) == []
    app = built(file, using)
    assert loading.load(file).catalog.tools.keys() == app.state.core.serving.catalog.tools.keys()
