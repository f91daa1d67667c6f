"""Which packages the functions get: exact versions with the hashes of their
wheels, for both architectures.

    roundgate's own lock ─┐
    requirements ─────────┴─▶ pip, for the runtime ──▶ wheels (a cache) ──▶ lambda.lock beside gateway.yaml

A repository that needs nothing of its own gets roundgate's lock as it is. Otherwise lambda.lock is
written, which belongs in the repository; it is made anew when what it was made of has changed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from roundgate.deployment import places, runtime
from roundgate.deployment.requirements import Requirements, name_of, normalized
from roundgate.errors import ConfigError, Problem, VersionsConflict

NAME: Final = "lambda.lock"
_NOT_IN_FUNCTIONS: Final = frozenset(
    {"roundgate", "click", "httptools", "uvicorn", "uvloop", "pyyaml"}
)
"""Of roundgate's requirements, what serves without AWS Lambda, or reads YAML."""
_EXTRAS: Final = frozenset({"otel"})
"""Of roundgate's extras, those that are of use in a function, beside `lambda`."""
_LINE: Final = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<hashes>.*)$")
_NO_WHEEL: Final = re.compile(
    r"No matching distribution found for ([^\s(;]+(?: *[<>=!~][^\s(;]*)*)"
)
_CONFLICT: Final = ("ResolutionImpossible", "conflicting dependencies")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package."""

    name: str
    version: str
    hashes: frozenset[str]
    """SHA-256 of its wheels, one for each architecture at most."""

    def line(self) -> str:
        """As pip reads it with --require-hashes."""
        return f"{self.name}=={self.version}" + "".join(
            f" --hash=sha256:{one}" for one in sorted(self.hashes)
        )


@dataclass(frozen=True, slots=True)
class Lock:
    """What the functions get."""

    file: Path
    pins: tuple[Pin, ...]
    is_new: bool = False

    def text(self, digest: str = "") -> str:
        """The file."""
        head = [f"# Written by `roundgate package`: python{runtime.PYTHON}, arm64 and x86_64."]
        head += [f"# of {digest}"] if digest else []
        return "\n".join([*head, *(pin.line() for pin in self.pins), ""])


def for_repository(wanted: Requirements, directory: Path, arch: str, *, anew: bool = False) -> Lock:
    """The lock of a repository, written if there is none that is right.

    Args:
        wanted: what the repository says.
        directory: where its gateway.yaml is.
        arch: that of the functions.
        anew: whether the newest versions are looked for.

    Raises:
        ConfigError: something has no wheel for the functions, or the
            requirements contradict each other.
    """
    if not wanted.lines and not wanted.extras & _EXTRAS:
        return _read(places.LOCK)
    digest, file = _digest(wanted), directory / NAME
    if not anew and file.is_file() and f"# of {digest}\n" in file.read_text("utf-8"):
        return _read(file)
    made = Lock(file, _resolved(wanted, arch, directory), is_new=True)
    file.write_text(made.text(digest), "utf-8")
    return made


def of_roundgate(source: Path) -> Lock:
    """roundgate's own lock, resolved anew from its source."""
    wanted = Requirements(source / "pyproject.toml", (f"{source}[lambda]",))
    dropped = _NOT_IN_FUNCTIONS | runtime.HAS
    return Lock(places.LOCK, _made(wanted, (), runtime.here(), source, dropped))


def wheels(lock: Lock, arch: str) -> dict[str, Path]:
    """By name, the wheel of each package for an architecture, each with a hash of the lock; what is
    not in the cache is fetched.

    Raises:
        ConfigError: a package has none, or only one that the lock does not know.
    """
    kept = _kept(lock.pins, arch)
    if missing := [pin for pin in lock.pins if pin.name not in kept]:
        _fetch(missing, arch, lock.file)
        kept = _kept(lock.pins, arch)
    if absent := [pin for pin in lock.pins if pin.name not in kept]:
        remedy = f"run `roundgate package --lock --arch {arch}`"
        raise ConfigError(
            [
                _problem(lock.file, f"{pin.name} has no wheel for {arch} in it", remedy)
                for pin in absent
            ]
        )
    return kept


def _read(file: Path) -> Lock:
    found = [_LINE.match(line) for line in file.read_text("utf-8").splitlines()]
    pins = [
        Pin(one["name"], one["version"], frozenset(re.findall(r"sha256:(\w+)", one["hashes"])))
        for one in found
        if one
    ]
    return Lock(file, tuple(pins))


def _digest(wanted: Requirements) -> str:
    """Of everything that a lock is made of."""
    wanted_here = [*wanted.lines, *wanted.constraints, *sorted(wanted.extras & _EXTRAS)]
    texts = [runtime.PYTHON, places.LOCK.read_text("utf-8"), *wanted_here]
    return "sha256:" + hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _resolved(wanted: Requirements, arch: str, directory: Path) -> tuple[Pin, ...]:
    """With roundgate's own versions if these go with what is wanted, else with the ones that do."""
    extras = {"lambda", *(wanted.extras & _EXTRAS)}
    own = [line for line in metadata.requires("roundgate") or [] if _is_of(line, extras)]
    together = Requirements(wanted.file, (*own, *wanted.lines), wanted.constraints, wanted.hashes)
    chosen = {name_of(pin) for pin in wanted.constraints}
    preferred = [f"{pin.name}=={pin.version}" for pin in _read(places.LOCK).pins]
    kept = [pin for pin in preferred if name_of(pin) not in chosen]
    dropped = (_NOT_IN_FUNCTIONS - wanted.names) | _of_the_runtime(wanted)
    try:
        return _made(together, kept, arch, directory, dropped)
    except VersionsConflict:
        return _made(together, (), arch, directory, dropped)


def _is_of(requirement: str, extras: Collection[str]) -> bool:
    """Whether one of roundgate's requirements is a function's: its own, or that of an extra."""
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
    other = next(one for one in runtime.PLATFORMS if one != arch)
    with tempfile.TemporaryDirectory() as temporary:
        here, there = Path(temporary, arch), Path(temporary, other)
        _download(wanted, (*wanted.constraints, *preferred), arch, directory, here)
        found = {name: file for name, file in _by_name(here).items() if name not in dropped}
        native = [file for file in found.values() if not file.name.endswith("-any.whl")]
        exact = Requirements(wanted.file, tuple(map(_pinned, native)))
        for (
            requirement
        ) in exact.lines:  # one after another: what has none for the other is no error
            runtime.try_pip(
                [
                    "download",
                    "--no-deps",
                    "--dest",
                    str(there),
                    *runtime.options(other),
                    requirement,
                ]
            )
        others = _by_name(there) if there.is_dir() else {}
        pins = [
            Pin(name, _version(file), frozenset(_hashes(name, [file, others.get(name)], wanted)))
            for name, file in sorted(found.items())
        ]
        _keep([*found.values(), *others.values()])
    return tuple(pins)


def _of_the_runtime(wanted: Requirements) -> frozenset[str]:
    """What is not packed because the runtime has it, unless exactly one version of
    some of it is asked for."""
    asks = any(
        name_of(line) in runtime.HAS and "==" in line.partition(";")[0] for line in wanted.lines
    )
    return frozenset() if asks else runtime.HAS


def _download(
    wanted: Requirements, constraints: Sequence[str], arch: str, directory: Path, to: Path
) -> None:
    to.mkdir()
    listed, held = to / "requirements.txt", to / "constraints.txt"
    listed.write_text("\n".join([*map(_without_extra, wanted.lines), ""]), "utf-8")
    held.write_text("\n".join([*constraints, ""]), "utf-8")
    files = ["--requirement", str(listed), "--constraint", str(held)]
    said = runtime.try_pip(
        ["download", "--quiet", "--dest", str(to), *runtime.options(arch), *files], directory
    )
    if said is not None:
        raise _refused(said, wanted.file or directory, arch)


def _without_extra(requirement: str) -> str:
    """`mangum>=0.19; extra == "lambda"` is a requirement whatever extra is asked for here."""
    before, _, marker = requirement.partition(";")
    return before.strip() if "extra" in marker else requirement


def _refused(said: str, file: Path, arch: str) -> ConfigError:
    lines = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    text = " ".join(line.removeprefix("ERROR: ") for line in lines) or said.strip()[-500:]
    if found := _NO_WHEEL.search(said):
        machine = f"python{runtime.PYTHON} on Linux, {runtime.PLATFORMS[arch]}"
        remedy = "correct the name or version, choose a version that has a wheel, or build one into a folder that pip's"
        return ConfigError(
            [_problem(file, f"{found[1]} has no wheel for {machine}", f"{remedy} find-links names")]
        )
    kind = VersionsConflict if any(word in said for word in _CONFLICT) else ConfigError
    return kind([_problem(file, text, "mend the requirements")])


def _fetch(pins: Iterable[Pin], arch: str, file: Path) -> None:
    """Into the cache, with the hashes that the lock has."""
    with tempfile.TemporaryDirectory() as temporary:
        listed = Path(temporary, "requirements.txt")
        listed.write_text("\n".join([*(pin.line() for pin in pins), ""]), "utf-8")
        to = Path(temporary, "wheels")
        command = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(to)]
        said = runtime.try_pip([*command, *runtime.options(arch), "--requirement", str(listed)])
        if said is not None:
            raise _refused(said, file, arch)
        _keep(to.glob("*.whl"))


def _keep(files: Iterable[Path]) -> None:
    """In the cache, each under the name of its hash too: an index may have
    two files of one name."""
    directory = places.cache() / "wheels"
    for file in files:
        target = directory / _sha256(file) / file.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            shutil.copyfile(file, part)
            part.replace(target)


def _kept(pins: Iterable[Pin], arch: str) -> dict[str, Path]:
    directory, found = places.cache() / "wheels", dict[str, Path]()
    for pin in pins:
        for one in pin.hashes:
            for file in (directory / one).glob("*.whl"):
                if _is_for(file, arch) and _sha256(file) == one:
                    found[pin.name] = file
    return found


def _is_for(wheel: Path, arch: str) -> bool:
    tag = wheel.stem.rpartition("-")[2]
    return tag == "any" or runtime.PLATFORMS[arch] in tag


def _by_name(directory: Path) -> dict[str, Path]:
    return {normalized(file.name.partition("-")[0]): file for file in directory.glob("*.whl")}


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _pinned(wheel: Path) -> str:
    return f"{normalized(wheel.name.partition('-')[0])}=={_version(wheel)}"


def _hashes(name: str, files: Iterable[Path | None], wanted: Requirements) -> Iterable[str]:
    """Of the wheels of a package, held to what the repository's own lock says."""
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


def names(lock: Lock) -> Mapping[str, Pin]:
    """The packages by name."""
    return {pin.name: pin for pin in lock.pins}
