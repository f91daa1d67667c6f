"""Files: whether one is still what it was when somebody read it, and how to write one that is
its owner's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, TypeAlias

OWNERS_ALONE: Final = 0o600
"""The mode of a file that nobody but its owner reads."""

Stamp: TypeAlias = tuple[int, int, int] | None
"""When it was written (nanoseconds), its size, its inode: an editor that renames a new file into
place changes the last. `None`: there is no such file."""


def stamp(file: Path) -> Stamp:
    """How a file is now."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def open_private(file: Path) -> int:
    """Open a file for writing, emptied, which from now on nobody but its owner reads.

    Returns:
        A file descriptor, which the caller closes.

    Raises:
        OSError: it cannot be opened, or is no regular file, such as a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(file, flags, OWNERS_ALONE)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        os.fchmod(descriptor, OWNERS_ALONE)  # before anything secret is in it
        os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
