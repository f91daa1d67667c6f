"""Paths into messages, for what is ignored and what is redacted:
`result.content[0].text`, `items[*].id`, `pin`.

A path matches where its steps are the last ones: `pin` is any member of that name.

Also the placeholders in texts: `${kind}`, `${kind:1}`, `${secret:NAME}`. A text's own `${` has one
more `$` before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from roundgate.errors import UsageError

Path: TypeAlias = tuple[str | int, ...]

_STEP: Final = re.compile(r"\[(\*|\d+)\]|(?:^|\.)([^.\[\]]+)")


@lru_cache(maxsize=256)
def steps(text: str) -> tuple[str | int, ...]:
    """The steps of a path; `*` is any.

    Raises:
        ValueError: it is none.
    """
    found = list(_STEP.finditer(text))
    if not found or "".join(one[0] for one in found) != text:
        raise ValueError(f"{text!r} is no path: write it as arguments.items[0].pin, or pin")
    return tuple(
        one[2] if one[2] is not None else "*" if one[1] == "*" else int(one[1]) for one in found
    )


def check_paths(option: str, paths: Sequence[str]) -> Sequence[str]:
    """The paths of an option of a command.

    Raises:
        UsageError: one is none.
    """
    for path in paths:
        try:
            steps(path)
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None
    return paths


def matches(pattern: str, path: Path) -> bool:
    """Whether a path ends with the steps of a pattern."""
    wanted = steps(pattern)
    last = path[len(path) - len(wanted) :]
    return len(path) >= len(wanted) and all(
        one in ("*", step) for one, step in zip(wanted, last, strict=True)
    )


def any_matches(patterns: Sequence[str], path: Path) -> bool:
    """Whether one of the patterns matches."""
    return any(matches(pattern, path) for pattern in patterns)


def dotted(path: Path) -> str:
    """`("result", "content", 0)` → `result.content[0]`."""
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".")


_MARK: Final = re.compile(r"(\$+)\{")
_INSIDE: Final = re.compile(r"([A-Za-z][\w-]*)(?::([\w.-]+))?\}")


@dataclass(frozen=True, slots=True)
class Slot:
    """One placeholder; `key` is what stands behind the colon, `None` where
    all values are the same."""

    kind: str
    key: str | None = None

    def __str__(self) -> str:
        return f"${{{self.kind}}}" if self.key is None else f"${{{self.kind}:{self.key}}}"


def escape(text: str) -> str:
    """A text of a conversation as it stands in a cassette."""
    return _MARK.sub(lambda found: f"${found[0]}", text) if "${" in text else text


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[str | Slot, ...]:
    """The pieces of a text of a cassette, the texts among them as they were said.

    Raises:
        ValueError: a placeholder is malformed, with what is wrong.
    """
    pieces: list[str | Slot] = []
    plain, at = "", 0
    for found in _MARK.finditer(text):
        if found.start() < at:
            continue
        plain += text[at : found.start()]
        if len(found[1]) > 1:
            plain += found[0][1:]
            at = found.end()
            continue
        inside = _INSIDE.match(text, found.end())
        if inside is None:
            raise ValueError(f"{text[found.start() : found.start() + 30]!r} is no placeholder")
        if plain:
            pieces.append(plain)
        pieces.append(Slot(inside[1], inside[2]))
        plain, at = "", inside.end()
    plain += text[at:]
    if plain:
        pieces.append(plain)
    return tuple(pieces)
