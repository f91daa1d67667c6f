"""What a run has found: a verdict for each case, and where it failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from roundgate.suites.patterns import Difference


class Verdict(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a case failed: the step (from 1), its line in the suite, a sentence,
    differences. It holds no secrets."""

    step: int
    title: str
    line: int | None
    message: str
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case that was run, or skipped; `reason` says why."""

    suite: str
    name: str
    line: int | None
    verdict: Verdict
    duration_ms: float = 0.0
    failure: Failure | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One suite: `path` is its file, `target` what was tested."""

    name: str
    path: str
    target: str
    cases: Sequence[CaseResult]
    duration_ms: float

    def count(self, verdict: Verdict) -> int:
        """How many cases ended so."""
        return sum(case.verdict is verdict for case in self.cases)
