"""Values of steps that JSON does not have: pydantic models, dataclasses, dates,
decimals, bytes and the like.

    async def quote(order: int) -> Quote: ...       the annotation says what comes back

    function ──▶ Quote ──▶ {"total": "9.90", …} ──▶ journal ──▶ Quote      in the first run as in each replay

What is remembered is JSON; what a handler gets is made of that JSON by the annotation, also in the
run in which the step ran. So the type is the same in every run. Without an annotation that names
such a type a value is plain JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Awaitable, Callable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from roundgate.errors import NondeterminismError, NotJson
from roundgate.json import encode

_CONVERTED: Final = (
    *(BaseModel, Enum, date, time, timedelta, Decimal, UUID, PurePath),
    *(bytes, bytearray, set, frozenset),
)
_MAX_DEPTH: Final = 10
"""Levels of an annotation that are looked at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conversion:
    """To JSON and back, as an annotation says."""

    adapter: TypeAdapter[Any]
    name: str
    """The annotation, for people."""

    def to_json(self, value: Any, where: str) -> Any:
        """What is remembered of a value.

        Raises:
            NotJson: it is none of the annotation's values, or could not be had back.
                Says nothing of the value.
        """
        try:
            (written,) = self.adapter.dump_python(
                (value,), mode="json", by_alias=True, round_trip=True, warnings=False
            )
            self.adapter.validate_json(encode([written]))
        except (PydanticSerializationError, ValidationError, TypeError, ValueError, RecursionError):
            raise NotJson(
                f"{where} is {type(value).__name__}, and does not come back from JSON as "
                f"{self.name}, which its function says to return: return that, or correct the "
                "annotation"
            ) from None
        return written

    def from_json(self, written: Any, key: str) -> Any:
        """The value that is remembered.

        Raises:
            NondeterminismError: the annotation is another one by now, and has no such value.
        """
        try:
            (value,) = self.adapter.validate_json(encode([written]))
        except ValidationError:
            raise NondeterminismError(key, "a value of another type", self.name) from None
        return value


def conversion_of(function: Callable[..., Any]) -> Conversion | None:
    """How values of a function are remembered; `None` for plain JSON."""
    try:
        return _conversion(_returned(function))
    except (
        TypeError,
        NameError,
    ):  # it cannot be hashed; a typed dictionary has names that are not to be had
        return None


def is_converted(value: Any) -> bool:
    """Whether a value could be remembered if its function said what it returns."""
    return _names_one(type(value))


_known: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""What functions say to return. Weak: a step is often a `lambda` that holds
all that its call has."""


def _returned(function: Any) -> Any:
    """What a function says to return, without what has to be awaited for it;
    `None` if nobody knows."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)  # a bound method is made anew each time
    if function not in _known:
        _known[function] = _read_from(function)
    return _known[function]


def _read_from(function: Any) -> Any:
    if isinstance(function, type):
        return function
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return")
    except Exception:  # no function, or names that are not to be had
        return None
    origin = typing.get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return typing.get_args(hint)[-1]
    return hint


@lru_cache(maxsize=512)
def _conversion(hint: Any) -> Conversion | None:
    if hint is None or not _names_one(hint):
        return None
    config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        # in a tuple, because a type of its own settings takes none from here
        adapter: TypeAdapter[Any] = TypeAdapter(tuple[hint], config=config)
    except (PydanticUserError, TypeError, NameError):
        return None
    return Conversion(adapter, getattr(hint, "__name__", None) or str(hint).replace("typing.", ""))


def _names_one(hint: Any, room: int = _MAX_DEPTH) -> bool:
    """Whether an annotation names a type that JSON does not have."""
    if room == 0:
        return False
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _names_one(typing.get_args(hint)[0], room - 1)
    if origin is not None:
        return _is_one(origin) or any(_names_one(one, room - 1) for one in typing.get_args(hint))
    if _is_typed_dict(hint):
        return any(_names_one(one, room - 1) for one in typing.get_type_hints(hint).values())
    return _is_one(hint)


def _is_typed_dict(hint: Any) -> bool:
    """A `TypedDict`, of whichever module."""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def _is_one(found: Any) -> bool:
    return isinstance(found, type) and (
        issubclass(found, _CONVERTED) or dataclasses.is_dataclass(found)
    )
