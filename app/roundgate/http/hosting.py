"""What the environment that hosts the app knows of a request, and a server does not: an
extension of the ASGI scope.

Only an entry point puts it there (`roundgate.lambda_http`); nothing that a client sends can.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

EXTENSION: Final = "roundgate"


@dataclass(frozen=True, slots=True)
class Hosting:
    """Facts about one request."""

    remaining_ms: float | None = None
    """For how long the environment lets it run."""
    claims: Mapping[str, Any] | None = None
    """What an authorizer in front has found in a token that it verified."""

    def put(self, scope: MutableMapping[str, Any]) -> None:
        """Into an ASGI scope."""
        scope["extensions"] = {**scope.get("extensions", {}), EXTENSION: self}


_NONE: Final = Hosting()


def of(scope: Mapping[str, Any]) -> Hosting:
    """From an ASGI scope."""
    found = (scope.get("extensions") or {}).get(EXTENSION)
    return found if isinstance(found, Hosting) else _NONE
