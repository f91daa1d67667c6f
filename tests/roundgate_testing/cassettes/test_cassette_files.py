"""Cassettes as files: what is written is read again, whatever was said, and what is wrong
is told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from roundgate.errors import ConfigError
from roundgate.protocol.schemas import Schema
from roundgate.settings import yaml_file
from roundgate_testing.cassettes import Cassette, read
from roundgate_testing.cassettes.files import SCHEMA, as_text, dump, parse_document, to_document
from roundgate_testing.cassettes.matching import (
    Bindings,
    ValueSlot,
    compare,
    escape,
    fill,
    matches,
    parse,
    steps,
)
from roundgate_testing.cassettes.model import (
    CassetteEvent,
    Interaction,
    RecordedRequest,
    RecordedResponse,
)
from roundgate_testing.cassettes.normalize import Namer
from tests.support.long import examples

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        "yes",
        "null",
        "1",
        "1e3",
        "a: b",
        "- a",
        "# a",
        "a\nb\n",
        "a\n\n b",
        "${x}",
        "$${",
        " a",
        "a ",
        "~",
        "2026-07-28",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_yaml_has_any_json_as_it_is(value: dict[str, Any]) -> None:
    loaded = yaml.load(dump(value), LOADER)
    assert (loaded or {}) == value
    assert repr(loaded or {}) == repr(value), "types too: 1 is not 1.0"


@given(JSON)
def test_what_was_said_is_compared_equal_to_itself_and_filled_as_it_was(value: Any) -> None:
    named = Namer((), {}).value(value, is_sent=False)
    assert list(compare(named, value, Bindings())) == []
    assert fill(named, lambda slot: pytest.fail(str(slot))) == value


@given(TEXT)
def test_a_text_is_never_taken_for_a_placeholder(text: str) -> None:
    assert "".join(map(str, parse(escape(text)))) == text
    assert not [one for one in parse(escape(text)) if isinstance(one, ValueSlot)]


@examples(40)
@given(st.lists(st.tuples(JSON, JSON, st.booleans()), max_size=3))
def test_writing_what_was_read_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[Any, Any, bool]]
) -> None:
    namer = Namer((), {})
    interactions = []
    for sent, heard, is_stream in said:
        result = {"result": namer.value(heard, is_sent=False)}
        response = (
            RecordedResponse(events=(CassetteEvent(message=result, event_id="e"),))
            if is_stream
            else RecordedResponse(message=result)
        )
        params = namer.value(sent, is_sent=True)
        request = RecordedRequest(message={"method": "x", "params": params})
        interactions.append(Interaction(request, response))
    cassette = Cassette(tuple(interactions))
    for suffix in (".yaml", ".json"):
        file = tmp_path_factory.getbasetemp() / f"written{suffix}"
        file.write_text(as_text(cassette, is_json=suffix == ".json"))
        assert read(file) == cassette
    assert Schema.compile(SCHEMA).problems(to_document(cassette), "cassette") == []


HEAD = "cassette: 1\ninteractions:\n  - request: {method: ping}\n    response:\n"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", None, "is not a cassette"),
        ("[]", 1, "is not a cassette"),
        ("cassette: 2\ninteractions: []\n", 1, "unknown version 2"),
        (HEAD + "      stat: 200\n", 5, "did you mean status?"),
        (HEAD + "      status: '200'\n", 5, "a whole number"),
        (HEAD + "      result: {1: x}\n", 5, "put it in quotes"),
        (HEAD + "      result: {a: '${state'}\n", 5, "is not a valid placeholder"),
        (HEAD + "      after: 1\n", 5, "write the number of a later interaction"),
        (HEAD + "      end: sometime\n", 5, "'server', 'client' or 'cut'"),
        ("cassette: 1\ninteractions:\n  - response: {}\n", 3, "has no request"),
        ("cassette: 1\ninteractions:\n  - request: {}\n", 3, "sends nothing"),
        (
            "cassette: 1\nrules: [{name: a, pattern: '('}]\ninteractions: []\n",
            2,
            "not a valid regular",
        ),
        ("cassette: 1\nrules: [{name: a, pattern: 'a*'}]\ninteractions: []\n", 2, "narrower"),
        (
            "cassette: 1\nrules: [{name: 'a b'}]\ninteractions: []\n",
            2,
            "a name of letters, digits, _ and -",
        ),
        ("cassette: 1\ninteractions:\n  - request: {http: PUT}\n", 3, "'POST', 'GET' or 'DELETE'"),
        (HEAD + "      status: 99\n", 5, "greater than or equal to 200"),
        (HEAD + "      message: 1\n      result: {}\n", 5, "keep one of them"),
        (HEAD + "      headers: {x-a: 1}\n", 5, "put it in quotes"),
        ("cassette: 1\nignore: ['a..b']\ninteractions: []\n", 2, "is not a path"),
        ("cassette: 1\na: &a [1]\nb: *a\n", 3, "has an alias"),
        ("cassette: 1\ncassette: 1\n", 2, "appears twice"),
        ("cassette: [1\n", 2, "is not YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_a_remedy(
    tmp_path: Path, text: str, line: int | None, what: str
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(file)
    problem = caught.value.problems[0]
    assert what in str(problem)
    assert problem.line == line
    assert problem.remedy


def test_what_cannot_be_read_is_refused_before_it_is(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(yaml_file.MAX_BYTES + 1)
    for path, what in (
        (large, "more than"),
        (tmp_path / "absent.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "more than"),
    ):
        with pytest.raises(ConfigError, match=what):
            read(path)


@given(JSON)
def test_any_document_is_a_cassette_or_told_what_is_wrong(value: Any) -> None:
    for document in (
        value,
        {"cassette": 1, "interactions": value},
        {"cassette": 1, "interactions": [value]},
    ):
        cassette, found = parse_document(document)
        assert found or isinstance(cassette, Cassette)


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("pin", ("params", "arguments", "pin"), True),
        ("arguments.pin", ("params", "arguments", "pin"), True),
        ("result.pin", ("params", "arguments", "pin"), False),
        ("content[0].text", ("result", "content", 0, "text"), True),
        ("content[*].text", ("result", "content", 3, "text"), True),
        ("content[1].text", ("result", "content", 0, "text"), False),
    ],
)
def test_paths_match_where_their_steps_are_the_last(
    pattern: str, path: tuple[str | int, ...], is_match: bool
) -> None:
    assert matches(pattern, path) is is_match
    assert steps(pattern)


def test_placeholders_are_held_to_what_they_first_stood_for() -> None:
    bindings = Bindings()
    assert list(compare("${task:1}", "a", bindings)) == []
    assert list(compare("see ${task:1} now", "see a now", bindings)) == []
    assert list(compare("${task:1}", "b", bindings))
    assert list(compare("${task:2}", "a", bindings)), "two tasks are not one"
    assert list(compare("${time}", "whenever", bindings)) == []
    assert list(compare("${any}", {"no": "text"}, bindings))
    assert list(compare("from ${time} to ${time}!", "from 1 to 2!", bindings)) == []
    assert list(compare("from ${time} to ${time}!", "from 1 to 2", bindings))


def test_a_text_of_many_placeholders_is_compared_in_a_moment() -> None:
    recorded = "${a}x" * 200 + "y"
    assert list(compare(recorded, "x" * 100_000, Bindings()))
