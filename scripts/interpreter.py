"""Prints the path of a Python interpreter of a version (`3.12`), on the PATH or under
pyenv; exits with 1 if none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def candidates(version: str) -> Iterator[str]:
    """Where such an interpreter may be."""
    if found := shutil.which(f"python{version}"):
        yield found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (
        str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)
    )


def works(python: str, version: str) -> bool:
    """Whether it runs and is of the version; a pyenv shim may do neither."""
    ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return (
        subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == version
    )


if __name__ == "__main__":
    print(
        next((path for path in candidates(sys.argv[1]) if works(path, sys.argv[1])), None)
        or sys.exit(1)
    )
