"""`SessionStore` on the DynamoDB table: a row for each key, and rows beside it for a large value.

pk       sk             content
U#key    0              value, version and expiry
U#key    1#blob#0000    part of a value of more than 350 KB
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from roundgate.clock import Clock
from roundgate.storage.dynamodb.table import (
    PART,
    ROOT,
    Applied,
    ConditionFailed,
    Kept,
    Row,
    RowChange,
    Table,
    UpdateExpression,
    is_spilled,
    load,
)
from roundgate.storage.ports import SessionRow


class DynamoDbSessions:
    """A `SessionStore` in a DynamoDB table."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        pk, ttl = f"U#{key}", _ttl(forget_ms)
        stored: Kept = value
        if len(value) > PART:
            draft = self._table.draft(pk, ttl)
            stored = draft.spill("1", value)
            await self._table.put(draft)
        row = {
            "pk": pk,
            "sk": ROOT,
            "ttl": ttl,
            "value": stored,
            "revision": 1,
            "forget_ms": forget_ms,
        }
        match await self._table.put_new(row):
            case ConditionFailed(row=dict() as old) if old["forget_ms"] < self._clock.now_ms():
                sets = {
                    "value": stored,
                    "revision": UpdateExpression("#revision + :one"),
                    "forget_ms": forget_ms,
                    "ttl": ttl,
                }
                return await self._change(pk, sets, old["revision"])
            case ConditionFailed():
                return False
        return True

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        ttl = _ttl(forget_ms)
        sets = {
            "value": value,
            "revision": UpdateExpression("#revision + :one"),
            "forget_ms": forget_ms,
            "ttl": ttl,
        }
        return await self._change(f"U#{key}", sets, version)

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        sets = {
            "value": value,
            "revision": UpdateExpression("if_not_exists(#revision, :zero) + :one"),
            "forget_ms": forget_ms,
            "ttl": _ttl(forget_ms),
        }
        change = RowChange(sets, when=[], values={":zero": 0, ":one": 1})
        applied = await self._table.update(f"U#{key}", change, returns="ALL_NEW")
        assert isinstance(applied, Applied), "an update without a condition applies"
        assert applied.row is not None, "ALL_NEW returns the row"
        version: int = applied.row["revision"]
        return version

    async def _change(self, pk: str, sets: Row, version: int) -> bool:
        # The row is unchanged since it was read.
        is_same = "#revision = :read"
        change = RowChange(sets, when=[is_same], values={":read": version, ":one": 1})
        return isinstance(await self._table.update(pk, change), Applied)

    async def read(self, key: str) -> SessionRow | None:
        row = await self._table.root(f"U#{key}")
        if row is None or row["forget_ms"] < self._clock.now_ms():
            return None
        rows = await self._table.read(f"U#{key}") if is_spilled(row["value"]) else {}
        return SessionRow(load(row["value"], rows), row["revision"], row["forget_ms"])

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        rows = await asyncio.gather(*(self.read(key) for key in keys))
        return {key: row.value for key, row in zip(keys, rows, strict=True) if row is not None}

    async def aclose(self) -> None:
        await self._table.aclose()


def _ttl(forget_ms: int) -> int:
    """Return a time in seconds since the epoch, rounded up so that no row expires too early."""
    return -(-forget_ms // 1000)
