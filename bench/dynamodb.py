"""DynamoDB Local for measurements and tests: one emulator, with a table for each."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from roundgate.clock import Clock
from roundgate.storage.dynamodb import CONFIG, Table
from roundgate_aws import machine
from roundgate_aws.stack.services import create_table, dynamodb_local


@dataclass
class Emulator:
    """DynamoDB Local at a URL."""

    url: str

    @cached_property
    def _session(self) -> Any:
        import boto3

        return boto3.Session("test", "test", region_name="eu-central-1")

    @cached_property
    def _client(self) -> Any:
        return self.client()

    def close(self) -> None:
        self._client.close()

    def client(self, **config: Any) -> Any:
        """Return boto3's client. The names in `config` override the deployed settings."""
        from botocore.config import Config

        using = Config(**{**CONFIG, "read_timeout": 30, "proxies": {}, **config})
        return self._session.client("dynamodb", endpoint_url=self.url, config=using)

    def items(self, name: str) -> list[dict[str, Any]]:
        """Return every row of a table."""
        pages = self._client.get_paginator("scan").paginate(TableName=name, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]

    @contextmanager
    def table(self) -> Iterator[str]:
        """Create a table; yield its name."""
        name = f"test-{uuid.uuid4()}"
        create_table(self._client, name)
        yield name
        self._client.delete_table(TableName=name)

    def open(self, name: str, make_client: Callable[[], Any] | None = None) -> Table:
        """Return a table with its own client, as in another process."""
        return Table(name, make_client or self.client, Clock())


def why_not() -> str | None:
    """Return the reason why the emulator cannot run on this machine, or `None`."""
    if shutil.which("java") is None:
        return "DynamoDB Local needs Java 17"
    if not (machine.cache() / "dynamodb-local/.stamp").exists():
        return "DynamoDB Local is not installed: scripts/tools dynamodb-local --install"
    return None


@contextmanager
def emulator(shared: Path) -> Iterator[Emulator]:
    """Yield the emulator that all processes with the same directory share."""
    with dynamodb_local(shared) as url:
        running = Emulator(url)
        yield running
        running.close()
