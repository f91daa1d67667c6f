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
        if environment.requirements:
            _make(environment)
        elif environment.packages:
            _make_with_npm(environment)
        elif not environment.python.exists():
            raise EnvironmentMissingError(
                f"no {environment.folder.name} yet: run scripts/setup first"
            )


def _make(environment: Environment) -> None:
    stamp = environment.folder / _STAMP
    expected = "\n".join([*environment.requirements, sys.version, str(environment.folder)])
    if stamp.exists() and stamp.read_text() == expected:
        return
    print(f"making the environment {environment.folder.name} …", file=sys.stderr, flush=True)
    shutil.rmtree(environment.folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(environment.folder)])
    _run([str(environment.python), "-m", "pip", "install", "--quiet", *environment.requirements])
    stamp.write_text(expected)


def _make_with_npm(environment: Environment) -> None:
    program = ROOT / "bench" / "apps" / "typescript.mjs"
    stamp = environment.folder / _STAMP
    expected = "\n".join([*environment.packages, str(environment.folder)])
    if not stamp.exists() or stamp.read_text() != expected:
        print(f"making the environment {environment.folder.name} …", file=sys.stderr, flush=True)
        shutil.rmtree(environment.folder, ignore_errors=True)
        environment.folder.mkdir(parents=True)
        npm = [str(ROOT / "scripts" / "tools"), "node", "--npm", "install", "--silent"]
        _run([*npm, "--prefix", str(environment.folder), *environment.packages])
        stamp.write_text(expected)
    shutil.copy(program, environment.folder / "server.mjs")  # imports resolve next to the packages


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
