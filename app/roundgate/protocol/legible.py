"""Text of other parties with its hidden characters written out: characters that are invisible, or
that move or cover their neighbours.

A right-to-left override shows `gpj.exe` as `exe.jpg`, tag characters form invisible words, and a
line separator begins a line that looks like the gateway's. Such characters become JSON's escapes
(`\\u202e`); all others stay.
"""

from __future__ import annotations

import json
import re
import unicodedata
from ipaddress import IPv4Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

MAX_MARKS: Final = 2
"""The maximum number of combining marks on one letter. More marks are not spelling, and cover the
text around them."""

_INVISIBLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
"""Letters and marks that are not drawn (Unicode's Default_Ignorable_Code_Point, and the blank of
Braille)."""


def visible(text: str) -> str:
    """Return a text with escapes for format, control, private and unassigned characters, unusual
    blanks and more than `MAX_MARKS` combining marks on a letter."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        shown.append(_escaped(char) if marks > MAX_MARKS or _is_hidden(char) else char)
    return "".join(shown)


def visible_json(value: Any) -> str:
    """Return a JSON value on one line, without hidden characters in its strings."""
    # JSON escapes quotes, backslashes and line ends, so our escapes are never mistaken for text
    return visible(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _is_hidden(char: str) -> bool:
    kind = unicodedata.category(char)[0]
    return kind == "C" or (kind == "Z" and char != " ") or char in _INVISIBLE


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if char.isascii() else json.dumps(char)[1:-1]


_URL: Final = re.compile(r"https?://[!#-;=?-\[\]_a-z~]+", re.IGNORECASE)
"""The characters that RFC 3986 allows in a URL. `\\` and white space are not among them."""
_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*")
"""A last label that makes a browser read the host as an IPv4 address."""


def page_host(url: Any) -> str:
    """Return the host of a page that a user may be sent to, as a browser reads it.

    Args:
        url: an https URL, or an http URL on a loopback address.

    Raises:
        ValueError: the URL is not allowed; the message names the allowed form.
    """
    if not isinstance(url, str):
        raise ValueError(f"the url of a page to open must be text, not {type(url).__name__}")
    shown = ascii(url[:200])
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{shown} is not a URL: {error}") from None
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError(
            f"{shown} is not a page to send a user to: use https, or http on a loopback address"
        )
    if not host:
        raise ValueError(f"{shown} has no host")
    if "@" in parts.netloc:
        raise ValueError(
            f"{shown} has a user name, which people may mistake for the host; remove it"
        )
    if not _URL.fullmatch(url):
        raise ValueError(
            f"{shown} has characters that a URL cannot have: percent-encode them, and write hosts in Punycode"
        )
    if not is_plain_host(host):
        raise ValueError(
            f"{shown} has a host that browsers may read as another: write a name, or an IP address "
            "in its usual form"
        )
    return host


def is_plain_host(host: str) -> bool:
    """Return whether every program reads a lower-case host alike: a name of ASCII letters,
    digits, `-`, `_` and dots, or an IP address in its usual form."""
    if ":" in host:
        return _is_address(host)
    if not _NAME.fullmatch(host):
        return False
    is_number = _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2])
    return is_number is None or (_is_address(host) and str(IPv4Address(host)) == host)


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        return "%" not in str(ip_address(host))
    except ValueError:
        return False
