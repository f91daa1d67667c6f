"""The table of revisions with sessions; it is loaded when the first of their clients comes.

What is written to those clients is here. What else these revisions have that no
other has (`initialize`, questions on the stream of a call) is between their
package and `roundgate.http.older`.
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
"""How results are written in each revision with sessions, newest first."""
