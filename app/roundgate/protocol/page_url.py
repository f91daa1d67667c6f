"""URLs of pages that a user is sent to. The host shown must be the host that opens.

Browsers are lenient. They take `\\` for `/`, drop tabs and line ends, decode `%65` in a host, read
`2130706433` as 127.0.0.1 and letters of other scripts as what they resemble. The gateway and the
client refuse a URL whose host a browser could read differently from Python's `urlsplit`.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

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
        ValueError: the URL is not allowed; the message says which are.
    """
    if not isinstance(url, str):
        raise ValueError(f"the url of a page to open is text, not {type(url).__name__}")
    shown = ascii(url[:200])
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{shown} is not a URL: {error}") from None
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError(
            f"{shown} is no page to send a user to: give https, or http on a loopback address"
        )
    if not host:
        raise ValueError(f"{shown} has no host")
    if "@" in parts.netloc:
        raise ValueError(f"{shown} has a user name, which a person may take for the host")
    if not _URL.fullmatch(url):
        raise ValueError(
            f"{shown} has characters that no URL has: percent-encode them, and write hosts in Punycode"
        )
    if not is_plain_host(host):
        raise ValueError(
            f"{shown} has a host that browsers may read as another: write a name, or an IP address "
            "in its usual form"
        )
    return host


def is_plain_host(host: str) -> bool:
    """Return whether every program reads a host, in lower case, alike: a name of ASCII letters,
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
