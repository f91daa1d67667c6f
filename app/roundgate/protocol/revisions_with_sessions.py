"""The table of revisions with sessions, loaded when the first of their clients connects.

It has the formats of their results. `roundgate.http.older` imports their other features
(`initialize`, questions on the stream of a call) from their package directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from roundgate.protocol import v2025
from roundgate.protocol.revision import ResultFormat

WITH_SESSIONS: Final[Mapping[str, ResultFormat]] = MappingProxyType(
    {version: v2025.Results(revision) for version, revision in v2025.REVISIONS.items()}
)
"""The format of results in each revision with sessions, newest first."""
