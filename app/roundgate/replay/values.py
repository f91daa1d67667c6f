"""The values of steps and arguments: their identification and their recording.

The journal has the `identity` of each step: its kind, its function, and a digest of its arguments.
If a replay finds another identity at the same place, it has taken another path. Only values are
compared. For a client, a file or a lock only the type counts, because each run has another object.

A recorded value is JSON. In every run, including the first, the handler gets the value that the
function's annotation makes of that JSON, so its type never changes:

    async def quote(order: int) -> Quote: ...

    function ──▶ Quote ──▶ {"total": "9.90", …} ──▶ journal ──▶ Quote      in the first run as in each replay
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from types import FunctionType, UnionType
from typing import Annotated, Any, Final, Literal, Union
from uuid import UUID
from weakref import WeakKeyDictionary

from msgspec import Struct, structs
from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FutureDate,
    FutureDatetime,
    NaiveDatetime,
    PastDate,
    PastDatetime,
    PlainSerializer,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from roundgate.errors import NondeterminismError, NotJson
from roundgate.json import digest, encode
from roundgate.replay.journal import plain
from roundgate.replay.round_trip import change, loss, without_name

_CONVERTED: Final[tuple[Any, ...]] = (
    *(BaseModel, Enum, date, time, timedelta, Decimal, UUID, PurePath),
    *(bytes, set, frozenset, tuple, deque, Counter, OrderedDict, defaultdict),
    *(IPv4Address, IPv6Address, IPv4Network, IPv6Network, IPv4Interface, IPv6Interface),
    *(AnyUrl, AwareDatetime, NaiveDatetime, PastDatetime, FutureDatetime, PastDate, FutureDate),
)
_OF_JSON: Final = (str, int, float, bool, type(None), list, dict)
_MAX_HINT_DEPTH: Final = 10
"""The maximum nesting depth of an annotation that is examined."""

REMEDY: Final = (
    "return a value of a narrower type, or give the members of a union a discriminator "
    "(Field(discriminator=…))"
)
UNKNOWN_NAME: Final = "an annotation in it is unknown when the program runs; import its names outside of TYPE_CHECKING"
OTHER_TYPE: Final = "a value of another type"
DIGEST_CHARS: Final = 11
"""The length of a digest in characters: 64 bits, enough to distinguish the calls of one place."""
MAX_DEPTH: Final = 40
"""The maximum nesting depth of an argument that is compared."""

MAX_BITS: Final = 4_096
"""The size in bits above which integers are written in hexadecimal, because Python limits their
decimal form."""

_AS_TEXT: Final = (datetime, date, time, timedelta, Decimal, UUID, PurePath, complex)


def identity(
    kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return `step charge Xy3…`: a kind, a function's name, and a digest of any arguments."""
    name, bound = _named(function)
    if not (args or kwargs or bound):
        return f"{kind} {name}"
    return f"{kind} {name} {digest(_values([bound, list(args), dict(kwargs)]))[:DIGEST_CHARS]}"


def digest_of_value(value: Any) -> str:
    """Return a digest of a value of any type. The digest is the same in every process."""
    return digest(_values(value))


def _named(function: Callable[..., Any]) -> tuple[str, list[Any]]:
    """Return the name of a function, and the arguments that `partial` has bound."""
    bound: list[Any] = []
    while isinstance(function, functools.partial):
        bound.append([list(function.args), dict(function.keywords)])
        function = function.func
    name = getattr(_unwrapped(function), "__name__", None)
    return name if isinstance(name, str) else type(function).__name__, bound


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        unwrapped: Callable[..., Any] = inspect.unwrap(function)
    except ValueError:  # an object that has every attribute, such as a remote proxy
        return function
    return unwrapped


def _values(value: Any, room: int = MAX_DEPTH) -> Any:
    """Return the comparable part of a value as JSON."""
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
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (bytes, bytearray, memoryview)):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, BaseModel):
        return _values({name: getattr(value, name) for name in type(value).model_fields}, room)
    if isinstance(value, Struct):
        return _values(structs.asdict(value), room)
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


class Conversion(Struct, frozen=True):
    """The conversion between a type and JSON. `name` is the annotation, for error messages."""

    adapter: TypeAdapter[Any]
    name: str
    loss: str | None = None
    """Why the annotation does not survive JSON, or `None`."""

    def to_json(self, value: Any, where: str) -> Any:
        """Return the JSON form of a value.

        Raises:
            NotJson: the value does not have the type, or would come back as another value. The
                message does not contain the value.
        """
        try:
            written, back = self.trip(value)
            if (changed := change(value, back, where)) is not None:
                # aliases for writing alone are not read
                written, back = self.trip(value, by_alias=False)
                changed = change(value, back, where) and changed
        except (PydanticSerializationError, ValidationError, TypeError, ValueError, RecursionError):
            self._check_numbers(value, where)
            raise NotJson(
                f"{where} is {type(value).__name__}, which JSON cannot convert back to the annotated "
                f"return type {self.name}: return a value of that type, or correct the annotation"
            ) from None
        if changed is not None:
            raise NotJson(f"{changed}, as the return type {self.name} says: {REMEDY}")
        return written

    def _check_numbers(self, value: Any, where: str) -> None:
        """Raise NotJson with the place of NaN or an infinite number."""
        try:
            written = self._written(value, by_alias=False)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError):
            return
        plain(written, where)

    def _written(self, value: Any, *, by_alias: bool) -> Any:
        (written,) = self.adapter.dump_python(
            (value,), mode="json", by_alias=by_alias, round_trip=True, warnings=False
        )
        return written

    def trip(self, value: Any, *, by_alias: bool = True) -> tuple[Any, Any]:
        """Return the JSON form of a value, and the value that it becomes. Raise pydantic's errors
        and those of validators."""
        written = self._written(value, by_alias=by_alias)
        try:
            return written, self._read(written)
        except ValidationError:
            if not by_alias:
                raise
            return self.trip(value, by_alias=False)

    def from_json(self, written: Any, key: str) -> Any:
        """Return the recorded value.

        Raises:
            NondeterminismError: the value does not fit the changed annotation.
        """
        try:
            return self._read(written)
        except ValidationError:
            raise NondeterminismError(key, OTHER_TYPE, self.name) from None

    def _read(self, written: Any) -> Any:
        # by name too: a member with a `validation_alias` alone is written by its name
        (value,) = self.adapter.validate_json(encode([written]), by_alias=True, by_name=True)
        return value


def find_conversion(function: Callable[..., Any]) -> Conversion | None:
    """Return the conversion of a function's results; `None` for plain JSON."""
    try:
        return _conversion(returned(function))
    except (
        TypeError,
        NameError,
    ):  # the annotation cannot be hashed, or a typed dictionary has unknown names
        return None


def is_converted(value: Any) -> bool:
    """Return whether a value could be recorded if its function were annotated."""
    return type(value) is not tuple and _has_converted_type(type(value))


_known: Final[WeakKeyDictionary[Any, dict[Any, Any]]] = WeakKeyDictionary()
"""The return annotations of functions, by the keys that `_kept_by` returns. References are weak: a
step is often a `lambda` that holds its call."""


def returned(function: Any) -> Any:
    """Return a function's return annotation, without `Awaitable`; `None` if there is none."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)  # a bound method is made anew each time
    kept_by, key = _kept_by(function)
    hints = _known.setdefault(kept_by, {})
    if key not in hints:
        hints[key] = _read_from(function)
    return hints[key]


def _kept_by(function: Any) -> tuple[Any, Any]:
    """Return the two keys of a function's annotation. Functions that one `def` defines anew in each
    call have the same keys: code, module and text of the annotation."""
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return function, None
    annotation = function.__annotations__.get("return")
    if annotation is not None and not isinstance(annotation, str):
        return function, None
    return function.__code__, (function.__module__, annotation)


def _read_from(function: Any) -> Any:
    if isinstance(function, type):
        return function
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return")
    except Exception:  # not a function, or its annotation has unknown names
        return None
    origin = typing.get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return typing.get_args(hint)[-1]
    return hint


@lru_cache(maxsize=512)
def _conversion(hint: Any) -> Conversion | None:
    if hint is None or not _has_converted_type(hint):
        return None
    config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        # in a tuple, because a type with its own settings ignores these
        within: Any = tuple.__class_getitem__(_readable(hint))
        adapter: TypeAdapter[Any] = TypeAdapter(within, config=config)
    except (PydanticUserError, TypeError, NameError):
        return None
    name = getattr(hint, "__name__", None) if not typing.get_args(hint) else None
    conversion = Conversion(adapter, name or str(hint).replace("typing.", ""))
    if adapter.rebuild(raise_errors=False) is False:
        return structs.replace(conversion, loss=UNKNOWN_NAME)
    return structs.replace(
        conversion,
        loss=loss(
            hint,
            lambda value: adapter.validate_python((value,), strict=True)[0],
            lambda value: conversion.trip(value)[1],
        ),
    )


def _readable(hint: Any) -> Any:
    """Return an annotation whose values pydantic can read: lists for `Iterable`, which it would read
    lazily, and the names of an enum whose values JSON lacks."""
    hint = without_name(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum) and origin is None:
        if all(type(member.value) in _OF_JSON or isinstance(member, _OF_JSON) for member in hint):
            return hint
        by_name = BeforeValidator(
            lambda name: hint.__members__.get(name, name) if isinstance(name, str) else name
        )
        return Annotated[hint, by_name, PlainSerializer(lambda member: member.name)]
    if origin in (Iterable, Collection):
        return Sequence[_readable(next(iter(arguments), Any))]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return Union[tuple(map(_readable, arguments))]  # noqa: UP007
    if origin in (list, dict, set, frozenset, tuple):
        return origin[tuple(map(_readable, arguments))]
    return hint


def _has_converted_type(hint: Any, room: int = _MAX_HINT_DEPTH) -> bool:
    """Return whether an annotation contains a type that JSON lacks."""
    if room == 0:
        return False
    hint = without_name(hint)
    origin = typing.get_origin(hint)
    if origin in (Iterable, Collection):
        return _has_converted_type(next(iter(typing.get_args(hint)), Any), room - 1)
    if origin is Annotated:
        return _has_converted_type(typing.get_args(hint)[0], room - 1)
    if origin is Literal:
        return any(_is_converted_type(type(one)) for one in typing.get_args(hint))
    if origin is not None:
        if isinstance(origin, type) and issubclass(origin, Mapping):
            key = next(iter(typing.get_args(hint)), str)
            if key not in (str, Any):
                return True
        return _is_converted_type(origin) or any(
            _has_converted_type(argument, room - 1) for argument in typing.get_args(hint)
        )
    if _is_typed_dict(hint):
        return any(
            _has_converted_type(argument, room - 1)
            for argument in typing.get_type_hints(hint).values()
        )
    return _is_converted_type(hint)


def _is_typed_dict(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def _is_converted_type(candidate: Any) -> bool:
    return isinstance(candidate, type) and (
        issubclass(candidate, _CONVERTED) or dataclasses.is_dataclass(candidate)
    )
