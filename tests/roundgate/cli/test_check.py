"""`roundgate check`: everything that is wrong, or everything that is served; and
wrong usage of the command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roundgate.cli import main
from tests.support.command import roundgate

ROOT = Path(__file__).parents[3]
TOOLS = '''
from roundgate import prompt, resource, tool

@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    And say nothing else.
    """
    return a + b

@tool
def bare(): ...

@prompt
def review(code: str) -> str:
    """Review code."""

@resource("notes://all")
def notes() -> str: ...

@resource("notes://{owner}/x")
def of(owner: str) -> str: ...
'''
CONFIG = """
backends:
  - {kind: python, name: desk, path: desk.py}
  - kind: http
    name: shop
    prefix: ""
    base_url: ${SHOP_URL}
    tools: [{name: buy, description: Buy something., path: "/buy/{what}"}]
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a check puts into the module search path away from other tests."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def gateway(tmp_path: Path) -> Path:
    """A configuration without problems, but for a variable."""
    (tmp_path / "desk.py").write_text(TOOLS)
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    return tmp_path / "gateway.yaml"


def test_what_is_served_is_listed_with_the_first_line_of_each_description(gateway: Path) -> None:
    ran = roundgate(
        "check", "gateway.yaml", directory=gateway.parent, SHOP_URL="http://localhost:1"
    )
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "tools (3)",
        "  desk__add   Add two numbers.",
        "  desk__bare",
        "  buy         Buy something.",
        "prompts (1)",
        "  desk__review  Review code.",
        "resources (1)",
        "  notes://all  notes",
        "resource templates (1)",
        "  notes://{owner}/x  of",
        "remarks (1)",
        f"{gateway.parent / 'desk.py'}:12: bare(): has no description, by which models choose tools",
        "    → write a docstring with its purpose and when to use it",
        "gateway.yaml: no problems",
    ]


def test_problems_go_to_standard_error_with_exit_status_1(gateway: Path) -> None:
    ran = roundgate("check", "gateway.yaml", directory=gateway.parent)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "1 problem(s):",
        "gateway.yaml:7: backends[1].base_url: the environment variable SHOP_URL is not set",
        "    → set it, or write ${SHOP_URL:-default}",
    ]


def test_a_file_that_is_not_there_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "gone.yaml")]) == 1
    assert capsys.readouterr().err.startswith(
        f"1 problem(s):\n{tmp_path}/gone.yaml: (file): No such file or directory"
    )


@pytest.mark.parametrize(
    "path", ["tests/conformance/gateway.yaml", "examples/quickstart/gateway.yaml"]
)
def test_the_configurations_that_people_see_first_have_no_problems(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(ROOT / path)]) == 0
    assert capsys.readouterr().out.endswith(f"{path}: no problems\n")


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["checks"], ["new"], ["check", "a", "b"], ["schema", "a"], ["serve", "--port", "x"]),
        *(["tasks"], ["tasks", "drop"], ["tasks", "show"], ["tasks", "show", "x"]),
        *(["tasks", "show", ".x"], ["tasks", "list", "--older-than", "soon"]),
        *(["tasks", "list", "--limit", "0"], ["tasks", "list", "--status", "expired"]),
        ["tasks", "watch", "a.b", "--interval", "0"],
    ],
)
def test_wrong_usage_is_exit_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    command = " tasks" if arguments[:1] == ["tasks"] else ""
    assert f"usage: roundgate{command}" in capsys.readouterr().err


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert {"serve", "check", "schema"} <= set(
        capsys.readouterr().out.replace(",", " ").replace("{", " ").replace("}", " ").split()
    )


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_the_problems_are_told_before_anything_is_bound(tmp_path: Path, command: str) -> None:
    (tmp_path / "gateway.yaml").write_text("backends: []\n")
    ran = roundgate(command, directory=tmp_path)
    assert ran.status == 1
    assert ran.err.startswith(
        "1 problem(s):\ngateway.yaml:1: backends: List should have at least 1 item"
    )
    assert roundgate(command, "other.yaml", directory=tmp_path).err.startswith(
        "1 problem(s):\nother.yaml: (file): "
    )
    assert not (tmp_path / ".roundgate").exists()


def test_serve_tells_what_is_wrong_in_the_environment(tmp_path: Path) -> None:
    ran = roundgate("serve", directory=tmp_path, GATEWAY_LISTEN="maybe", GATEWAY_PUBLIC_URL="x")
    assert ran.status == 1
    assert ran.err.startswith(
        "2 problem(s):\nenvironment: GATEWAY_PUBLIC_URL: is not an http(s) URL"
    )
    assert (
        "environment: GATEWAY_LISTEN: does not accept 'maybe'\n    → use one of auto, on, off"
        in ran.err
    )


def test_a_store_in_postgresql_needs_a_shared_key_and_is_not_connected_to(gateway: Path) -> None:
    environment = {
        "SHOP_URL": "https://shop.example.com",
        "GATEWAY_STORE": "postgresql://gateway:s3cr3t@db.invalid/gateway",
    }
    ran = roundgate("check", directory=gateway.parent, **environment)
    assert ran.status == 1
    assert ran.err.startswith(
        "1 problem(s):\nenvironment: GATEWAY_STATE_KEYS: is not set, and replicas need a"
    )
    assert "s3cr3t" not in ran.err
    key = roundgate("keys", "new").out.strip()
    ran = roundgate("check", directory=gateway.parent, **environment, GATEWAY_STATE_KEYS=key)
    assert (ran.status, ran.err) == (0, "")


def test_each_view_is_listed_with_where_it_is(
    gateway: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", "http://localhost:1")
    gateway.write_text(CONFIG + "views: [{name: till, include: [{backend: shop}]}]\n")
    assert main(["check", str(gateway)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-7:-4] == ["view till at /till/mcp", "tools (1)", "  buy  Buy something."]
