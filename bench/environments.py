"""Makes the virtual environments of the peers and floors with `venv` and pip, once,
and says what is in them.

An environment is kept until its requirements or the interpreter change; remove
`.cache/bench` to get newer releases.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable

from bench.subjects import Environment, Subject

_STAMP = "requirements.stamp"
_VERSIONS = """
import importlib.metadata, json, sys
found = {d.name.lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


class EnvironmentMissingError(Exception):
    """A virtual environment could not be made, or the one that
    `scripts/setup` makes is not there."""


def make(environments: Iterable[Environment]) -> None:
    """Make each environment that is not there yet or was made from other requirements.

    Raises:
        EnvironmentMissingError: with what pip said.
    """
    for environment in dict.fromkeys(environments):
        if environment.requirements:
            _make(environment)
        elif not environment.python.exists():
            raise EnvironmentMissingError(
                f"no {environment.folder.name} yet: run scripts/setup first"
            )


def _make(environment: Environment) -> None:
    stamp = environment.folder / _STAMP
    wanted = "\n".join([*environment.requirements, sys.version, str(environment.folder)])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"making the environment {environment.folder.name} …", file=sys.stderr, flush=True)
    shutil.rmtree(environment.folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(environment.folder)])
    _run([str(environment.python), "-m", "pip", "install", "--quiet", *environment.requirements])
    stamp.write_text(wanted)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentMissingError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def versions(subject: Subject) -> dict[str, str]:
    """Return the versions of the distributions that matter for a subject, as installed."""
    command = [str(subject.environment.python), "-c", _VERSIONS, *subject.versions_of]
    found: dict[str, str] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return found
