"""Secrets of the configuration in what a service says: taken out before anybody else sees it.

A service may echo what it was sent, in an error page or a debugging endpoint; its credential is not for callers, models
and logs. What counts as one: the credential, and fixed headers whose names say so, of 8 characters or more.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, quote_plus

from pydantic import SecretStr

from roundgate import json
from roundgate.backends.http.config import Credential, RemoteConfig
from roundgate.backends.http.messages import Answer

PLACEHOLDER: Final = b"[redacted]"
MIN_CHARS: Final = 8
_SECRET_NAME: Final = re.compile(
    r"auth|cookie|credential|key|password|secret|session|signature|token", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Takes the secrets of one back end out of answers."""

    needles: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        config: RemoteConfig,
        more: Iterable[Mapping[str, SecretStr]] = (),
        slots: Iterable[Credential] = (),
    ) -> Redactor:
        """Of everything secret that requests to a service may carry; `more` has the fixed headers of its tools, and
        `slots` the credentials besides the general one."""
        general = () if config.credential is None else (config.credential,)
        secrets = set[str]().union(*(one.secrets() for one in (*general, *slots)))
        for headers in (config.headers, *more):
            secrets |= _of_headers(headers)
        return cls.of_secrets(secrets)

    @classmethod
    def of_secrets(cls, secrets: Iterable[str]) -> Redactor:
        """Of these."""
        spellings = {
            spelling
            for secret in secrets
            if len(secret) >= MIN_CHARS
            for spelling in _spellings(secret)
        }
        return cls(tuple(sorted(spellings, key=len, reverse=True)))

    def __call__(self, answer: Answer) -> Answer:
        """An answer without them."""
        body = self._without(answer.body)
        content_type = self._without(answer.content_type.encode("utf-8", "replace")).decode()
        reason = self._without(answer.reason.encode("utf-8", "replace")).decode()
        headers = {
            name: self._without(value.encode("utf-8", "replace")).decode()
            for name, value in answer.headers.items()
        }
        return replace(answer, body=body, content_type=content_type, reason=reason, headers=headers)

    def _without(self, data: bytes) -> bytes:
        for needle in self.needles:
            if needle in data:
                data = data.replace(needle, PLACEHOLDER)
        return data


def _of_headers(headers: Mapping[str, SecretStr]) -> set[str]:
    values = [
        value.get_secret_value() for name, value in headers.items() if _SECRET_NAME.search(name)
    ]
    # "Bearer …", "Token …": the word before a secret is none
    return {part for value in values for part in (value, value.partition(" ")[2])}


def _spellings(secret: str) -> set[bytes]:
    """How a secret may come back: as it is, in JSON, in a URL, in base64, alone or in the middle of more."""
    plain = secret.encode()
    in_json = json.encode(secret)[1:-1]
    return {
        plain,
        in_json,
        quote(secret, safe="").encode(),
        quote_plus(secret).encode(),
        base64.b64encode(plain),
    }
