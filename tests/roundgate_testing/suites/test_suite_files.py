"""Files of suites: what is wrong with one is said at once, with line and remedy, and
editors are told the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from roundgate.errors import ConfigError
from roundgate.settings import yaml_file
from roundgate_testing import suites
from roundgate_testing.suites.models import ACTIONS

ROOT = Path(__file__).parents[3]
SUITES = [
    path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "\ncases:\n" in path.read_text()
]
CASE = "cases:\n  - name: one\n"


def told(tmp_path: Path, text: str) -> list[str]:
    """The problems of a suite, each as `line: path: message`."""
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        suites.load(file)
    assert all(problem.remedy for problem in caught.value.problems)
    return [f"{one.line}: {one.path}: {one.message}" for one in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cases: []", "1: cases: List should have at least 1 item"),
        (CASE, "2: cases[0]: has no action"),
        (f"{CASE}    call: a\n    read: b\n", "2: cases[0]: has the actions call and read"),
        (f"{CASE}    cal: a\n", "3: cases[0].cal: Extra inputs are not permitted"),
        (f"{CASE}    call: a\n    params: {{}}\n", "4: cases[0].params: cannot be used with call"),
        (f"{CASE}    list: tool\n", "3: cases[0].list: Input should be 'tools'"),
        (f"{CASE}    wait: job\n", "3: cases[0].wait: no earlier step starts 'job'"),
        (f"{CASE}    complete: p\n", "2: cases[0]: has no argument to complete"),
        (f"{CASE}    call: a\n    steps: [{{call: b}}]\n", "2: cases[0]: has steps, and also call"),
        (
            f"{CASE}    call: a\n  - name: one\n    call: a\n",
            "4: cases[1].name: is also the name of",
        ),
        (f"{CASE}    call: ${{who}}\n", "3: cases[0].call: the variable who is not defined"),
        (f"{CASE}    call: ${{port}}\n", "3: cases[0].call: the variable port is not defined"),
        (f"variables: {{a: '${{port}}'}}\n{CASE}    call: a\n", "1: variables.a: the variable"),
        (f"answers: {{a: '${{port}}'}}\n{CASE}    call: a\n", "1: answers.a: the variable"),
        (f"{CASE}    call: ${{a[}}\n", "3: cases[0].call: ${a[} is not JMESPath"),
        (f"variables: {{a: '${{b}}', b: 1}}\n{CASE}    call: a\n", "1: variables.a: the variable"),
        (f"variables: {{a-b: 1}}\n{CASE}    call: a\n", "1: variables.a-b: cannot be the name"),
        (f"{CASE}    call: ${{\n", "3: cases[0].call: ${ does not begin"),
        (
            f"{CASE}    steps:\n      - {{start: t, as: j}}\n"
            "      - {wait: j, until: input_required, answers: {a: 1}}\n",
            "5: cases[0].steps[1].answers: cannot be used with until",
        ),
        (
            f"{CASE}    call: a\n    expect: {{schema: suite.yaml}}\n",
            "4: cases[0].expect.schema: suite.yaml: ",
        ),
        (f"{CASE}    call: a\n    save: {{x: 'a['}}\n", "4: cases[0].save.x: is not JMESPath"),
        (f"{CASE}    call: a\n    save: {{unique: a}}\n", "cannot be the name of a variable"),
        (
            f"{CASE}    call: a\n    expect:\n      result: {{$regx: a}}\n",
            "5: cases[0].expect.result.$regx: is not a matcher: did you mean $regex",
        ),
        (
            f"{CASE}    call: a\n    expect:\n      jmespath: {{'a[': 1}}\n",
            "5: cases[0].expect.jmespath.a[: is not JMESPath",
        ),
        (
            f"{CASE}    call: a\n    expect: {{schema: {{type: nothing}}}}\n",
            "4: cases[0].expect.schema: not a usable JSON Schema",
        ),
        (
            f"{CASE}    call: a\n    expect: {{schema: nowhere.json}}\n",
            "4: cases[0].expect.schema: nowhere.json: No such file",
        ),
        (f"{CASE}    call: a\n    expect: {{error: [1]}}\n", "error: has an unexpected type"),
        (
            f"{CASE}    call: a\n    expect: {{error: 1, tool_error: true}}\n",
            "a protocol error and a tool error",
        ),
        (
            f"{CASE}    call: a\n    answers: [{{key: a}}]\n",
            "4: cases[0].answers[0]: needs either an answer or defaults",
        ),
        (
            f"{CASE}    call: a\n    answers: [{{message: '(', answer: 1}}]\n",
            "4: cases[0].answers[0].message: is not a valid regular expression",
        ),
        (f"{CASE}    call: a\n    answers: [{{kind: x, answer: 1}}]\n", "answers[0].kind: Input"),
        (f"{CASE}    call: a\n    arguments: {{1: 2}}\n", "the key 1 is not text"),
        (f"{CASE}    call: a\n    arguments: {{on: 2}}\n", "the key true (YAML's reading of"),
        (f"{CASE}    call: a\n    arguments: {{a: .nan}}\n", "4: cases[0].arguments.a: is nan"),
        (f"{CASE}    call: a\n    arguments: {{a: !!binary eA==}}\n", "is a bytes"),
        (f"server: {{url: a, gateway: b}}\n{CASE}    call: a\n", "1: server: has url and gateway"),
        (f"server: {{command: [a]}}\n{CASE}    call: a\n", "1: server: has a command, but no url"),
        ("cases: [", "is not YAML"),
        (f"{CASE}    call: a\n    call: b\n", "appears twice"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(tmp_path: Path, text: str, expected: str) -> None:
    assert [line for line in told(tmp_path, text) if expected in line], told(tmp_path, text)


def test_a_misspelt_member_is_told_its_name(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(f"{CASE}    cal: a\n")
    with pytest.raises(ConfigError, match=r"did you mean call\?"):
        suites.load(file)


def test_a_schema_in_a_file_is_an_object_and_one_of_json_schema(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "odd.json").write_text('{"type": "nothing"}')
    (tmp_path / "good.json").write_text('{"type": "integer"}')
    for name, said in (
        ("list", "list.json: is not an object"),
        ("odd", "not a usable JSON Schema"),
    ):
        [problem] = told(tmp_path, f"{CASE}    call: a\n    expect: {{schema: {name}.json}}\n")
        assert problem.startswith("4: cases[0].expect.schema: ")
        assert said in problem
    (tmp_path / "suite.yaml").write_text(f"{CASE}    call: a\n    expect: {{schema: good.json}}\n")
    suites.load(tmp_path / "suite.yaml")


def test_everything_is_said_at_once(tmp_path: Path) -> None:
    text = f"{CASE}    call: ${{a}}\n  - name: two\n  - name: two\n    wait: x\n"
    assert len(told(tmp_path, text)) == 4


def test_a_file_that_is_not_there_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"roundgate test suite\.yaml"):
        suites.load(tmp_path / "nowhere.yaml")


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    with file.open("wb") as huge:
        huge.truncate(10**12)
    with pytest.raises(ConfigError, match="split the suite"):
        suites.load(file)


def test_aliases_that_stand_for_values_without_end_are_refused(tmp_path: Path) -> None:
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
    suite = tmp_path / "suite.yaml"
    suite.write_text("\n".join(["a0: &a0 x", *lines]))
    with pytest.raises(ConfigError, match=r"suite\.yaml:6: .*has aliases \(\*a4\)"):
        suites.load(suite)


def test_dates_are_text_as_json_has_it(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(
        f"{CASE}    call: a\n    arguments: {{day: 2026-11-22, at: 2026-11-22 10:00:00}}\n"
    )
    given = suites.load(file).suite.cases[0].arguments
    assert given == {"day": "2026-11-22", "at": "2026-11-22 10:00:00"}


def test_variables_of_earlier_steps_are_known_to_later_ones(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    step = "{call: a, arguments: {x: '${order.id} ${env:HOME} ${secret:X} $${y} ${unique}'}}"
    file.write_text(f"{CASE}    steps: [{{call: a, save: {{order: result}}}}, {step}]\n")
    suites.load(file)
    file.write_text(f"{CASE}    steps: [{step}, {{call: a, save: {{order: result}}}}]\n")
    with pytest.raises(ConfigError, match="the variable order is not defined here"):
        suites.load(file)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return suites.schema_of_suites()


class TestSchema:
    """`roundgate schema --suite`."""

    def test_it_is_a_schema(self, schema: dict[str, Any]) -> None:
        assert meta.is_valid(schema)
        json.dumps(schema)

    @pytest.mark.parametrize("path", SUITES, ids=lambda path: str(path.relative_to(ROOT)))
    def test_it_takes_the_suites_of_the_examples(self, schema: dict[str, Any], path: Path) -> None:
        value = yaml_file.read(path).value
        assert [one.message for one in Draft202012Validator(schema).iter_errors(value)] == []
        suites.load(path)

    def test_it_has_every_field_by_the_word_of_the_file(self, schema: dict[str, Any]) -> None:
        fields = set(schema["$defs"]["SuiteStep"]["properties"])
        assert set(ACTIONS) | set().union(*ACTIONS.values()) == fields

    @pytest.mark.parametrize(
        "case",
        [
            {"cal": "a"},
            {"call": 1},
            {"list": "tool"},
            {"list_": "tools"},
            {"call": "a", "expect": {"resul": 1}},
            {"call": "a", "answers": [{"kind": "x"}]},
            {"call": "a", "expect": {"error": "x"}},
        ],
    )
    def test_it_refuses_what_the_reader_refuses(
        self, schema: dict[str, Any], case: dict[str, Any], tmp_path: Path
    ) -> None:
        suite = {"cases": [{"name": "one", **case}]}
        assert not Draft202012Validator(schema).is_valid(suite)
        (tmp_path / "suite.json").write_text(json.dumps(suite))
        with pytest.raises(ConfigError):
            suites.load(tmp_path / "suite.json")
