"""The garbage collector while a process starts.

Modules, classes and schemas live as long as the process. While they are made, the
collector goes through all of them again and again, which is a tenth of a start, and finds
next to nothing. `gc.freeze()` has it look at them no more: otherwise it would as soon as
it is on again, for 15 to 40 ms.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Suspend the garbage collector within the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def kept() -> Iterator[None]:
    """Suspend the garbage collector within the block, and exempt from it every object that exists
    at the end."""
    with held_back():
        yield
        gc.freeze()
