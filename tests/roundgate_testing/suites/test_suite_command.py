"""`roundgate test`: what it starts, what it prints, and its exit statuses."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from roundgate.cli import main
from tests.support.server import Server, serving

SERVED = Path(__file__).parents[2] / "roundgate/cli/served.py"
GATEWAY = 'server: {name: t, version: "1"}\nbackends: [{kind: python, name: t, prefix: "", path: served.py}]\n'
SUITE = """\
server: {gateway: gateway.yaml, token: "${env:NONE:-bearer-of-suite}"}
cases:
  - {name: adds, call: add, arguments: {a: 2, b: 40}, expect: {result: 42}, tags: [quick]}
  - {name: asks, call: book, arguments: {city: "\\e[31mParis"}, answers: {seats: 1, meal: none}}
  - {name: fails, call: add, arguments: {a: 1}, expect: {result: 3}, tags: [wrong]}
  - {name: never, call: add, skip: not yet}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("suites"), GATEWAY, SERVED) as server:
        yield server


@pytest.fixture
def suite(tmp_path: Path) -> str:
    (tmp_path / "served.py").write_text(SERVED.read_text())
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    (tmp_path / "suite.yaml").write_text(SUITE)
    return str(tmp_path / "suite.yaml")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], server: Server) -> Run:
    """Runs the command against the server that is up; returns status, output and errors."""

    def run(
        *words: str, against: tuple[str, ...] = ("--url", f"{server.url}/mcp")
    ) -> tuple[int, str, str]:
        status = main(["test", *words, *against])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_report_says_what_was_expected_and_what_came(run: Run, suite: str) -> None:
    status, out, err = run(suite)
    assert (status, err) == (1, "")
    lines = out.splitlines()
    assert lines[1].startswith("  pass adds")
    assert lines[3].startswith("  FAIL fails")
    assert lines[4] == f"      {suite}:5: step 1: call add"
    assert lines[5:9] == [
        "      not as expected: result",
        "      result",
        "        expected  3",
        "        actual    2",
    ]
    assert lines[9] == "  skip never  not yet"
    assert lines[10].startswith("2 passed, 1 failed, 1 skipped in ")
    assert "\x1b" not in out


def test_cases_are_chosen_by_name_and_tag(run: Run, suite: str) -> None:
    status, out, _ = run(suite, "--filter", "QUICK", "--filter", "ask", "--jobs", "2")
    assert status == 0
    assert "2 passed in" in out
    assert run(suite, "--filter", "quick", "--list")[1] == f"{suite}\tadds\n"
    status, _, err = run(suite, "--filter", "nothing")
    assert status == 2
    assert "use --list to print all cases" in err


def test_the_first_failure_may_be_the_last_case(run: Run, suite: str) -> None:
    status, out, _ = run(suite, suite, "--fail-fast")
    assert status == 1
    assert "2 passed, 1 failed in" in out


def test_junit_and_json(run: Run, suite: str, tmp_path: Path) -> None:
    status, _, _ = run(suite, "--junit", str(tmp_path / "junit.xml"))
    assert status == 1
    assert Xml.parse(tmp_path / "junit.xml").getroot().get("failures") == "1"
    (found,) = json.loads(run(suite, "--json")[1])
    assert [case["verdict"] for case in found["cases"]] == ["passed", "passed", "failed", "skipped"]
    assert found["cases"][2]["failure"]["differences"][0]["actual"] == "2"
    status, _, err = run(suite, "--junit", str(tmp_path / "no/junit.xml"))
    assert (status, "cannot be written" in err) == (2, True)


def test_snapshots_are_stored_compared_and_dropped(run: Run, suite: str) -> None:
    path, stored = Path(suite), Path(suite).with_suffix(".snapshots.yaml")
    text = "cases:\n  - {name: one, call: add, arguments: {a: 1}, expect: {snapshot: true}}\n"
    path.write_text(text)
    assert run(suite)[0] == 1
    assert run(suite, "--update")[0] == 0
    assert stored.read_text().endswith("one: 2\n")
    path.write_text(text.replace("one", "two"))
    assert run(suite)[0] == 1
    assert run(suite, "--update")[0] == 0
    assert stored.read_text().splitlines()[1:] == ["two: 2"]
    path.write_text(text.replace("true", "false"))
    assert "unused snapshots: two" in run(suite)[1]


def test_what_is_wrong_with_a_suite_is_status_2(run: Run, suite: str) -> None:
    Path(suite).write_text("cases:\n  - {name: a}\n  - {name: b, cal: x}\n")
    status, out, err = run(suite, suite)
    assert (status, out) == (2, "")
    assert "2 problem(s):" in err
    assert f"{suite}:3: cases[1].cal: " in err
    assert run(suite + "x")[0] == 2


def test_a_suite_that_names_no_server_needs_one(run: Run, suite: str) -> None:
    Path(suite).write_text("cases:\n  - {name: a, call: add, arguments: {a: 1}}\n")
    status, _, err = run(suite, against=())
    assert status == 2
    assert "pass --url or --serve" in err
    assert run(suite)[0] == 0


def test_a_gateway_is_served_for_the_run(run: Run, suite: str) -> None:
    config = str(Path(suite).with_name("gateway.yaml"))
    status, out, err = run(suite, "--filter", "quick", against=("--serve", config))
    assert (status, err) == (0, "")
    assert "1 passed in" in out


def test_a_gateway_that_does_not_start_is_status_5(run: Run, suite: str) -> None:
    Path(suite).with_name("gateway.yaml").write_text(GATEWAY.replace("served", "nowhere"))
    status, out, err = run(suite, against=())
    assert (status, out) == (5, "")
    assert "before it listened" in err
    assert "nowhere.py" in err


COMMAND = """\
server:
  command: [%s, -m, roundgate.cli, serve, gateway.yaml, --port, "${port}"]
  url: http://127.0.0.1:${port}/mcp
  environment: {GATEWAY_LOG_LEVEL: error}
cases:
  - {name: adds, call: add, arguments: {a: 2}, expect: {result: 3}}
"""


def test_a_command_is_run_beside_the_suite_and_ended(run: Run, suite: str) -> None:
    Path(suite).write_text(COMMAND % json.dumps(sys.executable))
    status, out, err = run(suite, against=())
    assert (status, err) == (0, "")
    assert "1 passed in" in out
    Path(suite).write_text(COMMAND % "no-such-command")
    assert run(suite, against=())[0] == 2


@pytest.mark.parametrize("option", ["--url", "--serve"])
def test_the_token_of_a_suite_is_not_for_another_server(
    run: Run, suite: str, server: Server, option: str
) -> None:
    path = Path(suite)
    path.write_text(
        SUITE.replace(
            "gateway: gateway.yaml", f'url: "{server.url}/mcp", headers: {{X-Mine: of-suite}}'
        )
    )
    seen: list[list[tuple[str, str]]] = []
    transport = sys.modules["roundgate.client.transport"]
    send = transport.HttpxTransport.send

    async def noting(self: object, request: object) -> object:
        seen.append(request.headers)  # type: ignore[attr-defined]
        return await send(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport.HttpxTransport, "send", noting)
        assert run(suite, "--filter", "quick", against=())[0] == 0
        assert "of-suite" in str(seen)
        assert "bearer-of-suite" in str(seen)
        seen.clear()
        other = f"{server.url}/mcp" if option == "--url" else str(path.with_name("gateway.yaml"))
        assert run(suite, "--filter", "quick", against=(option, other))[0] == 0
        assert seen
        assert "of-suite" not in str(seen)


EXAMPLE = Path(__file__).parents[3] / "examples" / "suite"


def test_the_example_passes_and_its_broken_twin_does_not(run: Run, tmp_path: Path) -> None:
    for folder in ("suite", "elicitation"):
        shutil.copytree(EXAMPLE.parent / folder, tmp_path / folder)
    status, out, _ = run(str(tmp_path / "suite" / "suite.yaml"), "--jobs", "3", against=())
    assert status == 0, out
    assert "7 passed in" in out
    status, out, _ = run(str(tmp_path / "suite" / "broken.yaml"), against=())
    assert (status, "3 failed in" in out) == (1, True)
    assert "add to answers: city: {city (string)}" in out
