"""The instructions that a `tools/call` takes in each subject's process. valgrind counts them, so the
machine's noise does not matter.

Two runs of `bench.edge` under `valgrind --tool=callgrind`, one with 400 requests more
than the other; the difference is what those took. Without valgrind there are no such
rows, and a note says so.
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
    """A run under valgrind failed; the message is the last line of its output."""


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
        # the order of sets and dictionaries of strings is the same in every run
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = _COLLECTED.search(done.stderr)
    if done.returncode or found is None:
        raise NotCountedError(f"{subject.name}: {(done.stderr.splitlines() or ['?'])[-1]}")
    return int(found[1])
