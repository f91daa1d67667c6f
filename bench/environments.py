"""The environments of peers and floors, made once with `venv` and pip, or with npm; and the
versions of their packages.

An environment is reused until its requirements or the interpreter change. To get newer releases,
remove `.cache/bench`.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable

from bench.subjects import ROOT, Environment, Subject

_STAMP = "requirements.stamp"
_VERSIONS = """
import importlib.metadata, json, sys
found = {d.name.lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


class EnvironmentMissingError(Exception):
    """A virtual environment could not be made, or the environment of `scripts/setup` is missing."""


def make(environments: Iterable[Environment]) -> None:
    """Make each environment that is missing or was made from other requirements.

    Raises:
        EnvironmentMissingError: an environment cannot be made; the message has pip's output.
    """
    for environment in dict.fromkeys(environments):
        if environment.requirements or environment.packages:
            _make(environment)
        elif not environment.python.exists():
            raise EnvironmentMissingError(
                f"no {environment.folder.name} yet: run scripts/setup first"
            )


def _make(environment: Environment) -> None:
    folder, packages = environment.folder, environment.packages
    if packages:
        npm = [str(ROOT / "scripts" / "tools"), "node", "--npm", "install", "--silent"]
        commands = [[*npm, "--prefix", str(folder), *packages]]
    else:
        pip = [str(environment.python), "-m", "pip", "install", "--quiet"]
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [*pip, *environment.requirements],
        ]
    stamp = folder / _STAMP
    expected = "\n".join([*packages, *environment.requirements, sys.version, str(folder)])
    if not stamp.exists() or stamp.read_text() != expected:
        print(f"making the environment {folder.name} …", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in commands:
            _run(command)
        stamp.write_text(expected)
    if packages:  # imports resolve next to the packages
        shutil.copy(ROOT / "bench" / "apps" / "typescript.mjs", folder / "server.mjs")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentMissingError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def versions(subject: Subject) -> dict[str, str]:
    """Return the installed versions of the distributions that matter for a subject."""
    if subject.environment.packages:
        return _npm_versions(subject)
    command = [str(subject.environment.python), "-c", _VERSIONS, *subject.versions_of]
    installed: dict[str, str] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return installed


def _npm_versions(subject: Subject) -> dict[str, str]:
    modules = subject.environment.folder / "node_modules"
    return {
        name: json.loads((modules / name / "package.json").read_text())["version"]
        for name in subject.versions_of
    }
