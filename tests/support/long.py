"""How much a test tries: a sample in `scripts/test`, everything with `pytest --long` (`scripts/test --long`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

Case = TypeVar("Case")


def is_long() -> bool:
    """Return whether this is a long run; `tests/conftest.py` loads the profile."""
    return settings.get_current_profile_name() == "long"


def examples(number: int) -> settings:
    """Return settings for `number` Hypothesis examples, a fifth of them in a short run."""
    return settings(max_examples=number if is_long() else number // 5)


def sampled(cases: Sequence[Case], every: int = 7) -> Sequence[Case]:
    """Return all cases, in a short run one of `every`."""
    return cases if is_long() else cases[::every]
