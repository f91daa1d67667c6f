"""Hosts of URLs, in the form in which a resolver reads them, and of Host headers; the address that
counts as one client.

`2130706433`, `0x7f.1`, `127.1`, `[::ffff:127.0.0.1]` and `localhost.` all name this machine.
"""

from __future__ import annotations

import re
import socket
import unicodedata
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = IPv4Address | IPv6Address

_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::[0-9]{1,5})?")
_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = IPv6Network("64:ff9b::/96")
_OWN_NAT64: Final = IPv6Network("64:ff9b:1::/48")
"""The prefix that RFC 8215 reserves for a network's own IPv6/IPv4 translation."""
_COMPATIBLE: Final = IPv6Network("::/96")
_INSIDE: Final = (
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "arpa",
)
"""Last labels of names outside the public DNS."""


def host_of(authority: str) -> str | None:
    """Return the name or the bracketed address in the value of a Host header, as it was sent, or
    `None` if anything else than `:digits` follows."""
    match = _AUTHORITY.fullmatch(authority)
    return None if match is None else match[1]


def canonical_host(url: str) -> str:
    """Return a URL's host in one canonical spelling, or an empty string. Addresses are normalized;
    names are lower case, in ASCII where possible, without a trailing dot."""
    name = unicodedata.normalize("NFKC", urlsplit(url).hostname or "").rstrip(".").lower()
    address = _address(name)
    if address is not None:
        return str(address)
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        return name


def canonical_origin(url: str) -> str:
    """Return the origin of a URL in one canonical spelling, without a default port.

    Raises:
        ValueError: the port is not a valid number.
    """
    parts = urlsplit(url)
    scheme, port, host = parts.scheme.lower(), parts.port, canonical_host(url)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + ("" if port in (None, _PORTS.get(scheme)) else f":{port}")


def is_public(url: str) -> bool:
    """Return whether a URL's host may be on the public internet. This machine, private networks
    and metadata services are not. Does not resolve names."""
    host = canonical_host(url)
    address = _address(host)
    if address is not None:
        is_inside = isinstance(address, IPv6Address) and (
            address in _OWN_NAT64 or address in _COMPATIBLE
        )
        return address.is_global and not address.is_multicast and not is_inside
    return "." in host and host.rpartition(".")[2] not in _INSIDE


def is_this_machine(url: str) -> bool:
    """Return whether a URL's host is this machine, in any spelling. Does not resolve names."""
    host = canonical_host(url)
    address = _address(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def _address(host: str) -> Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return _short_address(host)
    return _within(address) if isinstance(address, IPv6Address) else address


def _short_address(host: str) -> IPv4Address | None:
    """Return the IPv4 address that the C library reads from one to four decimal, hexadecimal or
    octal numbers, or `None`."""
    if not host or not host[0].isdigit() or not host.isascii():
        return None
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _within(address: IPv6Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address, or the IPv6 address itself."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@lru_cache(maxsize=1_024)
def client_address(host: str) -> str:
    """Return the address that counts as one client: an IPv4 address, or the /64 of an IPv6 address,
    which providers assign to one customer. The path of a Unix socket is returned unchanged."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
