"""The version of a handler: its code counts, and the state that it closes over does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.python.versions import Versions

SETS = """
def handler(day: str = "sat", *, of: frozenset[str] = frozenset({"b", "a", "c"})) -> bool:
    return day in {"mon", "tue", "wed", "thu", "fri"} and day in of
"""


def version(function: Callable[..., Any]) -> str:
    return Versions().of(function)


def made(state: Any) -> Callable[..., Any]:
    def handler() -> Any:
        return state

    return handler


@pytest.mark.parametrize(
    "state", [{"calls": 7}, [1], time.time(), 12, "2026", object()], ids=lambda one: str(type(one))
)
def test_state_that_a_handler_closes_over_is_no_part_of_its_version(state: Any) -> None:
    assert version(made(state)) == version(made({}))


def test_a_call_does_not_change_the_version_of_its_handler() -> None:
    calls: dict[str, int] = {}

    def handler() -> None:
        calls["n"] = calls.get("n", 0) + 1

    before = version(handler)
    handler()
    assert version(handler) == before


def test_functions_that_a_handler_closes_over_are_part_of_its_version() -> None:
    assert version(made(lambda: 1)) != version(made(lambda: 2))
    assert version(made(lambda: 1)) == version(made(lambda: 1))


def test_a_function_that_closes_over_itself_has_a_version() -> None:
    def handler(left: int) -> int:
        return handler(left - 1) if left else 0

    assert version(handler) == version(handler)


def test_defaults_that_are_constants_are_part_of_the_version() -> None:
    def of(default: Any) -> str:
        def handler(value: Any = default, *, other: Any = default) -> None: ...

        return version(handler)

    assert of(1) != of(2)
    assert of(("a", None)) != of(("b", None))
    assert of(time.time()) == of(1.5) == of([])


def test_processes_with_other_seeds_of_hashes_have_the_same_versions(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(SETS)
    program = (
        "import handlers; from roundgate.backends.python.versions import Versions;"
        " print(Versions().of(handlers.handler))"
    )
    versions = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert versions[0] == versions[1]
