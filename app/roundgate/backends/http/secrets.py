"""Redaction of the configuration's secrets from a service's answers.

A service may echo a request, as error pages and debugging endpoints do. Callers, models and logs
must not see its credential. Secrets are credentials, tokens obtained with them, and fixed headers
whose names match `SECRET_NAME`. Secrets shorter than 8 characters are not redacted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace
from pydantic import SecretStr

from roundgate.backends.http.credential_config import Credential
from roundgate.backends.http.messages import ServiceAnswer
from roundgate.backends.secret_reading import SecretTexts
from roundgate.settings import Secret
from roundgate.settings.redacting import Redactor

PLACEHOLDER: Final = "[redacted]"
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
        self._redactor: Redactor | None = None

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> AnswerRedactor:
        """Return a redactor for a fixed set of secrets."""
        unique = frozenset(secrets)
        return cls(lambda: unique)

    def __call__(self, answer: ServiceAnswer) -> ServiceAnswer:
        """Return an answer without the secrets."""
        if (redactor := self._updated()) is None:
            return answer
        return replace(
            answer,
            body=redactor.of_bytes(answer.body),
            content_type=redactor.of_text(answer.content_type),
            reason=redactor.of_text(answer.reason),
            headers={name: redactor.of_text(value) for name, value in answer.headers.items()},
        )

    def of_bytes(self, data: bytes) -> bytes:
        """Return data without the secrets."""
        redactor = self._updated()
        return data if redactor is None else redactor.of_bytes(data)

    def _updated(self) -> Redactor | None:
        """Return the redactor of the current secrets; `None` if there are none."""
        if (hidden := self._hidden()) != self._current:
            texts = [text for text in hidden if len(text) >= MIN_CHARS]
            self._redactor = Redactor(texts, PLACEHOLDER) if texts else None
            self._current = hidden
        return self._redactor


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
