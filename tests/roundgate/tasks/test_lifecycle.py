"""The life of a task as a table: what may happen in each state, and that nothing
happens to what is over."""

from __future__ import annotations

from itertools import product

import pytest

from roundgate.protocol.tasks import (
    OPEN,
    TERMINAL,
    TRANSITIONS,
    Event,
    Status,
    after,
    sources,
    target,
)

TABLE = """
                 run      ask             answer some     answer all  go_on    complete   fail    cancel     expire
working          working  input_required  -               -           -        completed  failed  cancelled  failed
input_required   -        -               input_required  working     working  -          -       cancelled  failed
completed        -        -               -               -           -        -          -       -          -
failed           -        -               -               -           -        -          -       -          -
cancelled        -        -               -               -           -        -          -       -          -
"""

_HEAD, *_ROWS = TABLE.strip("\n").splitlines()
_EVENTS = [
    Event(text)
    for text in _HEAD.replace("answer ", "answer_").split()
    for text in [text.replace("_", " ")]
]
EXPECTED = {
    (Status(row.split()[0]), event): None if then == "-" else Status(then)
    for row in _ROWS
    for event, then in zip(_EVENTS, row.split()[1:], strict=True)
}


def test_the_table_has_every_state_and_every_event() -> None:
    assert set(EXPECTED) == set(product(Status, Event))


@pytest.mark.parametrize(
    ("status", "event"),
    list(product(Status, Event)),
    ids=[f"{s} {e}" for s, e in product(Status, Event)],
)
def test_what_follows_is_what_the_table_says(status: Status, event: Event) -> None:
    assert after(status, event) is EXPECTED[status, event]


def test_every_state_is_open_or_terminal_and_only_open_ones_are_left() -> None:
    assert set(Status) == OPEN | TERMINAL
    assert not OPEN & TERMINAL
    assert {status for status, _ in TRANSITIONS} == OPEN
    assert all(status.is_terminal == (status in TERMINAL) for status in Status)


def test_every_state_but_the_first_is_reached_and_every_open_one_can_end() -> None:
    assert {*TRANSITIONS.values()} == set(Status)
    for status in OPEN:
        assert {then for (at, _), then in TRANSITIONS.items() if at is status} & TERMINAL


@pytest.mark.parametrize("event", Event)
def test_an_event_has_one_target_wherever_it_happens(event: Event) -> None:
    expected = {then for (_, at), then in EXPECTED.items() if at is event and then is not None}
    assert {target(event)} == expected


@pytest.mark.parametrize("event", Event)
def test_an_event_happens_exactly_in_its_sources(event: Event) -> None:
    assert sources(event) == {status for status in Status if EXPECTED[status, event] is not None}
    assert not sources(event) & TERMINAL
