"""`roundgate policy`: which rule decides, with its line, and what the rules say about recorded calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli import main
from tests.support.audit import KEY

TOOLS = '''
from roundgate import tool

@tool(read_only=True)
def look(place: str = "here") -> str:
    """Look."""
    raise AssertionError("a command calls no tool")

@tool(scopes=["pay"])
def refund(order: str, amount: int = 1000) -> str:
    """Refund."""
    raise AssertionError("a command calls no tool")
'''
GATEWAY = f"""\
backends:
  - {{kind: python, name: shop, path: tools.py, override: {{refund: {{arguments: {{order: {{name: id}}}}}}}}}}
auth: {{issuer: "https://a.example", jwks_url: "https://a.example/keys"}}
audit: {{directory: audit, key: {KEY}}}
policy:
  - deny: {{subject: eve}}
  - allow:
      tool: shop__refund
      claims: {{groups: support}}
      arguments: {{properties: {{amount: {{maximum: 100}}}}, required: [amount]}}
  - name: readers
    allow: {{hint: read_only}}
  - deny: {{tool: shop__refund}}
views:
  - name: desk
    override: {{shop__refund: {{name: pay}}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    (tmp_path / "audit").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """The exit status of a command, and the lines that it printed, with single spaces."""
    status = main(["policy", *words])
    return status, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


ANN = json.dumps({"sub": "ann", "groups": ["support"], "scope": "pay"})


def test_explain_names_each_rule_with_its_line_and_the_rule_that_decides(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = json.dumps({"id": "a", "amount": 100})
    status, lines = ran(capsys, "explain", ANN, "shop__refund", "--arguments", arguments)
    path = "gateway.yaml" if lines[0].startswith("gateway.yaml") else str(folder / "gateway.yaml")
    assert (status, lines) == (
        0,
        [
            f"{path}:6 policy[0] deny does not match: subject",
            f"{path}:7 policy[1] allow matches",
            f"{path}:11 readers allow not reached",
            f"{path}:13 policy[3] deny not reached",
            f"allowed by policy[1], {path}:7",
        ],
    )


@pytest.mark.parametrize(
    ("principal", "words", "status", "last"),
    [
        (ANN, ["shop__refund"], 0, "depends on the arguments: give them with --arguments"),
        (ANN, ["shop__refund", "--arguments", '{"id": "a"}'], 1, "refused by policy[3]"),
        (ANN, ["pay", "--view", "desk", "--arguments", '{"id":"a","amount":5}'], 0, "allowed by"),
        ("ann", ["shop__refund"], 1, "refused: the tool needs the scope pay"),
        ('{"sub": "ann", "scope": "pay"}', ["shop__refund"], 1, "refused by policy[3]"),
        ("ann", ["shop__look"], 0, "allowed by readers"),
        ("eve", ["shop__look"], 1, "refused by policy[0]"),
    ],
)
def test_the_last_line_is_the_decision(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    principal: str,
    words: list[str],
    status: int,
    last: str,
) -> None:
    found, lines = ran(capsys, "explain", principal, *words)
    assert found == status
    assert lines[-1].startswith(last)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "ann", "refund"], "no tool, prompt or resource 'refund'"),
        (["explain", "ann", "shop__look", "--view", "none"], "no view 'none'"),
        (["explain", "{", "shop__look"], "PRINCIPAL"),
        (["explain", '{"sub": 7}', "shop__look"], "PRINCIPAL"),
        (["explain", "{}", "shop__look"], "PRINCIPAL"),
        (["explain", ANN, "shop__refund", "--arguments", "[]"], "write a JSON object"),
        (["explain", ANN, "shop__refund", "--arguments", '{"id": 1}'], "arguments.id"),
        (["replay", "none"], "none"),
    ],
)
def test_a_mistake_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["policy", *words]) == 2
    assert message in capsys.readouterr().err


def record(event: str, name: str, subject: str, **more: Any) -> str:
    who = {"issuer": "https://a.example", "subject": subject, "client": "cli"}
    facts = {"chain": "c", "event": event, "who": who, "method": "tools/call", "name": name}
    return json.dumps({**facts, "view": "", **more}) + "\n"


def test_replay_counts_what_the_rules_decide_and_says_on_what_it_depends(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "audit/c.0001.jsonl").write_text(
        record("started", "", "")
        + record("called", "shop__look", "ann", round=1) * 3
        + record("called", "shop__look", "ann", round=2)
        + record("called", "shop__look", "eve", round=1)
        + record("called", "shop__refund", "ann", round=1) * 2
        + record("called", "pay", "eve", round=1, view="desk")
        + record("refused", "shop__look", "bo")
        + record("called", "gone", "ann", round=1)
        + record("called", "prompt", "ann", round=1, method="prompts/get")
        + "not a record\n"
    )
    status, lines = ran(capsys, "replay")
    assert status == 0
    assert sorted(lines[:-1]) == [
        "1 gone began no such tool",
        "1 pay (view desk) began refused: policy[0]",
        "1 prompt began no such prompt",
        "1 shop__look began refused: policy[0]",
        "1 shop__look refused allowed: readers",
        "2 shop__refund began depends on claims.groups, arguments",
        "3 shop__look began allowed: readers",
    ]
    assert lines[-1].startswith("10 calls. Records have no scopes, claims or arguments")


def test_no_arguments_allow_a_call_to_which_only_denials_apply(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = "{deny: {tool: shop__look, arguments: {required: [place]}}}"
    before, _, _ = GATEWAY.partition("policy:")
    (folder / "gateway.yaml").write_text(f"{before}policy: [{rule}]\n")
    status, lines = ran(capsys, "explain", "ann", "shop__look")
    assert (status, lines[-1]) == (1, "refused, whatever the arguments")


def test_check_lists_the_rules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--file-only"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[lines.index("policy (4)") + 1 :][:4] == [
        "policy[0] deny subject eve 2 tools",
        "policy[1] allow tool shop__refund, claims.groups support, arguments 1 tool",
        "readers allow hint read_only 1 tool",
        "policy[3] deny tool shop__refund 1 tool",
    ]
    assert not [line for line in lines if "also matches" in line]


def test_check_remarks_on_an_argument_that_a_call_may_omit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gateway.yaml").write_text("""\
backends:
  - kind: http
    name: bank
    base_url: https://bank.example
    tools:
      - {name: pay, description: Pay., path: /pay, arguments: {sum: {schema: {type: integer}}}}
policy:
  - allow: {arguments: {properties: {sum: {maximum: 9}}}}
""")
    assert main(["check", "--file-only"]) == 0
    printed = capsys.readouterr().out
    (remark,) = [line for line in printed.splitlines() if "also matches" in line]
    assert "gateway.yaml:8" in remark
    assert "policy[0].allow.arguments: also matches calls of bank__pay without sum" in remark
    assert "add `required: [sum]`" in printed


def test_check_and_explain_name_what_a_rule_cannot_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shop.py").write_text("""\
from pydantic import SecretStr
from roundgate import tool

@tool
def look(token: SecretStr, place: str = "") -> str:
    \"\"\"Look.\"\"\"
    return place
""")
    (folder / "gateway.yaml").write_text("""\
backends:
  - {kind: python, name: shop, path: shop.py}
  - kind: http
    name: bank
    base_url: https://bank.example
    tools:
      - {name: pay, description: Pay., path: /pay, arguments: {sum: {schema: {type: [number, string]}}}}
policy:
  - deny: {arguments: {properties: {token: {const: x}}, required: [token]}}
  - deny: {arguments: {properties: {sum: {const: 1}, place: {const: x}}, required: [sum]}}
  - allow: {}
""")
    assert main(["check", "--file-only"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "policy[0].deny.arguments: token of shop__look cannot be read" in printed
    assert "policy[1].deny.arguments: sum of bank__pay may be text" in printed
    assert "place of" not in printed
    status, lines = ran(capsys, "explain", "ann", "shop__look", "--arguments", '{"token": "t"}')
    assert lines[0].startswith("arguments.token: unknown")
    assert (status, lines[-1].split(",")[0]) == (1, "refused by policy[0]")


def test_a_file_without_a_policy_has_nothing_to_explain(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gateway.yaml").write_text(GATEWAY.partition("policy:")[0])
    assert main(["policy", "explain", "ann", "shop__look"]) == 2
    assert "no section policy" in capsys.readouterr().err


def test_check_remarks_on_an_argument_that_no_tool_of_a_rule_has(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name after `override` is not the name that the back end gets, so such a rule denies
    nothing."""
    (folder / "gateway.yaml").write_text("""\
backends:
  - kind: http
    name: bank
    base_url: https://bank.example
    tools:
      - {name: pay, description: Pay., path: /pay, arguments: {sum: {schema: {type: integer}}}}
      - {name: ask, description: Ask., path: /ask, arguments: {who: {schema: {type: string}}}}
    override: {pay: {name: settle, arguments: {sum: {name: amount}}}}
policy:
  - deny: {tool: bank__settle, arguments: {properties: {amount: {minimum: 9}}, required: [amount]}}
  - deny: {tool: bank__settle, arguments: {properties: {sum: {minimum: 9}}, required: [sum]}}
  - deny: {arguments: {properties: {who: {const: eve}}, required: [who]}}
  - allow: {}
""")
    assert main(["check", "--file-only"]) == 0
    printed = capsys.readouterr().out
    (remark,) = [line for line in printed.splitlines() if "has an argument" in line]
    assert "gateway.yaml:10" in remark
    assert "policy[0].deny.arguments: no tool of this rule has an argument amount" in remark


@pytest.fixture
def library(folder: Path) -> Path:
    """A gateway whose rules name prompts and resources."""
    (folder / "tools.py").write_text("""
from roundgate import prompt, resource, tool

@prompt
def greet() -> str: ...

@prompt
def audit() -> str: ...

@tool(ui="look.html")
def look() -> str: ...

@resource("docs://{+path}")
def document(path: str) -> str: ...

@resource("docs://open/plan")
def plan() -> str: ...
""")
    (folder / "gateway.yaml").write_text(f"""\
backends:
  - {{kind: python, name: shop, path: tools.py, prefix: ""}}
auth: {{issuer: "https://a.example", jwks_url: "https://a.example/keys"}}
audit: {{directory: audit, key: {KEY}}}
policy:
  - deny: {{resource: "docs://hr/*", prompt: audit, subject: "*@office"}}
  - allow: {{resource: "docs://hr/*", claims: {{groups: hr}}}}
  - allow: {{resource: "docs://open/*", prompt: greet}}
  - deny: {{tool: look, subject: gone}}
  - name: tools
    allow: {{tool: look}}
  - deny: {{tool: look, prompt: greet}}
  - deny: {{resource: "ui://*", subject: "*@office"}}
""")
    (folder / "look.html").write_text("<!doctype html><title>Look</title>")
    return folder


@pytest.mark.parametrize(
    ("principal", "name", "status", "last"),
    [
        ("ann", "greet", 0, "allowed by policy[2]"),
        ("ann", "audit", 1, "refused: no rule matches"),
        ("bo@office", "audit", 1, "refused by policy[0]"),
        ("ann", "look", 0, "allowed by tools"),
        ("ann", "ui://shop/look.html", 0, "allowed, as the tool"),
        ("bo@office", "ui://shop/look.html", 1, "refused: by policy[6]"),
        ("gone", "ui://shop/look.html", 1, "refused: no call of the tool is allowed"),
        ("ann", "docs://open/plan", 0, "allowed by policy[2]"),
        ("ann", "docs://open/other", 0, "allowed by policy[2]"),
        ("ann", "docs://hr/pay", 1, "refused: no rule matches"),
        ('{"sub": "ann", "groups": "hr"}', "docs://hr/pay", 0, "allowed by policy[1]"),
        ('{"sub": "ann@office", "groups": "hr"}', "docs://%68r/pay", 1, "refused by policy[0]"),
        ("ann", "docs://open/../hr/pay", 1, "refused: a URI with a segment . or .. is not served"),
    ],
)
def test_prompts_and_resources_are_explained(
    library: Path,
    capsys: pytest.CaptureFixture[str],
    principal: str,
    name: str,
    status: int,
    last: str,
) -> None:
    found, lines = ran(capsys, "explain", principal, name)
    assert found == status
    assert lines[-1].startswith(last)


def test_replay_counts_prompts_and_resources(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (library / "audit/c.0001.jsonl").write_text(
        record("called", "greet", "ann", round=1, method="prompts/get")
        + record("called", "audit", "ann", round=1, method="prompts/get")
        + record("called", "docs://open/plan", "ann", round=1, method="resources/read")
        + record("called", "docs://hr/pay", "ann", round=1, method="resources/read")
        + record("called", "mail://x", "ann", round=1, method="resources/read")
        + record("called", f"docs://open/{'x' * 188}", "ann", round=1, method="resources/read")
        + record("called", "tasks", "ann", round=1, method="tasks/cancel")
    )
    status, lines = ran(capsys, "replay")
    assert status == 0
    assert sorted(lines[:-1]) == [
        "1 audit began refused: no rule",
        "1 docs://hr/pay began depends on claims.groups",
        "1 docs://open/plan began allowed: policy[2]",
        f"1 docs://open/{'x' * 188} began unknown: the record has only the beginning of the URI",
        "1 greet began allowed: policy[2]",
        "1 mail://x began no such resource",
    ]


def test_check_counts_the_targets_of_rules_and_names_kinds_without_rules(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--file-only"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    counts = [line.rpartition(" shop ")[2] for line in lines[lines.index("policy (7)") + 1 :][:7]]
    assert [count.endswith("1 prompt, 1 resource") for count in counts[:1]] == [True]
    assert counts[1].endswith("hr 1 resource")
    assert counts[2].endswith("1 prompt, 2 resources")
    assert not [line for line in lines if "so every caller may use" in line]
    file = library / "gateway.yaml"
    file.write_text(file.read_text().partition("policy:")[0] + "policy: [{deny: {}}]\n")
    assert main(["check", "--file-only"]) == 0
    printed = capsys.readouterr().out
    assert "no rule names a prompt, so every caller may use all prompts" in printed
    assert 'add `- allow: {resource: "*"}` at the end' in printed
    assert "no rule has an allow, so all calls are refused" in printed
