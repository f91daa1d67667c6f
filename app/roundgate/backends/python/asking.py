"""Detection of functions whose code asks the client something."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final

_ASKING: Final = frozenset({"elicit", "elicit_url", "sample", "roots", "ask", "request_input"})
"""The methods of `Context` that ask the client."""


def may_ask(function: Callable[..., Any]) -> bool:
    """Return whether a function that takes a context names one of its asking methods.

    The functions that it calls are not examined. A function that checks `ctx.supports` can do
    without an answer, so it does not count.
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
