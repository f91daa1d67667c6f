"""The packages that the functions get: exact versions with the hashes of their wheels, for both
architectures.

    roundgate's own lock ─┐
    requirements ─────────┴─▶ pip, for the runtime ──▶ wheels (a cache) ──▶ lambda.lock beside gateway.yaml

Of these files beside gateway.yaml, the first one there has the requirements of the repository:

    uv.lock           the versions of pyproject.toml's dependencies, and the allowed hashes
    requirements.txt  as pip reads it, with the files that it includes
    pyproject.toml    [project] dependencies

roundgate itself is left out: the functions get the one that packs them. A repository without
requirements of its own gets roundgate's lock. Otherwise lambda.lock is written, which belongs in
the repository, and again when the requirements change.

    python -m roundgate.deployment.locking     writes infra/lambda.lock anew, in a checkout
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

from roundgate.deployment import machine
from roundgate.errors import ConfigError, Problem, VersionsConflict

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
    """The file that lists them."""
    lines: tuple[str, ...] = ()
    """Lines of a requirements file, without hashes."""
    constraints: tuple[str, ...] = ()
    """Locked versions, `name==version`."""
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The SHA-256 of the allowed files, by name. Other names may have any file."""
    extras: frozenset[str] = frozenset()
    """The required extras of roundgate."""

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
        return _of_uv(lock, directory / "pyproject.toml")
    if (file := directory / "requirements.txt").is_file():
        return _of_lines(file, list(_flat(file, ())))
    if (project := directory / "pyproject.toml").is_file():
        return _of_lines(project, _dependencies(project))
    return Requirements(None)


def normalized(name: str) -> str:
    """Return the name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str | None:
    """Return the distribution that a line names; `None` for an option, a URL or a path."""
    found = _NAME.match(requirement)
    if found is None or re.match(r"\S*[/:\\]", requirement.partition("@")[0]):
        return None
    return normalized(found[0])


def _of_lines(file: Path, lines: list[str]) -> Requirements:
    kept = [line for line in lines if name_of(line) != "roundgate"]
    named = [(name_of(line), frozenset(_HASH.findall(line))) for line in kept]
    hashes = {name: hashes for name, hashes in named if name and hashes}
    extras = [_EXTRAS_OF_LINE.match(line) for line in lines if name_of(line) == "roundgate"]
    asked = {one for found in extras if found for one in re.split(r"[\s,]+", found[1])}
    plain = tuple(_HASH.sub("", line).strip() for line in kept)
    return Requirements(file, plain, (), hashes, frozenset(asked))


def _flat(file: Path, within: tuple[Path, ...]) -> Iterator[str]:
    """Yield the requirements of a file and of those that it includes."""
    if file in within:
        raise _unusable(file, "includes itself", "take the line out that begins with -r")
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
    found = _toml(project).get("project", _NONE).get("dependencies", [])
    if not isinstance(found, list):
        raise _unusable(project, "[project] dependencies is no list", "write a list of texts")
    return [str(one) for one in found]


def _of_uv(lock: Path, project: Path) -> Requirements:
    found = _of_lines(lock, _dependencies(project)) if project.is_file() else Requirements(lock)
    versions: dict[str, set[str]] = {}
    hashes: dict[str, set[str]] = {}
    for package in _toml(lock).get("package", []):
        if "registry" not in package.get("source", _NONE):
            continue  # the repository itself, or what is in a folder of it
        name = normalized(str(package.get("name", "")))
        versions.setdefault(name, set()).add(str(package.get("version", "")))
        known_files = {one for wheel in package.get("wheels", []) for one in _sha256_of(wheel)}
        hashes.setdefault(name, set()).update(known_files)
    single = {name: one.pop() for name, one in versions.items() if len(one) == 1}
    pins = [f"{name}=={version}" for name, version in sorted(single.items())]
    known = {name: frozenset(one) for name, one in hashes.items() if one and name in single}
    kept = tuple(pin for pin in pins if name_of(pin) != "roundgate")
    return Requirements(lock, found.lines, kept, known, found.extras)


def _sha256_of(wheel: Mapping[str, Any]) -> Iterator[str]:
    kind, _, value = str(wheel.get("hash", "")).partition(":")
    if kind == "sha256":
        yield value


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise _unusable(file, str(error), "mend the TOML") from None


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
_NOT_IN_FUNCTIONS: Final = frozenset(
    {"roundgate", "click", "httptools", "uvicorn", "uvloop", "pyyaml"}
)
"""The requirements of roundgate that serve without AWS Lambda, or read YAML."""
_EXTRAS: Final = frozenset({"otel"})
"""The extras of roundgate that a function can use, beside `lambda`."""
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
    """SHA-256 of its wheels, at most one for each architecture."""

    def line(self) -> str:
        """Return the line that pip reads with --require-hashes."""
        hashes = (f" --hash=sha256:{one}" for one in sorted(self.hashes))
        return f"{self.name}=={self.version}{''.join(hashes)}"


@dataclass(frozen=True, slots=True)
class Lock:
    """The packages that the functions get."""

    file: Path
    pins: tuple[Pin, ...]
    is_new: bool = False

    def text(self, digest: str = "") -> str:
        """Return the content of the file."""
        head = [f"# Written by `roundgate package`: python{machine.PYTHON}, arm64 and x86_64."]
        head += [f"# of {digest}"] if digest else []
        return "\n".join([*head, *(pin.line() for pin in self.pins), ""])


def for_repository(wanted: Requirements, directory: Path, arch: str, *, anew: bool = False) -> Lock:
    """Return the lock of a repository; write it if it is missing or outdated.

    Args:
        wanted: the repository's requirements.
        directory: the folder of its gateway.yaml.
        arch: the functions' architecture.
        anew: whether to look for the newest versions.

    Raises:
        ConfigError: a package has no wheel for the functions, or requirements contradict each
            other.
    """
    if not wanted.lines and not wanted.extras & _EXTRAS:
        return _read_lock(machine.LOCK)
    digest, file = _digest(wanted), directory / NAME
    if not anew and file.is_file() and f"# of {digest}\n" in file.read_text("utf-8"):
        return _read_lock(file)
    made = Lock(file, _resolved(wanted, arch, directory), is_new=True)
    file.write_text(made.text(digest), "utf-8")
    return made


def of_roundgate(source: Path) -> Lock:
    """Return a new lock for roundgate's own requirements, resolved from its source folder.

    Raises:
        ConfigError: a package has no wheel for the functions, or requirements conflict.
    """
    wanted = Requirements(source / "pyproject.toml", (f"{source}[lambda]",))
    dropped = _NOT_IN_FUNCTIONS | machine.PROVIDED.keys()
    return Lock(machine.LOCK, _made(wanted, (), machine.architecture(), source, dropped))


def wheels(lock: Lock, arch: str) -> dict[str, Path]:
    """Return the wheel of each package for an architecture, by name. Wheels that the cache lacks
    are fetched.

    Raises:
        ConfigError: the lock has no wheel of a package for this architecture.
    """
    kept = _kept(lock.pins, arch)
    if missing := [pin for pin in lock.pins if pin.name not in kept]:
        _fetch(missing, arch, lock.file)
        kept = _kept(lock.pins, arch)
    if absent := [pin for pin in lock.pins if pin.name not in kept]:
        remedy = f"run `roundgate package --lock --arch {arch}`"
        messages = (f"{pin.name} has no wheel for {arch} in it" for pin in absent)
        raise ConfigError([_problem(lock.file, message, remedy) for message in messages])
    return kept


def _read_lock(file: Path) -> Lock:
    found = [_LINE.match(line) for line in file.read_text("utf-8").splitlines()]
    pins = [
        Pin(one["name"], one["version"], frozenset(re.findall(r"sha256:(\w+)", one["hashes"])))
        for one in found
        if one
    ]
    return Lock(file, tuple(pins))


def _digest(wanted: Requirements) -> str:
    """Return a digest of everything that a lock is made of."""
    wanted_here = [*wanted.lines, *wanted.constraints, *sorted(wanted.extras & _EXTRAS)]
    texts = [machine.PYTHON, machine.LOCK.read_text("utf-8"), *wanted_here]
    return "sha256:" + hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _resolved(wanted: Requirements, arch: str, directory: Path) -> tuple[Pin, ...]:
    """Return pins that prefer roundgate's own versions; ignore these if they conflict."""
    extras = {"lambda", *(wanted.extras & _EXTRAS)}
    own = [line for line in metadata.requires("roundgate") or [] if _is_of(line, extras)]
    together = Requirements(wanted.file, (*own, *wanted.lines), wanted.constraints, wanted.hashes)
    chosen = {name_of(pin) for pin in wanted.constraints}
    preferred = [f"{pin.name}=={pin.version}" for pin in _read_lock(machine.LOCK).pins]
    kept = [pin for pin in preferred if name_of(pin) not in chosen]
    dropped = (_NOT_IN_FUNCTIONS - wanted.names) | _of_the_runtime(wanted)
    try:
        return _made(together, kept, arch, directory, dropped)
    except VersionsConflict:
        return _made(together, (), arch, directory, dropped)


def _is_of(requirement: str, extras: Collection[str]) -> bool:
    """Return whether a function needs one of roundgate's requirements."""
    if name_of(requirement) in _NOT_IN_FUNCTIONS:
        return False
    marker = requirement.partition(";")[2]
    found = re.search(r"""extra *== *["']([\w-]+)["']""", marker)
    return found is None or found[1] in extras


def _made(
    wanted: Requirements,
    preferred: Sequence[str],
    arch: str,
    directory: Path,
    dropped: frozenset[str],
) -> tuple[Pin, ...]:
    other = next(one for one in machine.PLATFORMS if one != arch)
    with tempfile.TemporaryDirectory() as temporary:
        here, there = Path(temporary, arch), Path(temporary, other)
        _download(wanted, (*wanted.constraints, *preferred), arch, directory, here)
        found = {name: file for name, file in _by_name(here).items() if name not in dropped}
        native = [file for file in found.values() if not file.name.endswith("-any.whl")]
        options = ["--no-deps", "--dest", str(there), *machine.pip_options(other)]
        for file in native:  # one after another, because the other architecture may lack a wheel
            machine.try_pip(["download", *options, _pinned(file)])
        others = _by_name(there) if there.is_dir() else {}
        pins = [
            Pin(name, _version(file), frozenset(_hashes(name, [file, others.get(name)], wanted)))
            for name, file in sorted(found.items())
        ]
        _keep([*found.values(), *others.values()])
    return tuple(pins)


def _of_the_runtime(wanted: Requirements) -> frozenset[str]:
    """Return the distributions that the runtime provides; none if the repository pins one."""
    pinned = (line for line in wanted.lines if "==" in line.partition(";")[0])
    is_pinned = any(name_of(line) in machine.PROVIDED for line in pinned)
    return frozenset() if is_pinned else frozenset(machine.PROVIDED)


def _download(
    wanted: Requirements, constraints: Sequence[str], arch: str, directory: Path, to: Path
) -> None:
    to.mkdir()
    listed, held = to / "requirements.txt", to / "constraints.txt"
    listed.write_text("\n".join([*map(_without_extra, wanted.lines), ""]), "utf-8")
    held.write_text("\n".join([*constraints, ""]), "utf-8")
    files = ["--requirement", str(listed), "--constraint", str(held)]
    said = machine.try_pip(
        ["download", "--quiet", "--dest", str(to), *machine.pip_options(arch), *files], directory
    )
    if said is not None:
        raise _refused(said, wanted.file or directory, arch)


def _without_extra(requirement: str) -> str:
    """Remove an extra's marker: `mangum>=0.19; extra == "lambda"` is required here."""
    before, _, marker = requirement.partition(";")
    return before.strip() if "extra" in marker else requirement


def _refused(said: str, file: Path, arch: str) -> ConfigError:
    lines = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    text = " ".join(line.removeprefix("ERROR: ") for line in lines) or said.strip()[-500:]
    if found := _NO_WHEEL.search(said):
        platform = f"python{machine.PYTHON} on Linux, {machine.PLATFORMS[arch]}"
        remedy = "correct the name or version, choose a version that has a wheel, or build one into a folder that pip's"
        return ConfigError(
            [
                _problem(
                    file, f"{found[1]} has no wheel for {platform}", f"{remedy} find-links names"
                )
            ]
        )
    kind = VersionsConflict if any(word in said for word in _CONFLICT) else ConfigError
    return kind([_problem(file, text, "mend the requirements")])


def _fetch(pins: Iterable[Pin], arch: str, file: Path) -> None:
    """Add wheels to the cache. pip checks them against the hashes of the lock."""
    with tempfile.TemporaryDirectory() as temporary:
        listed = Path(temporary, "requirements.txt")
        listed.write_text("\n".join([*(pin.line() for pin in pins), ""]), "utf-8")
        to = Path(temporary, "wheels")
        command = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(to)]
        said = machine.try_pip([*command, *machine.pip_options(arch), "--requirement", str(listed)])
        if said is not None:
            raise _refused(said, file, arch)
        _keep(to.glob("*.whl"))


def _keep(files: Iterable[Path]) -> None:
    """Copy wheels into the cache, in a folder per hash: an index may have two files of one name."""
    directory = machine.cache() / "wheels"
    for file in files:
        target = directory / _sha256(file) / file.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            shutil.copyfile(file, part)
            part.replace(target)


def _kept(pins: Iterable[Pin], arch: str) -> dict[str, Path]:
    directory, found = machine.cache() / "wheels", dict[str, Path]()
    for pin in pins:
        for one in pin.hashes:
            for file in (directory / one).glob("*.whl"):
                if _is_for(file, arch) and _sha256(file) == one:
                    found[pin.name] = file
    return found


def _is_for(wheel: Path, arch: str) -> bool:
    tag = wheel.stem.rpartition("-")[2]
    return tag == "any" or machine.PLATFORMS[arch] in tag


def _by_name(directory: Path) -> dict[str, Path]:
    return {normalized(file.name.partition("-")[0]): file for file in directory.glob("*.whl")}


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _pinned(wheel: Path) -> str:
    return f"{normalized(wheel.name.partition('-')[0])}=={_version(wheel)}"


def _hashes(name: str, files: Iterable[Path | None], wanted: Requirements) -> Iterable[str]:
    """Yield the hashes of a package's wheels; raise ConfigError for one that uv.lock lacks."""
    for file in filter(None, files):
        found, right = _sha256(file), wanted.hashes.get(name)
        if right is not None and found not in right:
            message = f"{file.name} is not the file whose hash is in it"
            remedy = "lock again, or look at where pip gets its files from"
            raise ConfigError([_problem(wanted.file or file, message, remedy)])
        yield found


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _problem(file: Path, message: str, remedy: str) -> Problem:
    return Problem(str(file), "packages", message, remedy)


def main() -> int:
    """Write roundgate's own lock anew."""
    try:
        lock = of_roundgate(machine.PACKAGE.parents[1])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    lock.file.write_text(lock.text(), "utf-8")
    print(f"{lock.file}: {len(lock.pins)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
