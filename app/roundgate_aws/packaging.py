"""`roundgate package`: the zips of the two Lambda functions.

    gateway.zip   FastAPI, Mangum, and their and roundgate's requirements
    worker.zip    no FastAPI, Mangum or PyJWT

Both contain the files of the repository, the modules of roundgate that they can import (`contents`)
and the packages of the repository (`locking`). gateway.yaml becomes gateway.json, so a cold start
parses no YAML; only `kind: skills` needs PyYAML. The runtime provides boto3. Everything is compiled to
the runtime's byte code, because a function cannot write byte code and would compile all its imports
in each cold start.

Before a zip is made, `unpacked` looks for unresolvable imports, and `unloadable` loads gateway.yaml
in the runtime's own Python with only the packed files, if this machine can.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.runtime import checks
from roundgate.settings import yaml_file
from roundgate.settings.process import STORES
from roundgate_aws import contents, literals, locking, machine
from roundgate_aws.contents import Contents, imported, in_src
from roundgate_aws.locking import PackageLock, Requirements, name_of, normalized
from roundgate_aws.template import undeclared

GATEWAYS_NEED: Final = frozenset(
    {
        *("annotated-doc", "fastapi", "mangum", "opentelemetry-api"),
        *("pyjwt", "starlette", "importlib-metadata", "zipp"),
    }
)
"""The packages of roundgate's own lock that the worker does not need."""
_UNNEEDED: Final = (
    *(f"*.dist-info/{name}" for name in ("INSTALLER", "RECORD", "REQUESTED", "WHEEL", "sboms")),
    "*.dist-info/direct_url.json",
    *("**/tests", "**/*.pyi", "**/py.typed", "**/__pycache__", "bin"),
)
"""The patterns of package files to leave out. Metadata and licenses stay."""


@dataclass(frozen=True, slots=True)
class PackedFunction:
    """A function of the stack."""

    name: str
    entries: tuple[str, ...]
    """The modules that Lambda starts."""
    does_without: frozenset[str]


FUNCTIONS: Final = (
    PackedFunction("gateway", ("roundgate_aws.http", "roundgate_aws.stream"), frozenset()),
    PackedFunction("worker", ("roundgate_aws.worker",), GATEWAYS_NEED),
)

STREAM: Final = "roundgate/stream.sh"
"""The script that starts `roundgate_aws.stream` in place of the Python runtime, whose command is
its arguments (AWS_LAMBDA_EXEC_WRAPPER)."""
_STREAM_TEXT: Final = """#!/bin/sh
cd "$LAMBDA_TASK_ROOT" || exit 1
export PYTHONPATH="$LAMBDA_TASK_ROOT:/opt/python:${PYTHONPATH:-/var/runtime}"
exec "$1" -m roundgate_aws.stream
"""

_NEEDED_BY_KIND: Final = {"pyyaml": "skills"}
"""The packages that functions need only for back ends of a kind, with the kind."""
PLACEHOLDER: Final = "unset-while-packaging"
"""The value of variables that are not set on this machine, because packaging needs no secrets."""


@dataclass(frozen=True, slots=True)
class PackagePlan:
    """The content of the zips."""

    file: ConfigFile
    path: Path
    arch: str
    contents: Contents
    lock: PackageLock
    wanted: Requirements

    def lines(self) -> Iterable[str]:
        """Yield the lines that show the plan."""
        yield f"files of {self.contents.base}"
        yield f"  {'gateway.json':<32} {self.path.name}"
        for name, why in sorted(self.contents.files.items()):
            yield f"  {name:<32} {why}"
        for name in self.contents.refused:
            yield f"  {name:<32} LEFT OUT: it is named like a secret"
        pins = ", ".join(f"{pin.name} {pin.version}" for pin in self.lock.pins)
        yield f"packages of {self.lock.file} for {self.arch}{' (new)' if self.lock.is_new else ''}"
        yield f"  {pins}"


def stood_for(file: ConfigFile) -> list[Problem]:
    """Return a problem that names the variables without a value, because a module may fail to load
    without them."""
    names = [name for name, value in file.environment.items() if PLACEHOLDER in value]
    if not names:
        return []
    message = f"{', '.join(names)} cannot be read while packaging and has the value {PLACEHOLDER!r}"
    remedy = "if a module needs it at import, set it here; otherwise read it when a tool is called"
    return [file.origin.at("env").problem(message, remedy)]


def plan(file: ConfigFile, path: Path, arch: str, *, anew: bool = False) -> PackagePlan:
    """Return the plan of the package.

    Args:
        file: the configuration, read with placeholders for unresolved references.
        path: the path of gateway.yaml.
        arch: the functions' architecture, as CloudFormation names it.
        anew: whether to resolve the newest versions of packages.

    Raises:
        ConfigError: a file or a package is unavailable, functions cannot serve the configuration, or
            gateway.yaml or a packed file contains a credential.
    """
    source = yaml_file.read(path).value
    problems = [*undeclared(source, str(path)), *literals.credentials(file, source)]
    problems += checks.problems(file, checks.FUNCTION)
    if problems:
        raise ConfigError(problems)
    contents_found = contents.gather(file)
    if problems := list(literals.in_files(contents_found.base, sorted(contents_found.files))):
        raise ConfigError(problems)
    requirements = locking.read_requirements(contents_found.base)
    lock = locking.for_repository(requirements, contents_found.base, arch, anew=anew)
    return PackagePlan(file, path, arch, contents_found, lock, requirements)


def package(planned: PackagePlan, out: Path, say: Callable[[str], None] = print) -> None:
    """Write both zips into a folder. Existing zips stay if this fails.

    Raises:
        ConfigError: an imported module is not packed, or gateway.yaml cannot be loaded.
    """
    out.mkdir(parents=True, exist_ok=True)
    packages = locking.packages(planned.lock, planned.arch)
    with tempfile.TemporaryDirectory(dir=out, prefix=".packing-") as temporary:
        problems = [
            problem
            for function in FUNCTIONS
            for problem in _staged(function, planned, packages, Path(temporary) / function.name)
        ]
        if problems:
            raise ConfigError(list({str(problem): problem for problem in problems}.values()))
        for function in FUNCTIONS:
            staging = Path(temporary) / function.name
            size = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
            zipped = pack(staging, Path(f"{staging}.zip"))
            say(
                f"{function.name}.zip  {planned.arch}  {zipped / 1e6:6.1f} MB, {size / 1e6:6.1f} MB unpacked"
            )
        for function in FUNCTIONS:
            Path(temporary, f"{function.name}.zip").replace(out / f"{function.name}.zip")


def _staged(
    function: PackedFunction, planned: PackagePlan, packages: Path, staging: Path
) -> list[Problem]:
    """Write the content of a function's zip into the folder `staging`; return its problems."""
    staging.mkdir()
    for distribution in _selected(function, planned, packages):
        for file in distribution.files or ():
            # a path in RECORD leaves the folder for scripts and data, which --target moves into it
            name = str(file).removeprefix("../../")
            target = staging / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(packages / name, target)
    for pattern in _UNNEEDED:
        for path in staging.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy_files(planned, staging)
    _copy_roundgate(function, planned, staging)
    if "roundgate_aws.stream" in function.entries:
        (staging / STREAM).write_text(_STREAM_TEXT)
    if missing := list(unpacked(planned.contents, staging, function.name)):
        return missing
    environment = {name: os.environ[name] for name in planned.file.config.env if name in os.environ}
    if missing := list(unloadable(staging, planned.arch, planned.path, PLACEHOLDER, environment)):
        return [*missing, *stood_for(planned.file)]
    compile_code(staging)
    return []


def _selected(
    function: PackedFunction, planned: PackagePlan, packages: Path
) -> list[metadata.Distribution]:
    """Return the packages of a function: all, except those that it does not need and that no
    package of the repository requires, whatever the markers."""
    installed = {
        normalized(distribution.name): distribution
        for distribution in metadata.distributions(path=[str(packages)])
    }
    required, queue = set[str](), list(planned.wanted.names)
    while queue:
        name = queue.pop()
        if name in installed and name not in required:
            required.add(name)
            queue.extend(filter(None, map(name_of, installed[name].requires or ())))
    kinds = {backend.kind for backend in planned.file.backends}
    unused = {package for package, kind in _NEEDED_BY_KIND.items() if kind not in kinds}
    left_out = (function.does_without | unused) - required
    return [installed[name] for name in sorted(installed.keys() - left_out)]


def _copy_roundgate(function: PackedFunction, planned: PackagePlan, staging: Path) -> None:
    """Add the modules of roundgate that the packed files and the back ends can import."""
    entries = {*function.entries, *contents.imports_of_packed(staging)}
    entries.update(kind.module for kind in STORES)
    for backend in planned.file.backends:
        entries.update((*contents.modules_of_kind(backend), *backend.packed_modules))
    for file in contents.reachable(entries):
        target = staging / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(machine.CODE / file, target)


def copy_files(planned: PackagePlan, staging: Path) -> None:
    """Add the repository's files, and gateway.yaml as JSON, to `staging`.

    Raises:
        ConfigError: a file would replace a package's file.
    """
    for name in planned.contents.files:
        target = staging / name
        if target.exists() or name.partition("/")[0].removesuffix(".py") in machine.PACKAGES:
            remedy = "give it another name"
            message = "has the same name as a package's file, which it would replace"
            raise ConfigError(
                [Problem(str(planned.contents.base / name), "(file)", message, remedy)]
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(planned.contents.base / name, target)
    value = yaml_file.read(planned.path).value
    (staging / "gateway.json").write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def compile_code(staging: Path) -> None:
    """Compile sources to byte code with the paths on AWS. The runtime uses it without checking
    dates."""
    python = machine.interpreter()
    if python is None:
        print(
            f"Python {machine.PYTHON} is not installed: without its byte code a cold start takes three times as long"
        )
        return
    paths = ["-s", str(staging), "-p", "/var/task", str(staging)]
    command = [str(python), "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, *paths], check=True, env={**os.environ, "PYTHONHASHSEED": "0"})


def pack(staging: Path, target: Path) -> int:
    """Write a folder's zip; return its size in bytes. Fixed order and dates make equal input
    produce equal zips."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(staging.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(str(path.relative_to(staging)), (2026, 1, 1, 0, 0, 0))
                mode = 0o755 if entry.filename == STREAM else 0o644
                entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return target.stat().st_size


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
    loading.load(config.load(Path("gateway.json"), placeholder=placeholder), asks_servers=False)
except ConfigError as error:
    print(json.dumps([[one.path, one.message, one.remedy] for one in error.problems]))
"""
_LOAD_S: Final = 60
_RENAME: Final = (
    "rename the module if it holds no secret; otherwise read the secret from a variable"
)


def unpacked(contents: Contents, staging: Path, function: str) -> Iterator[Problem]:
    """Yield problems for the local imports that a function's code cannot resolve, and for package
    modules that are not packed because they are named like a secret.

    Args:
        contents: the files of the repository.
        staging: the folder that becomes the zip.
        function: the function's name, for the message.
    """
    staged = {path.name.partition(".")[0] for path in staging.iterdir()}
    available = staged | {*machine.PROVIDED.values()} | sys.stdlib_module_names
    refused = [name for name in contents.refused if name.endswith(".py")]
    for name in refused:
        if name.partition("/")[0] in staged:
            message = "is named like a secret and is not packed, so imports of it would fail"
            yield Problem(str(contents.base / name), "(file)", message, _RENAME)
    for source in contents.sources:
        local = {path.stem for path in (staging / source).parent.iterdir()}
        for item in imported(staging / source):
            top = item.name.partition(".")[0]
            if item.is_required and top not in available | local:
                message = f"imports {item.name}, which the {function} function does not have"
                is_refused = any(top in (name.partition("/")[0], name[:-3]) for name in refused)
                remedy = _RENAME if is_refused else _remedy(top, contents.base)
                yield Problem(str(contents.base / source), top, message, remedy, item.line)


def _remedy(module: str, base: Path) -> str:
    if (module_path := in_src(base, module)) is not None:
        return f"move {module_path} beside gateway.yaml, where the functions look for modules"
    names = metadata.packages_distributions().get(module, [f"the package that has {module}"])
    names_text = " or ".join(names)
    return (
        f"add {names_text} to requirements.txt or pyproject.toml, or the files to package.include"
    )


def unloadable(
    staging: Path, arch: str, config: Path, placeholder: str, variables: Mapping[str, str]
) -> Iterator[Problem]:
    """Load gateway.yaml with only the packed files; yield its problems. Yield nothing if this
    machine's platform differs from the functions', or their Python is missing.

    Args:
        staging: the folder that becomes the zip.
        arch: the functions' architecture.
        config: gateway.yaml, for the problems.
        placeholder: the value of unset variables.
        variables: the variables of `env` that are set on this machine.
    """
    python = machine.interpreter() if arch == machine.architecture() else None
    if python is None or sys.platform != "linux":
        return
    with tempfile.TemporaryDirectory() as directory:
        for module in sorted(machine.PROVIDED.values()):
            if (spec := find_spec(module)) and spec.origin:
                whole = Path(spec.origin)
                source = whole.parent if whole.name == "__init__.py" else whole
                Path(directory, source.name).symlink_to(source)
        command = [str(python), "-I", "-B", "-c", _LOADS, str(staging), directory, placeholder]
        environ = {
            **variables,
            "PATH": os.environ.get("PATH", ""),
            "AWS_LAMBDA_FUNCTION_NAME": "packaging",
            # functions always have a region; here any value serves
            "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
        }
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LOAD_S, env=environ, check=False
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["the process ended without a message"])[-1]
        remedy = "run `roundgate check` in an environment that has only the function's requirements"
        yield Problem(str(config), "(file)", f"cannot be loaded from the package: {last}", remedy)
        return
    for path, message, remedy in json.loads(
        done.stdout.strip().splitlines()[-1] if done.stdout else "[]"
    ):
        yield Problem(str(config), path, f"in the package: {message}", remedy)
