"""The ratio of two subjects, from pairs measured at nearly the same time.

A slow minute of the machine affects both values of a pair, so it cancels out in their ratio. The
remaining noise shows in the interval: 95 % by percentile bootstrap, with a fixed seed.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the pairs' ratios, and its interval. With a single pair, both ends equal its
    ratio."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}–{self.high:.2f})"


def ratio(better: Sequence[float], worse: Sequence[float]) -> Ratio:
    """Return the median of `better[n] / worse[n]` over all n that both sequences have, with its
    interval."""
    ratios = [numerator / other for numerator, other in zip(better, worse, strict=False) if other]
    dice = random.Random(len(ratios))
    medians = sorted(
        statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    edge = RESAMPLES // 40
    return Ratio(statistics.median(ratios), medians[edge], medians[-edge - 1])
