"""The table of revisions: one entry for each that this server speaks, and no other place
that names their packages.

Those with sessions have a table of their own, `roundgate.protocol.revisions_with_sessions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from roundgate.protocol import v2026_07_28
from roundgate.protocol.revision import Revision

REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType(
    {v2026_07_28.PROTOCOL_VERSION: v2026_07_28}
)

NEWEST: Final[Revision] = v2026_07_28
"""In this one is written what is said before it is known which revision a client
speaks, and what tasks keep."""
