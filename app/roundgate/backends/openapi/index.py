"""The compiled form of a description: one file. At startup only its table is read.

roundgate-index 1        magic and version
1234567                  bytes of the table
{"tools": […], …}        the table: a row for each tool, with places in what follows
…                        pieces of JSON: definitions of tools, plans, and the schemas that they share, each once
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from roundgate.backends.definitions import StoredDefinition
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.security import Alternative, Slot
from roundgate.errors import IndexOfAnotherVersion, Problem, UnusableIndex
from roundgate.json import decode, decode_own, encode
from roundgate.settings import Origin

if TYPE_CHECKING:
    from roundgate.backends.openapi.plan import Plan

KIND: Final = b"roundgate-index "
MAGIC: Final = KIND + b"1\n"


class Span(NamedTuple):
    """Where a piece is, behind the table."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One tool: all that choosing and listing it needs. Its members are those of a row
    in the table, in order."""

    name: str
    method: str
    path: str
    tags: Sequence[str]
    server: int
    security: int
    extensions: Mapping[str, Any]
    head: Sequence[int]
    """Of the definition, what is before `$defs`: a `Span`, as the next."""
    tail: Sequence[int]
    """And what is behind."""
    schemas: Sequence[int]
    """What stands in `$defs`: numbers in the list of schemas."""
    plan: Sequence[int]


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
    schemas: Sequence[Sequence[int]]
    problems: Sequence[Problem]
    """Omitted operations with reasons, dangling references, and overlay actions that change
    nothing."""
    left_out: int
    """The number of omitted operations."""
    pieces: memoryview = field(repr=False)

    def definition(self, row: Row, hints: Mapping[str, bool]) -> StoredDefinition:
        """The definition of a tool; its bytes are cut out when somebody asks for them."""
        return StoredDefinition(row.name, hints, partial(self._rest, row))

    def _rest(self, row: Row) -> bytes:
        """Of a definition, what stands behind the name."""
        shared = [self._piece(self.schemas[number]) for number in row.schemas]
        middle = b',"$defs":{' + b",".join(shared) + b"}" if shared else b""
        return self._piece(row.head) + middle + self._piece(row.tail)

    def plan(self, row: Row) -> Plan:
        """How to call it."""
        from roundgate.backends.openapi.plan import Plan  # a start goes without

        return Plan.revived(decode(self._piece(row.plan)))

    def _piece(self, span: Sequence[int]) -> bytes:
        start, size = span
        return self.pieces[start : start + size].tobytes()


_MEMBERS: Final = tuple(one.name for one in fields(Row))


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
        left_out: int,
    ) -> Index:
        """Return the finished index.

        Args:
            fingerprint: a digest of the settings that the index depends on.
            sources: the path, length and digest of each file.
            servers: base URLs; operations refer to them by position.
            security: alternatives of credentials; operations refer to them by position.
            slots: the schemes of credentials, by name.
            problems: operations that are omitted or incomplete, with the reason.
            left_out: the number of omitted operations.
        """
        pieces = memoryview(b"".join(self._pieces))
        return Index(
            fingerprint,
            sources,
            servers,
            security,
            slots,
            self.rows,
            self._schemas,
            problems,
            left_out,
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
        "rows": [[getattr(row, name) for name in _MEMBERS] for row in index.rows],
        "schemas": [list(span) for span in index.schemas],
        "problems": [[p.file, p.path, p.message, p.remedy] for p in index.problems],
        "left_out": index.left_out,
        "crc32": zlib.crc32(index.pieces),
    }
    head = encode(table)
    return b"".join([MAGIC, b"%d\n" % len(head), head, index.pieces])


def read(path: Path) -> Index:
    """An index from its file.

    Raises:
        IndexOfAnotherVersion: another version has written it.
        UnusableIndex: it is none, or not whole.
        OSError: there is none.
    """
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        another = data.startswith(KIND)
        raise IndexOfAnotherVersion() if another else UnusableIndex("is no index")
    size = data[len(MAGIC) : len(MAGIC) + 20].partition(b"\n")[0]
    start = len(MAGIC) + len(size) + 1
    try:
        end = start + int(size)
        table: Mapping[str, Any] = decode_own(data[start:end])
        pieces = memoryview(data)[end:]
        if zlib.crc32(pieces) != table["crc32"]:
            raise UnusableIndex("is not whole")
        return _from_table(table, pieces)
    except (ValueError, KeyError, TypeError):
        raise UnusableIndex("is no index") from None


def _from_table(table: Mapping[str, Any], pieces: memoryview) -> Index:
    return Index(
        fingerprint=table["fingerprint"],
        sources=[(where, size, digest) for where, size, digest in table["sources"]],
        servers=table["servers"],
        security=table["security"],
        slots={name: Slot(name, *rest) for name, *rest in table["slots"]},
        rows=[Row(*row) for row in table["rows"]],
        schemas=table["schemas"],
        problems=[Problem(*one) for one in table["problems"]],
        left_out=table["left_out"],
        pieces=pieces,
    )


VERSION: Final = 1
"""Of what an index has for a document; another one makes all indexes out of date."""
_COMPILED_WITH: Final = (
    *(
        "document",
        "base_url",
        "variables",
        "origins",
        "references",
        "overlay",
        "media_types",
        "output_schemas",
        "strict",
    ),
)


def index_path(config: OpenApiBackendConfig, origin: Origin) -> Path:
    """Where the index of a back end is kept."""
    return origin.base_dir / config.index_file


def fingerprint(config: OpenApiBackendConfig) -> str:
    """Of the settings that an index depends on; no secret is among them."""
    settings = {name: getattr(config, name) for name in _COMPILED_WITH}
    taken = {place: sorted(names) for place, names in taken_names(config, ()).items()}
    return hashlib.sha256(
        encode([VERSION, settings, taken, len(config.effective_prefix)])
    ).hexdigest()[:32]


def is_current(index: Index, path: Path, base_dir: Path) -> bool:
    """Whether the files that an index was made of are what they were. Those that are not here, as
    on the machine that only serves, do not count; neither do URLs. One that is no newer than the
    index and as long is not read."""
    written = path.stat().st_mtime_ns
    for where, size, digest in index.sources:
        if "://" in where:
            continue
        try:
            found = (base_dir / where).stat()
            if found.st_size != size:
                return False
            if found.st_mtime_ns >= written and _digest(base_dir / where) != digest:
                return False
        except OSError:
            continue
    return True


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def taken_names(config: OpenApiBackendConfig, slots: Iterable[Slot]) -> dict[str, frozenset[str]]:
    """By place, what no parameter may be called, because the gateway sends it itself."""
    filled = [
        *config.credentials.values(),
        *(() if config.credential is None else (config.credential,)),
    ]
    headers = {name.lower() for name in config.headers}
    queries: set[str] = set()
    cookies: set[str] = set()
    for one in filled:
        headers |= one.headers()
        queries |= one.queries()
        cookies |= one.cookies()
    for slot in slots:
        headers |= {slot.header.lower()} if slot.header else set()
        queries |= {slot.query} if slot.query else set()
        cookies |= {slot.cookie} if slot.cookie else set()
    return {"header": frozenset(headers), "query": frozenset(queries), "cookie": frozenset(cookies)}


SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})


@cache
def hints(method: str) -> Mapping[str, bool]:
    """Return the annotations of a tool by the operation's method (RFC 9110 section 9.2).

    `destructiveHint` is omitted, which counts as true, unless the method is safe or DELETE.
    """
    safe = method in SAFE
    destroys = (
        {"destructiveHint": False}
        if safe
        else {"destructiveHint": True}
        if method == "DELETE"
        else {}
    )
    return {
        "readOnlyHint": safe,
        **destroys,
        "idempotentHint": safe or method in ("PUT", "DELETE"),
        "openWorldHint": True,
    }
