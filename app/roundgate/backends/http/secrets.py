"""Secrets of the configuration in what a service says: taken out before anybody else sees it.

A service may echo what it was sent, in an error page or a debugging endpoint; its credential is not
for callers, models and logs. What counts as one: the credential, tokens that were got with it, and
fixed headers whose names say so, of 8 characters or more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from pydantic import SecretStr

from roundgate.backends.http.credential_config import Credential
from roundgate.backends.http.messages import Answer
from roundgate.backends.secret_reading import Secrets
from roundgate.settings import Secret
from roundgate.settings.spellings import Escaped, in_base64, spellings

PLACEHOLDER: Final = b"[redacted]"
MIN_CHARS: Final = 8
SECRET_NAME: Final = re.compile(
    r"auth|cookie|credential|key|password|secret|session|signature|token", re.IGNORECASE
)
"""How what is fixed is called when it is a secret."""


class Redactor:
    """Takes secrets out of answers: those of the moment at which an answer comes."""

    def __init__(self, hidden: Callable[[], frozenset[str]]) -> None:
        """`hidden` returns the texts that no answer may show."""
        self._hidden = hidden
        self._of: frozenset[str] | None = None
        self._plain: tuple[tuple[bytes, bytes], ...] = ()
        self._in_base64: tuple[tuple[bytes, re.Pattern[bytes]], ...] = ()
        self._escaped: Escaped | None = None

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> Redactor:
        """Of these, which do not change."""
        found = frozenset(secrets)
        return cls(lambda: found)

    def __call__(self, answer: Answer) -> Answer:
        """An answer without them."""
        self._look()
        body = self._without(answer.body)
        content_type = self._without(answer.content_type.encode("utf-8", "replace")).decode()
        reason = self._without(answer.reason.encode("utf-8", "replace")).decode()
        headers = {
            name: self._without(value.encode("utf-8", "replace")).decode()
            for name, value in answer.headers.items()
        }
        return replace(answer, body=body, content_type=content_type, reason=reason, headers=headers)

    def _look(self) -> None:
        """Have needles for the secrets of now."""
        hidden = self._hidden()
        if hidden == self._of:
            return
        texts = [one for one in hidden if len(one) >= MIN_CHARS]
        plain = dict(one for text in texts for one in _spellings(text))
        self._plain = tuple(sorted(plain.items(), key=lambda one: len(one[0]), reverse=True))
        self._in_base64 = tuple(dict(one for text in texts for one in _in_base64(text)).items())
        in_base64_with_signs = {
            core for text in texts for core, _ in in_base64(text) if not {"+", "/"}.isdisjoint(core)
        }
        self._escaped = Escaped([*texts, *in_base64_with_signs]) if texts else None
        self._of = hidden

    def _without(self, data: bytes) -> bytes:
        if self._escaped is not None:  # first: a secret may start inside its own escape
            data = self._escaped.replaced(data, PLACEHOLDER)
        for needle, placeholder in self._plain:
            if needle in data:
                data = data.replace(needle, placeholder)
        for core, whole in self._in_base64:
            if core in data:  # which is quick, and nearly always the end of it
                data = whole.sub(PLACEHOLDER, data)
        return data


def of_credentials(credentials: Iterable[Credential], read: Secrets) -> set[str]:
    """What of credentials no answer may show, as far as it has been read."""
    found: set[str] = set()
    for credential in credentials:
        for text in read.known(credential.secrets()):
            found |= {text, *credential.parts_of(text)}
    return found


def of_headers(headers: Mapping[str, Secret], read: Secrets) -> set[str]:
    """What of fixed headers no answer may show."""
    secret = [value for name, value in headers.items() if SECRET_NAME.search(name)]
    return parted(read.known(secret))


def of_fixed_headers(headers: Mapping[str, SecretStr]) -> set[str]:
    """The same of headers whose values stand in the configuration."""
    return parted(
        value.get_secret_value() for name, value in headers.items() if SECRET_NAME.search(name)
    )


def parted(values: Iterable[str]) -> set[str]:
    """Each text, and what follows its first blank: the word before a secret ("Bearer …") is
    none."""
    return {part for value in values for part in (value, value.partition(" ")[2])}


def _spellings(secret: str) -> Iterator[tuple[bytes, bytes]]:
    """How a secret may come back whole, each with what stands in its place: in UTF-8, and
    as Windows writes text."""
    texts = spellings(secret)
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        placeholder = PLACEHOLDER.decode().encode(encoding)
        yield from ((one.encode(encoding), placeholder) for one in texts)


def _in_base64(secret: str) -> Iterator[tuple[bytes, re.Pattern[bytes]]]:
    for core, pattern in in_base64(secret):
        yield core.encode(), re.compile(pattern.encode())
