"""The values of steps and arguments: their identification and their recording.

The journal has the `identity` of each step: its kind, its function, and a digest of its arguments.
If a replay finds another identity at the same place, it has taken another path. Only values are
compared. For a client, a file or a lock only the type counts, because each run has another object.

A recorded value is JSON. In every run, including the first, the handler gets the value that the
function's annotation makes of that JSON, so its type never changes:

    async def quote(order: int) -> Quote: ...

    function ──▶ Quote ──▶ {"total": "9.90", …} ──▶ journal ──▶ Quote      in the first run as in each replay

The handler gets the value that its step returned, or an error, never a near relative: a `Refund` that
comes back as a `Card`, a price as text. `change` finds the difference in a value. `loss` finds
annotations that some of their own values do not survive, before a step has effects: it sends one
sample of each type through JSON, as the annotation converts it. The exceptions: a tuple comes back as
a list unless its annotation is a tuple, and an integer as a float of the same value where the
annotation says float. A time zone comes back as its offset. Private attributes of models, and members
of dataclasses that are not compared, are not recorded.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
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
from itertools import islice, product
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
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from roundgate.errors import NondeterminismError, NotJson
from roundgate.json import digest, encode
from roundgate.protocol.content import Value
from roundgate.replay.journal import Place, path, plain

_CONVERTED: Final[tuple[Any, ...]] = (
    *(BaseModel, Value, Enum, date, time, timedelta, Decimal, UUID, PurePath),
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
        from pydantic import PlainSerializer

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


_MAX_SAMPLES: Final = 50
"""The maximum number of samples of an annotation."""
_MAX_SAMPLE_DEPTH: Final = 5
"""The maximum nesting depth of a sample."""
_SIMPLE: Final = frozenset(
    {str, int, float, bool, type(None), bytes, date, time, timedelta, Decimal, UUID}
)
"""The types whose equal objects are the same in all respects."""


def change(value: Any, back: Any, where: Place) -> str | None:
    """Return the first difference between a value and what JSON makes of it, as text without the
    value; `None` if there is none."""
    kind = type(value)
    if kind is not type(back):
        if kind is tuple and type(back) is list:
            return _first_change(enumerate(value), back, where)
        if kind is int and type(back) is float and value == back:
            return None
        return f"{path(where)} is {_name(value)}, but would come back as {_name(back)}"
    if kind in _SIMPLE and value == back:
        return None
    if hasattr(kind, "__pydantic_fields__"):
        members = [(name, value.__dict__.get(name)) for name in kind.__pydantic_fields__]
        extra, other = (getattr(one, "__pydantic_extra__", None) for one in (value, back))
        return _first_change(members, back.__dict__, where) or change(extra, other, where)
    if isinstance(value, Value):
        return _first_change(structs.asdict(value).items(), structs.asdict(back), where)
    if dataclasses.is_dataclass(kind):
        compared = [field.name for field in dataclasses.fields(kind) if field.compare]
        others = {name: getattr(back, name, None) for name in compared}
        return _first_change(
            [(name, getattr(value, name, None)) for name in compared], others, where
        )
    match value:
        case defaultdict() if value.default_factory is not back.default_factory:
            return f"{path(where)} would come back with another default"
        case OrderedDict() if list(value) != list(back):
            return f"{path(where)} would come back in another order"
        case dict() if value.keys() == back.keys():
            changed_key = _change_of_hashed(value, back, where)
            return changed_key or _first_change(value.items(), back, where)
        case deque() if value.maxlen != back.maxlen:
            return f"{path(where)} would come back with another length"
        case list() | tuple() | deque() if len(value) == len(back):
            return _first_change(enumerate(value), back, where)
        case set() | frozenset() if value == back:
            return _change_of_hashed(value, back, where)
    if _is_equal(value, back):
        return None
    return f"{path(where)} would come back as another {_name(value)}"


def _first_change(members: Iterable[tuple[Any, Any]], back: Any, where: Place) -> str | None:
    for key, value in members:
        other = back[key]
        if type(value) is type(other) and type(value) in _SIMPLE and value == other:
            continue  # spares most members a call
        place = (where, key if isinstance(key, int) else str(key))
        if (found := change(value, other, place)) is not None:
            return found
    return None


def _change_of_hashed(value: Iterable[Any], back: Iterable[Any], where: Place) -> str | None:
    """Return the first change among the keys of a dict or the members of a set."""
    equal = {member: member for member in back}
    for member in value:
        if (found := change(member, equal[member], (where, "key"))) is not None:
            return found
    return None


def _is_equal(value: Any, back: Any) -> bool:
    if isinstance(value, Enum):
        return value is back
    if isinstance(value, datetime):  # in an hour that occurs twice, zones never compare equal
        if value.utcoffset() != back.utcoffset():
            return False
        value, back = value.replace(tzinfo=None), back.replace(tzinfo=None)
    # an object that is equal to itself alone has the same type and the same JSON
    equality: Any = type(value).__eq__
    return equality is object.__eq__ or bool(value == back)


def _name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def loss(hint: Any, allow: Callable[[Any], Any], trip: Callable[[Any], Any]) -> str | None:
    """Return why some values of an annotation do not survive JSON, as text; `None` if no sample is
    lost.

    Args:
        hint: the annotation.
        allow: returns a value as the annotation converts it; raises an error for other values.
        trip: returns what comes back for a value; raises an error if it has no JSON form.
    """
    for sample in islice(_samples(hint, _MAX_SAMPLE_DEPTH), _MAX_SAMPLES):
        found = None
        with suppress(Exception):  # validators of the user's raise any error
            found = _loss_of(allow(sample), trip)
        if found is not None:
            return found
    return None


def _loss_of(value: Any, trip: Callable[[Any], Any]) -> str | None:
    try:
        back = trip(value)
    except Exception:
        return f"a value such as {value!r} would not come back"
    if isinstance(value, tuple) and isinstance(back, list):
        return "a value is tuple, but would come back as list"
    return change(value, back, "a value")


_SAMPLES: Final[Mapping[type, Sequence[Any]]] = {
    date: [date(2000, 1, 2)],
    datetime: [datetime(2000, 1, 2, 3, 4, 5), datetime(2000, 1, 2, 3, 4, 5, tzinfo=UTC)],
    time: [time(1, 2, 3)],
    timedelta: [timedelta(hours=1)],
    Decimal: [Decimal("1.5")],
    UUID: [UUID(int=1)],
    IPv4Address: [IPv4Address(1)],
    IPv6Address: [IPv6Address(1)],
    IPv4Network: [IPv4Network(1)],
    IPv6Network: [IPv6Network(1)],
    IPv4Interface: [IPv4Interface(1)],
    IPv6Interface: [IPv6Interface(1)],
    bytes: [b"abc"],
    bool: [True],
    int: [1],
    float: [1.5],
    type(None): [None],
    str: [
        "text",
        "2000-01-02",
        "2000-01-02T03:04:05",
        "01:02:03",
        "PT1H",
        "1.5",
        str(UUID(int=1)),
        "YWJj",
        "192.0.2.1",
        "2001:db8::1",
    ],
}
"""Values of each type. The texts are the JSON of the other values."""


def _samples(hint: Any, room: int) -> Iterator[Any]:
    """Yield values that an annotation allows, among them each member of its unions."""
    hint = without_name(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if room == 0:
        return
    if origin is Annotated:
        yield from _samples(arguments[0], room)
    elif origin in (Union, types.UnionType):
        models = sum(isinstance(argument, type) and _is_model(argument) for argument in arguments)
        for argument in arguments:
            yield from _samples(argument, room)
            if models > 1 and isinstance(argument, type) and _is_model(argument):
                yield from _models(argument, room - 1)
    elif origin is Literal:
        yield from arguments
    elif isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        keys = list(_samples(arguments[0], room - 1))
        yield from ({key: value} for key in keys[:1] for value in _samples(arguments[1], room - 1))
        yield from ({key: value} for value in _first(arguments[1], room - 1) for key in keys[1:])
    elif origin in (list, set, frozenset, deque, Iterable, Collection) or (
        origin is tuple and arguments[1:] == (...,)
    ):
        make = list if origin in (Iterable, Collection) else origin
        yield from (make([value]) for value in _samples(arguments[0], room - 1))
    elif origin is tuple:
        yield from product(*(list(_samples(argument, room - 1)) for argument in arguments))
    elif isinstance(hint, type) and issubclass(hint, Enum):
        yield from hint
    elif isinstance(hint, type) and issubclass(hint, PurePath):
        yield hint("a")
    elif isinstance(hint, type) and issubclass(hint, AnyUrl):
        for url in ("https://example.com/a", "ftp://example.com/a", "file:///a"):
            with suppress(ValueError):  # the type allows other schemes
                yield hint(url)
    elif isinstance(hint, type) or hint is None:
        yield from _SAMPLES.get(hint or type(None), ())


def without_name(hint: Any) -> Any:
    """Return the annotation behind a `NewType` or a type alias."""
    # Python and typing_extensions have a class of aliases each
    behind = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)
    return hint if behind is None else without_name(behind)


def _first(hint: Any, room: int) -> Iterator[Any]:
    return islice(_samples(hint, room), 1)


def _is_model(kind: type) -> bool:
    return issubclass(kind, (BaseModel, Value)) or dataclasses.is_dataclass(kind)


def _models(kind: Any, room: int) -> Iterator[Any]:
    """Yield an object of a model or dataclass with a value for each member, if each has a sample."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, BaseModel):
        names = list(kind.model_fields)
    elif issubclass(kind, Value):
        names = list(kind.__struct_fields__)
    else:
        names = [field.name for field in dataclasses.fields(kind)]
    members = {name: value for name in names for value in _first(hints[name], room)}
    if len(members) < len(names):
        return
    adapter = TypeAdapter(kind)
    with suppress(Exception):  # the members may break rules of the model
        if issubclass(kind, BaseModel):
            made = kind.model_construct(**members)
        elif issubclass(kind, Value):
            made = kind(**members)
        else:
            made = object.__new__(kind)
            for name, value in members.items():
                object.__setattr__(made, name, value)
        yield adapter.validate_json(adapter.dump_json(made, by_alias=True, round_trip=True))
