"""Kinds of back end: one table, from which configuration, schema and making follow."""

from __future__ import annotations

import json
import subprocess
import sys
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

PROGRAM = """
import contextlib, io, json, sys
from types import MappingProxyType
from roundgate.backends import registry
registry.KINDS = MappingProxyType({**registry.KINDS, "echo": registry.BackendKind("echo:EchoConfig", "echo:Echo")})
from roundgate.cli import main
said = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        status = main(command)
    said.append((status, out.getvalue()))
print(json.dumps(said))
"""
"""Runs commands with one more entry in the table."""
FILES = {
    "good": "backends: [{kind: echo, name: e, word: hello}]\n",
    "misspelt": "backends:\n  - kind: echo\n    name: e\n    words: hello\n",
    "unknown": "backends: [{name: e}, {kind: none, name: f}]\n",
}


@pytest.mark.parametrize("name", KINDS)
def test_an_entry_of_the_table_is_whole(name: str) -> None:
    kind = KINDS[name]
    assert get_args(kind.model().model_fields["kind"].annotation) == (name,)
    assert callable(kind.factory())


Said = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What `roundgate check` says of each file and with which status it ends, and `roundgate schema`."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "echo.py").write_text(FIFTH)
    for name, text in FILES.items():
        (folder / f"{name}.yaml").write_text(text)
    commands = [*(["check", f"{name}.yaml"] for name in FILES), ["schema"]]
    program = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(
        program, cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    return dict(zip([*FILES, "schema"], json.loads(done.stdout), strict=True))


def test_another_kind_is_one_module_and_one_entry(said: Said) -> None:
    status, text = said["good"]
    assert status == 0, text
    assert "e__hello" in text


def test_its_problems_have_their_places(said: Said) -> None:
    status, text = said["misspelt"]
    assert status == 1
    assert "misspelt.yaml:2: backends[0].word: Field required" in text
    assert "misspelt.yaml:4: backends[0].words: Extra inputs" in text


def test_a_kind_that_is_not_there_is_a_problem_that_names_those_that_are(said: Said) -> None:
    status, text = said["unknown"]
    assert status == 1
    kinds = [*KINDS, "echo"]
    assert f"add {' or '.join(f'kind: {kind}' for kind in kinds)}" in text
    assert ", ".join(map(repr, kinds)) in text


def test_the_schema_has_it(said: Said) -> None:
    status, text = said["schema"]
    assert status == 0, text
    assert "EchoConfig" in json.loads(text)["$defs"]
