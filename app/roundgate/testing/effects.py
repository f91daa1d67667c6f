"""What a handler does to the world outside of its steps, as Python's audit events tell (PEP 578).

Files that are written, removed or renamed, connections, processes. What only changes memory tells
of nothing: for that there is `observe`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from roundgate.replay import Branch, here

_collected: list[str] | None = None
"""Where effects are noted, while somebody wants to know of them."""
_is_hooked = False
_EVENTS: Final = {
    "os.remove": "removes {0!r}",
    "os.rename": "renames {0!r}",
    "os.mkdir": "makes the directory {0!r}",
    "os.rmdir": "removes the directory {0!r}",
    "os.system": "starts a process",
    "subprocess.Popen": "starts the process {0!r}",
    "socket.connect": "connects to {1!r}",
}


@contextmanager
def collecting_effects() -> Iterator[list[str]]:
    """Within the block, what handlers do outside of steps is added to the list, in words."""
    global _collected, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_heard)  # there is no way to take one away again
        _is_hooked = True
    before, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = before


def refuse_effects() -> None:
    """Make effects of handlers outside of steps raise PermissionError, for the rest of the
    process's life."""

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if isinstance(here.get(), Branch) and (said := _effect(event, args)):
            raise PermissionError(f"a replay does nothing, but it {said}")

    sys.addaudithook(heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if _collected is None or not isinstance(here.get(), Branch):
        return
    if said := _effect(event, args):
        _collected.append(f"it {said} outside of a step")


def _effect(event: str, args: tuple[Any, ...]) -> str | None:
    return _writing(*args) if event == "open" else _EVENTS.get(event, "").format(*args)


def _writing(path: Any, mode: Any, flags: Any) -> str | None:
    """What the opening of a file means; `None` if it is only read, or is none of the handler's."""
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not writes or not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    return None if "__pycache__" in name or name == os.devnull else f"writes to {name!r}"
