"""The DynamoDB store of sessions does what every one must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from roundgate.errors import Unavailable
from roundgate.storage.dynamodb import table
from roundgate.storage.dynamodb.sessions import DynamoDbSessions
from tests.roundgate.storage.account_contract import AccountContract
from tests.roundgate.storage.rate_contract import RateContract
from tests.roundgate.storage.session_contract import SessionStoreContract
from tests.roundgate.storage.version_contract import Opened, VersionContract
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


class TestDynamoDbVersions(VersionContract):
    """The contract of versions, on DynamoDB."""

    @pytest.fixture
    async def opened(
        self, dynamodb: Emulator, name: str, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Opened]:
        made: list[DynamoDbSessions] = []

        async def open_some(
            version: int, min_version: int = 1, processes: int = 1
        ) -> list[DynamoDbSessions]:
            stores = [DynamoDbSessions(dynamodb.open(name), clock) for _ in range(processes)]
            made.extend(stores)
            with monkeypatch.context() as patched:
                patched.setattr(table, "VERSION", version)
                patched.setattr(table, "MIN_VERSION", min_version)
                await asyncio.gather(*(store.read("key") for store in stores))
            return stores

        yield open_some
        for store in made:
            await store.aclose()

    async def test_a_refusal_is_a_trouble(
        self, dynamodb: Emulator, name: str, opened: Opened
    ) -> None:
        await opened(2, 2)
        older = dynamodb.open(name)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await older.root("pk")
            assert "another version of the gateway" in (older.trouble() or "")
        await older.aclose()
