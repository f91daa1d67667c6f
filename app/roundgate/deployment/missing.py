"""What the packed modules import and the functions would not find: said
before anything is deployed.

`unpacked` reads the sources, for any architecture. `unloadable` loads gateway.yaml in the runtime's
own Python with nothing but the packed files, where this machine can.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from roundgate.deployment import runtime
from roundgate.deployment.contents import Contents, imported, in_src
from roundgate.errors import Problem

_LOADS: Final = """
import json, os, sys
code, given, placeholder = sys.argv[1:]
sys.path[:0] = [code]
sys.path.append(given)
from pathlib import Path
from roundgate import config
from roundgate.runtime import loading
from roundgate.errors import ConfigError
try:
    os.chdir(code)
    loading.load(config.load(Path("gateway.json"), placeholder=placeholder))
except ConfigError as error:
    print(json.dumps([[one.path, one.message, one.remedy] for one in error.problems]))
"""
_LOAD_S: Final = 60
_RENAME: Final = (
    "rename the module if it holds no secret; otherwise read the secret from a variable"
)


def unpacked(contents: Contents, staging: Path, function: str) -> Iterator[Problem]:
    """Yield the local imports that a function's code cannot resolve, and the package modules that
    are not packed because of their names.

    Args:
        contents: the files of the repository.
        staging: the folder that becomes the zip.
        function: the function's name, for the message.
    """
    there = {path.name.partition(".")[0] for path in staging.iterdir()}
    known = there | runtime.MODULES | sys.stdlib_module_names
    refused = [name for name in contents.refused if name.endswith(".py")]
    for name in refused:
        if name.partition("/")[0] in there:
            message = "has the name of a secret and is not packed, so imports of it would fail"
            yield Problem(str(contents.base / name), "(file)", message, _RENAME)
    for source in contents.sources:
        local = {path.stem for path in (staging / source).parent.iterdir()}
        for one in imported(staging / source):
            top = one.name.partition(".")[0]
            if one.is_required and top not in known | local:
                message = f"imports {one.name}, which the {function} function does not have"
                is_refused = any(top in (name.partition("/")[0], name[:-3]) for name in refused)
                remedy = _RENAME if is_refused else _remedy(top, contents.base)
                yield Problem(str(contents.base / source), top, message, remedy, one.line)


def _remedy(module: str, base: Path) -> str:
    if (there := in_src(base, module)) is not None:
        return f"move {there} beside gateway.yaml, where the functions look for modules"
    names = metadata.packages_distributions().get(module, [])
    what = " or ".join(names) if names else f"the package that has {module}"
    return f"add {what} to requirements.txt or pyproject.toml, or the files to package.include"


def unloadable(
    staging: Path, arch: str, config: Path, placeholder: str, variables: Mapping[str, str]
) -> Iterator[Problem]:
    """What is wrong when gateway.yaml is loaded with the packed files alone; nothing
    where this machine is another than the functions', or has not their Python.
    `variables` of `env` are set here."""
    python = runtime.interpreter() if arch == runtime.here() else None
    if python is None or sys.platform != "linux":
        return
    with tempfile.TemporaryDirectory() as given:
        for module in sorted(runtime.MODULES):
            if (found := find_spec(module)) and found.origin:
                whole = Path(found.origin)
                source = whole.parent if whole.name == "__init__.py" else whole
                Path(given, source.name).symlink_to(source)
        command = [str(python), "-I", "-B", "-c", _LOADS, str(staging), given, placeholder]
        environ = {
            **variables,
            "PATH": os.environ.get("PATH", ""),
            "AWS_LAMBDA_FUNCTION_NAME": "packaging",
            # functions always have it; here it stands for any
            "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
        }
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LOAD_S, env=environ, check=False
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        remedy = "load it with `roundgate check` in an environment that has only its requirements"
        yield Problem(str(config), "(file)", f"cannot be loaded as it is packed: {last}", remedy)
        return
    for path, message, remedy in json.loads(
        done.stdout.strip().splitlines()[-1] if done.stdout else "[]"
    ):
        yield Problem(str(config), path, f"as it is packed: {message}", remedy)
