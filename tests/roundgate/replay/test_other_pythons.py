"""A handler that begins on one Python goes on with on another, and back: a deployment may
change it under its tasks.

Each version is a process of its own interpreter, with the virtual environment that
`scripts/test --on` makes (`PYTHON=python3.13 VENV=.venv-3.13 scripts/setup`); versions
without one are skipped by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.json import encode
from roundgate.replay.journal import Journal
from tests.roundgate.replay.test_any_branches import doubled, expected_of
from tests.support.programs import World, program

ROOT = Path(__file__).parents[3]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
EXAMPLES = int(os.environ.get("HANDLERS", "150")) // 10


@contextmanager
def interpreter(version: str) -> Iterator[subprocess.Popen[str]]:
    python = (
        Path(sys.executable) if version == THIS else ROOT / f".venv-{version}" / "bin" / "python"
    )
    if not python.exists():
        pytest.skip(
            f"Python {version} has no environment here: PYTHON=python{version} VENV=.venv-{version} scripts/setup"
        )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([str(python), "-m", "tests.support.exchange"], cwd=ROOT, **pipes)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def ask(process: subprocess.Popen[str], given: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(given) + "\n")
    process.stdin.flush()
    left: dict[str, Any] = json.loads(process.stdout.readline())
    return left


def told_by_turns(seed: int, pythons: list[subprocess.Popen[str]]) -> tuple[Any, World, int]:
    """The value of a handler each of whose lives is on another Python; its effects; how often a process died."""
    stored = encode(Journal().to_json()).decode()
    left: dict[str, Any] = {"stored": stored, "effects": {}, "skipped_ms": 0}
    deaths, world = 0, World()
    for life in range(400):
        kept = {name: left[name] for name in ("stored", "effects", "skipped_ms")}
        left = ask(pythons[life % len(pythons)], {"seed": seed, "life": life, **kept})
        deaths += left["deaths"]
        if left["value"] is not None:
            world.effects.update(left["effects"])
            return left["value"][0], world, deaths
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    "other", [version for version in ("3.11", "3.12", "3.13", "3.14") if version != THIS]
)
def test_a_handler_that_moves_between_two_pythons_ends_as_if_it_had_not(
    other: str,
) -> None:
    with interpreter(THIS) as this, interpreter(other) as that:
        for seed in range(1, 1 + EXAMPLES):
            for pythons in ([this, that], [that, this]):
                expected, plain = asyncio.run(expected_of(program(seed)))
                value, world, deaths = told_by_turns(seed, pythons)
                assert value == expected, f"seed {seed}: {program(seed)}"
                assert not doubled(world, plain, deaths), f"seed {seed}: {program(seed)}"
