"""Dataclasses that are made for every call: frozen for the type checker, and quickly made."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar, dataclass_transform

from roundgate.values import dataclass

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def carrier(cls: type[T]) -> type[T]:
    """`@dataclass(frozen=True, slots=True)`, except that only the type checker
    refuses to change an instance.

    Python makes a frozen one in three times the time, and a call has a dozen of them:
    a tenth of what it takes.
    """
    return dataclass(slots=True)(cls)
