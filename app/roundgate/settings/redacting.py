"""Redaction of secrets from answers, recordings and reports, in all the spellings in which they may
appear: in JSON, URLs, HTML, hexadecimal digits and base64. Only a whole secret is redacted.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from html.entities import html5
from typing import Any, Final
from urllib.parse import quote, quote_plus

MIN_CHARS_CODED: Final = 8
"""The shortest secret to search for in hexadecimal digits and base64. Shorter secrets would match
by chance."""
_CHARACTER: Final = r"(?:[A-Za-z0-9+/_-]|%2[BbFf])?"
"""The pattern of an optional base64 character, plain or escaped in a URL."""
_PADDING: Final = r"(?:=|%3[Dd]){0,2}"


def spellings(secret: str) -> set[str]:
    """Return the secret in plain text, JSON, URLs and hexadecimal digits. `in_base64` and
    `in_escapes` return patterns for its other spellings."""
    return {secret, *in_json(secret), *in_urls(secret), *in_digits(secret)}


def in_urls(secret: str) -> set[str]:
    """Return the spellings in a path, a query or a form, with upper-case and lower-case escapes."""
    usual = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return usual | {re.sub("%..", lambda match: match[0].lower(), spelling) for spelling in usual}


def in_json(secret: str) -> set[str]:
    """Return the spellings in a JSON string, including those with unnecessary escapes."""
    usual = {json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    return usual | {spelling.replace("/", "\\/") for spelling in usual}


def in_digits(secret: str) -> set[str]:
    """Return the hexadecimal digits in lower and upper case; empty for short secrets."""
    if len(secret) < MIN_CHARS_CODED:
        return set()
    return {secret.encode().hex(), secret.encode().hex().upper()}


def in_base64(secret: str) -> Iterator[tuple[str, str]]:
    """Yield texts and patterns that find the secret in the base64 of any data. The base64 contains
    one of the texts; its pattern also matches the characters around the text. Yields nothing for
    secrets shorter than `MIN_CHARS_CODED`.

    Base64 encodes three bytes as four characters. The text depends on the secret's offset within
    three bytes, and the characters at its ends (`?`) also depend on neighbouring bytes:

        secret at byte 0   SSSS SSSS SS??     at 1   ?SSS SSSS S???     at 2   ??SS SSSS SSSS
    """
    if len(secret) < MIN_CHARS_CODED:
        return
    for before in range(3):
        padded = b"\0" * before + secret.encode()
        sure = base64.b64encode(padded)[(0, 2, 3)[before] : len(padded) * 8 // 6].decode()
        for core in {sure, sure.translate(_URL_SAFE), quote(sure, safe="")}:
            first = _CHARACTER if before else ""
            last = _CHARACTER if len(padded) % 3 else ""
            yield core, f"{first}{re.escape(core)}{last}{_PADDING}"


_URL_SAFE: Final = str.maketrans("+/", "-_")


def in_escapes(secret: str) -> str:
    """Return a pattern that matches a secret even if characters are escaped, once or repeatedly,
    for JSON, URLs or HTML."""
    spelt = "".join(f"(?:{'|'.join(_spelt(character))})" for character in secret)
    # the lookahead rejects most positions of a text quickly
    first = "+ " if secret[0] == " " else re.escape(secret[0])
    return rf"(?=[{first}\\%&]){spelt}"


class Escaped:
    """A search for secrets in escaped form, in bytes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)
        self._signs = _signs("".join(self._secrets))

    def replaced(self, data: bytes, placeholder: bytes) -> bytes:
        """Return the bytes with each secret replaced by a placeholder."""
        if any(first in data and sign.search(data) for first, sign in self._signs):
            return self._pattern.sub(placeholder, data)
        return data

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile("|".join(map(in_escapes, self._secrets)).encode())


def _signs(secrets: str) -> list[tuple[bytes, re.Pattern[bytes]]]:
    """Return patterns that quickly exclude most texts, each with its first byte. Any text with an
    escaped character of a secret matches one of them."""
    characters = sorted({*secrets, *"\\%&"})
    units = "|".join(_hex(character.encode("utf-16-be", "replace")[:2]) for character in characters)
    bytes_ = "|".join(_hex(character.encode("utf-8", "replace")[:1]) for character in characters)
    numbers = "|".join(
        f"{ord(character)};|[xX]0*{_any_case(f'{ord(character):x}')};" for character in characters
    )
    named = "".join(
        f"|{name};" for character in {*secrets} for name in _entities().get(character, ())
    )
    codes = "|".join(
        _hex(bytes([ord(character)])) for character in characters if ord(character) < 0x100
    )
    signs = [rf"\\u(?:{units})", rf"\\x(?:{codes})", f"%(?:{bytes_})"]
    signs.append(f"&(?:amp;){{0,8}}(?:#0*(?:{numbers}){named})")
    signs += [rf"\\{re.escape(character)}" for character in _SHORT if character in secrets]
    return [(sign[0].encode(), re.compile(sign.encode())) for sign in signs]


def _spelt(character: str) -> Iterator[str]:
    yield from (_in_json(character), _in_url(character), _in_html(character))
    if character == " ":
        yield r"\+"
    yield re.escape(character)  # last: a backslash may start its own escape


def _in_json(character: str) -> str:
    """Return the pattern of a character escaped for JSON, or as `\\xHH` for JavaScript and
    Python."""
    units = character.encode("utf-16-be", "replace")
    ways = [
        "".join(rf"{_BACKSLASHES}u{_hex(units[at : at + 2])}" for at in range(0, len(units), 2))
    ]
    if ord(character) < 0x100:
        ways.append(rf"{_BACKSLASHES}x{_hex(bytes([ord(character)]))}")
    if character in _SHORT:
        ways.append(rf"{_BACKSLASHES}{re.escape(character)}")
    return "|".join(ways)


def _in_url(character: str) -> str:
    return "".join(
        f"{_PERCENT}{_hex(bytes([byte]))}" for byte in character.encode("utf-8", "replace")
    )


def _in_html(character: str) -> str:
    code = ord(character)
    ways = [
        f"#0{{0,8}}{code}",
        f"#[xX]0{{0,8}}{_any_case(f'{code:x}')}",
        *_entities().get(character, ()),
    ]
    return f"{_AND}(?:{'|'.join(ways)});"


def _hex(data: bytes) -> str:
    return _any_case(data.hex())


def _any_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)


@cache
def _entities() -> dict[str, list[str]]:
    entities: dict[str, list[str]] = {}
    for name, characters in html5.items():
        if name.endswith(";") and len(characters) == 1:
            entities.setdefault(characters, []).append(name[:-1])
    return entities


_SHORT: Final = "\"'/\\"
"""The characters that a single backslash may escape."""
_BACKSLASHES: Final = r"\\{1,16}"
_PERCENT: Final = rf"(?:%|{_BACKSLASHES}u0025)(?:25){{0,8}}"
_AND: Final = rf"(?:&|{_BACKSLASHES}u0026|%26)(?:amp;|amp%3[bB]){{0,8}}"
"""The pattern of an escaped `&`. Repetitions are bounded, so matching takes linear time."""


class Redactor:
    """A replacer of secrets by a placeholder: plain, escaped, in hexadecimal digits and in base64. In
    bytes, it also finds secrets in UTF-16."""

    def __init__(self, secrets: Iterable[str], placeholder: str) -> None:
        self._placeholder = placeholder.encode()
        in_bytes: dict[bytes, bytes] = {}
        in_base: dict[str, str] = {}
        texts = list(secrets)
        for text in texts:
            in_base |= dict(in_base64(text))
            for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
                hidden = placeholder.encode(encoding)
                in_bytes |= {form.encode(encoding): hidden for form in spellings(text)}
        self._plain = sorted(in_bytes.items(), key=lambda item: len(item[0]), reverse=True)
        self._in_base64 = [(core.encode(), re.compile(p.encode())) for core, p in in_base.items()]
        with_signs = {core for core in in_base if not {"+", "/"}.isdisjoint(core)}
        self._escaped = Escaped([*texts, *with_signs])

    def of_bytes(self, data: bytes) -> bytes:
        """Return data without the secrets."""
        # first: a secret may start inside its own escape
        data = self._escaped.replaced(data, self._placeholder)
        for needle, placeholder in self._plain:
            if needle in data:
                data = data.replace(needle, placeholder)
        for core, whole in self._in_base64:
            if core in data:
                data = whole.sub(self._placeholder, data)
        return data

    def of_text(self, text: str) -> str:
        """Return a text without the secrets."""
        return self.of_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


SHOWN: Final = "***"
CUT: Final = "…"
"""The mark at the end of a shortened text."""
MIN_CHARS: Final = 4
"""The minimum number of characters of a secret. Shorter texts would match by chance."""


class Secrets:
    """The values to redact in all output."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._redactor: Redactor | None = None
        self._forms: list[str] = []
        """The plain spellings of the secrets, the longest first."""
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Redact a text or number from now on, or all texts and numbers in a JSON value. Values
        shorter than `MIN_CHARS` are not redacted."""
        match value:
            case dict():
                self.add(list(value.values()))
            case list():
                for item in value:
                    self.add(item)
            case str() | int() | float() if not isinstance(value, bool):
                text = str(value)
                if len(text) >= MIN_CHARS and text not in self._secrets:
                    self._secrets.add(text)
                    self._redactor = None

    def hidden(self, text: str) -> str:
        """Return a text with its secrets redacted, including the beginning of a secret where the
        text was shortened."""
        text = self._whole_hidden(text)
        for form in self._forms:
            for length in range(min(len(form) - 1, len(text)), MIN_CHARS - 1, -1):
                beginning = form[:length]
                text = text.replace(f"{beginning}{CUT}", f"{SHOWN}{CUT}")
                if text.endswith(beginning):
                    text = f"{text[:-length]}{SHOWN}"
        return text

    def without(self, value: Any) -> Any:
        """Return a JSON value with the secrets in it redacted."""
        match value:
            case str():
                return self.hidden(value)
            case dict():
                return {self.hidden(str(key)): self.without(item) for key, item in value.items()}
            case list():
                return [self.without(item) for item in value]
            case int() | float() if not isinstance(value, bool):
                return SHOWN if self._whole_hidden(str(value)) == SHOWN else value
            case _:
                return value

    def _whole_hidden(self, text: str) -> str:
        if self._redactor is None:
            self._redactor = Redactor(self._secrets, SHOWN)
            forms = {form for secret in self._secrets for form in spellings(secret)}
            self._forms = sorted(forms, key=len, reverse=True)
        return self._redactor.of_text(text)
