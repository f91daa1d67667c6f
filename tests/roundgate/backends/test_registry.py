"""Kinds of back end: one table, from which configuration, schema and making follow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from roundgate.backends.registry import KINDS

FIFTH = '''
"""A kind of back end that this distribution does not have."""

from typing import Literal

from roundgate.backends.base import Offering, Tool
from roundgate.backends.config import BackendConfig
from roundgate.protocol.content import TextContent, ToolResult


class EchoConfig(BackendConfig):
    kind: Literal["echo"]
    word: str


class Echo:
    def __init__(self, config, origin, shared):
        self.name, self.prefix, self._word = config.name, config.effective_prefix, config.word

    async def offer(self):
        async def call(context, arguments):
            return ToolResult((TextContent(self._word),))

        return Offering([Tool({"name": self._word, "inputSchema": {"type": "object"}}, call)])

    async def aclose(self):
        pass
'''

ENTRY = """
import sys
from types import MappingProxyType
from roundgate.backends import registry
registry.KINDS = MappingProxyType({**registry.KINDS, "echo": registry.BackendKind("echo:EchoConfig", "echo:Echo")})
from roundgate.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", KINDS)
def test_an_entry_of_the_table_is_whole(name: str) -> None:
    kind = KINDS[name]
    assert get_args(kind.model().model_fields["kind"].annotation) == (name,)
    assert callable(kind.factory())


def run(directory: Path, *arguments: str) -> tuple[int, str]:
    """The command, with one more entry in the table."""
    (directory / "echo.py").write_text(FIFTH)
    command = [sys.executable, "-c", ENTRY, *arguments]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_another_kind_is_one_module_and_one_entry(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("backends: [{kind: echo, name: e, word: hello}]\n")
    status, said = run(tmp_path, "check", "gateway.yaml")
    assert status == 0, said
    assert "e__hello" in said


def test_its_problems_have_their_places(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "backends:\n  - kind: echo\n    name: e\n    words: hello\n"
    )
    status, said = run(tmp_path, "check", "gateway.yaml")
    assert status == 1
    assert "gateway.yaml:2: backends[0].word: Field required" in said
    assert "gateway.yaml:4: backends[0].words: Extra inputs" in said


def test_a_kind_that_is_not_there_is_a_problem_that_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("backends: [{name: e}, {kind: none, name: f}]\n")
    status, said = run(tmp_path, "check", "gateway.yaml")
    assert status == 1
    kinds = [*KINDS, "echo"]
    assert f"add {' or '.join(f'kind: {kind}' for kind in kinds)}" in said
    assert ", ".join(map(repr, kinds)) in said


def test_the_schema_has_it(tmp_path: Path) -> None:
    status, said = run(tmp_path, "schema")
    assert status == 0, said
    assert "EchoConfig" in json.loads(said)["$defs"]
