"""The claims inside the seal: a token opens for its own call, in its time; why one does
not, the log alone says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from roundgate.auth.principal import Principal
from roundgate.errors import REFUSAL, StateRefused, StateTooLarge
from roundgate.json import encode
from roundgate.tokens.sealed import Binding, Key, KeyRing
from tests.support import json_values
from tests.support.clocks import FixedClock
from tests.support.tokens import ANN, BOOKING, NEW, OLD, sealed, sealer

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def reason(caplog: pytest.LogCaptureFixture) -> str:
    """What the log says of the one refusal."""
    (record,) = caplog.records
    fields: dict[str, str] = vars(record)["fields"]
    assert fields["subject"] == ANN.subject
    return fields["reason"]


@pytest.mark.parametrize("golden", GOLDEN["tokens"], ids=lambda golden: golden["name"])
def test_a_token_sealed_by_an_earlier_version_opens(golden: dict[str, Any]) -> None:
    keys = tuple(Key(bytes.fromhex(key)) for key in GOLDEN["keys"])
    by = sealer(*keys, clock=FixedClock(GOLDEN["now_ms"]), audience=GOLDEN["audience"])
    opened = by.open(golden["token"], Principal(**golden["owner"]), Binding.of(*golden["call"]))
    assert [opened.id, opened.round, dict(opened.origin), opened.payload] == golden["holds"]


@given(json_values.values())
def test_whatever_json_was_sealed_comes_back(payload: Any) -> None:
    by = sealer(max_bytes=1_000_000)
    came_back = by.open(
        by.seal(payload, ANN, BOOKING, round_=3, origin={"traceparent": "00"}), ANN, BOOKING
    )
    assert (came_back.round, came_back.origin) == (3, {"traceparent": "00"})
    assert encode(came_back.payload) == encode(payload)


@pytest.mark.parametrize(
    "binding",
    [
        Binding.of("prompts/get", "book", {"room": "blue", "nights": 2}),
        Binding.of("tools/call", "cancel", {"room": "blue", "nights": 2}),
        Binding.of("tools/call", "book", {"room": "blue", "nights": 3}),
        Binding.of("tools/call", "book", {"room": "blue", "nights": "2"}),
        Binding.of("tools/call", "book", {"room": "blue", "nights": 2, "more": None}),
        Binding.of("tools/call", "book", {"room": "blue"}),
        Binding.of("tools/call", "book", {}),
    ],
    ids=["method", "tool", "argument", "type", "one more", "one less", "none"],
)
def test_another_call_is_refused(binding: Binding, caplog: pytest.LogCaptureFixture) -> None:
    by = sealer()
    with pytest.raises(StateRefused):
        by.open(sealed(by), ANN, binding)
    assert reason(caplog) == "for another method, target or arguments"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [{"c": -3, "b": 1e3}]}, {"a": [{"b": 1000, "c": -3.0}]}),
        ({"a": 2**70, "b": 1}, {"b": 1.0, "a": 2**70}),
        ({"a": 1e300}, {"a": int(1e300)}),
    ],
    ids=["order", "1.0", "nested", "large", "huge"],
)
def test_arguments_that_are_the_same_to_json_open(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    by = sealer()
    token = sealed(by, binding=Binding.of("tools/call", "book", one))
    assert by.open(token, ANN, Binding.of("tools/call", "book", other)).round == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": None}, {}),
        ({"a": []}, {"a": {}}),
        ({"a": [], "big": 2**70}, {"a": {}, "big": 2**70}),
        ({"a": [["b", 1]], "big": 2**70}, {"a": {"b": 1}, "big": 2**70}),
        ({"a": True, "big": 2**70}, {"a": 1, "big": 2**70}),
        ({"a": 2**70}, {"a": str(2**70)}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": "\ud800"}, {"a": "?"}),
        ({"a": 0.1}, {"a": 0.10000000000000002}),
    ],
    ids=lambda value: repr(value)[:40].encode("ascii", "backslashreplace").decode(),
)
def test_arguments_that_differ_at_all_are_refused(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    by = sealer()
    token = sealed(by, binding=Binding.of("tools/call", "book", one))
    with pytest.raises(StateRefused):
        by.open(token, ANN, Binding.of("tools/call", "book", other))


@pytest.mark.parametrize("seconds", [0, 899, 904])
def test_a_token_holds_for_its_lifetime_and_what_clocks_may_differ(seconds: float) -> None:
    by = sealer(clock=(clock := FixedClock()))
    token = sealed(by)
    clock.skip(seconds)
    assert by.open(token, ANN, BOOKING).round == 1


@pytest.mark.parametrize(
    ("seconds", "why"),
    [(906, "expired"), (10**7, "expired"), (-6, "not yet valid"), (-(10**7), "not yet valid")],
)
def test_a_token_is_refused_after_its_time_and_before_it(
    seconds: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    by = sealer(clock=(clock := FixedClock()))
    token = sealed(by)
    clock.skip(seconds)
    with pytest.raises(StateRefused):
        by.open(token, ANN, BOOKING)
    assert reason(caplog).startswith(why)


def test_a_clock_that_is_a_little_behind_opens_what_one_ahead_has_sealed() -> None:
    by = sealer(clock=(clock := FixedClock()))
    token = sealed(by)
    clock.skip(-4)
    assert by.open(token, ANN, BOOKING).round == 1


@pytest.mark.parametrize(
    "claims",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b"[1,2,3]",
        b"[1,2,3,4,5,6,7,8,9,10]",
        b"\xff",
        b"[1,",
        b'"nine char"',
    ],
    ids=lambda claims: repr(claims),
)
def test_what_an_incompatible_version_has_sealed_is_refused(
    claims: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    by = sealer()
    with pytest.raises(StateRefused):
        by.open(by.ring.seal(claims, ANN), ANN, BOOKING)
    assert reason(caplog)


def test_claims_of_other_types_are_refused_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    by = sealer()
    claims = [
        "soon",
        None,
        *(getattr(BOOKING, name) for name in ("method", "target", "arguments")),
        1,
        "id",
        {},
        [],
    ]
    with pytest.raises(StateRefused):
        by.open(by.ring.seal(encode(claims), ANN), ANN, BOOKING)
    assert reason(caplog) == "sealed by an incompatible version"


@pytest.mark.parametrize(
    "value", [None, 1, True, [], {}, "", "v1", "v1..", "x" * 128_001, "v1." + "." * 100], ids=str
)
def test_what_is_no_token_at_all_is_refused_in_the_same_words(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StateRefused) as refused:
        sealer().open(value, ANN, BOOKING)
    assert str(refused.value) == REFUSAL
    assert reason(caplog)


def test_a_token_that_is_longer_than_any_of_ours_is_refused_before_it_is_decoded() -> None:
    large = sealer(max_bytes=100_000)
    token = sealed(large, "x" * 90_000)
    assert large.open(token, ANN, BOOKING).round == 1
    with pytest.raises(StateRefused):
        sealer(max_bytes=1024).open(token, ANN, BOOKING)


@pytest.mark.parametrize("max_bytes", [1024, 64_000, 1_000_000])
def test_the_largest_state_that_may_leave_may_also_come_back(max_bytes: int) -> None:
    by = sealer(max_bytes=max_bytes)
    size = max_bytes
    while True:
        try:
            token = sealed(by, "x" * size)
        except StateTooLarge:
            size -= 1
        else:
            break
    assert max_bytes - 200 < size < max_bytes
    assert by.open(token, ANN, BOOKING).payload == "x" * size


def test_a_retired_key_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StateRefused):
        sealer(NEW).open(sealed(sealer(OLD)), ANN, BOOKING)
    assert reason(caplog) == "unknown version or key"


def test_every_token_has_an_id_of_its_own() -> None:
    by = sealer()
    assert len({by.open(sealed(by), ANN, BOOKING).id for _ in range(100)}) == 100


def test_sealing_uses_a_ring_of_several_keys() -> None:
    token = sealed(sealer(NEW, OLD))
    assert KeyRing((NEW,), "tests").open(token, ANN)
