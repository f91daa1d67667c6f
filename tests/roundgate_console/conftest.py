"""Stores for the pages, and a service that is down at the start of each test."""

import pytest

from tests.support.console_tasks import is_down
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server


@pytest.fixture(autouse=True)
def service() -> None:
    """The service that the tool `refund` needs is down."""
    is_down[:] = [True]
