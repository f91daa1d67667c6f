"""JUnit XML of results, hostile ones among them."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest

from roundgate_testing.suites import CaseResult, Failure, Mismatch, SuiteResult, Verdict, junit

HOSTILE = "a <b> & \x1b[31m # not ok \ud800 \x00\n]]>"


def suite(text: str) -> SuiteResult:
    differing = [Mismatch("result", text, "2"), Mismatch("text", text, "2", ("-a", "+b"))]
    failure = Failure(2, f"call {text}", 7, text, differing)
    return SuiteResult(
        text,
        "suite.yaml",
        "http://host/mcp",
        [
            CaseResult(text, "good", 1, Verdict.PASSED, 12.0),
            CaseResult(text, f"bad {text}", 4, Verdict.FAILED, 1500.0, failure),
            CaseResult(text, "later", 9, Verdict.SKIPPED, reason=text),
        ],
        1512.0,
    )


@pytest.mark.parametrize("text", ["plain", HOSTILE])
def test_junit_has_every_case(text: str) -> None:
    document = junit([suite(text)])
    root = Xml.fromstring(document.encode())
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("3", "1", "1")
    good, bad, later = root.iter("testcase")
    assert (good.get("time"), bad.get("time"), bad.get("line")) == ("0.012", "1.500", "4")
    assert list(good) == []
    assert [child.tag for child in bad] == ["failure"]
    assert [child.tag for child in later] == ["skipped"]
    said = bad[0].text or ""
    assert "expected  " in said
    assert "actual    2" in said
    assert "    +b" in said


def test_nothing_that_a_terminal_acts_on_is_in_it() -> None:
    document = junit([suite(HOSTILE)])
    assert "\x1b" not in document
    assert "\x00" not in document
