"""The destinations of the audit log: files of one process, or standard output.

    DIRECTORY/CHAIN.0001.jsonl    the first file of a chain, then CHAIN.0002.jsonl, …
    DIRECTORY/heads.jsonl         the checkpoints of all chains
    DIRECTORY/digest.key          the key of the digests, unless `audit.key` is set

Only one process writes to a chain's files, so the size of the current file is known, and a line that
was written in part (the disk was full) is cut off before the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeAlias

HEADS: Final = "heads.jsonl"
"""The name of the file with the checkpoints."""
KEY_FILE: Final = "digest.key"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
STDOUT: Final = 1
STDERR: Final = 2
"""The destination of a command's records, because its standard output has its results."""


class Sink(Protocol):
    """The destination of one chain. Every method raises OSError if it fails."""

    def write(self, line: bytes) -> None:
        """Append a line with its end. If that fails, no reader takes a part of it for a record."""

    def mark(self, line: bytes) -> None:
        """Store a checkpoint apart from the chain."""

    def flusher(self) -> Callable[[], None]:
        """Return a function that puts every line written so far on the disk. Another thread may call
        the function, once."""

    def close(self) -> None:
        """Release the files."""


MakeSink: TypeAlias = Callable[[str], Sink]
"""Makes the sink of a chain, without opening it."""


class Files:
    """The files of one chain in a directory. Lines reach the kernel at once: they survive the death of
    the process, but only a flush protects them from the death of the machine.

    Args:
        directory: the directory, made on demand.
        chain: the chain.
        max_bytes: the maximum size of a file in bytes.
        is_durable: whether a full file is flushed before the next one begins.
    """

    def __init__(self, directory: Path, chain: str, max_bytes: int, *, is_durable: bool) -> None:
        self._directory = directory
        self._chain = chain
        self._max_bytes = max_bytes
        self._is_durable = is_durable
        self._file: int | None = None
        self._part = 0
        self._size = 0
        self._is_torn = self._is_mark_torn = False

    def write(self, line: bytes) -> None:
        """Append a line; begin another file if this one would exceed its maximum size."""
        if self._file is None or (self._size and self._size + len(line) > self._max_bytes):
            self._begin_file()
        assert self._file is not None
        if self._is_torn:
            self._cut_off()
        try:
            if (written := os.write(self._file, line)) < len(line):
                _write_all(self._file, line[written:])  # fails if the disk is full
        except OSError:
            self._is_torn = True
            self._cut_off()
            raise
        self._size += len(line)

    def mark(self, line: bytes) -> None:
        """Append a checkpoint to the file that all chains share."""
        file = _open(self._directory / HEADS)
        prefix, self._is_mark_torn = b"\n" if self._is_mark_torn else b"", True
        try:
            _write_all(file, prefix + line)
            self._is_mark_torn = False
        finally:
            os.close(file)

    def flusher(self) -> Callable[[], None]:
        """Return a function that flushes the current file, even if another file begins meanwhile."""
        if self._file is None:
            return _nothing
        copy = os.dup(self._file)

        def flush() -> None:
            try:
                os.fdatasync(copy)
            finally:
                os.close(copy)

        return flush

    def close(self) -> None:
        """Flush and close the current file."""
        if self._file is not None:
            self.flusher()()
            os.close(self._file)
            self._file = None

    def _begin_file(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{self._chain}.{self._part + 1:04d}.jsonl"
        file = _open(self._directory / name, os.O_EXCL)
        if self._file is not None:
            if self._is_durable:
                self.flusher()()
            os.close(self._file)
        self._file, self._size, self._is_torn = file, 0, False
        self._part += 1

    def _cut_off(self) -> None:
        assert self._file is not None
        os.ftruncate(self._file, self._size)
        self._is_torn = False


def _open(path: Path, flags: int = 0) -> int:
    """Open a file for appending, but not through a link. A file that root makes gets the owner of its
    directory: a gateway under that user reads the records of root's commands, and appends to the
    same checkpoints."""
    file = os.open(path, _FLAGS | flags, 0o600)
    if os.geteuid() == 0 and os.fstat(file).st_size == 0:  # never a file that the owner linked here
        with suppress(OSError):  # in a container, the owner may have no id
            owner = path.parent.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
    return file


class StandardOutput:
    """Lines on standard output, which a platform collects. The log line of a checkpoint is the only
    copy outside the chain. `file` is the number of the open file."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._is_torn = False

    def write(self, line: bytes) -> None:
        """Write a line. After a line that was written in part, begin with a line end."""
        prefix, self._is_torn = b"\n" if self._is_torn else b"", True
        _write_all(self._file, prefix + line)
        self._is_torn = False

    def mark(self, line: bytes) -> None:
        """Do nothing."""

    def flusher(self) -> Callable[[], None]:
        """Return a function that does nothing."""
        return _nothing

    def close(self) -> None:
        """Do nothing."""


def _nothing() -> None:
    """Do nothing, because there is nothing to flush."""


def _write_all(file: int, data: bytes) -> None:
    """Write all bytes, in several attempts: a nearly full disk takes a part first, then fails."""
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, data[written:])
