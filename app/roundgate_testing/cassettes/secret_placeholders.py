"""Placeholders for the secrets in a recording, in all their spellings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeAlias

from roundgate.settings.redacting import in_base64, in_escapes, in_json, spellings

Piece: TypeAlias = tuple[str, bool]
"""A part of a text, and whether the part is a placeholder."""
_Pattern: TypeAlias = tuple[str, re.Pattern[str], Callable[[str], str]]
"""A text that each match contains (may be empty), a pattern, and a function that makes the
placeholder of a match."""


class SecretPlaceholders:
    """A replacer of secrets by placeholders. Longer secrets are replaced first."""

    def __init__(self) -> None:
        self._placeholders: dict[str, str] = {}
        self._forms: dict[str, str] = {}
        self._patterns: list[_Pattern] | None = None

    def add(self, secret: str, placeholder: str) -> None:
        """Add a secret to replace: plain, escaped for JSON (once or twice), URLs, HTML or Python,
        in hexadecimal digits, and in base64."""
        if secret in self._placeholders:
            return
        self._placeholders[secret] = placeholder
        twice = {json.dumps(text, ensure_ascii=False)[1:-1] for text in in_json(secret)}
        forms = {repr(secret)[1:-1], *spellings(secret), *twice}
        self._forms |= {form: placeholder for form in forms if form not in self._forms}
        self._patterns = None

    def text(self, text: str) -> str:
        """Return a text with each secret replaced by its placeholder."""
        return "".join(piece for piece, _ in self.pieces(text))

    def pieces(self, text: str) -> list[Piece]:
        """Return the parts of a text, in which placeholders replace secrets."""
        pieces = [(text, False)]
        for core, pattern, placeholder_of in self._compiled():
            if core in text:
                pieces = split(pieces, pattern, placeholder_of)
        return pieces

    def _compiled(self) -> list[_Pattern]:
        if self._patterns is None:
            self._patterns = []
            secrets = sorted(self._placeholders.items(), key=lambda item: -len(item[0]))
            for secret, placeholder in secrets:
                for core, pattern in (("", in_escapes(secret)), *in_base64(secret)):
                    self._patterns.append((core, re.compile(pattern), _always(placeholder)))
            if self._forms:
                forms = sorted(self._forms, key=lambda form: (-len(form), form))
                literal = "|".join(map(re.escape, forms))
                self._patterns.append(("", re.compile(literal), self._forms.__getitem__))
        return self._patterns


def _always(placeholder: str) -> Callable[[str], str]:
    return lambda _: placeholder


def split(
    pieces: list[Piece], pattern: re.Pattern[str], placeholder_of: Callable[[str], str | None]
) -> list[Piece]:
    """Split a text into parts, replacing each match for which `placeholder_of` returns a
    placeholder."""
    result: list[Piece] = []
    for text, is_placeholder in pieces:
        at = 0
        for match in () if is_placeholder else pattern.finditer(text):
            if match[0] and (placeholder := placeholder_of(match[0])) is not None:
                result += [(text[at : match.start()], False), (placeholder, True)]
                at = match.end()
        result.append((text[at:], is_placeholder))
    return result
