"""Placeholders in texts: `${kind}`, `${kind:1}`, `${secret:NAME}`; a text's own `${` has
one more `$` before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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
