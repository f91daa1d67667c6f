"""The packages for the functions: exact versions with the hashes of their wheels, for both
architectures.

    roundgate's own lock ─┐
    requirements ─────────┴─▶ pip, for the runtime ──▶ lambda.lock ──▶ pip ──▶ a folder of packages

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
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
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
_NOT_IN_FUNCTIONS: Final = frozenset({"roundgate", "click", "uvicorn", "uvloop"})
"""The requirements of roundgate that no function needs, because they serve without AWS Lambda."""
_EXTRAS: Final = frozenset({"otel"})
"""The extras of roundgate that a function can use, besides `lambda`."""
_LINE: Final = re.compile(r"^(?P<name>[a-z0-9-]+)(?:==| @ )(?P<version>\S+)(?P<hashes>.*)$")
_NO_WHEEL: Final = re.compile(
    r"No matching distribution found for ([^\s(;]+(?: *[<>=!~][^\s(;]*)*)"
)
_CONFLICT: Final = ("ResolutionImpossible", "conflicting dependencies")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package in a lock."""

    name: str
    version: str
    """The version, or the URL of the wheel if the requirement has one."""
    hashes: frozenset[str]
    """The SHA-256 digests of the wheels, at most one for each architecture."""
    is_native: bool = False
    """Whether other architectures need other wheels; not recorded in the file."""

    def __str__(self) -> str:
        return f"{self.name}{' @ ' if '/' in self.version else '=='}{self.version}"

    def line(self) -> str:
        """Return the line that pip reads with --require-hashes."""
        hashes = (f" --hash=sha256:{sha256}" for sha256 in sorted(self.hashes))
        return f"{self}{''.join(hashes)}"


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


def packages(lock: PackageLock, arch: str) -> Path:
    """Return a folder with the installed packages of a lock for an architecture. It is in the cache
    after the first call.

    Raises:
        ConfigError: the lock has no wheel of a package for this architecture.
    """
    text = "".join(f"{pin.line()}\n" for pin in lock.pins)
    digest = hashlib.sha256(f"{machine.PYTHON} {arch}\n{text}".encode()).hexdigest()
    directory = machine.cache() / "packages" / digest
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
            listed, target = Path(temporary, "lambda.lock"), Path(temporary, "packages")
            listed.write_text(text, "utf-8")
            options = (
                "--no-deps",
                "--no-compile",
                "--require-hashes",
                "--requirement",
                str(listed),
            )
            _pip_install(options, arch, lock.file, target=target)
            with suppress(OSError):  # another process was faster
                target.rename(directory)
    return directory


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
    with tempfile.TemporaryDirectory() as temporary:
        listed, constraints = (
            Path(temporary, "requirements.txt"),
            Path(temporary, "constraints.txt"),
        )
        listed.write_text("\n".join([*map(_without_extra, requirements.lines), ""]), "utf-8")
        constraints.write_text("\n".join([*requirements.constraints, *preferred, ""]), "utf-8")
        options = ("--requirement", str(listed), "--constraint", str(constraints))
        here = _resolve(options, arch, requirements, directory)
    other_arch = next(platform for platform in machine.PLATFORMS if platform != arch)
    pins = []
    for pin in sorted(here, key=lambda pin: pin.name):
        hashes = pin.hashes
        if pin.name in dropped:
            continue
        if pin.is_native:
            with suppress(ConfigError):  # the other architecture may lack a wheel
                (other,) = _resolve(("--no-deps", str(pin)), other_arch, requirements, directory)
                hashes |= other.hashes
        _check_hashes(pin.name, hashes, requirements)
        pins.append(Pin(pin.name, pin.version, hashes))
    return tuple(pins)


def _resolve(
    options: Sequence[str], arch: str, requirements: Requirements, directory: Path
) -> list[Pin]:
    """Return what pip would install, each wheel as a pin with one hash."""
    report = ("--dry-run", "--report", "-", *options)
    output = _pip_install(report, arch, requirements.file or directory, directory)
    pins = []
    for item in json.loads(output)["install"]:
        download, about = item["download_info"], item["metadata"]
        if (wheel := download.get("archive_info")) is None:
            continue  # a folder, such as that of roundgate
        hashes = wheel.get("hashes") or dict([wheel["hash"].split("=")])  # until pip 23.0
        version = download["url"] if item["is_direct"] else about["version"]
        is_native = not download["url"].endswith("-any.whl")
        pins.append(
            Pin(normalized(about["name"]), version, frozenset({hashes["sha256"]}), is_native)
        )
    return pins


def _find_provided(requirements: Requirements) -> frozenset[str]:
    """Return the distributions that the runtime provides; empty if the repository pins one of
    them."""
    pinned = (line for line in requirements.lines if "==" in line.partition(";")[0])
    is_pinned = any(name_of(line) in machine.PROVIDED for line in pinned)
    return frozenset() if is_pinned else frozenset(machine.PROVIDED)


def _pip_install(
    options: Sequence[str],
    arch: str,
    file: Path,
    directory: Path | None = None,
    target: Path = Path("packages"),
) -> str:
    """Run `pip install --target` for the functions; return its output. Raise ConfigError, with
    `file` as its place, if pip fails."""
    command = ["install", "--quiet", "--target", str(target), *machine.pip_options(arch), *options]
    done = machine.pip(command, directory)
    if done.returncode != 0:
        raise _refused(done.stderr or f"pip failed: {done.returncode}", file, arch)
    return done.stdout


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
    if "DO NOT MATCH THE HASHES" in output:
        remedy = f"if the file was made for another architecture, run `roundgate package --lock --arch {arch}`"
        return ConfigError([_problem(file, text, remedy)])
    kind = VersionsConflict if any(word in output for word in _CONFLICT) else ConfigError
    return kind([_problem(file, text, "correct the requirements")])


def _check_hashes(name: str, hashes: frozenset[str], requirements: Requirements) -> None:
    """Raise ConfigError if uv.lock or requirements.txt lacks the hash of a package's wheel."""
    allowed = requirements.hashes.get(name, hashes)
    if not hashes <= allowed:
        message = f"the wheel of {name} does not have a hash that the file allows"
        remedy = "run `uv lock` again, or check the index that pip uses"
        raise ConfigError([_problem(requirements.file or Path(name), message, remedy)])


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
