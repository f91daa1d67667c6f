"""Values that become part of a path: which ones a server might read as another path,
however they are encoded.

Percent-encoding a "/" does not make it harmless: many servers, and more proxies, decode the path
before they split it, some of them twice, and then `/public/..%2Fsecret` is `/secret` (CWE-22). So
such a value is refused, not encoded.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote, unquote_to_bytes

_MAX_DECODINGS: Final = 4
_OVERLONG: Final = (b"\xc0", b"\xc1", b"\xe0\x80", b"\xe0\x81", b"\xf0\x80")
"""How ASCII begins when it is written in more bytes than it needs, which lenient decoders take."""


_UNIT: Final = re.compile(r"%[uU]([0-9a-fA-F]{4})")
"""A character as IIS and old scripts escape it."""


def _of_unit(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def path_text(value: str, *, allow_slash: bool = False) -> str:
    """A value as it stands in a path, percent-encoded; with `allow_slash` it may be several
    segments.

    Raises:
        ValueError: what it may not have.
    """
    for text in _readings(value):
        _check(text, allow_slash)
    return quote(value, safe="/" if allow_slash else "")


def _readings(value: str) -> list[str]:
    """Everything that a server may make of a value: decoded once, twice, …, and with
    wide characters made plain.

    Raises:
        ValueError: there is no end to it, or it has bytes that are made to deceive.
    """
    readings = [value]
    for _ in range(_MAX_DECODINGS):
        raw = unquote_to_bytes(_UNIT.sub(_of_unit, readings[-1]))
        if any(start in raw for start in _OVERLONG):
            raise ValueError("may not have overlong UTF-8")
        decoded = raw.decode("utf-8", "replace")
        if decoded == readings[-1]:
            return [*readings, *(unicodedata.normalize("NFKC", one) for one in readings)]
        readings.append(decoded)
    raise ValueError("may not be percent-encoded several times over")


def _check(text: str, allow_slash: bool) -> None:
    if "\\" in text or "\x00" in text:
        raise ValueError('may not have "\\" or NUL, in any encoding')
    if "/" in text and not allow_slash:
        raise ValueError('may not have "/", in any encoding')
    for segment in text.split("/"):
        # Tomcat and its kin take off what is behind ";", Windows the blanks at the end
        if segment.partition(";")[0].strip() in ("", ".", ".."):
            raise ValueError('may not be or have an empty segment, "." or "..", in any encoding')
