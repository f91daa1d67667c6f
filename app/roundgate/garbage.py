"""The garbage collector while a process starts.

Modules, classes and schemas live as long as the process. While they are made, the collector examines
all of them again and again, which takes a tenth of a start and finds next to nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept() -> Iterator[None]:
    """Collect nothing within the block, and never examine the objects that exist at its end: their
    first examination would take 15 to 40 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()
