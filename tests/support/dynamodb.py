"""DynamoDB Local for tests: one emulator for the processes of a run, a table for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.dynamodb import Emulator as Emulator
from bench.dynamodb import emulator as emulator
from bench.dynamodb import why_not as why_not

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """DynamoDB Local; tests that need it are skipped where it cannot be run."""
    if reason := why_not():
        pytest.skip(reason)
    mine = tmp_path_factory.getbasetemp()
    with emulator(mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) as running:
        yield running
