"""Names of tools and of arguments: what models and clients take, stable, and no two alike."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
MAX_ARGUMENT: Final = 64
MAX_ARGUMENTS: Final = 1_000
"""Of one tool. Each name is compared with those before it; and no model chooses among more."""
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Identity:
    """What an operation is known by; method and path are its own in one document, `source`
    tells documents apart."""

    method: str
    path: str
    operation_id: str | None
    source: str = ""


def tool_names(operations: Sequence[Identity], longest: int) -> list[str]:
    """A name for each operation.

    A name that is too long, or that several would have, ends in a digest of method and path: so it
    stays what it is when the document gets other operations, or another order.

    Args:
        operations: of all documents of a back end.
        longest: characters of a name at most.
    """
    wanted = [_wanted(one) for one in operations]
    often = Counter(name.lower() for name in wanted)
    return [
        name
        if len(name) <= longest and often[name.lower()] == 1
        else _with_digest(name, one, longest)
        for name, one in zip(wanted, operations, strict=True)
    ]


def _wanted(operation: Identity) -> str:
    if operation.operation_id and (
        name := _NOT_IN_NAMES.sub("_", operation.operation_id).strip("_")
    ):
        return name
    path = _NOT_IN_NAMES.sub("_", operation.path).strip("_")
    return f"{operation.method.lower()}_{path}" if path else operation.method.lower()


def _with_digest(name: str, operation: Identity, longest: int) -> str:
    known_by = f"{operation.method} {operation.path} {operation.source}".rstrip()
    digest = hashlib.sha256(known_by.encode()).hexdigest()[:_DIGITS]
    return f"{name[: max(longest - _DIGITS - 1, 0)].rstrip('_.-')}_{digest}".lstrip("_")


def argument_name(name: str, taken: Iterable[str]) -> str:
    """A name for an argument that no other has: `filter[name]` becomes `filter_name`."""
    base = _NOT_IN_NAMES.sub("_", name).strip("_")[:MAX_ARGUMENT] or "argument"
    others = set(taken)
    number, found = 2, base
    while found in others:
        found = f"{base[: MAX_ARGUMENT - 4]}_{number}"
        number += 1
    return found
