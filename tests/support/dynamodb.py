"""DynamoDB Local for tests: one emulator for the processes of a run, a table for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from infra.dynamodb_local import ROOT as ROOT
from infra.dynamodb_local import Emulator as Emulator
from infra.dynamodb_local import emulator as emulator
from infra.dynamodb_local import why_not as why_not


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """DynamoDB Local; tests that need it are skipped where it cannot be run."""
    if reason := why_not():
        pytest.skip(reason)
    mine = tmp_path_factory.getbasetemp()
    with emulator(mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) as running:
        yield running
