"""The journal is all that is known of a call; in JSON bytes it loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate import json
from roundgate.replay.journal import (
    Answered,
    Asked,
    Entry,
    Finished,
    Journal,
    Passed,
    Raised,
    from_row,
    row,
    wire_key,
)
from tests.support import json_values
from tests.support.long import examples
from tests.support.replay import elsewhere
from tests.support.rounds import accept

KEYS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}(#[2-9])?", fullmatch=True)
DIGESTS = st.text("abcdef", min_size=22, max_size=22)
COUNTS = st.integers(0, 50)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Finished, KEYS, json_values.values()),
    st.builds(Raised, KEYS, json_values.TEXT, st.booleans()),
    st.builds(Asked, KEYS, DIGESTS, COUNTS, COUNTS, st.none() | json_values.TEXT),
    st.builds(Answered, KEYS, st.none() | DIGESTS, COUNTS, COUNTS, json_values.values()),
    st.builds(Passed, KEYS),
)


@examples(60)
@given(st.lists(ENTRIES, max_size=6), json_values.objects())
def test_a_journal_comes_back_from_its_bytes_as_it_was(
    entries: list[Entry], state: dict[str, Any]
) -> None:
    journal = Journal(state=state)
    for entry in entries:
        journal.add(entry)
    back = elsewhere(journal)
    assert back == journal
    assert list(back.entries()) == list(journal.entries())


@given(st.lists(st.tuples(KEYS, st.integers(1, 30)), unique=True, max_size=12))
def test_no_two_attempts_at_any_two_questions_share_a_wire_key(
    attempts: list[tuple[str, int]],
) -> None:
    assert len({wire_key(key, attempt) for key, attempt in attempts}) == len(attempts)


@examples(60)
@given(
    st.lists(ENTRIES, max_size=5),
    st.dictionaries(KEYS | st.just("who~2"), json_values.SCALARS, max_size=4),
)
def test_only_outstanding_questions_receive_anything(
    entries: list[Entry], responses: dict[str, Any]
) -> None:
    journal = Journal()
    for entry in [*entries, Asked("who", "d" * 22, 2)]:
        journal.add(entry)
    outstanding = {entry.key: wire_key(entry.key, entry.attempt) for entry in journal.outstanding()}
    before = {entry.key: entry for entry in journal.questions.values()}
    journal.receive(responses)
    assert set(journal.questions) == set(before)
    for entry in journal.questions.values():
        if outstanding.get(entry.key) in responses:
            assert isinstance(entry, Answered)
            assert entry.response == responses[outstanding[entry.key]]
        else:
            assert entry is before[entry.key]


NO_JOURNALS: list[Any] = [
    None,
    [],
    {},
    [[], {}, []],
    [[["x", "key"]], {}],
    [[["s", "key"]], {}],
    [[[]], {}],
    [[1], {}],
    [[], 3],
]


@pytest.mark.parametrize("value", NO_JOURNALS, ids=lambda value: json.encode(value).decode())
def test_what_we_did_not_write_is_no_journal(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Journal.from_json(value)


def test_the_largest_entry_is_named_with_its_size() -> None:
    journal = Journal()
    journal.add(Finished("small", 1))
    assert journal.largest().startswith("step 'small' (")
    journal.add(Answered("essay", None, 1, 0, accept(text="x" * 5_000)))
    assert journal.largest().startswith("the answer to 'essay' (50")
    journal.state["all"] = "y" * 9_000
    assert journal.largest().startswith("ctx.state (90")


ROWS = [
    '["s","k",1]',
    '["s","k",null,"step f"]',
    '["e","k","m",true,"w","timeout",2,["a"],5,"ref"]',
    '["e","k","m",false]',
    '["t","k",1,5,"w",["m",false,null,5,"r"]]',
    '["c","k",7,"w"]',
    '["b","k","w"]',
    '["q","k","d",1,0,null]',
    '["q","k","d",2,1,"p","w",5]',
    '["a","k",null,1,0,{"action":"accept"}]',
    '["a","k","d",1,0,null,"w"]',
    '["u","k","d",1]',
    '["p","k"]',
    '["w","k",5]',
    '["w","k",5,"w",true]',
    '["o","told:k"]',
    '["v","k",5,"t",null,"m","delivered",{"a":1}]',
    '["v","k",5,"t"]',
    '["r","k",[1]]',
]
"""Entries as rows of tasks and sealed states have them."""


@pytest.mark.parametrize("text", ROWS)
def test_a_recorded_entry_is_read_and_written_unchanged(text: str) -> None:
    assert json.encode(row(from_row(json.decode(text.encode())))).decode() == text


@pytest.mark.parametrize("text", ['["s"]', '["p","k",1]', '["w","k","soon"]', '["zz","k"]'])
def test_an_entry_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="journal entry"):
        from_row(json.decode(text.encode()))
