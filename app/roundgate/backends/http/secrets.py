"""Secrets of the configuration in what a service says: taken out before anybody else sees it.

A service may echo what it was sent, in an error page or a debugging endpoint; its credential is not for callers, models
and logs. What counts as one: the credential, tokens that were got with it, and fixed headers whose names say so, of 8
characters or more.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote, quote_plus

from pydantic import SecretStr

from roundgate import json
from roundgate.backends.http.credential_config import Credential
from roundgate.backends.http.messages import Answer
from roundgate.backends.secret_reading import Secrets
from roundgate.config import Secret

PLACEHOLDER: Final = b"[redacted]"
MIN_CHARS: Final = 8
_SECRET_NAME: Final = re.compile(
    r"auth|cookie|credential|key|password|secret|session|signature|token", re.IGNORECASE
)
_BASE64: Final = rb"(?:[A-Za-z0-9+/_-]|%2[BbFf])"
"""A character of base64, as it is or as a URL has it."""


class Redactor:
    """Takes secrets out of answers: those of the moment at which an answer comes."""

    def __init__(self, hidden: Callable[[], frozenset[str]]) -> None:
        """`hidden` returns the texts that no answer may show."""
        self._hidden = hidden
        self._of: frozenset[str] | None = None
        self._plain: tuple[bytes, ...] = ()
        self._in_base64: tuple[tuple[bytes, re.Pattern[bytes]], ...] = ()

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
        plain = {spelling for text in texts for spelling in _spellings(text)}
        self._plain = tuple(sorted(plain, key=len, reverse=True))
        self._in_base64 = tuple(dict(one for text in texts for one in _in_base64(text)).items())
        self._of = hidden

    def _without(self, data: bytes) -> bytes:
        for needle in self._plain:
            if needle in data:
                data = data.replace(needle, PLACEHOLDER)
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
    secret = [value for name, value in headers.items() if _SECRET_NAME.search(name)]
    return _parted(read.known(secret))


def of_fixed_headers(headers: Mapping[str, SecretStr]) -> set[str]:
    """The same of headers whose values stand in the configuration."""
    return _parted(
        value.get_secret_value() for name, value in headers.items() if _SECRET_NAME.search(name)
    )


def _parted(values: Iterable[str]) -> set[str]:
    # "Bearer …", "Token …": the word before a secret is none
    return {part for value in values for part in (value, value.partition(" ")[2])}


def _spellings(secret: str) -> set[bytes]:
    """How a secret may come back: as it is, in JSON, in a URL or a form, in hexadecimal digits."""
    plain = secret.encode()
    in_urls = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    in_small_letters = {re.sub("%..", lambda found: found[0].lower(), one) for one in in_urls}
    return {
        plain,
        json.encode(secret)[1:-1],
        json.encode(secret)[1:-1].replace(b"/", b"\\/"),
        *(one.encode() for one in in_urls | in_small_letters),
        plain.hex().encode(),
        plain.hex().upper().encode(),
    }


def _in_base64(secret: str) -> Iterator[tuple[bytes, re.Pattern[bytes]]]:
    """What surely stands in base64 that has a secret somewhere in it, with what finds all of the secret there.

    Three bytes are four characters. At which of the three the secret begins decides about the characters, and those at
    either end are of its neighbours too:

        secret at byte 0   SSSS SSSS SS??     at 1   ?SSS SSSS S???     at 2   ??SS SSSS SSSS
    """
    for before in range(3):
        padded = b"\0" * before + secret.encode()
        written = base64.b64encode(padded)
        first = (0, 2, 3)[before]
        last = len(padded) * 8 // 6
        for core in {written[first:last], written[first:last].translate(_URL_SAFE)}:
            for spelt in {core, quote(core, safe="-_").encode()}:
                shared_before = _BASE64 + b"?" if before else b""
                shared_after = _BASE64 + b"?" if len(padded) % 3 else b""
                ending = b"(?:=|%3[Dd]){0,2}"
                yield spelt, re.compile(shared_before + re.escape(spelt) + shared_after + ending)


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
