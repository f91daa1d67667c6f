"""The protocol revisions that this server speaks, each in a package of its own beside this module."""

from __future__ import annotations

from typing import Final

SUPPORTED_VERSIONS: Final = ("2026-07-28",)
"""Newest first, as `server/discover` and -32022 tell them."""
