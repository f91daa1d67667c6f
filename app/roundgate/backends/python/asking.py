"""Whether a function asks its client something, as far as its code says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final

_ASKING: Final = frozenset({"elicit", "elicit_url", "sample", "roots", "ask", "request_input"})
"""The methods of `Context` that need a client which can be asked."""


def may_ask(function: Callable[..., Any]) -> bool:
    """Return whether a function that takes a context names a method of it that asks.

    Functions that it calls are not looked into. A function that asks `ctx.supports` first can do
    without: it counts as one that does not ask.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = frozenset(_names(code)) if isinstance(code, CodeType) else frozenset()
    return bool(names & _ASKING) and "supports" not in names


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes in a function and in those defined within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
