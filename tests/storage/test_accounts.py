"""Whose account what is stored counts in, and when it stops to count."""

from __future__ import annotations

import pytest

from roundgate.storage.accounts import end_of

HOUR_MS = 3_600_000


@pytest.mark.parametrize("life_ms", [1, 60_000, 900_000, HOUR_MS, 30 * 24 * HOUR_MS])
def test_bytes_never_count_shorter_than_asked_nor_for_a_quarter_longer(life_ms: int) -> None:
    now_ms = 1_764_187_200_123
    for offset in range(0, life_ms, max(1, life_ms // 97)):
        end_ms = end_of(now_ms + offset + life_ms, now_ms + offset)
        assert 0 <= end_ms - (now_ms + offset + life_ms) <= max(life_ms, 60_000) // 4
    ends = {
        end_of(now_ms + t + life_ms, now_ms + t) for t in range(0, life_ms, max(1, life_ms // 99))
    }
    assert len(ends) <= 10
