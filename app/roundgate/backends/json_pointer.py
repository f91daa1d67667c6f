"""JSON Pointer (RFC 6901)."""

from __future__ import annotations

from typing import Any


def point(value: Any, pointer: str) -> Any:
    """The part of a JSON value at a JSON Pointer (RFC 6901).

    Raises:
        LookupError: there is nothing there.
    """
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            if not key.isdecimal():
                raise LookupError(pointer)
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value[key]
        else:
            raise LookupError(pointer)
    return value
