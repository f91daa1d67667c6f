"""Python interpreters of other versions on this machine.

python -m roundgate.deployment.interpreter 3.12    prints the path of one, or exits with 1
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def find_interpreter(version: str) -> Path | None:
    """Return an interpreter of a version such as `3.12`, on the PATH or under pyenv."""
    return next((path for path in _candidates(version) if _is_of_version(path, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)


def _is_of_version(python: Path, version: str) -> bool:
    """Return whether an interpreter runs and has the version; a pyenv shim may do neither."""
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


if __name__ == "__main__":
    print(find_interpreter(sys.argv[1]) or sys.exit(1))
