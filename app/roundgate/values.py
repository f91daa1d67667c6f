"""`dataclass`, as in the standard library, at a tenth of what it costs when the module is imported.

The standard library writes and compiles six methods for each frozen class. That was a fifth of a
start: there are 150 of them, and most make no instance before the first call. Here `__init__` is
compiled when it is first looked at, and is then as fast as the standard library's. The other
methods are written once for all classes (docs/decisions/0045).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as by_the_standard_library
from operator import attrgetter
from reprlib import recursive_repr
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls=None, /, *, eq=True, frozen=False, slots=False, kw_only=False, **others
    ) -> Any:
        """Make a dataclass. With any other option (`order=True`) the standard library makes it.

        `InitVar` is not known here.
        """
        layout = {"slots": slots, "kw_only": kw_only}

        def make(cls: type) -> type:
            if others:
                return by_the_standard_library(eq=eq, frozen=frozen, **layout, **others)(cls)
            return _made(cls, layout, eq=eq, frozen=frozen)

        return make if cls is None else make(cls)


def _made(cls: Any, layout: Mapping[str, bool], *, eq: bool, frozen: bool) -> Any:
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard library would compile an `__init__` to describe
    own = {name for name, value in vars(cls).items() if value is not None}
    made = by_the_standard_library(
        init=False, repr=False, eq=False, frozen=frozen and _is_frozen(cls.__base__), **layout
    )(cls)
    methods = {"__init__": _Init(made, frozen), "__repr__": _repr}
    if eq:
        methods |= _comparing(made, is_hashed=frozen)
    if frozen:
        methods |= _refusing(made)
    for name in methods.keys() - own:
        setattr(made, name, methods[name])
    parameters = made.__dataclass_params__
    parameters.init, parameters.repr, parameters.eq, parameters.frozen = True, True, eq, frozen
    return made


def _is_frozen(cls: Any) -> bool:
    return hasattr(cls, "__dataclass_params__") and bool(cls.__dataclass_params__.frozen)


class _Init:
    """Stands for `__init__` until the first instance is made or somebody looks at its signature."""

    __slots__ = ("_cls", "_frozen")

    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: object | None, owner: type) -> Any:
        init = _compiled(self._cls, self._frozen)
        type.__setattr__(self._cls, "__init__", init)
        return init if instance is None else MethodType(init, instance)


class _NotGiven:
    """The default of what a factory makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_NOT_GIVEN: Final = _NotGiven()


def _compiled(cls: type, frozen: bool) -> Any:
    """`__init__` as the standard library writes it."""
    every = fields(cls)
    known: dict[str, Any] = {"_set_": object.__setattr__, "_not_given_": _NOT_GIVEN}
    for field in every:
        if field.default_factory is not MISSING:
            known[f"_made_{field.name}"] = field.default_factory
        elif field.default is not MISSING:
            known[f"_default_{field.name}"] = field.default
    lines = [_assigned(field, frozen) for field in every if field.init or _has_default(field)]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = (
        f"def around({', '.join(known)}):\n"
        f" def __init__({', '.join(_parameters(every))}):\n  "
        + "\n  ".join(lines or ["pass"])
        + "\n return __init__"
    )
    found: dict[str, Any] = {}
    exec(text, vars(sys.modules[cls.__module__]), found)  # noqa: S102 — names of fields
    init = found["around"](**known)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {each.name: each.type for each in every if each.init} | {"return": None}
    return init


def _parameters(every: tuple[Field[Any], ...]) -> list[str]:
    taken = [field for field in every if field.init]
    only_named = [_parameter(field) for field in taken if field.kw_only]
    stars = ["*"] if only_named else []
    return [
        "self",
        *(_parameter(field) for field in taken if not field.kw_only),
        *stars,
        *only_named,
    ]


def _parameter(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f"{field.name}=_not_given_"
    return field.name if field.default is MISSING else f"{field.name}=_default_{field.name}"


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _assigned(field: Field[Any], frozen: bool) -> str:
    name = field.name
    value = name if field.init else f"_default_{name}"
    if field.default_factory is not MISSING:
        value = f"_made_{name}() if {name} is _not_given_ else {name}"
        value = value if field.init else f"_made_{name}()"
    return f"_set_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _comparing(cls: Any, *, is_hashed: bool) -> dict[str, Any]:
    every = fields(cls)
    compared = _values_of([each.name for each in every if each.compare])

    def __eq__(self: object, other: object) -> bool:  # noqa: N807 — becomes that method
        if type(other) is not type(self):
            return NotImplemented
        return bool(compared(self) == compared(other))

    if not is_hashed:
        return {"__eq__": __eq__, "__hash__": None}
    counts = [each.name for each in every if (each.compare if each.hash is None else each.hash)]
    hashed = _values_of(counts)
    return {"__eq__": __eq__, "__hash__": lambda self: hash(hashed(self))}


def _values_of(names: list[str]) -> Callable[[object], Any]:
    return attrgetter(*names) if names else lambda instance: ()


def _refusing(cls: Any) -> dict[str, Any]:
    names = frozenset(each.name for each in fields(cls))

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {
        "__setattr__": __setattr__,
        "__delattr__": __delattr__,
        "__getstate__": _state,
        "__setstate__": _set_state,
    }


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
