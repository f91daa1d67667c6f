"""Sealing for one subject: nothing but the very token opens, for nobody but its
owner, under no other key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth.principal import Principal
from roundgate.tokens.sealed import Key, KeyRing, SealBroken
from tests.support import tokens
from tests.support.tokens import ANN, NEW, OLD, THIRD

RING = KeyRing((OLD,), "tests")
PRINCIPALS = st.builds(
    Principal, *[st.text(st.characters(exclude_categories=["Cs"]), max_size=4)] * 3
)


def real_token() -> str:
    """As the first round of a small call makes one."""
    return tokens.sealed(tokens.sealer())


def opened(candidates: Iterator[str]) -> tuple[int, list[str]]:
    """How many were tried, and which of them opened."""
    tried, taken = 0, []
    for tried, candidate in enumerate(candidates, 1):  # noqa: B007
        try:
            RING.open(candidate, ANN)
        except SealBroken:
            continue
        taken.append(candidate)
    return tried, taken


@pytest.mark.parametrize(
    "damage", [tokens.damaged_bytes, tokens.damaged_secrets, tokens.truncated, tokens.extended]
)
def test_no_damaged_token_opens(damage: Callable[[str], Iterator[str]]) -> None:
    token = real_token()
    assert RING.open(token, ANN)
    tried, taken = opened(damage(token))
    print(f"{tried} tokens tried, made of one of {len(token)} characters")
    assert tried > 1000
    assert taken == []


@given(st.binary(max_size=2000), PRINCIPALS)
def test_what_was_sealed_opens_for_its_owner(plaintext: bytes, owner: Principal) -> None:
    assert RING.open(RING.seal(plaintext, owner), owner) == plaintext


@given(PRINCIPALS, PRINCIPALS)
def test_what_was_sealed_for_one_opens_for_no_other(one: Principal, other: Principal) -> None:
    token = RING.seal(b"x", one)
    if one == other:
        assert RING.open(token, other) == b"x"
    else:
        with pytest.raises(SealBroken):
            RING.open(token, other)


@pytest.mark.parametrize(
    "other",
    [
        replace(ANN, issuer="https://login.example.org/"),
        replace(ANN, subject="bob"),
        replace(ANN, client_id="web"),
        replace(ANN, subject="ann" + "cli", client_id=""),
        replace(ANN, issuer=ANN.issuer + "a", subject="nn"),
    ],
    ids=[
        "issuer",
        "subject",
        "client",
        "subject and client joined",
        "issuer and subject split elsewhere",
    ],
)
def test_another_caller_cannot_open_it(other: Principal) -> None:
    with pytest.raises(SealBroken, match="another caller"):
        RING.open(real_token(), other)


def test_scopes_are_not_identity() -> None:
    assert RING.open(real_token(), replace(ANN, scopes=frozenset({"rooms", "more"})))


def test_another_audience_cannot_open_it() -> None:
    with pytest.raises(SealBroken):
        KeyRing((OLD,), "production").open(real_token(), ANN)


def test_every_key_of_the_ring_opens_and_the_first_seals() -> None:
    token = KeyRing((OLD,)).seal(b"x", ANN)
    assert KeyRing((NEW, THIRD, OLD)).open(token, ANN) == b"x"
    assert KeyRing((NEW, OLD)).seal(b"x", ANN).split(".")[1] == NEW.id


def test_a_retired_key_opens_nothing_even_under_the_name_of_another() -> None:
    token = KeyRing((OLD,)).seal(b"x", ANN)
    for candidate in (token, token.replace(OLD.id, NEW.id)):
        with pytest.raises(SealBroken):
            KeyRing((NEW,)).open(candidate, ANN)


@pytest.mark.parametrize("version", ["v0", "v2", "V1", "v1 ", ""])
def test_another_version_is_refused(version: str) -> None:
    with pytest.raises(SealBroken, match="version"):
        RING.open(version + real_token().removeprefix("v1"), ANN)


@given(
    st.one_of(
        st.text(max_size=300),
        st.text("v1.AQ-_=", max_size=60).map(lambda text: f"v1.{OLD.id}.{text}"),
    )
)
def test_any_text_is_refused_and_never_fails_otherwise(text: str) -> None:
    with pytest.raises(SealBroken):
        RING.open(text, ANN)


def test_no_two_tokens_are_alike_though_they_say_the_same() -> None:
    assert len({RING.seal(b"x", ANN) for _ in range(100)}) == 100


def test_a_token_shows_nothing_of_what_is_in_it_but_its_length() -> None:
    lengths = {len(RING.seal(text, ANN)) for text in (b"a" * 600, bytes(range(200)) * 3)}
    assert len(lengths) == 1, "compressed state would tell how it compresses"


def test_a_key_shows_its_name_and_never_its_value() -> None:
    assert "secret" not in repr(RING)
    assert OLD.id in repr(OLD)
    assert len({OLD.id, NEW.id, THIRD.id}) == 3


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_none(length: int) -> None:
    with pytest.raises(ValueError, match=f"has 32 bytes, not {length}"):
        Key(bytes(length))


def test_a_ring_needs_a_key() -> None:
    with pytest.raises(ValueError, match="roundgate keys new"):
        KeyRing(())
