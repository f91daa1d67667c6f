"""Makes the environment of each client once, from PyPI or npm; it is kept until
what it needs changes."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.clients.subjects import CACHE, DRIVERS, ROOT, Subject

NODE: Final = ROOT / ".cache/node/node"
INSTALL_S: Final = 1_200
"""How long one environment may take on a machine that has other things to do."""


class EnvironmentMissingError(Exception):
    """An environment could not be made."""


def command(subject: Subject, url: str) -> list[str]:
    """What runs the driver of a client, in its environment.

    Node looks for modules beside the file that imports them, so the driver of a JavaScript client is run from there.
    """
    if subject.is_of_npm:
        for path in (DRIVERS / "run.mjs", subject.driver_path):
            shutil.copy2(path, subject.folder)
        return [str(NODE), str(subject.folder / subject.driver), url]
    python, run = str(_python(subject.folder)), str(DRIVERS / "run.py")
    return [python, "-P", "-W", "ignore", run, str(subject.driver_path), url]


def make(subject: Subject) -> None:
    """Make the environment of a client, if it is not there or was made from other requirements.

    Raises:
        EnvironmentMissingError: with what pip or npm said.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = subject.folder / "requirements.stamp", _wanted(subject)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"making .cache/clients/{subject.name} …", file=sys.stderr, flush=True)
        shutil.rmtree(subject.folder, ignore_errors=True)
        if subject.is_of_npm:
            _of_npm(subject)
        else:
            _of_pip(subject)
        stamp.write_text(wanted)


def _wanted(subject: Subject) -> str:
    made_by = str(NODE) if subject.is_of_npm else sys.version
    return "\n".join([*subject.requirements, made_by, str(subject.folder)])


def _of_pip(subject: Subject) -> None:
    _run([sys.executable, "-m", "venv", str(subject.folder)])
    python = str(_python(subject.folder))
    quiet = ("--quiet", "--disable-pip-version-check", "--prefer-binary")
    _run([python, "-m", "pip", "install", *quiet, *subject.requirements])


def _of_npm(subject: Subject) -> None:
    _run([str(ROOT / "scripts/tools"), "node", "--install"])
    subject.folder.mkdir(parents=True)
    quiet = ("--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts")
    npm = [str(ROOT / "scripts/tools"), "node", "--npm", "install", "--prefix", str(subject.folder)]
    _run([*npm, *quiet, *subject.requirements])


def _python(folder: Path) -> Path:
    return folder / "bin/python"


def _run(line: list[str]) -> None:
    try:
        done = subprocess.run(
            ["nice", *line],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentMissingError(f"{' '.join(line)}: not done in {INSTALL_S} s") from None
    if done.returncode:
        raise EnvironmentMissingError(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
