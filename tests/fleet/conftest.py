"""Several gateways and workers, each a process of its own, with nothing in common but a
SQLite file and a key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.rounds import KEYS
from tests.support.server import Server, running
from tests.support.worker import working

SERVED = Path(__file__).parent / "served"


@dataclass(frozen=True)
class Fleet:
    """What runs: `mute` is a gateway that cannot stream."""

    gateways: Sequence[Server]
    mute: Server
    workers: Sequence[Server]


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three gateways that do not work on tasks, one that cannot stream either, and two workers."""
    store = tmp_path_factory.mktemp("store") / "shared.sqlite3"
    shared = {
        "GATEWAY_STORE": f"sqlite:///{store}",
        "GATEWAY_STATE_KEYS": KEYS,
        "GATEWAY_WORKER": "off",
    }

    def directory() -> Path:
        made = tmp_path_factory.mktemp("process")
        shutil.copytree(SERVED, made, dirs_exist_ok=True)
        return made / "gateway.yaml"

    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        configs = [directory() for _ in range(6)]
        gateways = [
            pool.submit(stack.enter_context, running(config, shared)) for config in configs[:3]
        ]
        mute = pool.submit(
            stack.enter_context, running(configs[3], shared | {"GATEWAY_LISTEN": "off"})
        )
        workers = [
            pool.submit(stack.enter_context, working(config, config.with_suffix(".log"), shared))
            for config in configs[4:]
        ]
        yield Fleet(
            [one.result() for one in gateways], mute.result(), [one.result() for one in workers]
        )
