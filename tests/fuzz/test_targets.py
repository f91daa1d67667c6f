"""Each fuzzing target on its seeds and some changes of them: the same ones every time.
`scripts/tools fuzz` goes further."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz.__main__ import NAMES, changes
from tests.fuzz.targets import SEEDS, TARGETS, answer_to
from tests.support import root_logger

INPUTS = {"requests": 600, "events": 300, "tokens": 600, "templates": 2_000, "files": 300}


@pytest.mark.parametrize("name", NAMES)
def test_no_input_does_harm(name: str) -> None:
    with root_logger.lent():
        for data in islice(changes(SEEDS[name](), seed=7), INPUTS[name]):
            try:
                TARGETS[name](data)
            except BaseException as error:
                error.add_note(f"input {data!r}"[:3000])
                raise


def test_the_seeds_of_events_are_requests_that_are_served() -> None:
    with root_logger.lent():
        statuses = [answer_to(data)["statusCode"] for data in SEEDS["events"]()]
    served = sum(status in (200, 202) for status in statuses)
    assert served > len(statuses) / 2, "whatever they are changed to is refused for the same reason"
