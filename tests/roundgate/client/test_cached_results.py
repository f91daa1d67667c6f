"""Which results the client uses again without asking (server/utilities/caching)."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.client.connection import Cache
from tests.support.clocks import FixedClock

READ = "resources/read"


def fresh(ttl_ms: Any = 1_000, **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "ttlMs": ttl_ms, **more}


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def cache(clock: FixedClock) -> Cache:
    return Cache(clock, 2)


@pytest.mark.parametrize(
    ("method", "params", "result"),
    [
        ("tools/call", {}, fresh()),
        (READ, {}, fresh(None)),
        (READ, {}, fresh(0)),
        (READ, {}, fresh(True)),
        (READ, {}, fresh("1000")),
        (READ, {}, fresh(resultType="input_required")),
        (READ, {"inputResponses": {}}, fresh()),
        (READ, {"requestState": "x"}, fresh()),
    ],
)
def test_what_may_not_be_kept_is_not(
    cache: Cache, method: str, params: dict[str, Any], result: dict[str, Any]
) -> None:
    cache.put(method, params, result)
    assert cache.get(method, params) is None


def test_nothing_is_kept_longer_than_a_day(cache: Cache, clock: FixedClock) -> None:
    cache.put(READ, {}, fresh(10**12))
    clock.skip(24 * 3600 - 1)
    assert cache.get(READ, {}) is not None
    clock.skip(1)
    assert cache.get(READ, {}) is None


def test_a_cache_without_room_keeps_nothing(clock: FixedClock) -> None:
    nothing = Cache(clock, 0)
    nothing.put(READ, {}, fresh())
    assert nothing.get(READ, {}) is None


def test_a_notification_makes_stale_what_it_is_about_and_nothing_else(clock: FixedClock) -> None:
    cache = Cache(clock, 9)
    kept = [("tools/list", {}), ("tools/list", {"cursor": "2"}), ("resources/list", {})]
    kept += [(READ, {"uri": "a"}), (READ, {"uri": "b"})]

    def left() -> list[tuple[str, dict[str, Any]]]:
        return [one for one in kept if cache.get(*one) is not None]

    for one in kept:
        cache.put(*one, fresh())
    cache.take("notifications/tools/list_changed", {})
    assert left() == kept[2:]
    cache.take("notifications/resources/updated", {"uri": "a"})
    assert left() == [kept[2], kept[4]]
    cache.take("notifications/message", {})
    cache.clear("resources/list")
    assert left() == [kept[4]]
    cache.clear(READ)
    assert left() == []
