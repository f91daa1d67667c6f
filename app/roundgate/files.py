"""Whether a file is still what it was when somebody read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

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
