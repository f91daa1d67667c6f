"""The verdicts of `scripts/conformance --through`: a difference needs a reason, and a reason a
difference."""

import pytest

from tests.conformance.judge import Check, Status
from tests.conformance.through import (
    EXAMPLES,
    PAIRINGS,
    Reason,
    Verdict,
    compare,
    read_reasons,
    table,
    unneeded,
)

PASS, FAIL = Check("a", Status.SUCCESS), Check("a", Status.FAILURE)
OTHER, SKIP, INFO = Check("b", Status.SUCCESS), Check("b", Status.SKIPPED), Check("b", Status.INFO)


@pytest.mark.parametrize(
    ("direct", "through", "reasons", "verdict"),
    [
        pytest.param([PASS], [PASS], {}, Verdict.SAME, id="both pass"),
        pytest.param([FAIL], [FAIL], {}, Verdict.SAME, id="both fail"),
        pytest.param([PASS, PASS], [PASS], {}, Verdict.SAME, id="a check that is repeated"),
        pytest.param([PASS, INFO], [PASS], {}, Verdict.SAME, id="a remark"),
        pytest.param([PASS], [PASS, FAIL], {}, Verdict.DIFFERENT, id="the worst counts"),
        pytest.param([PASS], [FAIL], {}, Verdict.DIFFERENT, id="the gateway breaks it"),
        pytest.param([FAIL], [PASS], {}, Verdict.DIFFERENT, id="the gateway mends it"),
        pytest.param([PASS, OTHER], [PASS], {}, Verdict.DIFFERENT, id="a check that is not run"),
        pytest.param([PASS, OTHER], [PASS, SKIP], {}, Verdict.DIFFERENT, id="a check skipped"),
        pytest.param([], [PASS], {}, Verdict.DIFFERENT, id="the suite broke"),
        pytest.param([PASS], [FAIL], {"a": "why"}, Verdict.NAMED, id="with a reason"),
        pytest.param([PASS, OTHER], [], {"a": "why"}, Verdict.DIFFERENT, id="one without"),
        pytest.param([FAIL], [FAIL], {"a": "why"}, Verdict.SAME, id="a reason without use"),
    ],
)
def test_a_difference_needs_a_reason(
    direct: list[Check], through: list[Check], reasons: dict[str, str], verdict: Verdict
) -> None:
    assert compare("s", direct, through, reasons).verdict is verdict


def test_the_table_has_the_differences() -> None:
    comparisons = [
        compare("tools-list", [PASS], [PASS], {}),
        compare("caching", [PASS, OTHER], [FAIL, OTHER], {}),
        compare("server-stateless", [FAIL], [PASS], {"a": "the gateway checks it"}),
    ]
    assert table(comparisons).splitlines() == [
        "caching           passes        1 of 2 fail   DIFFERENT: a: SUCCESS, through the gateway FAILURE",
        "server-stateless  1 of 1 fail   passes        named difference: the gateway checks it",
    ]


def test_a_reason_without_a_difference_is_reported() -> None:
    reasons = [Reason("why", ["a", "b"], ["one", "two"], ["new", "old"])]
    differing = {("one", "new", "a"), ("three", "old", "a"), ("two", "new", "c")}
    assert unneeded(reasons, differing) == ["two of 'why'", "old of 'why'", "b of 'why'"]
    assert unneeded(reasons, differing | {("two", "old", "b")}) == []


def test_every_reason_names_servers_and_revisions_that_are_run() -> None:
    for reason in read_reasons():
        assert set(reason.servers) <= {example.name for example in EXAMPLES}
        assert set(reason.revisions) <= {pairing.name for pairing in PAIRINGS}
