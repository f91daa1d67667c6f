"""Redaction of the configuration's secrets from a service's answers.

A service may echo a request, as error pages and debugging endpoints do. Callers, models and logs
must not see its credential. Secrets are credentials, tokens obtained with them, and fixed headers
whose names match `SECRET_NAME`. Secrets shorter than 8 characters are not redacted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace
from pydantic import SecretStr

from roundgate.backends.http.credential_config import Credential
from roundgate.backends.http.messages import ServiceAnswer
from roundgate.backends.secret_reading import SecretTexts
from roundgate.settings import Secret
from roundgate.settings.spellings import Escaped, in_base64, spellings

PLACEHOLDER: Final = b"[redacted]"
MIN_CHARS: Final = 8
SECRET_NAME: Final = re.compile(
    r"auth|cookie|credential|key|password|secret|session|signature|token", re.IGNORECASE
)
"""A pattern for the names of secret headers and members."""


class AnswerRedactor:
    """A function that redacts from an answer the secrets that are current when the answer
    arrives."""

    def __init__(self, hidden: Callable[[], frozenset[str]]) -> None:
        """Store `hidden`, which returns the current secrets."""
        self._hidden = hidden
        self._current: frozenset[str] | None = None
        self._plain: tuple[tuple[bytes, bytes], ...] = ()
        self._in_base64: tuple[tuple[bytes, re.Pattern[bytes]], ...] = ()
        self._escaped: Escaped | None = None

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> AnswerRedactor:
        """Return a redactor for a fixed set of secrets."""
        unique = frozenset(secrets)
        return cls(lambda: unique)

    def __call__(self, answer: ServiceAnswer) -> ServiceAnswer:
        """Return an answer without the secrets."""
        self._update()
        if self._escaped is None:  # there are no secrets
            return answer
        return replace(
            answer,
            body=self._without(answer.body),
            content_type=self._without_text(answer.content_type),
            reason=self._without_text(answer.reason),
            headers={name: self._without_text(value) for name, value in answer.headers.items()},
        )

    def of_bytes(self, data: bytes) -> bytes:
        """Return data without the secrets."""
        self._update()
        return self._without(data)

    def _update(self) -> None:
        hidden = self._hidden()
        if hidden == self._current:
            return
        texts = [hidden_text for hidden_text in hidden if len(hidden_text) >= MIN_CHARS]
        plain = dict(hidden_text for text in texts for hidden_text in _spellings(text))
        self._plain = tuple(
            sorted(plain.items(), key=lambda hidden_text: len(hidden_text[0]), reverse=True)
        )
        self._in_base64 = tuple(
            dict(hidden_text for text in texts for hidden_text in _in_base64(text)).items()
        )
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


def of_credentials(credentials: Iterable[Credential], read: SecretTexts) -> set[str]:
    """Return the secrets of credentials, as far as they have been read."""
    texts: set[str] = set()
    for credential in credentials:
        for text in read.known(credential.secrets()):
            texts |= {text, *credential.parts_of(text)}
    return texts


def of_headers(headers: Mapping[str, Secret], read: SecretTexts) -> set[str]:
    """Return the secrets in fixed headers, as far as they have been read."""
    secret = [value for name, value in headers.items() if SECRET_NAME.search(name)]
    return parted(read.known(secret))


def of_fixed_headers(headers: Mapping[str, SecretStr]) -> set[str]:
    """Return the secrets in fixed headers whose values are in the configuration."""
    return parted(
        value.get_secret_value() for name, value in headers.items() if SECRET_NAME.search(name)
    )


def parted(values: Iterable[str]) -> set[str]:
    """Return each text, and its part after the first space, because a first word such as "Bearer"
    is not secret."""
    return {part for value in values for part in (value, value.partition(" ")[2])}


def _spellings(secret: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the encodings of a secret that an answer may contain (UTF-8 and UTF-16), each with its
    placeholder."""
    texts = spellings(secret)
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        placeholder = PLACEHOLDER.decode().encode(encoding)
        yield from ((text.encode(encoding), placeholder) for text in texts)


def _in_base64(secret: str) -> Iterator[tuple[bytes, re.Pattern[bytes]]]:
    for core, pattern in in_base64(secret):
        yield core.encode(), re.compile(pattern.encode())
