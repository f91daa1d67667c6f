"""Whether a value survives JSON: the comparison of a value with what a later run reads.

A handler gets the value that its step returned, or an error, never a near relative: a `Refund` that
comes back as a `Card`, a price as text. `change` finds the difference in a value. `loss` finds
annotations that some of their own values do not survive, before a step has effects: it sends one
sample of each type through JSON, as the annotation converts it.

The exceptions: a tuple comes back as a list unless its annotation is a tuple, and an integer as a
float of the same value where the annotation says float. A time zone comes back as its offset.
Private attributes of models, and members of dataclasses that are not compared, are not recorded.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
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
from typing import Annotated, Any, Final, Literal, Union
from uuid import UUID

from pydantic import AnyUrl, BaseModel, TypeAdapter

from roundgate.replay.journal import Place, path

_MAX_SAMPLES: Final = 50
"""The maximum number of samples of an annotation."""
_MAX_DEPTH: Final = 5
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
    for sample in islice(_samples(hint, _MAX_DEPTH), _MAX_SAMPLES):
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
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def _models(kind: Any, room: int) -> Iterator[Any]:
    """Yield an object of a model or dataclass with a value for each member, if each has a sample."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, BaseModel):
        names = list(kind.model_fields)
    else:
        names = [field.name for field in dataclasses.fields(kind)]
    members = {name: value for name in names for value in _first(hints[name], room)}
    if len(members) < len(names):
        return
    adapter = TypeAdapter(kind)
    with suppress(Exception):  # the members may break rules of the model
        made = object.__new__(kind)
        if issubclass(kind, BaseModel):
            made = kind.model_construct(**members)
        else:
            for name, value in members.items():
                object.__setattr__(made, name, value)
        yield adapter.validate_json(adapter.dump_json(made, by_alias=True, round_trip=True))
