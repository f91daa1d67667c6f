"""The number of instructions of a `tools/call` in each subject's process, counted by valgrind, so
the machine's noise does not matter.

Two runs of `bench.edge` under `valgrind --tool=callgrind` differ by 400 requests; the difference of
their counts is the cost of these requests. Without valgrind there are no rows, but a note.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.subjects import REPOSITORY, ROOT, Subject

FEW, MANY = 200, 600
MEASURED = ("gateway", "fastapi", "asgi")
_COLLECTED = re.compile(r"Collected : (\d+)")


class NotCountedError(Exception):
    """A run under valgrind failed. The message is the last line of its output."""


def is_possible() -> bool:
    """Return whether valgrind is installed."""
    return shutil.which("valgrind") is not None


def counted(subjects: Sequence[Subject]) -> Iterator[tuple[str, str, float]]:
    """Yield case, subject and instructions per request.

    Raises:
        NotCountedError: a run under valgrind failed.
    """
    for case, more in (("without log lines", ()), ("each with its own log line", ("logged",))):
        for subject in subjects:
            if subject.name in MEASURED:
                few, many = (_run(subject, count, more) for count in (FEW, MANY))
                yield case, subject.name, (many - few) / (MANY - FEW)


def _run(subject: Subject, count: int, more: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={Path(folder, 'out')}"),
            *(str(REPOSITORY.python), "-m", "bench.edge", subject.name, str(count), *more),
        ]
        # makes the order of sets and dictionaries of strings the same in every run
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    match = _COLLECTED.search(done.stderr)
    if done.returncode or match is None:
        raise NotCountedError(f"{subject.name}: {(done.stderr.splitlines() or ['?'])[-1]}")
    return int(match[1])
