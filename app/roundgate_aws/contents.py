"""The files to pack into the functions: the repository's files that gateway.yaml names, their
imports, and the modules of roundgate that these files can import.

    gateway.yaml ──▶ files of back ends ──▶ the modules beside them that they import ──▶ theirs …
                 └─▶ package.include: files that imports do not show, such as data

Only the Python files of a package are packed. Its other files must be listed in `package.include`
or in `.roundgateignore`. Files named like a secret are never packed. Imports are followed anywhere
in a module, including `importlib.import_module("name")`.
"""

from __future__ import annotations

import ast
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from roundgate.backends import BackendConfig, kind_of
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.settings import Origin
from roundgate_aws import machine

IGNORE_FILE: Final = ".roundgateignore"
SECRETS: Final = (
    # keys and certificates with their keys
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.ovpn", "*.keychain*", ".ssh", ".gnupg"),
    # environments and variables
    *(".env*", "*.env", "*.env.*", "*.tfvars", "*.tfvars.json", "*.tfstate", "*.tfstate.*"),
    # credentials of tools and clouds
    *("credentials", "credentials.*", "*credentials*.json", ".git-credentials", ".netrc", "_netrc"),
    *(".aws", ".azure", ".boto", ".config", ".docker", ".dockercfg", ".gcloud", ".kube", ".s3cfg"),
    *("kubeconfig", "*.kubeconfig", ".htpasswd", ".my.cnf", ".npmrc", ".pgpass", ".pypirc"),
    *(".terraform", ".terraformrc", ".vault-token", ".yarnrc*", "auth.json", "token.json"),
    *("client_secret*.json", "client-secret*.json", "service-account*.json"),
    *("service_account*.json", "*firebase-adminsdk*.json", "secret", "secret.*", "secrets"),
    "secrets.*",
    # personal data, and text that people typed or sent
    *("*.db", "*.db-*", "*.sqlite*", "*dump.sql*", "dump*.sql*", "backup*.sql*", "*.dump"),
    *(".*_history", "*.har"),
)
"""The names of files and folders that are never packed, in upper or lower case."""
_NEVER: Final = (
    *("__pycache__", "*.pyc", ".git", ".hg", ".svn", "venv", ".venv*", "node_modules", ".build"),
    *(".roundgate", ".mypy_cache", ".pytest_cache", ".ruff_cache", "*.egg-info", ".DS_Store"),
    *("*.pyi", "py.typed", ".tox", ".nox", ".coverage*", ".ipynb_checkpoints", ".gitignore"),
    *(".gitkeep", ".gitattributes", ".idea", ".vscode", "*~", "#*#", ".*.sw?", "*.orig", "*.rej"),
)
"""The names of files and folders that functions do not need."""
_OF_ENVIRONMENT: Final = "pyvenv.cfg"
"""The file that identifies a virtual environment, whatever its folder's name."""
_LISTED: Final = 10
"""The number of files that a problem names before it counts the others."""


@dataclass(slots=True)
class Contents:
    """The files of a repository that are packed."""

    base: Path
    files: dict[str, str] = field(default_factory=dict)
    """The reason why each file is packed, by its path relative to `base`."""
    refused: list[str] = field(default_factory=list)
    """The files that are left out because they are named like a secret."""
    unasked: list[str] = field(default_factory=list)
    """The non-Python files of packages that `package.include` does not cover."""

    @property
    def sources(self) -> list[str]:
        """Return the paths of the Python files, sorted."""
        return sorted(name for name in self.files if name.endswith(".py"))


def gather(file: ConfigFile) -> Contents:
    """Return the files to pack for a configuration.

    Raises:
        ConfigError: a named file is missing, lies outside the folder, or is named like a secret;
            or a package has non-Python files that are neither included nor ignored.
    """
    gathering = _Gathering(file.origin.base_dir, file.origin.located.file)
    problems: list[Problem] = []
    for index, backend in enumerate(file.backends):
        place = file.origin.at("backends", index)
        for name in backend.packed_files:
            problems += gathering.named(name, place, f"back end {backend.name}")
        for module in backend.packed_modules:
            gathering.module(module, gathering.base, f"back end {backend.name}")
            if (module_path := in_src(gathering.base, module)) is not None:
                message = f"{module_path} is not beside gateway.yaml, where the functions look for {module}"
                problems.append(place.problem(message, f"move {module_path} beside gateway.yaml"))
    for reference in sorted(file.references):
        problems += gathering.named(str(reference), file.origin, "${file:…}")
    for index, pattern in enumerate(file.config.package.include):
        problems += gathering.included(pattern, file.origin.at("package", "include", index))
    contents = gathering.contents
    contents.unasked = sorted(set(contents.unasked) - contents.files.keys())
    if contents.unasked:
        problems.append(_asking(contents.unasked, file))
    if problems:
        raise ConfigError(problems)
    contents.refused.sort()
    return contents


def _asking(unasked: Sequence[str], file: ConfigFile) -> Problem:
    """Return a problem that lists the non-Python files, with a remedy that includes them."""
    more = f" and {len(unasked) - _LISTED} more" if len(unasked) > _LISTED else ""
    message = f"packages have files that are not Python: {', '.join(unasked[:_LISTED])}{more}"
    line = json.dumps([*file.config.package.include, *_patterns(unasked)], ensure_ascii=False)
    remedy = (
        f"if the functions need them, write `package: {{include: {line}}}` into gateway.yaml;"
        f" otherwise list them in {IGNORE_FILE}"
    )
    return file.origin.at("package", "include").problem(message, remedy)


def _patterns(names: Sequence[str]) -> list[str]:
    """Return patterns that include these files: a path, or a pattern for each kind and folder."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        kinds.setdefault((str(path.parent), path.suffix or path.name), []).append(name)
    return [
        glob.escape(paths[0]) if len(paths) == 1 else f"{glob.escape(folder)}/*{suffix}"
        for (folder, suffix), paths in kinds.items()
    ]


def in_src(base: Path, module: str) -> str | None:
    """Return the path of a module in the folder `src`, or `None` if the module is beside
    gateway.yaml or not in `src`."""
    first = module.partition(".")[0]
    if (base / f"{first}.py").is_file() or _is_package(base / first):
        return None
    candidates = (base / "src" / name for name in (first, f"{first}.py"))
    return next((f"src/{candidate.name}" for candidate in candidates if candidate.exists()), None)


def is_secret(path: PurePosixPath) -> bool:
    """Return whether a file, or a folder around it, is named like a secret."""
    return any(fnmatchcase(part.lower(), pattern) for part in path.parts for pattern in SECRETS)


class Ignored:
    """The patterns of `.roundgateignore`. As in .gitignore, the last matching pattern decides."""

    def __init__(self, lines: Sequence[str]) -> None:
        stripped = [line.strip() for line in lines]
        self._patterns = [line for line in stripped if line and not line.startswith("#")]

    @classmethod
    def of(cls, directory: Path) -> Ignored:
        """Return the patterns in a folder's file; empty if there is no such file.

        Raises:
            ConfigError: the file is not UTF-8 text.
        """
        file = directory / IGNORE_FILE
        try:
            return cls(file.read_text("utf-8-sig").splitlines() if file.is_file() else [])
        except UnicodeDecodeError:
            remedy = "save it as UTF-8"
            raise ConfigError([Problem(str(file), "(file)", "is not UTF-8 text", remedy)]) from None

    def __contains__(self, path: PurePosixPath) -> bool:
        around = [*reversed(path.parents[:-1]), path]
        is_ignored = False
        for pattern in self._patterns:
            if any(_matches(pattern.removeprefix("!"), directory, path) for directory in around):
                is_ignored = not pattern.startswith("!")
        return is_ignored


def _matches(pattern: str, part: PurePosixPath, path: PurePosixPath) -> bool:
    """Return whether a pattern matches a file, or a folder `part` around the file."""
    if pattern.endswith("/"):
        if part == path:
            return False
        pattern = pattern.rstrip("/")
    if "/" in pattern:
        return re.fullmatch(_expression(pattern.lstrip("/")), str(part)) is not None
    return fnmatchcase(part.name, pattern)


def _expression(pattern: str) -> str:
    """Return the regular expression for a pattern with folders: `*` matches within one folder."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    means: Mapping[str, str] = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(means.get(part, re.escape(part)) for part in parts)


class _Gathering:
    """Collects files, and follows the imports of each."""

    def __init__(self, base: Path, config: Path) -> None:
        self.base = base
        self._config = config.resolve()
        self.contents = Contents(base)
        self._ignored = Ignored.of(base)

    def named(self, name: str, place: Origin, why: str) -> Iterator[Problem]:
        """Take a file or folder that the configuration names; yield its problem, if any."""
        path = self.base / name
        relative = self._relative(path)
        if relative is None:
            message = (
                f"{name} is outside of {self.base}, and only files below this folder are packed"
            )
            yield place.problem(message, "move it beside gateway.yaml, or below")
        elif self._is_secret(path, relative):
            remedy = "rename it if it holds no secret, or set the value in `env` as ${secret:…}"
            message = f"{name} is named like a secret, or links to such a file, and is not packed"
            yield place.problem(message, remedy)
        elif path.is_dir():
            self._folder(path, why)
        elif path.is_file():
            self._take(path, why)
        else:
            yield place.problem(f"there is no {name}", "correct the path, or add the file")

    def included(self, pattern: str, place: Origin) -> Iterator[Problem]:
        """Take the files that a pattern of `package.include` matches; yield its problems."""
        if not any(sign in pattern for sign in "*?["):
            yield from self.named(pattern, place, "package.include")
            return
        try:
            paths = sorted(self.base.glob(pattern))
        except (NotImplementedError, ValueError) as error:
            message = f"{pattern} is not a valid pattern: {error}"
            yield place.problem(
                message, "write a pattern relative to gateway.yaml, such as data/**/*.csv"
            )
            return
        if not paths:
            yield place.problem(f"no file matches {pattern}", "correct or remove the pattern")
        for path in paths:
            if path.is_dir():
                self._folder(path, "package.include")
            else:
                self._offer(path, "package.include")

    def module(self, name: str, root: Path, why: str) -> None:
        """Take a module beside gateway.yaml, with its package; skip an installed module."""
        first = name.partition(".")[0]
        for directory in dict.fromkeys((root, self.base)):
            if (file := directory / f"{first}.py").is_file():
                return self._offer(file, why)
            if _is_package(directory / first):
                return self._folder(directory / first, why, is_package=True)
        return None

    def _folder(self, folder: Path, why: str, *, is_package: bool = False) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self._offer(path, why, only_python=is_package)

    def _offer(self, path: Path, why: str, *, only_python: bool = False) -> None:
        """Take a file unless its name, an ignore file or its kind excludes it."""
        relative = self._relative(path)
        if relative is None or relative in self._ignored:
            return
        if any(fnmatchcase(part, pattern) for part in relative.parts for pattern in _NEVER):
            return
        if path.resolve() == self._config:  # packed as gateway.json, without comments
            return
        if any((self.base / parent / _OF_ENVIRONMENT).is_file() for parent in relative.parents):
            return
        if self._is_secret(path, relative):
            if str(relative) not in self.contents.refused:
                self.contents.refused.append(str(relative))
        elif only_python and path.suffix != ".py":
            self.contents.unasked.append(str(relative))
        else:
            self._take(path, why)

    def _take(self, path: Path, why: str) -> None:
        name = str(self._relative(path))
        if name in self.contents.files:
            return
        self.contents.files[name] = why
        if name.endswith(".py"):
            for module in imported(path):
                self.module(module.name, path.parent, f"{name} imports it")

    def _is_secret(self, path: Path, relative: PurePosixPath) -> bool:
        """Return whether a file is named like a secret, or links to such a file."""
        linked = path.resolve().relative_to(self.base)
        return is_secret(relative) or is_secret(PurePosixPath(linked.as_posix()))

    def _relative(self, path: Path) -> PurePosixPath | None:
        """Return the path relative to gateway.yaml, or `None` if it or its target is outside
        of that folder."""
        if not path.resolve().is_relative_to(self.base):
            return None
        whole = Path(os.path.normpath(path))
        if not whole.is_relative_to(self.base):
            return None
        return PurePosixPath(whole.relative_to(self.base).as_posix())


def _is_package(folder: Path) -> bool:
    """Return whether Python would import the folder. A folder without `__init__.py` ranks after an
    installed package."""
    if (folder / "__init__.py").is_file():
        return True
    if not (folder.is_dir() and folder.name.isidentifier()):
        return False
    installed = find_spec(folder.name)
    return (installed is None or installed.origin is None) and any(folder.rglob("*.py"))


@dataclass(frozen=True, slots=True)
class Import:
    """An import in a module."""

    name: str
    """The dotted name of the imported module."""
    line: int
    is_required: bool
    """Whether the module cannot run without the import: no handler catches its error, and it is not
    only for type checkers."""
    is_for_types: bool = False
    """Whether only type checkers see the import."""
    members: tuple[str, ...] = ()
    """The names that a `from` import binds."""


def imported(source: Path) -> list[Import]:
    """Return the absolute imports of a file; empty if the file is not valid Python."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return []
    return list(_imports(tree.body, is_required=True))


def _imports(
    body: Sequence[ast.AST], *, is_required: bool, is_for_types: bool = False
) -> Iterator[Import]:
    for node in body:
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield Import(name.name, node.lineno, is_required, is_for_types)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                members = tuple(name.name for name in names)
                yield Import(module, node.lineno, is_required, is_for_types, members)
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(module)), *_],
            ) if not module.startswith("."):
                yield Import(module, node.lineno, is_required, is_for_types)
            case ast.Try(handlers=handlers) if any(map(_catches_imports, handlers)):
                tried = list(ast.iter_child_nodes(node))
                yield from _imports(tried, is_required=False, is_for_types=is_for_types)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                yield from _imports(node.body, is_required=False, is_for_types=True)
                yield from _imports(node.orelse, is_required=is_required)
            case _:
                inside = list(ast.iter_child_nodes(node))
                yield from _imports(inside, is_required=is_required, is_for_types=is_for_types)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else "ImportError"
    return bool(re.search(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b", caught))


# The modules of roundgate

_OF_SERVERS: Final = "roundgate_console"
"""The package that functions never import: `roundgate.main` refuses a console on AWS Lambda."""


def reachable(modules: Iterable[str]) -> list[Path]:
    """Return the files of the distribution that importing these modules can load, relative to
    `machine.CODE`. Modules of other distributions are skipped."""
    reached, queue = set[Path](), list(modules)
    while queue:
        module = queue.pop()
        file = _file(module)
        is_of_servers = module == _OF_SERVERS or module.startswith(f"{_OF_SERVERS}.")
        if file is None or file in reached or is_of_servers:
            continue
        reached.add(file)
        queue.extend((module.rpartition(".")[0], *_roundgate_imports(file)))
    return sorted(file.relative_to(machine.CODE) for file in reached)


def modules_of_kind(backend: BackendConfig) -> Iterator[str]:
    """Yield the modules that define a back end's settings and make the back end."""
    yield type(backend).__module__
    yield kind_of(backend).factory().__module__


def imports_of_packed(folder: Path) -> Iterator[str]:
    """Yield the modules of roundgate that the Python files below a folder may import."""
    for file in folder.rglob("*.py"):
        if b"roundgate" in file.read_bytes():
            yield from _roundgate_imports(file)


def _file(module: str) -> Path | None:
    """Return the file of a module of the distribution, or `None` for any other name."""
    parts = module.split(".")
    if parts[0] not in machine.PACKAGES:
        return None
    path = machine.CODE.joinpath(*parts)
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


@cache
def _roundgate_imports(file: Path) -> frozenset[str]:
    """Return the modules that a file may import at run time. Each name in a `from` import may be a
    module."""
    imports = [item for item in imported(file) if not item.is_for_types]
    members = (f"{item.name}.{member}" for item in imports for member in item.members)
    return frozenset((*(item.name for item in imports), *members))
