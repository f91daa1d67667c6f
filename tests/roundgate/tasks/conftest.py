"""What tests of tasks share: files, clocks, and processes on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.settings import TasksConfig
from tests.support.clocks import FixedClock
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.tasks import Files, Shared


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def path(files: Files) -> Path:
    return files.new()


@pytest.fixture
async def share(path: Path, clock: FixedClock) -> AsyncIterator[Callable[..., Shared]]:
    """Makes what processes share; the clock stands still unless another is given."""
    made: list[Shared] = []

    def one(on: Clock | None = None, **config: Any) -> Shared:
        made.append(Shared(path, on or clock, TasksConfig(**config)))
        return made[-1]

    yield one
    for shared in made:
        await shared.aclose()


@pytest.fixture
def shared(share: Callable[..., Shared]) -> Shared:
    return share()
