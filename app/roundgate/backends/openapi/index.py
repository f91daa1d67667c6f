"""The compiled form of a description: one file, of which a start reads the table of contents alone.

roundgate-index 1        magic and version
1234567                  bytes of the table
{"tools": […], …}        the table: a row for each tool, with places in what follows
…                        pieces of JSON: definitions of tools, plans, and the schemas that they share, each once
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple

from roundgate.backends.definitions import StoredDefinition
from roundgate.backends.openapi.plan import Plan
from roundgate.backends.openapi.security import Alternative, Slot
from roundgate.errors import Problem, UnusableIndex
from roundgate.json import decode, encode
from roundgate.values import dataclass

MAGIC: Final = b"roundgate-index 1\n"


class Span(NamedTuple):
    """Where a piece is, behind the table."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One tool: all that choosing and listing it needs."""

    name: str
    method: str
    path: str
    tags: tuple[str, ...]
    server: int
    security: int
    extensions: Mapping[str, Any]
    head: Span
    """Of the definition, what is before `$defs`."""
    tail: Span
    """And what is behind."""
    schemas: tuple[int, ...]
    """What stands in `$defs`: numbers in the list of schemas."""
    plan: Span


@dataclass(frozen=True, slots=True)
class Index:
    """An index in memory."""

    fingerprint: str
    sources: Sequence[tuple[str, int, str]]
    """What it was made of: path or URL, size, SHA-256."""
    servers: Sequence[str]
    security: Sequence[Sequence[Alternative]]
    slots: Mapping[str, Slot]
    rows: Sequence[Row]
    schemas: Sequence[Span]
    problems: Sequence[Problem]
    """Operations that it does not have, and why; actions of overlays that change nothing."""
    pieces: bytes = field(repr=False)

    @property
    def left_out(self) -> int:
        """How many operations it does not have."""
        return sum(problem.path.startswith("/paths/") for problem in self.problems)

    def definition(self, row: Row, hints: Mapping[str, bool]) -> StoredDefinition:
        """The definition of a tool."""
        shared = [self._piece(self.schemas[number]) for number in row.schemas]
        middle = b',"$defs":{' + b",".join(shared) + b"}" if shared else b""
        return StoredDefinition(
            row.name, hints, self._piece(row.head) + middle + self._piece(row.tail)
        )

    def plan(self, row: Row) -> Plan:
        """How to call it."""
        return Plan.revived(decode(self._piece(row.plan)))

    def _piece(self, span: Span) -> bytes:
        return self.pieces[span.start : span.start + span.size]


class Writer:
    """Puts an index together."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._schemas: list[Span] = []
        self._numbers: dict[str, int] = {}
        self._pieces: list[bytes] = []
        self._size = 0

    def schema(self, name: str, schema: Any) -> int:
        """The number of a schema that tools share, by its name in `$defs`."""
        if name not in self._numbers:
            self._numbers[name] = len(self._schemas)
            self._schemas.append(self.piece(encode(name) + b":" + encode(schema)))
        return self._numbers[name]

    def piece(self, data: bytes) -> Span:
        """Put a piece behind the others."""
        span = Span(self._size, len(data))
        self._pieces.append(data)
        self._size += len(data)
        return span

    def index(
        self,
        fingerprint: str,
        sources: Sequence[tuple[str, int, str]],
        servers: Sequence[str],
        security: Sequence[Sequence[Alternative]],
        slots: Mapping[str, Slot],
        problems: Sequence[Problem],
    ) -> Index:
        """The finished index.

        Args:
            fingerprint: of the settings that it depends on.
            sources: of each file: its path, length and digest.
            servers: base URLs, by the number that operations have them under.
            security: alternatives of credentials, by number.
            slots: the schemes of credentials, by name.
            problems: what could not be offered.
        """
        pieces = b"".join(self._pieces)
        return Index(
            fingerprint,
            sources,
            servers,
            security,
            slots,
            self.rows,
            self._schemas,
            problems,
            pieces,
        )


def write(index: Index) -> bytes:
    """An index as a file has it."""
    table = {
        "fingerprint": index.fingerprint,
        "sources": [list(one) for one in index.sources],
        "servers": list(index.servers),
        "security": [[dict(one) for one in offered] for offered in index.security],
        "slots": [
            [s.name, s.description, s.header, s.query, s.cookie] for s in index.slots.values()
        ],
        "rows": [
            [
                *(
                    row.name,
                    row.method,
                    row.path,
                    list(row.tags),
                    row.server,
                    row.security,
                    dict(row.extensions),
                ),
                *(list(row.head), list(row.tail), list(row.schemas), list(row.plan)),
            ]
            for row in index.rows
        ],
        "schemas": [list(span) for span in index.schemas],
        "problems": [[p.file, p.path, p.message, p.remedy] for p in index.problems],
        "sha256": hashlib.sha256(index.pieces).hexdigest(),
    }
    head = encode(table)
    return b"%b%d\n%b%b" % (MAGIC, len(head), head, index.pieces)


def read(path: Path) -> Index:
    """An index from its file.

    Raises:
        UnusableIndex: it is none, or of another version.
        OSError: there is none.
    """
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise UnusableIndex("is not an index of this version")
    size = data[len(MAGIC) : len(MAGIC) + 20].partition(b"\n")[0]
    start = len(MAGIC) + len(size) + 1
    try:
        # ours: without the checks of `decode`
        table: Mapping[str, Any] = json.loads(data[start : start + int(size)])
        pieces = data[start + int(size) :]
        if hashlib.sha256(pieces).hexdigest() != table["sha256"]:
            raise UnusableIndex("is not whole")
        return _from_table(table, pieces)
    except (ValueError, KeyError, TypeError):
        raise UnusableIndex("is not an index of this version") from None


def _from_table(table: Mapping[str, Any], pieces: bytes) -> Index:
    return Index(
        fingerprint=table["fingerprint"],
        sources=[(where, size, digest) for where, size, digest in table["sources"]],
        servers=table["servers"],
        security=table["security"],
        slots={name: Slot(name, *rest) for name, *rest in table["slots"]},
        rows=[
            Row(
                *(name, method, path, tuple(tags), server, security, extensions),
                *(Span(*head), Span(*tail), tuple(schemas), Span(*plan)),
            )
            for name, method, path, tags, server, security, extensions, head, tail, schemas, plan in table[
                "rows"
            ]
        ],
        schemas=[Span(*span) for span in table["schemas"]],
        problems=[Problem(*one) for one in table["problems"]],
        pieces=pieces,
    )
