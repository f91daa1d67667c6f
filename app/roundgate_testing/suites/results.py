"""The results of a run: the verdict on each case, its failure, and a report as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from xml.etree import ElementTree as Xml

from roundgate_testing.suites.expecting import Mismatch


class Verdict(StrEnum):
    """The verdict on a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a case failed. Secrets are redacted."""

    step: int
    """The number of the step, counted from 1; 0 before the first step."""
    title: str
    line: int | None
    message: str
    differences: Sequence[Mismatch] = ()


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case. `reason` is the reason for skipping a case."""

    suite: str
    name: str
    line: int | None
    verdict: Verdict
    duration_ms: float = 0.0
    failure: Failure | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The results of one suite. `target` describes the server under test, without secrets."""

    name: str
    path: str
    target: str
    cases: Sequence[CaseResult]
    duration_ms: float

    def count(self, verdict: Verdict) -> int:
        """Return the number of cases with a verdict."""
        return sum(case.verdict is verdict for case in self.cases)


_NOT_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The pattern of characters that XML 1.0 does not allow, even as references."""


def junit(suites: Sequence[SuiteResult]) -> str:
    """Return JUnit XML with a `testsuite` for each suite and a `testcase` for each case."""
    root = Xml.Element("testsuites", _totals(suites))
    for suite in suites:
        element = Xml.SubElement(
            root, "testsuite", {"name": _clean(suite.name), "file": suite.path, **_totals([suite])}
        )
        for case in suite.cases:
            _junit_case(element, suite, case)
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _junit_case(parent: Xml.Element, suite: SuiteResult, case: CaseResult) -> None:
    about = {
        "classname": _clean(suite.name),
        "name": _clean(case.name),
        "file": suite.path,
        "time": f"{case.duration_ms / 1_000:.3f}",
    }
    if case.line is not None:
        about["line"] = str(case.line)
    element = Xml.SubElement(parent, "testcase", about)
    if case.verdict is Verdict.SKIPPED:
        Xml.SubElement(element, "skipped", {"message": _clean(case.reason)})
    if case.failure is not None:
        lines = list(failure_lines(case.failure))
        failure = Xml.SubElement(element, "failure", {"message": _clean(lines[0])})
        failure.text = _clean("\n".join(lines))


def _totals(suites: Sequence[SuiteResult]) -> dict[str, str]:
    def count(verdict: Verdict) -> str:
        return str(sum(suite.count(verdict) for suite in suites))

    return {
        "tests": str(sum(len(suite.cases) for suite in suites)),
        "failures": count(Verdict.FAILED),
        "skipped": count(Verdict.SKIPPED),
        "time": f"{sum(suite.duration_ms for suite in suites) / 1_000:.3f}",
    }


def failure_lines(failure: Failure) -> Iterator[str]:
    """Yield a failure as lines of plain text."""
    yield f"step {failure.step}: {failure.title}: {failure.message}"
    for difference in failure.differences:
        yield difference.path
        if difference.lines:
            yield from (f"    {line}" for line in difference.lines)
        else:
            yield f"    expected  {difference.expected}"
            yield f"    actual    {difference.actual}"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
