"""Values that no report, no snapshot and no terminal shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from roundgate.settings.spellings import in_base64, in_escapes, spellings

SHOWN: Final = "***"
CUT: Final = "…"
"""What stands where a long text was cut."""
MIN_CHARS: Final = 4
"""Shorter values are not looked for: they would be found in every second word."""


class Secrets:
    """What has to be kept secret, and how a text or a value looks without it."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._forms: set[str] = set()
        self._in_base64: dict[str, re.Pattern[str]] = {}
        self._escaped: dict[str, re.Pattern[str]] = {}
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Keep a value secret from now on, and each text in it."""
        if isinstance(value, dict):
            for member in value.values():
                self.add(member)
        elif isinstance(value, list):
            for item in value:
                self.add(item)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            if len(text) >= MIN_CHARS:
                # Python's errors quote with `repr`
                self._forms |= {repr(text)[1:-1], *spellings(text)}
                self._escaped[text] = re.compile(in_escapes(text))
                for core, pattern in in_base64(text):
                    self._in_base64[core] = re.compile(pattern)

    def hidden(self, text: str) -> str:
        """A text without the secrets in it, and without the beginning of one
        behind which it was cut."""
        for core, pattern in self._in_base64.items():
            if core in text:
                text = pattern.sub(SHOWN, text)
        for pattern in self._escaped.values():
            text = pattern.sub(SHOWN, text)
        for form in sorted(self._forms, key=len, reverse=True):
            text = text.replace(form, SHOWN)
            for length in range(min(len(form) - 1, len(text)), MIN_CHARS - 1, -1):
                begun = form[:length]
                text = text.replace(f"{begun}{CUT}", f"{SHOWN}{CUT}")
                if text.endswith(begun):
                    text = f"{text[:-length]}{SHOWN}"
        return text

    def without(self, value: Any) -> Any:
        """A JSON value without the secrets in it."""
        match value:
            case str():
                return self.hidden(value)
            case dict():
                return {self.hidden(str(key)): self.without(item) for key, item in value.items()}
            case list():
                return [self.without(item) for item in value]
            case int() | float() if not isinstance(value, bool) and str(value) in self._forms:
                return SHOWN
            case _:
                return value
