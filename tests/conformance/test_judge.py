"""The verdicts of `scripts/conformance`: a surprise either way is fatal."""

import pytest

from tests.conformance.judge import Check, Status, Verdict, closing_line, judge, table, unknown

PASS = Check("a", Status.SUCCESS)
FAIL = Check("b", Status.FAILURE, "no result")
WARN = Check("c", Status.WARNING, "should have")
SKIP = Check("d", Status.SKIPPED, "not advertised")
INFO = Check("e", Status.INFO)


@pytest.mark.parametrize(
    ("checks", "expected_reason", "skips", "verdict"),
    [
        pytest.param([PASS, INFO], None, 0, Verdict.PASSED, id="all well"),
        pytest.param([PASS, FAIL], None, 0, Verdict.FAILED, id="a failure"),
        pytest.param([PASS, WARN], None, 0, Verdict.FAILED, id="a warning is a failure"),
        pytest.param([PASS, FAIL], "not built", 0, Verdict.EXPECTED, id="a failure on the list"),
        pytest.param([PASS, WARN], "not built", 0, Verdict.EXPECTED, id="a warning on the list"),
        pytest.param([PASS], "not built", 0, Verdict.STALE, id="on the list, yet it passes"),
        pytest.param([PASS, SKIP], None, 1, Verdict.PASSED, id="a skip we know of"),
        pytest.param([PASS, SKIP], None, 0, Verdict.FAILED, id="a skip we do not know of"),
        pytest.param([PASS], None, 1, Verdict.FAILED, id="a check that should have been skipped"),
        pytest.param([SKIP], None, 1, Verdict.SKIPPED, id="the whole scenario skipped"),
        pytest.param([], None, 0, Verdict.FAILED, id="the suite broke before it wrote a check"),
        pytest.param([], "not built", 0, Verdict.FAILED, id="a broken suite is never expected"),
    ],
)
def test_a_scenario_passes_only_as_expected(
    checks: list[Check], expected_reason: str | None, skips: int, verdict: Verdict
) -> None:
    assert judge("s", checks, expected_reason, skips).verdict is verdict


def test_an_expected_failure_that_the_suite_does_not_know_is_stale() -> None:
    (outcome,) = unknown({"gone": "why", "caching": "why"}, ["caching"])
    assert (outcome.scenario, outcome.verdict) == ("gone", Verdict.STALE)


def test_the_table_counts_each_status_and_the_closing_line_each_verdict() -> None:
    outcomes = [
        judge("caching", [PASS, PASS, WARN], None, 0),
        judge("tools-list", [FAIL, INFO], "not built", 0),
    ]
    assert table(outcomes).splitlines() == [
        "scenario          passed   failed warnings  skipped  verdict",
        "caching                2        0        1        0  FAILED: 1 of 3 checks",
        "tools-list             0        1        0        0  expected failure: not built",
        "checks in all          2        1        1        0",
    ]
    assert closing_line(outcomes) == "conformance: 0 passed, 1 failed, 1 skipped"
