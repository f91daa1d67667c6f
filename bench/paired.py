"""How many times better one thing is than another, from pairs that were
measured at nearly the same time.

A slow minute of the machine falls on both of a pair, so it is in neither of their ratios; what is
left of it is in the interval: 95 of 100 such runs would have their median within it (percentile
bootstrap with a fixed seed).
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the pairs' ratios, and its interval; of one pair there is none, and
    both ends are its ratio."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}–{self.high:.2f})"


def ratio(better: Sequence[float], worse: Sequence[float]) -> Ratio:
    """Of `better[n] / worse[n]`, as far as there are both."""
    ratios = [one / other for one, other in zip(better, worse, strict=False) if other]
    dice = random.Random(len(ratios))
    medians = sorted(
        statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    edge = RESAMPLES // 40
    return Ratio(statistics.median(ratios), medians[edge], medians[-edge - 1])
