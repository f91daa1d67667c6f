"""What `roundgate check` remarks on tools that some clients cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundgate.cli import main

TOOLS = '''\
from roundgate import Context, tool

@tool
def add(a: int) -> int:
    """Add."""
    return a

@tool
async def deploy(ctx: Context) -> str:
    """Deploy."""
    return str(await ctx.elicit("sure", "Sure?", bool))

@tool
async def digest(ctx: Context, text: str) -> str:
    """Sum up."""
    async def one() -> str:
        return await ctx.sample("sum", text)
    return await one()

@tool
async def careful(ctx: Context) -> str:
    """Ask if that is possible."""
    if not ctx.supports({"elicitation": {}}):
        return "no"
    return str(await ctx.elicit("sure", "Sure?", bool))

@tool(requires={"roots": {}})
def paths() -> str:
    """Look at roots."""
    return ""

@tool(task="required")
async def report(ctx: Context) -> str:
    """Take long."""
    return ""

@tool(task="optional")
async def perhaps(ctx: Context) -> str:
    """Take long, perhaps."""
    return ""
'''
BACKEND = "backends: [{kind: python, name: t, prefix: '', path: tools.py%s}]\n"


def checked(
    folder: Path, capsys: pytest.CaptureFixture[str], config: str, backend: str = ""
) -> str:
    (folder / "tools.py").write_text(TOOLS)
    (folder / "gateway.yaml").write_text(BACKEND % backend + config)
    assert main(["check", "--file-only", str(folder / "gateway.yaml")]) == 0
    return capsys.readouterr().out


def test_tools_that_some_clients_cannot_use_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = checked(tmp_path, capsys, "fallback: {ask_in_words: false, without_tasks: none}\n")
    assert "fallback: deploy, digest, paths: a client without elicitation gets an error" in out
    assert "ask_in_words: true" in out
    assert "fallback: report: a client that does not support tasks gets an error" in out
    assert "without_tasks: wait" in out
    assert "approve" not in out


def test_a_file_without_the_section_has_substitutes_and_no_remarks_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = checked(tmp_path, capsys, "", ", override: {add: {approve: always}}")
    assert "fallback:" not in out
    remarks = [line for line in out.splitlines() if "-32021" in line]
    places = [line.rpartition("gateway.yaml")[2].partition(" a client")[0] for line in remarks]
    assert places == [":1: backends[0]: paths:", ":1: backends[0]: add:"], "`requires`, an approval"


def test_a_substitute_ends_the_remark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(tmp_path, capsys, "fallback: {ask_in_words: true, without_tasks: tools}\n")
    assert "-32021" not in out


def test_a_substitute_of_one_tool_ends_the_remark_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ", override: {deploy: {ask_in_words: true}, report: {without_tasks: wait}}"
    off = "fallback: {ask_in_words: false, without_tasks: none}\n"
    out = checked(tmp_path, capsys, off, own)
    assert "fallback: digest, paths: a client without elicitation" in out
    assert "does not support tasks" not in out


def test_an_approval_has_no_substitute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(
        tmp_path,
        capsys,
        "fallback: {ask_in_words: true, without_tasks: wait}\n",
        ", override: {add: {approve: always}}",
    )
    assert "fallback: add: a client that cannot show forms gets an error" in out
    assert "there is no substitute" in out
