"""What runs a function: its Python, its machines, what it has installed
already; and pip, told of it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

PYTHON: Final = "3.13"
PLATFORMS: Final[Mapping[str, str]] = MappingProxyType({"arm64": "aarch64", "x86_64": "x86_64"})
"""By CloudFormation's name of an architecture, what wheels call it."""
_MANYLINUX: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
"""What Amazon Linux 2023, below python3.13, can load: glibc 2.34."""

HAS: Final = frozenset(
    {"boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3"}
)
"""The distributions that the runtime has."""
MODULES: Final = frozenset(
    {"boto3", "botocore", "jmespath", "dateutil", "s3transfer", "six", "urllib3"}
)
"""What can be imported of them."""


def here() -> str:
    """The architecture of this machine."""
    return "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"


def interpreter() -> Path | None:
    """Return a Python of the runtime's version on this machine, or None."""
    return find_interpreter(PYTHON)


def options(arch: str) -> list[str]:
    """pip's, for another machine than this one."""
    names = [f"{name}_{PLATFORMS[arch]}" for name in _MANYLINUX]
    platforms = [option for name in names for option in ("--platform", name)]
    return [
        *platforms,
        *("--python-version", PYTHON, "--implementation", "cp", "--only-binary", ":all:"),
    ]


def try_pip(arguments: Sequence[str], directory: Path | None = None) -> str | None:
    """Run pip; what it says of a failure, if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr or f"pip failed: {done.returncode}"


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
