"""The command `roundgate` as a person runs it, and pytest in a repository of a user's."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.forked import MEASURES, Forked

TIMEOUT_S = 120


@dataclass(frozen=True)
class Ran:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


def roundgate(*arguments: str | Path, directory: Path | None = None, **environ: str) -> Ran:
    """Run the command to its end, in a forked process.

    A new process runs the installed command if a variable of Python's is given, and while coverage is measured.
    """
    words = [str(argument) for argument in arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    if MEASURES or any(name.startswith("PYTHON") for name in environ):
        installed = str(Path(sys.executable).with_name("roundgate"))
        return _started([installed, *words], directory, kept | environ)
    return _forked(words, directory or Path.cwd(), kept | environ)


def own_pytest(directory: Path, *options: str, **environ: str) -> Ran:
    """Run pytest in a user's repository, in a forked process."""
    program, variables = Path(pytest.__file__).with_name("__main__.py"), os.environ | environ
    if MEASURES:
        return _started([sys.executable, str(program), *options], directory, variables)
    return _forked(list(options), directory, variables, program)


def _forked(
    words: list[str], directory: Path, environ: dict[str, str], program: Path | None = None
) -> Ran:
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = Forked(words, environ, directory, out, err, program)
        try:
            status = process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        return Ran(status, out.read_text(), err.read_text())


def _started(words: list[str], directory: Path | None, environ: dict[str, str]) -> Ran:
    done = subprocess.run(
        words,
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
