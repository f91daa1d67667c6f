"""One DynamoDB table as the store: its definition, its calls and values too large for a row.

    pk              sk             content
    T#owner.id      0              the root item of a task, with the state of the task (`tasks`, `root_items`)
    T#owner.id      1#blob#0000    part of a large value that `tasks/get` shows
    T#owner.id      2#blob#0000    part of a large value that only a worker needs
    S#told          0              the latest report of a sweeper's clock
    V#              0              the version of the table, and the oldest version that can use it

Every change is one conditional write of one root item. Large values go to rows beside the root
item. These rows are written before the root item refers to them, and never change; if the root item
is then not written, they are garbage. A worker reads its rows by the names in the root item.
`tasks/get` reads a range of keys in one call, so rows in that range are deleted once the root item
no longer names them. DynamoDB deletes every row after its `ttl`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate import aws
from roundgate.aws import CONNECT_S, READ_S, THREADS, Aws, MakeClient
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage.ports import Outage

log = logging.getLogger(__name__)

Row: TypeAlias = dict[str, Any]
"""A row with plain values: `str`, `int`, `bytes`, lists and mappings of them."""

Kept: TypeAlias = bytes | str
"""A value as a root item stores it: the value itself, or the reference to its rows."""

Space: TypeAlias = Literal["1", "2"]
"""The readers of a blob: `1` for every reader of the task, `2` for workers only."""

Returned: TypeAlias = Literal["NONE", "ALL_NEW", "ALL_OLD"]
"""The row that a write returns: none, the new one or the old one. All cost the same."""

ROOT: Final = "0"
SMALL: Final[Mapping[Space, int]] = MappingProxyType({"1": 4 * 1024, "2": 1024})
"""The maximum size in bytes of a value in the root item, by space. DynamoDB charges each write of
the item by the KiB, and most writes are steps. Values for `tasks/get` exist only while no steps
run, so their limit is higher."""
PART: Final = 350 * 1024
"""The bytes of a value in one row: a row holds 400 KB with its keys."""
READ_BATCH: Final = 100
"""The maximum number of keys of a `BatchGetItem`, whose answer has at most 16 MB."""
BATCH: Final = 25
"""The maximum number of rows of a `BatchWriteItem`, which also holds at most 16 MB: 25 of the
largest parts fit."""
BATCH_PAUSE_S: Final = 0.05
_BATCH_TRIES: Final = 6
_THROTTLED: Final = "The store cannot take the call just now"
_NAME: Final = 12
"""The number of characters of a blob's name: 72 bits, unique within its task."""

CONFIG: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "max_pool_connections": THREADS,
        "connect_timeout": CONNECT_S,
        "read_timeout": READ_S,
        "retries": {"mode": "standard", "total_max_attempts": 3},
        "tcp_keepalive": True,
    }
)
"""The client's `botocore.config.Config`. A healthy table answers within milliseconds."""

VERSION: Final = 1
"""The version of the rows. A release that writes rows which the one before cannot read, or no longer
what that one needs, raises it. A table that does not say has version 1."""
MIN_VERSION: Final = 1
"""The oldest version whose processes can use the present rows, raised in a release after the one
whose processes stopped needing what changes."""
_VERSIONS: Final = "V#"

DUE: Final = "due"
"""The index of open tasks by shard and due time."""
OWNED: Final = "owned"
"""The index of open tasks by owner."""
ENDED: Final = "ended"
"""The index of failed and cancelled tasks by shard and time of their end. Operators search for
them, and they are few; most tasks are completed."""


class UpdateExpression(Struct, frozen=True):
    """An update expression as the new value of an attribute: `#revision + :one`."""

    text: str


class Append(Struct, frozen=True):
    """The values to append to an attribute that is a list."""

    values: list[Any]


class RowChange(Struct, frozen=True):
    """A conditional write of one row. In expressions `#name` is the attribute `name`."""

    sets: Mapping[str, Any]
    """The new values by attribute: a value, an `UpdateExpression` or an `Append`; `None` removes the
    attribute."""
    when: Sequence[str]
    """The conditions of the write, all of which must hold."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of placeholders (`:name`); unused ones are left out."""


class Applied(Struct, frozen=True):
    """A write that happened. `row` is the new or old row, as the caller requested."""

    row: Row | None
    version: str


class ConditionFailed(Struct, frozen=True):
    """A write whose condition did not hold. `row` is the present row."""

    row: Row | None


class RowPage(Struct, frozen=True):
    """Some rows, and the position after them."""

    rows: Sequence[Row]
    last: Row | None
    """The keys of the last row that was read; `None` at the end."""


class Table:
    """The operations of the table, with plain values.

    Each write gives its row a new, unique `version`. Optimistic writes compare versions, and a
    repeated write recognizes itself by its version: if an answer is lost, botocore repeats the
    call, whose condition then fails because of the first attempt.
    """

    def __init__(self, name: str, make_client: MakeClient, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self.outage = Outage()
        self._aws = Aws(make_client, "The store", self.outage.note)
        self._refusal: str | None = None
        """Why this version cannot use the table."""
        self._is_checked = False
        self.prepare = self._aws.prepare

    def trouble(self) -> str | None:
        """Return why the table cannot be used, or `None`."""
        return self._refusal or self.outage.trouble

    async def _call(self, operation: str, **arguments: Any) -> Any:
        """Return the result of an operation, as `Aws.call` does."""
        return await self._do(lambda client: getattr(client, operation)(**arguments))

    async def _do(self, work: Callable[[Any], Any]) -> Any:
        """Run `work` with the client, as `Aws.do` does. The first call checks the table's version."""
        while not self._is_checked:
            self._is_checked = await self._aws.do(self._has_my_version)
        return await self._aws.do(work)

    def _has_my_version(self, client: Any) -> bool:
        """Bring the table to this version, and leave a later version as it is. Return `False` if
        another process has changed the version meanwhile.

        Raises:
            Unavailable: this version cannot use the table.
        """
        key = {"TableName": self._name, "Key": _key(_VERSIONS)}
        row = _decoded(client.get_item(**key, ConsistentRead=True).get("Item"))
        version, min_version = (1, 1) if row is None else (row["tables"], row["min_version"])
        self._refusal = None
        if min_version > VERSION:
            error = Unavailable(
                "another version of the gateway has changed the table (version"
                f" {version}, this version uses {VERSION}); use that version, or another table"
            )
            self._refusal = str(error)
            raise error
        if version >= VERSION:
            return True
        change = RowChange(
            {"tables": VERSION, "min_version": MIN_VERSION},
            ["attribute_not_exists(#pk) OR #tables = :read"],
            {":read": version},
        )
        try:
            client.update_item(**key, **_expressions(change))
        except Exception as error:
            if not _is_refused(error):
                raise
            return False
        return True

    def draft(self, pk: str, ttl: int) -> Draft:
        """Return an empty draft for the values of a root item."""
        return Draft(self._clock, pk, ttl)

    async def put_new(self, row: Row) -> Applied | ConditionFailed:
        """Put a row unless the key already has one."""
        version = self._clock.new_id()
        put = {
            "Item": _encoded({**row, "version": version}),
            "ConditionExpression": "attribute_not_exists(pk)",
        }
        return await self._write("put_item", put, version)

    async def update(
        self, pk: str, change: RowChange, *, returns: Returned = "NONE"
    ) -> Applied | ConditionFailed:
        """Change a root item if the conditions hold."""
        version = self._clock.new_id()
        sets = {**change.sets, "version": version}
        # False if botocore repeats a write that has happened.
        is_news = "#version <> :itself"
        values = {**change.values, ":itself": version}
        expressions = _expressions(
            replace(change, sets=sets, when=[*change.when, is_news], values=values)
        )
        update = {"Key": _key(pk), "ReturnValues": returns, **expressions}
        return await self._write("update_item", update, version)

    async def _write(
        self, operation: str, arguments: dict[str, Any], version: str
    ) -> Applied | ConditionFailed:
        arguments |= {"TableName": self._name, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}

        def attempt(client: Any) -> Applied | ConditionFailed:
            try:
                answer = getattr(client, operation)(**arguments)
                return Applied(_decoded(answer.get("Attributes")), version)
            except Exception as error:
                if not _is_refused(error):
                    raise
                row = _decoded(error.response.get("Item"))  # type: ignore[attr-defined]
                was_us = row is not None and row.get("version") == version
                # only the new row is left, even if the caller requested the old one
                return Applied(row, version) if was_us else ConditionFailed(row)

        ended: Applied | ConditionFailed = await self._do(attempt)
        return ended

    async def root(self, pk: str) -> Row | None:
        """Return a root item without the rows beside it, strongly consistent; `None` if it does not
        exist."""
        answer = await self._call(
            "get_item", TableName=self._name, Key=_key(pk), ConsistentRead=True
        )
        return _decoded(answer.get("Item"))

    async def read(self, pk: str) -> dict[str, Row]:
        """Return a root item and the rows that `tasks/get` shows, by `sk`, strongly consistent."""
        return await self._rows("#pk = :pk AND #sk < :end", {":pk": pk, ":end": "2"})

    async def named(self, pk: str, stored_values: Sequence[Kept]) -> dict[str, Row]:
        """Return the rows that the values of a root item refer to, by `sk`, strongly consistent."""
        names = [name for value in stored_values for name in row_names(value)]
        rows: list[Row] = []
        for start in range(0, len(names), READ_BATCH):
            keys = [_encoded({"pk": pk, "sk": name}) for name in names[start : start + READ_BATCH]]
            rows += await self._get_batch(keys)
        return {row["sk"]: row for row in rows}

    async def _get_batch(self, left: list[Any], *, consistent: bool = True) -> list[Row]:
        rows: list[Row] = []
        tried = 0
        while left:
            answer = await self._call(
                "batch_get_item",
                RequestItems={self._name: {"Keys": left, "ConsistentRead": consistent}},
            )
            decoded = [
                row for item in answer["Responses"].get(self._name, []) if (row := _decoded(item))
            ]
            rows += decoded
            left = answer.get("UnprocessedKeys", {}).get(self._name, {}).get("Keys", [])
            tried = 0 if decoded else tried + 1  # an answer of 16 MB also leaves keys unprocessed
            if left and not decoded:
                await _pause_of_batch(tried)
        return rows

    async def names_shown(self, pk: str) -> list[str]:
        """Return the names of all rows that `tasks/get` reads beside a root item, including rows
        that the item no longer refers to."""
        rows = await self._rows(
            "#pk = :pk AND begins_with(#sk, :space)", {":pk": pk, ":space": "1#"}
        )
        return list(rows)

    async def _rows(self, key: str, values: Mapping[str, Any]) -> dict[str, Row]:
        query = {
            "KeyConditionExpression": key,
            **_placeholders(key, values),
            "ConsistentRead": True,
        }
        return {row["sk"]: row for row in await self._pages(query, None)}

    async def drop(self, pk: str, names: Sequence[str]) -> None:
        """Delete rows that the root item no longer refers to. If the table cannot be reached, `ttl`
        deletes them later."""
        requests = [{"DeleteRequest": {"Key": _encoded({"pk": pk, "sk": name})}} for name in names]
        try:
            for start in range(0, len(requests), BATCH):
                await self._put_batch(requests[start : start + BATCH])
        except Unavailable as error:
            log.info(
                "cannot delete unused rows; they expire by themselves",
                extra={"fields": {"error": str(error)}},
            )

    async def prolong(self, pk: str, names: Iterable[str], ttl: int) -> None:
        """Keep the rows of values until `ttl`, in seconds since the epoch, unless they are kept
        longer or do not exist."""
        values = {":ttl": ttl}
        condition = "#ttl < :ttl"
        update = {
            "UpdateExpression": "SET #ttl = :ttl",
            "ConditionExpression": condition,
            **_placeholders(condition, values),
        }
        for name in names:
            key = _encoded({"pk": pk, "sk": name})
            await self._write("update_item", {"Key": key, **update}, "")

    async def count(self, owner: str, up_to: int) -> int:
        """Return the number of rows of an owner in the index `owned`, up to a bound."""
        key = "#owner = :owner"
        arguments = {
            "TableName": self._name,
            "IndexName": OWNED,
            "KeyConditionExpression": key,
            "Select": "COUNT",
        }
        arguments |= _placeholders(key, {":owner": owner})
        total = 0
        while True:
            page = await self._call("query", **arguments, Limit=max(1, up_to - total))
            total += int(page["Count"])
            if "LastEvaluatedKey" not in page or total >= up_to:
                return min(total, up_to)
            arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def index(self, shard: str, until_ms: int | None, limit: int) -> list[Row]:
        """Return rows of one shard of the index `due`, in the order of `due_ms`, up to
        `until_ms`."""
        key = "#shard = :shard" if until_ms is None else "#shard = :shard AND #due_ms <= :until"
        placeholders = _placeholders(key, {":shard": shard, ":until": until_ms})
        return await self._pages(
            {"IndexName": DUE, "KeyConditionExpression": key, **placeholders}, limit
        )

    async def page_of_index(
        self, index: str, attribute: str, value: str, start: Row | None, limit: int
    ) -> RowPage:
        """Return rows of one partition of an index, after a position.

        Raises:
            ValueError: the partition has no such position.
        """
        key = "#part = :value"
        placeholders = _placeholders(key, {":value": value}, {"#part": attribute})
        query = {"IndexName": index, "KeyConditionExpression": key, "Limit": limit, **placeholders}
        return await self._page("query", query, start)

    async def page_of_roots(self, start: Row | None, limit: int) -> RowPage:
        """Return the root items of tasks among the next `limit` rows of the table.

        Raises:
            ValueError: the table has no such position.
        """
        text = "begins_with(#pk, :task) AND #sk = :root"
        placeholders = _placeholders(text, {":task": "T#", ":root": ROOT})
        scan = {"FilterExpression": text, "Limit": limit, "ConsistentRead": True, **placeholders}
        return await self._page("scan", scan, start)

    async def _page(self, operation: str, query: dict[str, Any], start: Row | None) -> RowPage:
        begin = {} if start is None else {"ExclusiveStartKey": _encoded(start)}
        try:
            answer = await self._call(operation, TableName=self._name, **query, **begin)
        except Exception as error:
            refusal = aws.refusal(error)
            if start is None or refusal is None or refusal.code != "ValidationException":
                raise
            raise ValueError("no such position") from error
        rows = [row for item in answer["Items"] if (row := _decoded(item))]
        return RowPage(rows, _decoded(answer.get("LastEvaluatedKey")))

    async def roots(self, pks: Sequence[str], *, consistent: bool = True) -> dict[str, Row]:
        """Return root items by `pk`, strongly consistent by default; omit missing ones."""
        rows: list[Row] = []
        for start in range(0, len(pks), READ_BATCH):
            keys = [_key(pk) for pk in pks[start : start + READ_BATCH]]
            rows += await self._get_batch(keys, consistent=consistent)
        return {row["pk"]: row for row in rows}

    async def delete(self, pk: str, when: Sequence[str], values: Mapping[str, Any]) -> bool:
        """Delete a root item if the conditions hold, then the rows beside it. Return `False` if
        they do not hold.

        Rows with another `ttl` stay: they are the draft of a process that is about to put a new
        root item under this key.
        """
        text = " AND ".join(when)
        arguments = {
            "TableName": self._name,
            "Key": _key(pk),
            "ConditionExpression": text,
            "ReturnValues": "ALL_OLD",
            **_placeholders(text, values),
        }

        def attempt(client: Any) -> Row | None:
            try:
                return _decoded(client.delete_item(**arguments).get("Attributes"))
            except Exception as error:
                if not _is_refused(error):
                    raise
                return None

        root: Row | None = await self._do(attempt)
        if root is None:
            return False
        beside = await self._rows("#pk = :pk AND #sk > :root", {":pk": pk, ":root": ROOT})
        await self.drop(pk, [name for name, row in beside.items() if row["ttl"] == root["ttl"]])
        return True

    async def _pages(self, query: dict[str, Any], limit: int | None) -> list[Row]:
        """Return the rows of a query, page by page of at most 1 MB, until there are `limit`
        rows."""
        bound = {} if limit is None else {"Limit": limit}
        rows: list[Row] = []
        last: Row | None = None
        while True:
            page = await self._page("query", {**query, **bound}, last)
            rows, last = [*rows, *page.rows], page.last
            if last is None or (limit is not None and len(rows) >= limit):
                return rows[:limit]

    async def put(self, draft: Draft) -> None:
        """Put the rows of a draft, and empty the draft."""
        rows, draft.rows = draft.rows, []
        for start in range(0, len(rows), BATCH):
            await self._put_batch(
                [{"PutRequest": {"Item": _encoded(row)}} for row in rows[start : start + BATCH]]
            )

    async def _put_batch(self, left: list[Any]) -> None:
        for tried in range(_BATCH_TRIES):
            answer = await self._call("batch_write_item", RequestItems={self._name: left})
            left = answer.get("UnprocessedItems", {}).get(self._name, [])
            if not left:
                return
            await _pause_of_batch(tried)
        raise Unavailable(_THROTTLED)

    async def aclose(self) -> None:
        await self._aws.aclose()


async def _pause_of_batch(tried: int) -> None:
    """Wait before the unprocessed rows of a batch are sent again. botocore reports no error for
    such rows.

    Raises:
        Unavailable: the maximum number of attempts is reached.
    """
    if tried >= _BATCH_TRIES:
        raise Unavailable(_THROTTLED)
    await asyncio.sleep(BATCH_PAUSE_S * 2**tried)


class Draft:
    """The values for the next write of a root item, and the rows of its large values."""

    def __init__(self, clock: Clock, pk: str, ttl: int) -> None:
        self._clock = clock
        self._pk = pk
        self._ttl = ttl
        self.rows: list[Row] = []
        """The rows to put before the root item is written (`Table.put`)."""
        self.names: list[str] = []
        """The names of all rows that this draft ever had."""

    def spill_if_large(self, space: Space, value: bytes, room: int | None = None) -> Kept:
        """Return the value if it has at most `room` bytes, by default `SMALL`; otherwise return a
        reference to new rows."""
        return (
            value
            if len(value) <= (SMALL[space] if room is None else room)
            else self.spill(space, value)
        )

    def spill(self, space: Space, value: bytes) -> str:
        """Return a reference to new rows that will have the value."""
        blob = f"{space}#{self._clock.new_id()[:_NAME]}"
        cuts = range(0, len(value), PART)
        self.rows += [
            {
                "pk": self._pk,
                "sk": f"{blob}#{part:04}",
                "ttl": self._ttl,
                "b": value[start : start + PART],
            }
            for part, start in enumerate(cuts)
        ]
        reference = f"{blob}#{len(cuts)}"
        self.names += row_names(reference)
        return reference

    def keep_each(
        self, space: Space, values: Mapping[str, bytes], room: int
    ) -> Iterator[tuple[str, Kept]]:
        """Yield several values that share `room` bytes in the root item, each as the value or as a
        reference to its rows."""
        for name, value in values.items():
            stored = self.spill_if_large(space, value, min(SMALL["1"], max(room, 0)))
            room -= len(name) + len(stored)
            yield name, stored


def is_spilled(stored: Kept) -> bool:
    """Return whether a root item has only a reference to the value."""
    return isinstance(stored, str)


def load(stored: Kept, rows: Mapping[str, Row]) -> bytes:
    """Return a value that a root item contains or refers to."""
    if isinstance(stored, bytes):
        return stored
    return b"".join(rows[name]["b"] for name in row_names(stored))


def row_names(stored: Kept) -> list[str]:
    """Return the names of the rows that a value refers to."""
    if isinstance(stored, bytes):
        return []
    blob, _, parts = stored.rpartition("#")
    return [f"{blob}#{part:04}" for part in range(int(parts))]


def _is_refused(error: Exception) -> bool:
    """Return whether the condition of a write failed. The function compares the error code, because
    two threads that request a client's exceptions at once get different classes."""
    response = getattr(error, "response", None)  # connection errors have none
    details = response.get("Error", {}) if isinstance(response, dict) else {}
    return bool(details.get("Code") == "ConditionalCheckFailedException")


def _key(pk: str) -> Row:
    return _encoded({"pk": pk, "sk": ROOT})


def _expressions(change: RowChange) -> dict[str, Any]:
    """Return the update and condition expressions with their names and values."""
    assignments, removed, values = [], [], dict(change.values)
    for place, (name, value) in enumerate(change.sets.items()):
        path = f"#{name}"
        match value:
            case None:
                removed.append(path)
            case UpdateExpression(text):
                assignments.append(f"{path} = {text}")
            case Append(values=more):
                assignments.append(f"{path} = list_append({path}, :set{place})")
                values[f":set{place}"] = more
            case _:
                assignments.append(f"{path} = :set{place}")
                values[f":set{place}"] = value
    update = f"SET {', '.join(assignments)}" + (f" REMOVE {', '.join(removed)}" if removed else "")
    condition = " AND ".join(change.when)
    placeholders = _placeholders(f"{update} {condition}", values)
    return {"UpdateExpression": update, "ConditionExpression": condition, **placeholders}


def _placeholders(
    text: str, values: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})
) -> Row:
    """Return the names and values for the placeholders of expressions.

    Every name has a placeholder, so DynamoDB's reserved words never matter. DynamoDB refuses unused
    values.
    """
    used_names, used_values = re.findall(r"#\w+", text), set(re.findall(r":\w+", text))
    return {
        "ExpressionAttributeNames": {name: names.get(name, name[1:]) for name in used_names},
        "ExpressionAttributeValues": _encoded({name: values[name] for name in sorted(used_values)}),
    }


def _encoded(row: Mapping[str, Any]) -> Row:
    return {name: _encode(value) for name, value in row.items() if value is not None}


def _encode(value: Any) -> dict[str, Any]:
    match value:
        case bytes():
            return {"B": value}
        case str():
            return {"S": str(value)}
        case int():
            return {"N": str(value)}
        case Mapping():
            return {"M": {name: _encode(item) for name, item in value.items()}}
        case _:
            return {"L": [_encode(item) for item in value]}


def _decoded(item: Mapping[str, Any] | None) -> Row | None:
    return None if item is None else {name: _decode(value) for name, value in item.items()}


def _decode(typed: Mapping[str, Any]) -> Any:
    ((kind, value),) = typed.items()
    match kind:
        case "N":
            return int(value)
        case "M":
            return {name: _decode(item) for name, item in value.items()}
        case "L":
            return [_decode(item) for item in value]
        case _:
            return value
