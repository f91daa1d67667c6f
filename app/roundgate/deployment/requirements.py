"""What a repository says that its tools need: uv.lock, requirements.txt or
pyproject.toml beside gateway.yaml.

    uv.lock           the versions of pyproject.toml's dependencies, and the hashes that are right
    requirements.txt  as pip reads it, with the files that it includes
    pyproject.toml    [project] dependencies

The first of them that is there counts. roundgate itself is left out: the functions
get the one that packs them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from roundgate.errors import ConfigError, Problem

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_HASH: Final = re.compile(r"\s--hash[= ]sha256:([0-9a-f]{64})")
_EXTRAS: Final = re.compile(r"[\w.-]+\s*\[([^\]]*)\]")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Requirements:
    """What is wanted beside roundgate."""

    file: Path | None
    """The file that says so."""
    lines: tuple[str, ...] = ()
    """As pip takes them in a file, without hashes."""
    constraints: tuple[str, ...] = ()
    """Versions that were chosen already, `name==version`."""
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By name, the SHA-256 of the files that are right; a name that is not
    here is not held to any."""
    extras: frozenset[str] = frozenset()
    """The extras of roundgate that are asked for."""

    @property
    def names(self) -> frozenset[str]:
        """The distributions that are named."""
        return frozenset(filter(None, map(name_of, self.lines)))


def read(directory: Path) -> Requirements:
    """The requirements of the repository whose gateway.yaml is in a directory.

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
    """The name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str | None:
    """The distribution that a line names; `None` for an option, a URL or a path."""
    found = _NAME.match(requirement)
    if found is None or re.match(r"\S*[/:\\]", requirement.partition("@")[0]):
        return None
    return normalized(found[0])


def _of_lines(file: Path, lines: list[str]) -> Requirements:
    kept = [line for line in lines if name_of(line) != "roundgate"]
    named = [(name_of(line), frozenset(_HASH.findall(line))) for line in kept]
    hashes = {name: hashes for name, hashes in named if name and hashes}
    extras = [_EXTRAS.match(line) for line in lines if name_of(line) == "roundgate"]
    asked = {one for found in extras if found for one in re.split(r"[\s,]+", found[1])}
    plain = tuple(_HASH.sub("", line).strip() for line in kept)
    return Requirements(file, plain, (), hashes, frozenset(asked))


def _flat(file: Path, within: tuple[Path, ...]) -> Iterator[str]:
    """The lines of a file with those of the files that it includes; one line a requirement."""
    if file in within:
        raise _problem(file, "includes itself", "take the line out that begins with -r")
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
        raise _problem(project, "[project] dependencies is no list", "write a list of texts")
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
        known_files = {one for wheel in package.get("wheels", []) for one in _sha256(wheel)}
        hashes.setdefault(name, set()).update(known_files)
    single = {name: one.pop() for name, one in versions.items() if len(one) == 1}
    pins = [f"{name}=={version}" for name, version in sorted(single.items())]
    known = {name: frozenset(one) for name, one in hashes.items() if one and name in single}
    kept = tuple(pin for pin in pins if name_of(pin) != "roundgate")
    return Requirements(lock, found.lines, kept, known, found.extras)


def _sha256(wheel: Mapping[str, Any]) -> Iterator[str]:
    kind, _, value = str(wheel.get("hash", "")).partition(":")
    if kind == "sha256":
        yield value


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise _problem(file, str(error), "mend the TOML") from None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise _problem(
            file, error.strerror or "cannot be read", "correct the path, or add the file"
        ) from None
    except UnicodeDecodeError:
        raise _problem(file, "is not UTF-8", "save it as UTF-8") from None


def _problem(file: Path, message: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(str(file), "(file)", message, remedy)])
