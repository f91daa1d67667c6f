"""tests/README.md names every folder of tests, and every file of tests can be
told by its name alone."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.servers.subjects import SUBJECTS

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))
PACKAGES = {path.name for path in (TESTS.parent / "app").iterdir()}
"""Whose tests have a folder of the same name."""
MAP = (TESTS / "README.md").read_text("utf-8")


def test_every_folder_has_a_row_and_every_row_a_folder() -> None:
    tops = [path for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    below = [
        path for top in tops if top.name in PACKAGES for path in top.iterdir() if path.is_dir()
    ]
    alone = [path for path in tops if path.name not in PACKAGES or any(path.glob("test_*.py"))]
    folders = {
        path.relative_to(TESTS).as_posix() for path in [*below, *alone] if any(path.rglob("*.py"))
    }
    rows = [line.split("|")[1] for line in MAP.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+(?:/\w+)?)/`", row)]
    assert sorted(named) == sorted(folders)


def test_no_two_files_of_tests_have_one_name() -> None:
    places = defaultdict(list)
    for path in FILES:
        places[path.name].append(str(path.relative_to(TESTS)))
    twins = [paths for paths in places.values() if len(paths) > 1]
    assert not twins, f"rename one of each: {twins}"


def test_what_the_map_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)(?:\.py)?`", MAP))
    assert named
    assert named <= {path.stem for path in FILES}


def test_every_program_that_the_long_runs_of_servers_start_is_there() -> None:
    words = {word for subject in SUBJECTS for word in subject.command}
    programs = {Path(word) for word in words if word.endswith(".py") and ".cache" not in word}
    assert len(programs) > 2
    assert [str(program) for program in programs if not program.exists()] == []
