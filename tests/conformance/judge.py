"""What a run of the conformance suite means: its checks, held against what we expect,
become one verdict a scenario.

The suite itself exits with 0 on warnings, on checks it skipped and on scenarios that "do not
count". We are stricter: a warning fails, a check skipped without our saying so fails, and so does a
scenario that leaves no checks at all. Knows no processes and no files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The suite's own words. INFO says nothing about the server and is counted nowhere."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    WARNING = "WARNING"
    SKIPPED = "SKIPPED"
    INFO = "INFO"


class Verdict(StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"  # the suite skips the whole scenario, whatever the server does
    EXPECTED = "expected failure"
    FAILED = "FAILED"
    STALE = (
        "STALE ENTRY"  # listed as an expected failure, but it passes, or there is no such scenario
    )

    @property
    def is_fatal(self) -> bool:
        return self in (Verdict.FAILED, Verdict.STALE)


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    status: Status
    error: str = ""

    @property
    def is_bad(self) -> bool:
        return self.status in (Status.FAILURE, Status.WARNING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario after a run. `reason` says why, wherever the verdict alone would leave a reader guessing."""

    scenario: str
    checks: tuple[Check, ...]
    verdict: Verdict
    reason: str = ""

    @property
    def summary(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict

    def count(self, status: Status) -> int:
        return sum(check.status is status for check in self.checks)


def judge(
    scenario: str, checks: Sequence[Check], expected_reason: str | None, skips: int
) -> Outcome:
    """The outcome of `scenario`, which may skip exactly `skips` checks and may fail if `expected_reason` says why."""

    def outcome(verdict: Verdict, reason: str = "") -> Outcome:
        return Outcome(scenario, tuple(checks), verdict, reason)

    bad = sum(check.is_bad for check in checks)
    skipped = sum(check.status is Status.SKIPPED for check in checks)
    if not checks:
        return outcome(Verdict.FAILED, "the suite wrote no checks")
    if expected_reason is not None:
        return (
            outcome(Verdict.EXPECTED, expected_reason)
            if bad
            else outcome(Verdict.STALE, "it passes: take it off")
        )
    if bad:
        return outcome(Verdict.FAILED, f"{bad} of {len(checks)} checks")
    if skipped != skips:
        return outcome(Verdict.FAILED, f"{skipped} checks skipped, not {skips}")
    return outcome(Verdict.SKIPPED if skipped == len(checks) else Verdict.PASSED)


def unknown(expected: Mapping[str, str], scenarios: Iterable[str]) -> list[Outcome]:
    """A stale outcome for each expected failure that names no scenario of the suite."""
    return [
        Outcome(name, (), Verdict.STALE, "the suite has no such scenario")
        for name in sorted(expected.keys() - set(scenarios))
    ]


def table(outcomes: Sequence[Outcome]) -> str:
    """A line a scenario, then the sums."""
    columns = (Status.SUCCESS, Status.FAILURE, Status.WARNING, Status.SKIPPED)
    width = max(len("checks in all"), *(len(outcome.scenario) for outcome in outcomes))

    def line(name: str, cells: Iterable[object], verdict: str) -> str:
        return (
            f"{name:<{width}}  " + "".join(f"{cell:>9}" for cell in cells) + f"  {verdict}".rstrip()
        )

    return "\n".join(
        [
            line("scenario", ("passed", "failed", "warnings", "skipped"), "verdict"),
            *(line(o.scenario, map(o.count, columns), o.summary) for o in outcomes),
            line(
                "checks in all", (sum(o.count(column) for o in outcomes) for column in columns), ""
            ),
        ]
    )


def details(outcome: Outcome, *, every_check: bool) -> str:
    """The scenario's checks with what the suite says of each: all of them, or those that keep it from passing."""
    shown = [
        check
        for check in outcome.checks
        if every_check or check.is_bad or check.status is Status.SKIPPED
    ]
    lines = [f"{outcome.scenario}: {outcome.summary}"]
    for check in shown:
        lines.append(f"  {check.status:<8} {check.id}")
        lines.extend(f"           {line}" for line in check.error.splitlines())
    return "\n".join(lines)


def closing_line(outcomes: Sequence[Outcome]) -> str:
    """The run in one line, in scenarios: `conformance: 27 passed, 0 failed, 23 skipped`."""
    passed = sum(outcome.verdict is Verdict.PASSED for outcome in outcomes)
    failed = sum(outcome.verdict.is_fatal for outcome in outcomes)
    return (
        f"conformance: {passed} passed, {failed} failed, {len(outcomes) - passed - failed} skipped"
    )
