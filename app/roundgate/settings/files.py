"""Detection of changes to files, and opening of private and regular files."""

from __future__ import annotations

import errno
import os
import stat
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


def read_regular(file: Path, encoding: str = "utf-8") -> str:
    """Return the text of a regular file or of a link to one.

    Raises:
        OSError: the file cannot be read, or is not a regular file: a FIFO would wait for a writer,
            and a device may never end.
        UnicodeDecodeError: the file is not text.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with open(descriptor, encoding=encoding, closefd=False) as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            return opened.read()
    finally:
        os.close(descriptor)
