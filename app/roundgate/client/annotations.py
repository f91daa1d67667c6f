"""What the client takes from the server's side of revision 2026-07-28: annotations of
headers, how values are encoded.

The rules are one page of the specification, and are kept in one place; no other
module of the client names it.
"""

from __future__ import annotations

from roundgate.protocol.v2026_07_28.requests import ParamHeader, encode_value, mirrored_arguments

__all__ = ["ParamHeader", "encode_value", "mirrored_arguments"]
