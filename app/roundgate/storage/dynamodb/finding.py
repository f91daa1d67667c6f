"""An operator's search of the table: the parts that it reads in turn, and its cursor.

    working, input_required     each shard of the index `due`, or of one owner the index `owned`
    failed, cancelled           each shard of the index `ended`; ended by a failed step counts as failed
    completed                   the table itself, root item by root item

A cursor is the number of the part and the keys of its last row that was read.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from roundgate import json
from roundgate.errors import ParseError
from roundgate.protocol import OPEN, Status
from roundgate.storage.dynamodb.root_items import LOOKED_FOR, pk_of, record_of
from roundgate.storage.dynamodb.table import DUE, ENDED, OWNED, Page, Row, Table
from roundgate.storage.tasks import STATUS_OF, Found, TaskRecord, TaskRef, Wanted

LOOKS: Final = 1_000
"""One call of `find` looks at so many rows, whatever it finds."""

_KEYS: Final = ("pk", "sk")


@dataclass(frozen=True, slots=True)
class Part:
    """What can be read from one of its rows on."""

    page: Callable[[Row | None, int], Awaitable[Page]]
    keys: Sequence[str]
    """The attributes by which a row of it is known."""
    has_roots: bool = False
    """Its rows are root items themselves."""


Parts: TypeAlias = Sequence[Part]


def parts_of(table: Table, wanted: Wanted, shards: int) -> Parts:
    """Where the tasks are that are wanted."""
    statuses = frozenset(Status) if wanted.statuses is None else wanted.statuses
    if wanted.endings is not None:
        statuses &= frozenset(map(STATUS_OF.__getitem__, wanted.endings))
    if Status.COMPLETED in statuses:
        return [Part(table.page_of_roots, _KEYS, has_roots=True)]
    parts: list[Part] = []
    if statuses & OPEN and wanted.owner is not None:
        parts.append(_of_index(table, OWNED, ("owner",), wanted.owner))
    elif statuses & OPEN:
        parts += [_of_index(table, DUE, ("shard", "due_ms"), f"{n}") for n in range(shards)]
    if statuses & LOOKED_FOR:
        parts += [_of_index(table, ENDED, ("ended", "updated_ms"), f"{n}") for n in range(shards)]
    return parts


def _of_index(table: Table, index: str, keys: tuple[str, ...], value: str) -> Part:
    return Part(
        lambda start, limit: table.page_of_index(index, keys[0], value, start, limit),
        (*keys, *_KEYS),
    )


class Search:
    """One call of `find`.

    Args:
        table: where to look.
        parts: its parts, one after the other.
        wanted: what for.
        cursor: where an earlier call left off.

    Raises:
        ValueError: it is no cursor of such a search.
    """

    def __init__(self, table: Table, parts: Parts, wanted: Wanted, cursor: str | None) -> None:
        self._table = table
        self._parts = parts
        self._wanted = wanted
        self._number, self._start = (0, None) if cursor is None else _place(cursor, parts)

    async def run(self, limit: int) -> Found:
        """As many as are wanted, or all that a bounded number of rows has."""
        records: list[TaskRecord] = []
        looks = LOOKS
        while self._number < len(self._parts) and len(records) < limit and looks > 0:
            part = self._parts[self._number]
            size = looks if part.has_roots else min(looks, limit - len(records))
            page = await part.page(self._start, size)
            looks -= max(size, 1)
            taken, last = self._taken(
                part, page, await self._roots(part, page), limit - len(records)
            )
            records += taken
            self._number, self._start = (self._number, last) if last else (self._number + 1, None)
        return Found(records, self._cursor())

    def _taken(
        self, part: Part, page: Page, roots: dict[str, Row], room: int
    ) -> tuple[list[TaskRecord], Row | None]:
        """What of a page is wanted, as far as there is room, and the keys
        behind which to look on."""
        taken: list[TaskRecord] = []
        for row in page.rows:
            root = roots.get(row["pk"])
            record = None if root is None else record_of(root)
            if record is not None and self._wanted.takes(record):
                taken.append(record)
            if len(taken) == room and row is not page.rows[-1]:
                return taken, {name: row[name] for name in part.keys}
        return taken, page.last

    async def _roots(self, part: Part, page: Page) -> dict[str, Row]:
        if part.has_roots:
            return {row["pk"]: row for row in page.rows}
        pks = [row["pk"] for row in page.rows if self._may_be_wanted(row["pk"])]
        return await self._table.roots(pks) if pks else {}

    def _may_be_wanted(self, pk: str) -> bool:
        owner = self._wanted.owner
        return owner is None or pk.startswith(pk_of(TaskRef(owner, "")))

    def _cursor(self) -> str | None:
        if self._number == len(self._parts):
            return None
        place = json.encode([self._number, self._start])
        return base64.urlsafe_b64encode(place).decode().rstrip("=")


def _place(cursor: str, parts: Parts) -> tuple[int, Row | None]:
    try:
        match json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))):
            case [int(number), None] if 0 <= number < len(parts):
                return number, None
            case [int(number), dict(start)] if 0 <= number < len(parts):
                if start.keys() == set(parts[number].keys):
                    return number, start
    except (ValueError, ParseError):
        pass
    raise ValueError("it is not one that this list has shown")
