"""JUnit and TAP of results, hostile ones among them."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as Xml

import pytest

from roundgate.suites import CaseResult, Difference, Failure, SuiteResult, Verdict, junit, tap

HOSTILE = "a <b> & \x1b[31m # not ok \ud800 \x00\n]]>"


def suite(text: str) -> SuiteResult:
    differing = [Difference("result", text, "2"), Difference("text", text, "2", ("-a", "+b"))]
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


@pytest.mark.parametrize("text", ["plain", HOSTILE])
def test_tap_has_a_line_for_each_case(text: str) -> None:
    lines = tap([suite(text)]).split("\n")
    assert lines[:2] == ["TAP version 14", "1..3"]
    points = [line for line in lines if re.match(r"(not )?ok \d", line)]
    assert [point.split(" - ")[0] for point in points] == ["ok 1", "not ok 2", "ok 3"]
    # a # that is not escaped would begin a directive
    directives = [re.split(r"(?<!\\)#", point)[1:] for point in points]
    assert [len(one) for one in directives] == [0, 0, 1]
    assert directives[2][0].startswith(" SKIP ")
    block = lines[lines.index("  ---") + 1 : lines.index("  ...")]
    said = dict(line.strip().split(": ", 1) for line in block if ": " in line and line[2] != " ")
    assert json.loads(said["message"]) == text
    assert json.loads(said["at"]) == "suite.yaml:7"
    differing = [json.loads(line.strip()[2:]) for line in block if line.startswith("    - ")]
    assert [one["actual"] for one in differing] == ["2", "2"]


def test_nothing_that_a_terminal_acts_on_is_in_either() -> None:
    for document in (junit([suite(HOSTILE)]), tap([suite(HOSTILE)])):
        assert "\x1b" not in document
        assert "\x00" not in document
