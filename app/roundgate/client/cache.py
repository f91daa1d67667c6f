"""What may be used again without asking: results with `ttlMs`
(server/utilities/caching), of one client.

A client has one set of credentials, so nothing here is ever seen by another authorization context,
and `cacheScope` makes no difference to what is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.json import encode

CACHEABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
_CHANGED: Final = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
_LONGEST_TTL_MS: Final = 24 * 3_600_000


class Cache:
    """Fresh results by method and params, the least recently used of them dropped first."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock = clock
        self._size = size
        self._kept: OrderedDict[tuple[str, bytes], tuple[float, Json]] = OrderedDict()

    def get(self, method: str, params: Json) -> Json | None:
        """A result that is still fresh."""
        if method not in CACHEABLE:
            return None
        key = method, encode(params)
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept[0] <= self._clock.monotonic_ms():
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return kept[1]

    def put(self, method: str, params: Json, result: Json) -> None:
        """Keep a result for as long as it says. What was asked with answers or
        a state is never kept."""
        ttl_ms = result.get("ttlMs")
        if method not in CACHEABLE or result.get("resultType", "complete") != "complete":
            return
        if "inputResponses" in params or "requestState" in params:
            return
        if (
            not isinstance(ttl_ms, int)
            or isinstance(ttl_ms, bool)
            or ttl_ms <= 0
            or self._size == 0
        ):
            return
        until = self._clock.monotonic_ms() + min(ttl_ms, _LONGEST_TTL_MS)
        self._kept[method, encode(params)] = until, result
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def heard(self, method: str, params: Json) -> None:
        """A notification makes what it is about stale."""
        stale = _CHANGED.get(method, ())
        for key in [key for key in self._kept if key[0] in stale]:
            del self._kept[key]
        if method == "notifications/resources/updated":
            self._kept.pop(("resources/read", encode({"uri": params.get("uri")})), None)

    def clear(self, *methods: str) -> None:
        """Forget the results of these methods, of all without any."""
        for key in [key for key in self._kept if not methods or key[0] in methods]:
            del self._kept[key]
