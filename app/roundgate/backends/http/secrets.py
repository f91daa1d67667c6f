"""Redaction of the configuration's secrets from answers of a service.

A service may echo its request, in an error page or a debugging endpoint; its credential is not for
callers, models and logs. Secret are the credential, tokens that were got with it, and fixed headers
whose names say so, if they have 8 characters or more.
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
"""Names of fixed headers and members that are secret."""


class Redactor:
    """Takes secrets out of answers, as they are when the answer arrives."""

    def __init__(self, hidden: Callable[[], frozenset[str]]) -> None:
        """Take the function that returns the secrets."""
        self._hidden = hidden
        self._current: frozenset[str] | None = None
        self._plain: tuple[tuple[bytes, bytes], ...] = ()
        self._in_base64: tuple[tuple[bytes, re.Pattern[bytes]], ...] = ()
        self._escaped: Escaped | None = None

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> Redactor:
        """Return a redactor of secrets that do not change."""
        found = frozenset(secrets)
        return cls(lambda: found)

    def __call__(self, answer: Answer) -> Answer:
        """Return an answer without the secrets."""
        self._update()
        return replace(
            answer,
            body=self._without(answer.body),
            content_type=self._without_text(answer.content_type),
            reason=self._without_text(answer.reason),
            headers={name: self._without_text(value) for name, value in answer.headers.items()},
        )

    def _update(self) -> None:
        hidden = self._hidden()
        if hidden == self._current:
            return
        texts = [one for one in hidden if len(one) >= MIN_CHARS]
        plain = dict(one for text in texts for one in _spellings(text))
        self._plain = tuple(sorted(plain.items(), key=lambda one: len(one[0]), reverse=True))
        self._in_base64 = tuple(dict(one for text in texts for one in _in_base64(text)).items())
        in_base64_with_signs = {
            core for text in texts for core, _ in in_base64(text) if not {"+", "/"}.isdisjoint(core)
        }
        self._escaped = Escaped([*texts, *in_base64_with_signs]) if texts else None
        self._current = hidden

    def _without_text(self, text: str) -> str:
        return self._without(text.encode("utf-8", "replace")).decode()

    def _without(self, data: bytes) -> bytes:
        if self._escaped is not None:  # first: a secret may start inside its own escape
            data = self._escaped.replaced(data, PLACEHOLDER)
        for needle, placeholder in self._plain:
            if needle in data:
                data = data.replace(needle, placeholder)
        for core, whole in self._in_base64:
            if core in data:
                data = whole.sub(PLACEHOLDER, data)
        return data


def of_credentials(credentials: Iterable[Credential], read: Secrets) -> set[str]:
    """Return the secrets of credentials that have been read."""
    found: set[str] = set()
    for credential in credentials:
        for text in read.known(credential.secrets()):
            found |= {text, *credential.parts_of(text)}
    return found


def of_headers(headers: Mapping[str, Secret], read: Secrets) -> set[str]:
    """Return the secrets of fixed headers that have been read."""
    secret = [value for name, value in headers.items() if SECRET_NAME.search(name)]
    return parted(read.known(secret))


def of_fixed_headers(headers: Mapping[str, SecretStr]) -> set[str]:
    """Return the secrets of fixed headers whose values stand in the configuration."""
    return parted(
        value.get_secret_value() for name, value in headers.items() if SECRET_NAME.search(name)
    )


def parted(values: Iterable[str]) -> set[str]:
    """Return each text, and the text after its first blank: the word before it ("Bearer …") is not
    secret."""
    return {part for value in values for part in (value, value.partition(" ")[2])}


def _spellings(secret: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the encodings of a secret that an answer may contain, each with its placeholder: in
    UTF-8, and in UTF-16 of Windows."""
    texts = spellings(secret)
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        placeholder = PLACEHOLDER.decode().encode(encoding)
        yield from ((one.encode(encoding), placeholder) for one in texts)


def _in_base64(secret: str) -> Iterator[tuple[bytes, re.Pattern[bytes]]]:
    for core, pattern in in_base64(secret):
        yield core.encode(), re.compile(pattern.encode())
