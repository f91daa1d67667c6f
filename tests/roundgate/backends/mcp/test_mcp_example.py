"""The server of `examples/upstream` whose ordinary tools are one task."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.roundgate.backends.mcp.test_mcp_jobs import ended, gateway
from tests.support.documents import ROOT
from tests.support.task_client import TaskClient
from tests.support.upstreams import names, until

EXAMPLE = ROOT / "examples" / "upstream"


@asynccontextmanager
async def example(folder: Path) -> AsyncIterator[TaskClient]:
    """A gateway with this one server of the example, over the store of a folder."""
    backends = yaml.safe_load((EXAMPLE / "gateway.yaml").read_text())["backends"]
    (entry,) = (each for each in backends if each["name"] == "builds")
    entry["command"] = [sys.executable, str(EXAMPLE / entry["command"][1])]
    entry["env"] = {"BUILDS_FILE": str(folder / "builds.json")}
    entry["jobs"]["start_build"]["every_s"] = 0.1
    async with gateway(folder, entry) as ann:
        yield ann


def builds(folder: Path) -> Any:
    file = folder / "builds.json"
    return json.loads(file.read_text()) if file.exists() else {}


async def test_the_tools_of_the_example_are_one_task_that_survives_a_restart(
    tmp_path: Path,
) -> None:
    async with example(tmp_path) as ann:
        assert await names(ann.mcp) == ["builds__start_build"]
        task_id = await ann.begin("builds__start_build", branch="main", seconds=0.5)
        await until(True, lambda: bool(builds(tmp_path)))
    async with example(tmp_path) as ann:  # the gateway and the server are other processes now
        assert await ended(ann, task_id) == "built main"
        assert [build["branch"] for build in builds(tmp_path).values()] == ["main"]
        # a task that is cancelled cancels its build
        task_id = await ann.begin("builds__start_build", branch="other", seconds=3_600)
        await until(2, lambda: len(builds(tmp_path)))
        await ann.cancel(task_id)
        await until(
            [("main", False), ("other", True)],
            lambda: [(one["branch"], one["cancelled"]) for one in builds(tmp_path).values()],
        )
