"""What tests of the command line share."""

from pathlib import Path

import pytest

from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.terminal import terminal as terminal


def store_in(folder: Path) -> dict[str, str]:
    """The variables of a process whose store is in a folder."""
    return {"GATEWAY_STORE": f"sqlite:///{folder / 'gateway.sqlite3'}"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return store_in(tmp_path)
