"""`roundgate package`: the zips of the two Lambda functions, and the template that deploys them.

    gateway.zip   FastAPI, Mangum, and what they and roundgate need
    worker.zip    neither FastAPI nor Mangum, PyJWT nor cryptography

Of roundgate each gets the modules that it can import (`own_code`). Both get the files of the
repository (`contents`) and the packages that its tools need (`locking`);
gateway.yaml becomes gateway.json, so that a cold start parses no YAML and the zip needs no PyYAML.
boto3 is the runtime's own. Everything is compiled to the runtime's byte code: a function cannot
write any, and would compile all it imports with each cold start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

from roundgate.backends import kind_of
from roundgate.config import ConfigFile
from roundgate.deployment import (
    contents,
    granting,
    literals,
    locking,
    missing,
    own_code,
    places,
    requirements,
    runtime,
)
from roundgate.deployment.contents import Contents
from roundgate.deployment.locking import Lock
from roundgate.deployment.requirements import name_of, normalized
from roundgate.errors import ConfigError, Problem
from roundgate.settings import yaml_file

MAX_UNZIPPED_BYTES: Final = 250 * 1024 * 1024
"""Of a function with its layers (AWS Lambda quotas)."""
MAX_UPLOADED_BYTES: Final = 50 * 1024 * 1024
"""Of a zip that is not sent through S3; `sam deploy` sends all of them through it."""

GATEWAYS_NEED: Final = frozenset(
    {
        *("annotated-doc", "cffi", "cryptography", "fastapi", "mangum", "opentelemetry-api"),
        *("pycparser", "pyjwt", "starlette", "importlib-metadata", "zipp"),
    }
)
"""What of roundgate's own lock the worker does without."""
_UNNEEDED: Final = (
    *(f"*.dist-info/{name}" for name in ("INSTALLER", "RECORD", "REQUESTED", "WHEEL", "sboms")),
    *("**/tests", "**/*.pyi", "**/py.typed", "**/__pycache__", "bin"),
)
"""Of packages; what `importlib.metadata` reads stays, and so do the licenses."""


@dataclass(frozen=True, slots=True)
class Function:
    """One of the two."""

    name: str
    entry: str
    """The module with its handler."""
    does_without: frozenset[str]


FUNCTIONS: Final = (
    Function("gateway", "roundgate.lambda_http", frozenset()),
    Function("worker", "roundgate.lambda_worker", GATEWAYS_NEED),
)

PLACEHOLDER: Final = "unset-while-packaging"
"""Stands for what is not set here: who packs need not have the secrets of the functions."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be packed."""

    file: ConfigFile
    path: Path
    arch: str
    contents: Contents
    lock: Lock
    wanted: requirements.Requirements

    def lines(self) -> Iterable[str]:
        """It, for people."""
        yield f"files of {self.contents.base}"
        yield f"  {'gateway.json':<32} {self.path.name}"
        for name, why in sorted(self.contents.files.items()):
            yield f"  {name:<32} {why}"
        for name in self.contents.refused:
            yield f"  {name:<32} LEFT OUT: it has the name of a secret"
        pins = ", ".join(f"{pin.name} {pin.version}" for pin in self.lock.pins)
        yield f"packages of {self.lock.file} for {self.arch}{' (new)' if self.lock.is_new else ''}"
        yield f"  {pins}"


def compile_documents(file: ConfigFile, say: Say = print) -> None:
    """Indexes of what describes back ends, beside the configuration: a function fetches
    nothing, and asks nobody.

    Raises:
        ConfigError: one cannot be made.
    """
    for index, backend in enumerate(file.backends):
        compile_with = kind_of(backend).compile_with()
        if compile_with is not None:
            say(compile_with(backend, file.backend_origin(index)))


def stood_for(file: ConfigFile) -> list[Problem]:
    """The variables that have no value here, where that may be why something could not be
    loaded."""
    names = [name for name, value in file.environment.items() if PLACEHOLDER in value]
    if not names:
        return []
    message = f"{', '.join(names)} cannot be had while packaging: {PLACEHOLDER!r} stands for it"
    remedy = (
        "if a module needs it when it is imported, set it here, or read it when a tool is called"
    )
    return [file.origin.at("env").problem(message, remedy)]


def plan(file: ConfigFile, path: Path, arch: str, *, anew: bool = False) -> Plan:
    """Return the plan of the package.

    Args:
        file: the configuration, read with placeholders for unset references.
        path: the path of gateway.yaml.
        arch: the functions' architecture, as CloudFormation names it.
        anew: whether to resolve the newest versions of packages.

    Raises:
        ConfigError: a file or a package is unavailable, or gateway.yaml or a packed file contains a
            credential.
    """
    source = yaml_file.read(path).value
    problems = [*granting.undeclared(source, str(path)), *literals.credentials(file, source)]
    if problems:
        raise ConfigError(problems)
    found = contents.gather(file)
    if problems := list(literals.in_files(found.base, sorted(found.files))):
        raise ConfigError(problems)
    wanted = requirements.read(found.base)
    lock = locking.for_repository(wanted, found.base, arch, anew=anew)
    return Plan(file, path, arch, found, lock, wanted)


def package(planned: Plan, out: Path, say: Say = print) -> None:
    """Both zips, in a folder. Those that are there stay if something is wrong.

    Raises:
        ConfigError: something is imported that is not packed, or there is too much of it.
    """
    out.mkdir(parents=True, exist_ok=True)
    wheels = locking.wheels(planned.lock, planned.arch)
    with tempfile.TemporaryDirectory(dir=out, prefix=".packing-") as temporary:
        problems = [
            problem
            for function in FUNCTIONS
            for problem in _staged(function, planned, wheels, Path(temporary) / function.name)
        ]
        if problems:
            raise ConfigError(list({str(problem): problem for problem in problems}.values()))
        for function in FUNCTIONS:
            staging = Path(temporary) / function.name
            size, zipped = _size(staging), _pack(staging, Path(f"{staging}.zip"))
            say(
                f"{function.name}.zip  {planned.arch}  {zipped / 1e6:6.1f} MB, {size / 1e6:6.1f} MB unpacked"
            )
        for function in FUNCTIONS:
            Path(temporary, f"{function.name}.zip").replace(out / f"{function.name}.zip")


def _staged(
    function: Function, planned: Plan, wheels: Mapping[str, Path], staging: Path
) -> list[Problem]:
    """The files of a function's zip, and what is wrong with them."""
    staging.mkdir()
    unpack_wheels(wheels, staging)
    for name in function.does_without - _needed_by(planned.wanted.names, staging):
        _remove_distribution(name, staging)
    for pattern in _UNNEEDED:
        for path in staging.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy_files(planned, staging)
    _copy_roundgate(function, planned, staging)
    if found := list(missing.unpacked(planned.contents, staging, function.name)):
        return found
    given = {name: os.environ[name] for name in planned.file.config.env if name in os.environ}
    if found := list(missing.unloadable(staging, planned.arch, planned.path, PLACEHOLDER, given)):
        return [*found, *stood_for(planned.file)]
    compile_code(staging)
    return list(_too_large(function, staging, planned.path))


def unpack_wheels(wheels: Mapping[str, Path], staging: Path) -> None:
    """Install wheels as an installer would, without scripts (Binary distribution format,
    "Installing a wheel")."""
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(staging)
    for data in staging.glob("*.data"):
        for kind in ("purelib", "platlib", "data"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, staging, dirs_exist_ok=True)
        shutil.rmtree(data)


def _needed_by(names: Collection[str], staging: Path) -> frozenset[str]:
    """What the packages of a repository need, however far away. Markers are not looked
    at: too much is no error."""
    needs = {name: set(_requires(info)) for name, info in _distributions(staging).items()}
    found, queue = set[str](), list(names)
    while queue:
        if (name := queue.pop()) not in found:
            found.add(name)
            queue.extend(needs.get(name, ()))
    return frozenset(found)


def _requires(info: Path) -> Iterable[str]:
    header = BytesHeaderParser().parsebytes((info / "METADATA").read_bytes())
    return filter(None, map(name_of, header.get_all("Requires-Dist", [])))


def _distributions(staging: Path) -> dict[str, Path]:
    return {normalized(info.name.split("-")[0]): info for info in staging.glob("*.dist-info")}


def _remove_distribution(name: str, staging: Path) -> None:
    info = _distributions(staging).get(name)
    if info is None:
        return
    for line in (info / "RECORD").read_text("utf-8").splitlines():
        path = staging / line.rsplit(",", 2)[0].strip('"')
        if path.resolve().is_relative_to(staging.resolve()):
            path.unlink(missing_ok=True)
    shutil.rmtree(info)
    folders = [path for path in staging.rglob("*") if path.is_dir()]
    for folder in sorted(folders, reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _copy_roundgate(function: Function, planned: Plan, staging: Path) -> None:
    """Copy the modules of roundgate that a function with these files and back ends can import."""
    entries = {function.entry, *own_code.imports_of_packed(staging)}
    for backend in planned.file.backends:
        entries.update((*own_code.modules_of_kind(backend), *backend.packed_modules))
    for file in own_code.reachable(entries):
        target = staging / places.PACKAGE.name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(places.PACKAGE / file, target)


def copy_files(planned: Plan, staging: Path) -> None:
    """The repository's own, and gateway.yaml as JSON.

    Raises:
        ConfigError: one of them would replace a file of a package.
    """
    for name in planned.contents.files:
        target = staging / name
        if target.exists() or name.partition("/")[0].removesuffix(".py") == "roundgate":
            remedy = "give it another name"
            message = "has the name of what a package has, which it would replace"
            raise ConfigError(
                [Problem(str(planned.contents.base / name), "(file)", message, remedy)]
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(planned.contents.base / name, target)
    value = yaml_file.read(planned.path).value
    (staging / "gateway.json").write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def compile_code(staging: Path) -> None:
    """Byte code beside the sources, which the runtime takes as it is, whatever their dates;
    paths are those on AWS."""
    python = runtime.interpreter()
    if python is None:
        print(
            f"no Python {runtime.PYTHON} here: without its byte code a cold start takes three times as long"
        )
        return
    paths = ["-s", str(staging), "-p", "/var/task", str(staging)]
    command = [str(python), "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, *paths], check=True, env={**os.environ, "PYTHONHASHSEED": "0"})


def _size(staging: Path) -> int:
    return sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())


def _too_large(function: Function, staging: Path, config: Path) -> Iterable[Problem]:
    size = _size(staging)
    if size > MAX_UNZIPPED_BYTES:
        tops = {
            path.name: _size(path) if path.is_dir() else path.stat().st_size
            for path in staging.iterdir()
        }
        largest = sorted(tops, key=lambda name: -tops[name])[:3]
        said = ", ".join(f"{name} {tops[name] / 1e6:.0f} MB" for name in largest)
        message = f"{function.name}.zip has {size / 1e6:.0f} MB unzipped, and AWS Lambda takes 262"
        yield Problem(
            str(config),
            "package",
            f"{message}. Largest: {said}",
            "leave some out, or use the container",
        )


def _pack(staging: Path, target: Path) -> int:
    """Zip a directory, in a fixed order and with a fixed date: the same
    input makes the same zip."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(staging.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(str(path.relative_to(staging)), (2026, 1, 1, 0, 0, 0))
                entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return target.stat().st_size
