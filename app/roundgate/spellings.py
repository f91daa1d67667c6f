"""How a secret may be written where somebody repeats it: in JSON, in a URL, in
hexadecimal digits, in base64.

Reports, cassettes and what services say are searched for these, and only the
whole of one is taken out.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

MIN_CHARS_CODED: Final = 8
"""Shorter secrets are not looked for in hexadecimal digits and in base64, where they
would be found by chance."""
_CHARACTER: Final = r"(?:[A-Za-z0-9+/_-]|%2[BbFf])?"
"""Of base64, as it is or as a URL has it."""
_PADDING: Final = r"(?:=|%3[Dd]){0,2}"


def in_urls(secret: str) -> set[str]:
    """In a path, a query or a form, with escapes in capital and in small letters."""
    usual = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return usual | {re.sub("%..", lambda found: found[0].lower(), one) for one in usual}


def in_json(secret: str) -> set[str]:
    """In a JSON string, also of those who escape what need not be."""
    usual = {json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    return usual | {one.replace("/", "\\/") for one in usual}


def in_digits(secret: str) -> set[str]:
    """In hexadecimal digits."""
    if len(secret) < MIN_CHARS_CODED:
        return set()
    return {secret.encode().hex(), secret.encode().hex().upper()}


def in_base64(secret: str) -> Iterator[tuple[str, str]]:
    """What surely stands in base64 that has a secret somewhere in it, with a
    pattern of all of it there.

    Three bytes are four characters. At which of the three the secret begins decides about the
    characters, and those at either end are of its neighbours too:

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
