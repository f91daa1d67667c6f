"""The protocol revisions in which every request says what it is of; `protocol.v2025`
has those with sessions."""

from __future__ import annotations

from typing import Final

SUPPORTED_VERSIONS: Final = ("2026-07-28",)
"""Newest first, as `server/discover` and -32022 tell them."""
