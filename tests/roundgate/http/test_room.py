"""Which connection makes room for a new one, by what is known of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.http.room import Stage, connection_to_close
from roundgate.net.addresses import client_address

NOW = 100.0


@dataclass(frozen=True, eq=False)
class Held:
    """One connection."""

    stage: Stage
    address: str = "other"
    since: float = 0.0


NEWCOMER = Held(Stage.NEW, "honest", NOW)


def given_up(
    *held: Held, newcomer: Held = NEWCOMER, places: int = 16, share: int = 2
) -> Held | None:
    return connection_to_close(held, newcomer.address, places=places, share=share, now=NOW)


def test_connections_close_in_the_order_ending_silent_slow_idle() -> None:
    held = [
        Held(stage) for stage in (Stage.ENDING, Stage.NEW, Stage.NEW, Stage.RECEIVING, Stage.IDLE)
    ]
    gone = []
    while (one := given_up(*held)) is not None:
        gone.append(one.stage)
        held.remove(one)
    assert gone == [Stage.ENDING, Stage.NEW, Stage.RECEIVING, Stage.IDLE, Stage.NEW]


def test_in_a_stage_the_address_with_the_most_gives_up_its_oldest() -> None:
    honest = Held(Stage.NEW, "honest", since=1)
    flood = [Held(Stage.NEW, "flood", since=since) for since in (50, 40, 60)]
    assert given_up(honest, *flood) is flood[1]


def test_among_addresses_with_one_each_the_oldest_goes() -> None:
    held = [Held(Stage.NEW, f"a{number}", since=50 - number) for number in range(3)]
    assert given_up(*held) is held[2]


def test_an_eighth_of_the_places_is_kept_for_those_that_have_just_come() -> None:
    new, slow = Held(Stage.NEW, "new"), Held(Stage.RECEIVING, "slow")
    assert given_up(new, slow) is slow
    assert given_up(new, Held(Stage.NEW, "new"), slow) is new


def test_a_young_request_is_cut_only_if_its_address_floods_and_the_newcomer_does_not() -> None:
    young = Held(Stage.RECEIVING, since=NOW - 0.5)
    flood = [Held(Stage.RECEIVING, "flood", NOW - 0.5), Held(Stage.RECEIVING, "flood", NOW - 0.1)]
    assert given_up(young) is None
    assert given_up(young, *flood) is flood[0]
    assert given_up(young, *flood, newcomer=replace(NEWCOMER, address="flood")) is None
    assert given_up(replace(young, since=NOW - 1)) is not None


def test_who_was_idle_for_a_moment_only_keeps_the_connection() -> None:
    held = Held(Stage.IDLE, since=NOW - 0.5)
    assert given_up(held) is None
    assert given_up(replace(held, since=NOW - 1)) is not None
    assert given_up(replace(held, address="honest")) is not None


def test_a_call_is_not_cut_while_its_address_is_within_its_share() -> None:
    assert given_up(*[Held(Stage.ANSWERING)] * 1, *[Held(Stage.ANSWERING, "another")] * 2) is None


def test_an_address_over_its_share_gives_up_its_longest_call_for_one_below_it() -> None:
    held = [Held(Stage.ANSWERING, "greedy", since) for since in (20, 10, 30)]
    assert given_up(*held) is held[1]
    assert given_up(*held, newcomer=replace(NEWCOMER, address="greedy")) is None
    young = [replace(one, since=NOW - 0.5) for one in held]
    assert given_up(*young) is None


def test_without_another_connection_nothing_is_closed() -> None:
    assert given_up() is None


STAGES = st.sampled_from(Stage)
ADDRESSES = st.sampled_from(["honest", "a", "b", "c"])
HELD = st.lists(st.builds(Held, STAGES, ADDRESSES, st.floats(0, NOW)), max_size=30)


@given(HELD)
def test_no_call_within_the_share_of_its_address_is_ever_cut(held: list[Held]) -> None:
    gone = given_up(*held, share=3)
    if gone is not None and gone.stage is Stage.ANSWERING:
        assert sum(one.address == gone.address for one in held) > 3


@given(HELD)
def test_whatever_a_flood_does_one_waiting_connection_of_another_address_outlives_it(
    held: list[Held],
) -> None:
    mine = Held(Stage.NEW, "mine", since=0)
    flood = [Held(Stage.NEW, "flood", NOW), Held(Stage.NEW, "flood", NOW)]
    assert given_up(mine, *flood, *held, newcomer=Held(Stage.NEW, "flood", NOW)) is not mine


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("/run/gateway.sock", "/run/gateway.sock"),
    ],
)
def test_a_64_of_ipv6_counts_as_one_address(host: str, address: str) -> None:
    assert client_address(host) == address
