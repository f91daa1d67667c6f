"""The DynamoDB store of sessions does what every one must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from roundgate.storage.dynamodb.sessions import DynamoDbSessions
from tests.roundgate.storage.account_contract import AccountContract
from tests.roundgate.storage.rate_contract import RateContract
from tests.roundgate.storage.session_contract import SessionStoreContract
from tests.support.clocks import FixedClock
from tests.support.dynamodb import Emulator


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def name(dynamodb: Emulator) -> Iterator[str]:
    with dynamodb.table() as made:
        yield made


@pytest.fixture
async def store(
    dynamodb: Emulator, name: str, clock: FixedClock
) -> AsyncIterator[DynamoDbSessions]:
    made = DynamoDbSessions(dynamodb.open(name), clock)
    yield made
    await made.aclose()


@pytest.fixture
async def another(
    dynamodb: Emulator, name: str, clock: FixedClock
) -> AsyncIterator[DynamoDbSessions]:
    made = DynamoDbSessions(dynamodb.open(name), clock)
    yield made
    await made.aclose()


class TestDynamoDbSessions(SessionStoreContract):
    """The contract, on DynamoDB."""


class TestDynamoDbAccounts(AccountContract):
    """The contract of accounts, on DynamoDB."""


class TestDynamoDbRates(RateContract):
    """The contract of shared token buckets, on DynamoDB."""
