"""Detection of changes to files, and opening of private and regular files."""

from __future__ import annotations

import errno
import io
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

OWNERS_ALONE: Final = 0o600

Stamp: TypeAlias = tuple[int, int, int] | None
"""The time of the last write in nanoseconds, the size in bytes, and the inode, which changes when
an editor renames a new file into place. `None` if the file does not exist."""


def stamp(file: Path) -> Stamp:
    """Return the current state of a file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def content_digest(file: Path) -> bytes | None:
    """Return a digest of a regular file's content; `None` if the file cannot be read."""
    try:
        return sha256(_read_regular(file)).digest()
    except OSError:
        return None


def open_private(file: Path) -> int:
    """Open a file for writing, truncated and accessible to its owner only; return its descriptor.

    Raises:
        OSError: the file cannot be opened, or is not a regular file (for example a link).
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(file, flags, OWNERS_ALONE)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        os.fchmod(descriptor, OWNERS_ALONE)  # restrict access before a secret is written
        os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_whole(file: Path, data: bytes) -> None:
    """Replace the content of a file at once, because a gateway may read it at the same time."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, file)


def read_regular(file: Path, encoding: str = "utf-8") -> str:
    """Return the text of a regular file or of a link to one.

    Raises:
        OSError: the file cannot be read, or is not a regular file: a FIFO would wait for a writer,
            and a device may never end.
        UnicodeDecodeError: the file is not text.
    """
    return io.TextIOWrapper(io.BytesIO(_read_regular(file)), encoding).read()


def _read_regular(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return opened.read()
