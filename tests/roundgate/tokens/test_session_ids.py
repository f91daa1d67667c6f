"""Ids of sessions: opened by their owner alone, for as long as they hold, and by nothing
else that the keys seal."""

from __future__ import annotations

import pytest

from roundgate.auth.principal import Principal
from roundgate.errors import SessionNotFound
from roundgate.tokens.ids import QuestionId, SessionSealer, StreamIds
from roundgate.tokens.sealed import Key, KeyRing
from tests.support.clocks import FixedClock

ANN, BOB = Principal("issuer", "ann"), Principal("issuer", "bob")
RING = KeyRing([Key(b"k" * 32)])
HOUR_S = 3_600


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def sealer(clock: FixedClock) -> SessionSealer:
    return SessionSealer(RING, clock, HOUR_S)


def sealed(sealer: SessionSealer) -> str:
    return sealer.seal(ANN, "2025-06-18", "2025-03-26", {"roots": {}}, {"name": "tests"})


def test_any_replica_opens_what_one_has_sealed(sealer: SessionSealer, clock: FixedClock) -> None:
    facts = SessionSealer(RING, clock, HOUR_S).open(sealed(sealer), ANN)
    assert (facts.revision, facts.requested) == ("2025-06-18", "2025-03-26")
    assert (facts.capabilities, facts.client_info) == ({"roots": {}}, {"name": "tests"})


def test_nobody_but_its_owner_opens_it_whoever_has_opened_it_before(sealer: SessionSealer) -> None:
    token = sealed(sealer)
    sealer.open(token, ANN)
    with pytest.raises(SessionNotFound):
        sealer.open(token, BOB)


def test_it_holds_for_its_time_and_no_longer_whoever_has_opened_it_before(
    sealer: SessionSealer, clock: FixedClock
) -> None:
    token = sealed(sealer)
    clock.skip(HOUR_S - 1)
    sealer.open(token, ANN)
    clock.skip(10)
    with pytest.raises(SessionNotFound):
        sealer.open(token, ANN)


def test_one_of_a_clock_that_is_ahead_is_not_taken_yet(
    sealer: SessionSealer, clock: FixedClock
) -> None:
    token = sealed(sealer)
    clock.skip(-10)
    with pytest.raises(SessionNotFound):
        sealer.open(token, ANN)


def test_a_changed_character_is_no_session(sealer: SessionSealer) -> None:
    token = sealed(sealer)
    sealer.open(token, ANN)
    for place in range(0, len(token), 7):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(SessionNotFound):
            sealer.open(changed, ANN)


def test_what_else_the_keys_seal_is_no_session(sealer: SessionSealer) -> None:
    ids = StreamIds(RING)
    for token in (
        ids.seal_question(QuestionId("s", "r", "1"), ANN),
        ids.seal_call("s", [1], ANN),
        RING.seal(b"7", ANN),
    ):
        with pytest.raises(SessionNotFound):
            sealer.open(token, ANN)


def test_a_session_is_no_question_and_no_call(sealer: SessionSealer) -> None:
    token, ids = sealed(sealer), StreamIds(RING)
    session = sealer.open(token, ANN).id
    assert ids.open_question(token, session, ANN) is None
    assert ids.open_call(token, session, ANN) is None


def test_a_question_is_of_one_session_and_one_owner() -> None:
    ids, question = StreamIds(RING), QuestionId("session", "~task", "mark.3")
    token = ids.seal_question(question, ANN)
    assert ids.open_question(token, "session", ANN) == question
    assert ids.open_question(token, "another", ANN) is None
    assert ids.open_question(token, "session", BOB) is None
    assert len(token) <= 256
