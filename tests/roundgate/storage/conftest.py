"""What tests of several stores share."""

from collections.abc import Callable

import pytest

from roundgate.storage.ports import SessionStore
from tests.support.clocks import FixedClock
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def store(open_sessions: Callable[[], SessionStore]) -> SessionStore:
    """A process's store of sessions; the test of each store gives `open_sessions`."""
    return open_sessions()


@pytest.fixture
def another(open_sessions: Callable[[], SessionStore]) -> SessionStore:
    """The store of another process, on the same data."""
    return open_sessions()
