"""What a remembered thing was: its kind, the function behind it, and a digest of
what that was called with.

It is kept with each step in the journal. A replay that finds another function or other arguments at
the same place has taken another path than the run before. It ends with
`errors.NondeterminismError`, and is not given a value that belongs to something else.

Only values are compared. Of a client, a file or a lock only the type counts, because
each run has another one.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from roundgate.json import digest

DIGEST_CHARS: Final = 11
"""64 bits: enough to tell two calls at one place apart, and little to carry."""
MAX_DEPTH: Final = 40
"""Levels of an argument that are looked at."""

MAX_BITS: Final = 4_096
"""Of an integer that is written in decimal: Python refuses to for large ones."""

_AS_TEXT: Final = (datetime, date, time, timedelta, Decimal, UUID, PurePath, complex)


def identity(
    kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """`step charge Xy3…`: a kind, a function's name, and a digest of arguments if there are any."""
    name, bound = _named(function)
    if not (args or kwargs or bound):
        return f"{kind} {name}"
    return f"{kind} {name} {digest(_values([bound, list(args), dict(kwargs)]))[:DIGEST_CHARS]}"


def digest_of_value(value: Any) -> str:
    """What stands for any value, in this process and in others."""
    return digest(_values(value))


def _named(function: Callable[..., Any]) -> tuple[str, list[Any]]:
    """The name of a function, wherever it is defined, and what `partial` has bound to it
    already."""
    bound: list[Any] = []
    while isinstance(function, functools.partial):
        bound.append([list(function.args), dict(function.keywords)])
        function = function.func
    name = getattr(_unwrapped(function), "__name__", None)
    return name if isinstance(name, str) else type(function).__name__, bound


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        unwrapped: Callable[..., Any] = inspect.unwrap(function)
    except ValueError:  # it has any attribute that it is asked for, as a remote object has
        return function
    return unwrapped


def _values(value: Any, room: int = MAX_DEPTH) -> Any:
    """What of a value can be compared between two runs, as JSON."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return hex(value)
    if value is None or (isinstance(value, (bool, str, int)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)
    if room == 0:
        return "…"
    if isinstance(value, Mapping):
        pairs = [[_values(key, room - 1), _values(item, room - 1)] for key, item in value.items()]
        # a client may send the members of its arguments in another order
        return sorted(pairs, key=repr)
    if isinstance(value, (list, tuple)):
        return [_values(item, room - 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(digest(_values(item, room - 1)) for item in value)
    return [type(value).__qualname__, _inside(value, room - 1)]


def _inside(value: Any, room: int) -> Any:
    """What of an object can be compared between two runs; of most, nothing."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (bytes, bytearray, memoryview)):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, BaseModel):
        return _values({name: getattr(value, name) for name in type(value).model_fields}, room)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _values(
            {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)},
            room,
        )
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, type):
        return value.__qualname__
    if callable(value):
        name, bound = _named(value)
        return [name, _values(bound, room)]
    return None
