"""Whose certificates are believed when we call somebody else."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@cache
def trust_store() -> ssl.SSLContext:
    """The authorities of the certifi package, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR`
    names.

    Read once for all connections: that takes 40 ms, in which nobody else is served.
    """
    import httpx

    return httpx.create_ssl_context()
