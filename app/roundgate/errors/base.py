"""The roots of the tree that `roundgate.errors` draws."""

from __future__ import annotations

from typing import Any


class RoundgateError(Exception):
    """Base of the tree."""

    failed_step: str | None = None
    """The place of the step whose failure this is, if the engine raised it for a step."""


class GatewayError(RoundgateError):
    """What a call, a task or a start can end with."""

    @property
    def data(self) -> dict[str, Any] | None:
        """What goes into the `data` member of the JSON-RPC error, if anything."""
        return None


class Inside(RoundgateError):
    """Raised and caught within the gateway: what leaves it is a result, a
    `GatewayError`, or a line of the log."""
