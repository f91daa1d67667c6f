"""The address that counts as one client, for limits by address."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address


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
