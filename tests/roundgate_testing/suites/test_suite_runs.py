"""Suites that are run against a gateway: rounds, tasks, variables, errors, snapshots,
secrets, cases side by side."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate.client import Client, Question
from roundgate_testing import suites
from roundgate_testing.suites import CaseResult, Secrets, Snapshots, SuiteRun, Verdict
from roundgate_testing.suites.expecting import MAX_SHOWN, differences
from roundgate_testing.suites.running import Script
from tests.support.server import Server, serving

CONFIG = """\
server: {name: tested, version: "1"}
backends: [{kind: python, name: tools, prefix: "", path: tested.py}]
tasks: {poll_interval_ms: 100}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("suites")
    with serving(folder, CONFIG, Path(__file__).with_name("tested.py")) as server:
        yield server


class Bench:
    """Runs suites that are written as text."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self.folder = folder
        self.secrets = Secrets()
        self.environ: dict[str, str] = {}

    async def run(self, text: str, *, updates: bool = False, jobs: int = 1) -> list[CaseResult]:
        path = self.folder / "suite.yaml"
        path.write_text(text)
        file = suites.load(path)
        snapshots = Snapshots.beside(path, updates=updates)
        run = SuiteRun(file, lambda: Client(self._url), snapshots, self.secrets, self.environ)
        results = await run.cases(range(len(file.suite.cases)), jobs=jobs)
        snapshots.save(drop_unused=False)
        return results

    async def one(self, step: str, **options: Any) -> CaseResult:
        """A suite of one case, which is one step in flow style."""
        (result,) = await self.run(f"cases:\n  - {{name: one, {step}}}\n", **options)
        return result

    async def passes(self, step: str, **options: Any) -> None:
        result = await self.one(step, **options)
        assert result.verdict is Verdict.PASSED, result.failure

    async def fails(self, step: str, **options: Any) -> str:
        """What is said of it."""
        result = await self.one(step, **options)
        assert result.failure is not None
        return "\n".join(suites.failure_lines(result.failure))


@pytest.fixture
def bench(server: Server, tmp_path: Path) -> Bench:
    return Bench(f"{server.url}/mcp", tmp_path)


BOOK = "call: book, arguments: {city: Paris}"


@pytest.mark.parametrize(
    "step",
    [
        "call: add, arguments: {a: 2, b: 40}, expect: {result: 42, rounds: 1, task: false}",
        "call: add, arguments: {a: 1}, expect: {text: '2', jmespath: {'raw.isError || `false`': false}}",
        "call: add, arguments: {a: 1}, expect: {schema: {type: integer, maximum: 2}}",
        "call: add, arguments: {a: 1}, expect: {jmespath: {'raw.content[0].type': text}}",
        'call: echo, arguments: {text: \'{"id": 7}\'}, expect: {result: {id: 7}, text: \'{"id": 7}\'}',
        'call: echo, arguments: {text: "[1, 2]"}, expect: {jmespath: {"result[1]": 2}}',
        'call: echo, arguments: {text: "042"}, expect: {result: "042"}',
        'call: echo, arguments: {text: "7"}, expect: {result: "7"}',
        'call: echo, arguments: {text: "{half"}, expect: {result: "{half"}',
        "call: fail, expect: {tool_error: true}",
        "call: fail, expect: {tool_error: {$contains: fire}}",
        "call: nothing, expect: {error: -32602}",
        "call: nothing, expect: {error: {kind: RpcError, message: {$regex: nothing}}}",
        f"{BOOK}, answers: {{order: {{seats: 2, meal: vegan}}}}, expect: {{rounds: 2, asked: [order]}}",
        f"{BOOK}, answers: {{seats: 2, meal: vegan}}, expect: {{result: {{$contains: vegan}}}}",
        f"{BOOK}, answers: {{order: {{action: decline}}}}, expect: {{tool_error: true}}",
        f"{BOOK}, answers: {{order: {{action: cancel}}}}, expect: {{tool_error: true}}",
        f"{BOOK}, answers: [{{key: order, round: 1, kind: form, message: to P, answer: {{seats: 1, meal: none}}}}]",
        f"{BOOK}, expect: {{error: {{kind: Unanswered}}, asked: [{{key: order, kind: form, round: 1}}]}}",
        f"{BOOK}, answers: {{order: {{seats: 10, meal: none}}}}, expect: {{error: {{kind: AnswerInvalid}}}}",
        "call: quiz, answers: [{kind: form, answer: true}], expect: {result: true, rounds: 2}",
        "call: choose, answers: [{defaults: true}], expect: {result: red}",
        "call: poem, answers: [{kind: sampling, answer: roses are red}], expect: {result: roses are red}",
        f"{BOOK}, max_rounds: 1, answers: {{seats: 1, meal: none}}, expect: {{error: {{kind: TooManyRounds}}}}",
        "call: steps, expect: {jmespath: {length(progress): 3, logs: [{level: info, data: {$any: true}}]}}",
        "call: slowly, arguments: {city: Rome}, answers: {seats: 1, meal: none}, expect: {task: true,"
        " result: {$contains: 'to Rome'}, asked: [order], jmespath: {task.statuses: {$contains: completed}}}",
        "prompt: greet, arguments: {name: Ada}, expect: {text: {$contains: Ada}, result: [{role: user}]}",
        "read: 'note://one', expect: {text: a note, result: [{uri: 'note://one'}]}",
        "complete: greet, argument: name, value: A, expect: {result: [Ada, Alan]}",
        "list: tools, expect: {result: {$contains: {name: add}}}",
        "list: prompts, expect: {result: [{name: greet}]}",
        "list: templates, expect: {result: []}",
        "request: tools/list, expect: {result: {tools: {$schema: {minItems: 3}}}}",
        "request: no/method, expect: {error: -32601}",
    ],
)  # fmt: skip
async def test_a_step_that_is_as_expected_passes(bench: Bench, step: str) -> None:
    await bench.passes(step)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("call: add, arguments: {a: 2}, expect: {result: 4}", "expected  4\n    actual    3"),
        ("call: add, arguments: {a: 2}, expect: {rounds: 2}", "rounds\n    expected  2\n    actual    1"),
        ("call: add, arguments: {a: 2}, expect: {result: null}", "expected  null"),
        ("call: add, arguments: {a: 2}, expect: {task: true}", "expected  a task\n    actual    no task"),
        ("call: add, arguments: {a: 2}, expect: {error: -32602}", "an error was expected"),
        ("call: add, arguments: {a: 2}, expect: {tool_error: true}", "tool_error"),
        ("call: add, arguments: {a: 2}, expect: {within_s: 0.000001}", "at most 1e-06 s"),
        ("call: add, arguments: {a: 2}, expect: {schema: {maximum: 1}}", "3 is greater than"),
        ("call: add, arguments: {a: 2}, expect: {jmespath: {'length(result)': 1}}", "length(result): "),
        ("call: add, arguments: {a: 2}, answers: {x: 1}", "these answers matched no question: x"),
        ("call: add, arguments: {a: 2}, save: {x: result.y}", "result.y has no value"),
        ("call: fail", "the tool failed: The printer is on fire"),
        ("call: nothing", "RpcError (-32602)"),
        ("call: nothing, expect: {error: -32601}", "error.code\n    expected  -32601\n    actual    -32602"),
        ("call: nothing, expect: {error: {status: 404}}", "(nothing: RpcError"),
        (BOOK, "add to answers: order: {seats (integer), meal (string)}"),
        (f"{BOOK}, answers: {{seats: 1, meal: none}}, expect: {{asked: [other]}}", 'asked[0]'),
        (
            f"{BOOK}, answers: [{{round: 2, answer: 1}}, {{key: order, answer: {{seats: 1, meal: none}}}}]",
            "these answers matched no question: round 2",
        ),
        ("call: nap, timeout_s: 0.2", "TimedOut: No result within 0.2 s"),
        ("call: add, arguments: {a: '${env:NOT_SET}'}", "environment variable NOT_SET is not set: set it"),
        ("call: add, arguments: {a: '${secret:SHORT}'}", "fewer than 4 characters"),
    ],
)  # fmt: skip
async def test_what_is_not_as_expected_is_said(bench: Bench, step: str, said: str) -> None:
    bench.environ["SHORT"] = "abc"
    assert said in await bench.fails(step)


async def test_variables_go_from_step_to_step_with_their_types(bench: Bench) -> None:
    (result,) = await bench.run("""
variables: {twenty: 20, start: {a: "${twenty}"}, unit: "${env:UNIT:-apples}"}
cases:
  - name: sums
    steps:
      - {call: add, arguments: {a: "${start.a}", b: 1}, save: {sum: result, whole: raw}}
      - {call: add, arguments: {a: "${sum}", b: "${whole.structuredContent.result || sum}"}, expect: {result: 42}}
      - call: echo
        arguments: {text: "${sum} ${unit}, ${unique}"}
        expect: {result: {$regex: "^21 apples, [\\\\w-]{22}$"}, text: "${sum} ${unit}, ${unique}"}
""")
    assert result.failure is None, result.failure


async def test_a_task_is_started_watched_answered_and_cancelled(bench: Bench) -> None:
    results = await bench.run("""
cases:
  - name: answered while it works
    steps:
      - {start: slowly, as: trip, arguments: {city: Rome}, expect: {task: true}, save: {handle: result, id: task.id}}
      - {wait: trip, until: input_required, expect: {jmespath: {task.statuses: {$contains: input_required}}}}
      - {wait: trip, answers: {order: {seats: 3, meal: vegan}}, expect: {result: {$contains: 3 to Rome}}}
      - {request: tasks/get, params: {taskId: "${id}"}, expect: {result: {status: completed}}}
  - name: cancelled
    steps:
      - {start: slowly, as: trip, arguments: {city: Oslo}}
      - {wait: trip, until: input_required}
      - {cancel: trip, expect: {result: cancelled}}
      - {wait: trip, expect: {error: {kind: TaskEnded, status: cancelled}}}
  - name: over before it asks
    steps:
      - {start: slowly, as: trip, arguments: {city: Oslo}}
      - {wait: trip, answers: {seats: 1, meal: none}}
      - {wait: trip, until: input_required, expect: {error: {kind: TaskEnded, message: {$contains: can no longer}}}}
""")
    assert [one.failure for one in results] == [None] * 3


async def test_cases_run_side_by_side_and_are_told_in_their_order(bench: Bench) -> None:
    cases = "".join(
        f"  - {{name: case {number}, call: meet, arguments: {{others: 3}}, expect: {{result: met}}}}\n"
        for number in range(3)
    )
    results = await bench.run(f"cases:\n{cases}", jobs=3)  # each waits for the others
    assert [(one.name, one.failure) for one in results] == [
        ("case 0", None),
        ("case 1", None),
        ("case 2", None),
    ]


async def test_a_snapshot_is_compared_once_it_is_stored(bench: Bench) -> None:
    step = "call: echo, arguments: {text: hello}, expect: {snapshot: true}"
    assert "--update writes it" in await bench.fails(step)
    await bench.passes(step, updates=True)
    stored = (bench.folder / "suite.snapshots.yaml").read_text()
    assert stored.endswith("one: hello\n")
    await bench.passes(step)
    changed = await bench.fails(step.replace("hello", "goodbye"))
    assert 'expected  "hello"\n    actual    "goodbye"' in changed
    await bench.passes(step.replace("hello", "goodbye"), updates=True)
    part = (
        "call: echo, arguments: {text: hello}, expect: {snapshot: '[rounds, raw.content[0].type]'}"
    )
    await bench.passes(part, updates=True)
    assert "one:\n- 1\n- text\n" in (bench.folder / "suite.snapshots.yaml").read_text()


async def test_secrets_are_sent_and_shown_nowhere(bench: Bench) -> None:
    bench.environ["PASSWORD"] = 'p4ss"wörd\\n'
    step = "call: echo, arguments: {text: 'it is ${secret:PASSWORD}'}"
    await bench.passes(f"{step}, expect: {{jmespath: {{'length(result)': 17}}}}")
    said = await bench.fails(f"{step}, expect: {{result: other}}")
    assert 'actual    "it is ***"' in said
    await bench.passes(f"{step}, expect: {{snapshot: true}}", updates=True)
    written = (bench.folder / "suite.snapshots.yaml").read_text()
    assert "one: it is ***" in written


@pytest.mark.parametrize("marked", [{"format": "password"}, {"writeOnly": True}])
async def test_answers_to_fields_of_passwords_are_secrets(marked: dict[str, Any]) -> None:
    properties = {"user": {"type": "string"}, "word": {"type": "string", **marked}}
    params = {"message": "?", "requestedSchema": {"type": "object", "properties": properties}}
    question = Question.read("login", {"method": "elicitation/create", "params": params})
    secrets = Secrets()
    await Script({"login": {"user": "alice", "word": "open-sesame"}}, {}, secrets)(question)
    assert secrets.without({"said": ["alice: open-sesame"]}) == {"said": ["alice: ***"]}


@pytest.mark.parametrize("expected", ["other", "other\nlines"])
def test_no_part_of_a_secret_is_shown_where_a_long_text_is_cut(expected: str) -> None:
    secrets = Secrets(["open-sesame/4711"])
    for before in range(MAX_SHOWN - 20, MAX_SHOWN + 2):
        (found,) = differences(expected, f"{'x' * before}open-sesame/4711 and more", "text")
        for shown in (found.actual, *found.lines):
            assert "open" not in secrets.hidden(shown)


def test_a_secret_in_a_url_is_hidden() -> None:
    secrets = Secrets(["open sesame/4711"])
    said = "open%20sesame%2F4711 open%20sesame/4711 open+sesame%2F4711"
    assert secrets.hidden(said) == "*** *** ***"


def test_a_secret_in_base64_and_in_digits_is_hidden_also_within_more() -> None:
    secrets = Secrets(["open sesame/4711", "tiny"])
    for more in ("", "a:", "ab:", "abc:"):
        said = base64.b64encode(f"{more}open sesame/4711".encode()).decode()
        assert secrets.hidden(f"Basic {said}, {b'open sesame/4711'.hex()}").endswith("***, ***")
        assert "***" not in secrets.hidden(base64.b64encode(b"something else").decode())


async def test_what_is_saved_as_a_secret_is_one(bench: Bench) -> None:
    (result,) = await bench.run("""
cases:
  - name: one
    steps:
      - {call: echo, arguments: {text: tok-12345}, save: {token: {of: result, secret: true}}}
      - {call: echo, arguments: {text: "${token}"}, expect: {result: other}}
""")
    assert result.failure is not None
    assert "12345" not in "\n".join(suites.failure_lines(result.failure))


async def test_a_case_that_is_skipped_is_not_run(bench: Bench) -> None:
    result = await bench.one("skip: not yet, call: nothing")
    assert (result.verdict, result.reason) == (Verdict.SKIPPED, "not yet")


async def test_nobody_there_is_a_failure_of_the_case(tmp_path: Path) -> None:
    result = await Bench("http://127.0.0.1:9/mcp", tmp_path).one("list: tools")
    assert result.failure is not None
    assert "ConnectionLost" in result.failure.message
