"""The journal of a task in DynamoDB: a tail in the root item, and chunks in rows of their own. The
module does no I/O.

DynamoDB charges each write of the root item by its size in KiB, so the tail gets the free bytes of
the last KiB. A full tail becomes a chunk. `FAN` adjacent chunks of about the same size become one
chunk of the next size, so that a journal of any length has few rows, and the root item few
references:

    root item   [chunk 60 KB] [chunk 4 KB] [chunk 4 KB] [chunk 500 B] tail: e901 e902 …

So each entry is written again once for each size, three times at 350 KB. The `ttl` deletes rows
that became part of a larger chunk: deleting such a row would cost as much as writing it, keeping it
for some days costs a twentieth of that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from roundgate.storage.dynamodb.table import PART, Append, Draft, Row

KIB: Final = 1024
FAN: Final = 8
_SMALLEST: Final = 512
_LEAST_ROOM: Final = 256
"""The minimum size of a tail in bytes. A smaller tail would become a chunk at every other step."""


class Chunk(Struct, frozen=True):
    """Entries in a row of their own."""

    ref: str
    size: int
    data: bytes | None
    """The entries, unless the chunk is too large to merge."""

    @property
    def rank(self) -> int:
        """Return the rank of the size. Chunks of the same rank have about the same size."""
        rank, size = 0, _SMALLEST
        while size < self.size:
            rank, size = rank + 1, size * FAN
        return rank


class JournalLog(Struct, frozen=True):
    """A journal, oldest entries first."""

    chunks: tuple[Chunk, ...] = ()
    tail: tuple[bytes, ...] = ()

    @property
    def refs(self) -> list[str]:
        """Return the references to the chunks, as the root item keeps them."""
        return [chunk.ref for chunk in self.chunks]


def make_chunk(ref: str, data: bytes) -> Chunk:
    """Return a chunk that was written or read."""
    return Chunk(ref, len(data), data if len(data) * FAN <= PART else None)


def lengthened(
    log: JournalLog, entries: Sequence[bytes], room: int, draft: Draft
) -> tuple[dict[str, Any], JournalLog]:
    """Return the attributes that a longer journal sets in a root item whose tail may have `room`
    bytes, and the longer journal."""
    if not entries:
        return {}, log
    longer = (*log.tail, *entries)
    if tail_size(longer) <= room:
        return {"tail": Append(list(entries))}, JournalLog(log.chunks, longer)
    grown = JournalLog(with_chunk(log.chunks, packed(longer), draft))
    return {"chunks": grown.refs, "tail": []}, grown


def with_chunk(chunks: Sequence[Chunk], data: bytes, draft: Draft) -> tuple[Chunk, ...]:
    """Append `data` as a chunk, and merge chunks of the same rank once there are `FAN` of them."""
    merged_chunks = [*chunks, Chunk("", len(data), data)]
    while len(alike := _alike(merged_chunks)) >= FAN:
        merged = b"".join(chunk.data or b"" for chunk in alike)
        merged_chunks[-len(alike) :] = [Chunk("", len(merged), merged)]
    last = merged_chunks.pop()
    written = last.data or b""
    return (*merged_chunks, make_chunk(draft.spill("2", written), written))


def _alike(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the last chunks that fit into one row and have at most the rank of the last one."""
    alike: list[Chunk] = []
    for chunk in reversed(chunks):
        fits = sum(other.size for other in alike) + chunk.size <= PART
        if chunk.data is None or chunk.rank > chunks[-1].rank or not fits:
            break
        alike.insert(0, chunk)
    return alike


def free_space(row: Row) -> int:
    """Return the size that the tail of a root item may have in bytes: the free space in the last
    KiB that the other attributes need."""
    free = -row_size({**row, "tail": []}) % KIB
    return free if free >= _LEAST_ROOM else free + KIB


def row_size(value: Any) -> int:
    """Return the approximate bytes that DynamoDB counts for a row or a value, never too few."""
    match value:
        case bytes():
            return len(value)
        case str():
            return len(value.encode())
        case int():
            return 21 if value < 0 else 2 + len(str(value)) // 2
        case dict():
            return 3 + sum(1 + row_size(name) + row_size(item) for name, item in value.items())
        case list() | tuple():
            return 3 + sum(1 + row_size(item) for item in value)
        case _:
            return 1


def tail_size(entries: Sequence[bytes]) -> int:
    """Return the size of entries in a tail in bytes. In a chunk they take slightly more."""
    return sum(1 + len(entry) for entry in entries)


def packed(entries: Sequence[bytes]) -> bytes:
    """Encode entries as one value, each preceded by its length."""
    return b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)


def unpacked(chunk: bytes) -> Iterator[bytes]:
    """Yield the entries of a value that `packed` returned."""
    at = 0
    while at < len(chunk):
        (length,) = struct.unpack_from(">I", chunk, at)
        at += 4 + length
        yield chunk[at - length : at]
