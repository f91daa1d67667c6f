"""Regular expressions of suites: those of JSON Schema's `pattern` (ECMA 262), with an
engine whose effort is bounded.

A suite may be somebody else's, and what it is compared with comes from a server: Python's own
engine can take years for `(a+)+$`. This one gives up, and then the text does not match.
"""

from __future__ import annotations

from functools import lru_cache

from roundgate.protocol import Schema


def problem(pattern: str) -> str | None:
    """What is wrong with an expression, in words; `None` if nothing is."""
    try:
        _compiled(pattern)
    except ValueError:
        return f"is no regular expression: {pattern!r}"
    return None


def is_found(pattern: str, text: str) -> bool:
    """Whether the expression matches anywhere in a text; it has no `problem`."""
    return _compiled(pattern).is_valid(text)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Schema:
    return Schema.compile({"type": "string", "pattern": pattern})
