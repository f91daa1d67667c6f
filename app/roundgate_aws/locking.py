"""The packages for the functions: exact versions with the hashes of their wheels, for both
architectures.

    roundgate's own lock ─┐
    requirements ─────────┴─▶ pip, for the runtime ──▶ wheels (a cache) ──▶ lambda.lock

The first of these files that exists beside gateway.yaml has the requirements of the repository:

    uv.lock           the versions of pyproject.toml's dependencies, and the allowed hashes
    requirements.txt  as pip reads it, with the files that it includes
    pyproject.toml    [project] dependencies

roundgate itself is left out: the functions get the roundgate that packs them. A repository without
requirements of its own gets roundgate's lock. Otherwise lambda.lock, which belongs in the
repository, is written, and written again when the requirements change.

    python -m roundgate_aws.locking     rewrites infra/lambda.lock, in a checkout
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from roundgate.errors import ConfigError, Problem, VersionsConflict
from roundgate_aws import machine

# What a repository requires

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_HASH: Final = re.compile(r"\s--hash[= ]sha256:([0-9a-f]{64})")
_EXTRAS_OF_LINE: Final = re.compile(r"[\w.-]+\s*\[([^\]]*)\]")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of a repository besides roundgate."""

    file: Path | None
    """The file with the requirements; `None` if there is none."""
    lines: tuple[str, ...] = ()
    """The lines of a requirements file, without hashes."""
    constraints: tuple[str, ...] = ()
    """The locked versions, as `name==version`."""
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The SHA-256 digests of the allowed files, by name. Files of other names are not
    restricted."""
    extras: frozenset[str] = frozenset()
    """The extras of roundgate that are required."""

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the distributions in `lines`."""
        return frozenset(filter(None, map(name_of, self.lines)))


def read_requirements(directory: Path) -> Requirements:
    """Return the requirements of the repository whose gateway.yaml is in a directory.

    Raises:
        ConfigError: a file cannot be read.
    """
    if (lock := directory / "uv.lock").is_file():
        return _requirements_from_uv(lock, directory / "pyproject.toml")
    if (file := directory / "requirements.txt").is_file():
        return _requirements_from_lines(file, list(_flat(file, ())))
    if (project := directory / "pyproject.toml").is_file():
        return _requirements_from_lines(project, _dependencies(project))
    return Requirements(None)


def normalized(name: str) -> str:
    """Return the name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str | None:
    """Return the normalized name of the distribution that a line requires, or `None` for an option, a
    URL or a path."""
    match = _NAME.match(requirement)
    if match is None or re.match(r"\S*[/:\\]", requirement.partition("@")[0]):
        return None
    return normalized(match[0])


def _requirements_from_lines(file: Path, lines: list[str]) -> Requirements:
    requirements = [line for line in lines if name_of(line) != "roundgate"]
    named = [(name_of(line), frozenset(_HASH.findall(line))) for line in requirements]
    hashes = {name: hashes for name, hashes in named if name and hashes}
    extras = [_EXTRAS_OF_LINE.match(line) for line in lines if name_of(line) == "roundgate"]
    extra_names = {extra for match in extras if match for extra in re.split(r"[\s,]+", match[1])}
    plain = tuple(_HASH.sub("", line).strip() for line in requirements)
    return Requirements(file, plain, (), hashes, frozenset(extra_names))


def _flat(file: Path, within: tuple[Path, ...]) -> Iterator[str]:
    """Yield the requirements of a file and of the files that it includes."""
    if file in within:
        raise _unusable(file, "includes itself", "remove the line that begins with -r")
    for line in _text(file).replace("\\\n", " ").splitlines():
        stripped = _COMMENT.sub("", line).strip()
        option, _, named = stripped.replace("=", " ", 1).partition(" ")
        if option in ("-r", "--requirement"):
            yield from _flat((file.parent / named.strip()).resolve(), (*within, file))
        elif option in ("-c", "--constraint"):
            yield f"-c {(file.parent / named.strip()).resolve()}"
        elif stripped:
            yield stripped


def _dependencies(project: Path) -> list[str]:
    dependencies = _toml(project).get("project", _NONE).get("dependencies", [])
    if not isinstance(dependencies, list):
        raise _unusable(project, "[project] dependencies is not a list", "write a list of texts")
    return [str(dependency) for dependency in dependencies]


def _requirements_from_uv(lock: Path, project: Path) -> Requirements:
    requirements = (
        _requirements_from_lines(lock, _dependencies(project))
        if project.is_file()
        else Requirements(lock)
    )
    versions: dict[str, set[str]] = {}
    hashes: dict[str, set[str]] = {}
    for package in _toml(lock).get("package", []):
        if "registry" not in package.get("source", _NONE):
            continue  # the repository itself, or a package in one of its folders
        name = normalized(str(package.get("name", "")))
        versions.setdefault(name, set()).add(str(package.get("version", "")))
        known_files = {
            sha256 for wheel in package.get("wheels", []) for sha256 in _sha256_of(wheel)
        }
        hashes.setdefault(name, set()).update(known_files)
    single = {name: sha256.pop() for name, sha256 in versions.items() if len(sha256) == 1}
    pins = [f"{name}=={version}" for name, version in sorted(single.items())]
    hashes_by_name = {
        name: frozenset(sha256) for name, sha256 in hashes.items() if sha256 and name in single
    }
    others = tuple(pin for pin in pins if name_of(pin) != "roundgate")
    return Requirements(lock, requirements.lines, others, hashes_by_name, requirements.extras)


def _sha256_of(wheel: Mapping[str, Any]) -> Iterator[str]:
    kind, _, value = str(wheel.get("hash", "")).partition(":")
    if kind == "sha256":
        yield value


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise _unusable(file, str(error), "correct the TOML") from None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise _unusable(
            file, error.strerror or "cannot be read", "correct the path, or add the file"
        ) from None
    except UnicodeDecodeError:
        raise _unusable(file, "is not UTF-8", "save it as UTF-8") from None


def _unusable(file: Path, message: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(str(file), "(file)", message, remedy)])


# The lock

NAME: Final = "lambda.lock"
_NOT_IN_FUNCTIONS: Final = frozenset({"roundgate", "click", "httptools", "uvicorn", "uvloop"})
"""The requirements of roundgate that no function needs, because they serve without AWS Lambda."""
_EXTRAS: Final = frozenset({"otel"})
"""The extras of roundgate that a function can use, besides `lambda`."""
_LINE: Final = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<hashes>.*)$")
_NO_WHEEL: Final = re.compile(
    r"No matching distribution found for ([^\s(;]+(?: *[<>=!~][^\s(;]*)*)"
)
_CONFLICT: Final = ("ResolutionImpossible", "conflicting dependencies")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package in a lock."""

    name: str
    version: str
    hashes: frozenset[str]
    """The SHA-256 digests of the wheels, at most one for each architecture."""

    def line(self) -> str:
        """Return the line that pip reads with --require-hashes."""
        hashes = (f" --hash=sha256:{sha256}" for sha256 in sorted(self.hashes))
        return f"{self.name}=={self.version}{''.join(hashes)}"


@dataclass(frozen=True, slots=True)
class PackageLock:
    """The packages for the functions."""

    file: Path
    pins: tuple[Pin, ...]
    is_new: bool = False

    def text(self, digest: str = "") -> str:
        """Return the content of the file."""
        head = [f"# Written by `roundgate package`: python{machine.PYTHON}, arm64 and x86_64."]
        head += [f"# of {digest}"] if digest else []
        return "\n".join([*head, *(pin.line() for pin in self.pins), ""])


def for_repository(
    requirements: Requirements, directory: Path, arch: str, *, anew: bool = False
) -> PackageLock:
    """Return the lock of a repository; write it if it is missing or outdated.

    Args:
        requirements: the repository's requirements.
        directory: the folder of its gateway.yaml.
        arch: the functions' architecture.
        anew: whether to resolve the newest versions.

    Raises:
        ConfigError: a package has no wheel for the functions, or requirements conflict.
    """
    if not requirements.lines and not requirements.extras & _EXTRAS:
        return _read_lock(machine.LOCK)
    digest, file = _digest(requirements), directory / NAME
    if not anew and file.is_file() and f"# of {digest}\n" in file.read_text("utf-8"):
        return _read_lock(file)
    lock = PackageLock(file, _resolved(requirements, arch, directory), is_new=True)
    file.write_text(lock.text(digest), "utf-8")
    return lock


def of_roundgate(source: Path) -> PackageLock:
    """Return a new lock for roundgate's own requirements, resolved from its source folder.

    Raises:
        ConfigError: a package has no wheel for the functions, or requirements conflict.
    """
    dropped = _NOT_IN_FUNCTIONS | machine.PROVIDED.keys()
    return PackageLock(machine.LOCK, pins_for(source, (f"{source}[lambda]",), dropped))


def pins_for(source: Path, lines: tuple[str, ...], dropped: frozenset[str]) -> tuple[Pin, ...]:
    """Return the newest versions that requirements of a source folder allow, without the `dropped`
    packages. Raise ConfigError as `of_roundgate` does."""
    requirements = Requirements(source / "pyproject.toml", lines)
    return _made(requirements, (), machine.architecture(), source, dropped)


def wheels(lock: PackageLock, arch: str) -> dict[str, Path]:
    """Return the wheel of each package for an architecture, by name. Wheels that the cache lacks
    are fetched.

    Raises:
        ConfigError: the lock has no wheel of a package for this architecture.
    """
    cached = _kept(lock.pins, arch)
    if missing := [pin for pin in lock.pins if pin.name not in cached]:
        _fetch(missing, arch, lock.file)
        cached = _kept(lock.pins, arch)
    if absent := [pin for pin in lock.pins if pin.name not in cached]:
        remedy = f"run `roundgate package --lock --arch {arch}`"
        messages = (f"has no wheel of {pin.name} for {arch}" for pin in absent)
        raise ConfigError([_problem(lock.file, message, remedy) for message in messages])
    return cached


def _read_lock(file: Path) -> PackageLock:
    matches = [_LINE.match(line) for line in file.read_text("utf-8").splitlines()]
    pins = [
        Pin(
            match["name"], match["version"], frozenset(re.findall(r"sha256:(\w+)", match["hashes"]))
        )
        for match in matches
        if match
    ]
    return PackageLock(file, tuple(pins))


def _digest(requirements: Requirements) -> str:
    """Return a digest of all input of a lock."""
    wanted_here = [
        *requirements.lines,
        *requirements.constraints,
        *sorted(requirements.extras & _EXTRAS),
    ]
    texts = [machine.PYTHON, machine.LOCK.read_text("utf-8"), *wanted_here]
    return "sha256:" + hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _resolved(requirements: Requirements, arch: str, directory: Path) -> tuple[Pin, ...]:
    """Return pins that prefer roundgate's own versions, or ignore these versions if they
    conflict."""
    extras = {"lambda", *(requirements.extras & _EXTRAS)}
    own = [line for line in metadata.requires("roundgate") or [] if _is_needed(line, extras)]
    together = Requirements(
        requirements.file,
        (*own, *requirements.lines),
        requirements.constraints,
        requirements.hashes,
    )
    chosen = {name_of(pin) for pin in requirements.constraints}
    preferred = [f"{pin.name}=={pin.version}" for pin in _read_lock(machine.LOCK).pins]
    others = [pin for pin in preferred if name_of(pin) not in chosen]
    dropped = (_NOT_IN_FUNCTIONS - requirements.names) | _find_provided(requirements)
    try:
        return _made(together, others, arch, directory, dropped)
    except VersionsConflict:
        return _made(together, (), arch, directory, dropped)


def _is_needed(requirement: str, extras: Collection[str]) -> bool:
    """Return whether a function needs a requirement of roundgate."""
    if name_of(requirement) in _NOT_IN_FUNCTIONS:
        return False
    marker = requirement.partition(";")[2]
    match = re.search(r"""extra *== *["']([\w-]+)["']""", marker)
    return match is None or match[1] in extras


def _made(
    requirements: Requirements,
    preferred: Sequence[str],
    arch: str,
    directory: Path,
    dropped: frozenset[str],
) -> tuple[Pin, ...]:
    other_arch = next(platform for platform in machine.PLATFORMS if platform != arch)
    with tempfile.TemporaryDirectory() as temporary:
        here, there = Path(temporary, arch), Path(temporary, other_arch)
        _download(requirements, (*requirements.constraints, *preferred), arch, directory, here)
        files = {name: file for name, file in _by_name(here).items() if name not in dropped}
        native = [file for file in files.values() if not file.name.endswith("-any.whl")]
        options = ["--no-deps", "--dest", str(there), *machine.pip_options(other_arch)]
        for file in native:  # one after another, because the other architecture may lack a wheel
            machine.try_pip(["download", *options, _pinned(file)])
        others = _by_name(there) if there.is_dir() else {}
        pins = [
            Pin(
                name,
                _version(file),
                frozenset(_hashes(name, [file, others.get(name)], requirements)),
            )
            for name, file in sorted(files.items())
        ]
        _keep([*files.values(), *others.values()])
    return tuple(pins)


def _find_provided(requirements: Requirements) -> frozenset[str]:
    """Return the distributions that the runtime provides; empty if the repository pins one of
    them."""
    pinned = (line for line in requirements.lines if "==" in line.partition(";")[0])
    is_pinned = any(name_of(line) in machine.PROVIDED for line in pinned)
    return frozenset() if is_pinned else frozenset(machine.PROVIDED)


def _download(
    requirements: Requirements, constraints: Sequence[str], arch: str, directory: Path, to: Path
) -> None:
    to.mkdir()
    listed, constraint_file = to / "requirements.txt", to / "constraints.txt"
    listed.write_text("\n".join([*map(_without_extra, requirements.lines), ""]), "utf-8")
    constraint_file.write_text("\n".join([*constraints, ""]), "utf-8")
    files = ["--requirement", str(listed), "--constraint", str(constraint_file)]
    output = machine.try_pip(
        ["download", "--quiet", "--dest", str(to), *machine.pip_options(arch), *files], directory
    )
    if output is not None:
        raise _refused(output, requirements.file or directory, arch)


def _without_extra(requirement: str) -> str:
    """Remove the marker of an extra: functions always require `mangum>=0.19; extra == "lambda"`."""
    before, _, marker = requirement.partition(";")
    return before.strip() if "extra" in marker else requirement


def _refused(output: str, file: Path, arch: str) -> ConfigError:
    lines = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    text = " ".join(line.removeprefix("ERROR: ") for line in lines) or output.strip()[-500:]
    if match := _NO_WHEEL.search(output):
        platform = f"python{machine.PYTHON} on Linux, {machine.PLATFORMS[arch]}"
        remedy = "correct the name or version, choose a version that has a wheel, or build one into a folder that pip's"
        return ConfigError(
            [
                _problem(
                    file, f"{match[1]} has no wheel for {platform}", f"{remedy} find-links names"
                )
            ]
        )
    kind = VersionsConflict if any(word in output for word in _CONFLICT) else ConfigError
    return kind([_problem(file, text, "correct the requirements")])


def _fetch(pins: Iterable[Pin], arch: str, file: Path) -> None:
    """Add wheels to the cache. pip checks them against the hashes of the lock. Raise ConfigError if
    pip fails."""
    with tempfile.TemporaryDirectory() as temporary:
        listed = Path(temporary, "requirements.txt")
        listed.write_text("\n".join([*(pin.line() for pin in pins), ""]), "utf-8")
        to = Path(temporary, "wheels")
        command = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(to)]
        output = machine.try_pip(
            [*command, *machine.pip_options(arch), "--requirement", str(listed)]
        )
        if output is not None:
            raise _refused(output, file, arch)
        _keep(to.glob("*.whl"))


def _keep(files: Iterable[Path]) -> None:
    """Copy wheels into the cache, in a folder per hash, because an index may have two files with
    one name."""
    directory = machine.cache() / "wheels"
    for file in files:
        target = directory / _sha256(file) / file.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            shutil.copyfile(file, part)
            part.replace(target)


def _kept(pins: Iterable[Pin], arch: str) -> dict[str, Path]:
    directory, files = machine.cache() / "wheels", dict[str, Path]()
    for pin in pins:
        for sha256 in pin.hashes:
            for file in (directory / sha256).glob("*.whl"):
                if _is_for(file, arch) and _sha256(file) == sha256:
                    files[pin.name] = file
    return files


def _is_for(wheel: Path, arch: str) -> bool:
    tag = wheel.stem.rpartition("-")[2]
    return tag == "any" or machine.PLATFORMS[arch] in tag


def _by_name(directory: Path) -> dict[str, Path]:
    return {normalized(file.name.partition("-")[0]): file for file in directory.glob("*.whl")}


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _pinned(wheel: Path) -> str:
    return f"{normalized(wheel.name.partition('-')[0])}=={_version(wheel)}"


def _hashes(name: str, files: Iterable[Path | None], requirements: Requirements) -> Iterable[str]:
    """Yield the hashes of a package's wheels; raise ConfigError if uv.lock lacks a hash."""
    for file in filter(None, files):
        sha256, right = _sha256(file), requirements.hashes.get(name)
        if right is not None and sha256 not in right:
            message = f"{file.name} does not have a hash that the file allows"
            remedy = "run `uv lock` again, or check the index that pip uses"
            raise ConfigError([_problem(requirements.file or file, message, remedy)])
        yield sha256


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _problem(file: Path, message: str, remedy: str) -> Problem:
    return Problem(str(file), "packages", message, remedy)


def main() -> int:
    """Rewrite Roundgate's own lock file; return the exit status."""
    try:
        lock = of_roundgate(machine.CODE.parent)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    lock.file.write_text(lock.text(), "utf-8")
    print(f"{lock.file}: {len(lock.pins)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
