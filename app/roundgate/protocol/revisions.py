"""The table of the revisions without sessions that this server speaks.

`roundgate.protocol.v2025` has the other revisions.
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
"""The revision of messages to clients of an unknown revision, and of results that tasks store."""
