"""A snapshot of a folder of skills: all files are read at once, so that the served contents match the
digests in the entries.

    FOLDER/refunds/SKILL.md            skill://NAME/refunds/SKILL.md
    FOLDER/refunds/examples/email.md   skill://NAME/refunds/examples/email.md

Symbolic links are refused, so nothing outside the folder is read. Files outside of skills, and files
whose names begin with a dot, are not served.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from roundgate.errors import Inside
from roundgate.protocol.skills import (
    MARKDOWN,
    MAX_BYTES,
    MAX_FILES,
    NAME,
    SCHEME,
    SKILL_FILE,
    list_directories,
    media_type,
)
from roundgate.settings.frontmatter import read_frontmatter

MAX_ENTRIES: Final = 20_000
"""The maximum number of files and folders, including those that are not served."""
MAX_TOTAL: Final = 64 * 1024 * 1024
"""The maximum size of all skills of a folder in bytes. The snapshot stays in memory."""
MAX_DEPTH: Final = 32
"""The maximum depth of nested folders."""
MAX_DESCRIPTION: Final = 1_024
"""The maximum length of a description (Agent Skills specification, "description field")."""
_SKIPPED: Final = frozenset({"__pycache__"})


def parse_frontmatter(text: str) -> dict[str, Any]:
    """Parse the frontmatter of a SKILL.md.

    Raises:
        ValueError: the frontmatter is missing, is not YAML, or lacks a valid name or description.
    """
    values = read_frontmatter(text)
    name, description = values.get("name"), values.get("description")
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(
            f"has the name {str(name)[:80]!r}; a name has 1 to 64 of a-z, 0-9 and single hyphens inside"
        )
    if not isinstance(description, str) or not 0 < len(description.strip()) <= MAX_DESCRIPTION:
        raise ValueError(f"has no description of 1 to {MAX_DESCRIPTION:,} characters")
    return values


class FolderFile(Struct, frozen=True):
    """A file of a skill."""

    uri: str
    name: str
    content: bytes
    frontmatter: Mapping[str, Any] | None = None
    """The frontmatter of a SKILL.md; `None` for other files."""

    @property
    def text(self) -> str | None:
        """The content as text; `None` if the content is not UTF-8 or contains a zero byte."""
        try:
            return None if b"\0" in self.content else self.content.decode()
        except UnicodeDecodeError:
            return None

    @property
    def media_type(self) -> str:
        """The media type."""
        if self.frontmatter is not None:
            return MARKDOWN
        return media_type(self.name, is_text=self.text is not None)

    def definition(self) -> dict[str, Any]:
        """Return the file as the schema's `Resource`."""
        metadata = self.frontmatter or {}
        texts = {"name": metadata.get("name", self.name)}
        if metadata:
            texts["description"] = metadata["description"]
        return {
            "uri": self.uri,
            **texts,
            "mimeType": self.media_type,
            "size": len(self.content),
        }

    def manifest(self) -> dict[str, Any]:
        """Return the file as the schema's `SkillResource`."""
        digest = f"sha256:{hashlib.sha256(self.content).hexdigest()}"
        return {"uri": self.uri, "digest": digest, "size": len(self.content)}


class Skills(Struct, frozen=True):
    """The skills and files of a folder, by their URIs."""

    entries: Mapping[str, Mapping[str, Any]]
    """The entry of each skill, by the URI of its SKILL.md."""
    files: Mapping[str, FolderFile]
    directories: Mapping[str, Sequence[Mapping[str, Any]]]
    """The children of each directory, by its URI. A child has the form of the schema's `Resource`."""
    paths: frozenset[Path]
    """The files and folders that were read."""


class UnusableSkill(Inside):
    """A part of the folder that cannot be served, with its path and the remedy."""

    def __init__(self, path: Path, message: str, remedy: str) -> None:
        super().__init__(message)
        self.path = path
        self.remedy = remedy


@dataclass(slots=True)
class _FolderReader:
    """Reads a folder once."""

    root: Path
    uri: str
    problems: list[UnusableSkill] = field(default_factory=list)
    files: dict[Path, FolderFile] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    skill_folders: list[Path] = field(default_factory=list)
    visited: int = 0
    total: int = 0

    def read(self, folder: Path, *, is_in_skill: bool, depth: int) -> None:
        """Read a folder and its subfolders, in the order of their names. Raise UnusableSkill if the
        folder is nested too deeply, or a limit on the whole is exceeded."""
        if depth > MAX_DEPTH:
            raise UnusableSkill(
                folder, f"is nested more than {MAX_DEPTH} folders deep", "move it up"
            )
        self.folders.append(folder)
        names = {entry.name: entry for entry in self._entries(folder)}
        is_in_skill = is_in_skill or SKILL_FILE in names
        if SKILL_FILE in names:
            self.skill_folders.append(folder)
        for name in sorted(names):
            try:
                self._entry(folder / name, names[name], is_in_skill, depth)
            except UnusableSkill as error:
                if self.total > MAX_TOTAL or self.visited > MAX_ENTRIES:
                    raise
                self.problems.append(error)

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.visited += 1
                    if self.visited > MAX_ENTRIES:
                        raise UnusableSkill(
                            self.root,
                            f"has more than {MAX_ENTRIES:,} files and folders",
                            "set path to a folder that contains only skills",
                        )
                    if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                        yield entry
        except OSError as error:
            raise UnusableSkill(
                folder,
                f"cannot be read: {error.strerror or error}",
                "correct the path or the permissions",
            ) from None

    def _entry(self, path: Path, entry: os.DirEntry[str], is_in_skill: bool, depth: int) -> None:
        if entry.is_symlink():
            raise UnusableSkill(
                path,
                "is a symbolic link",
                "copy its target here; links could lead out of the folder",
            )
        if entry.is_dir(follow_symlinks=False):
            self.read(path, is_in_skill=is_in_skill, depth=depth + 1)
        elif is_in_skill:
            self.files[path] = self._file(path)

    def _file(self, path: Path) -> FolderFile:
        try:
            relative = path.relative_to(self.root).as_posix()
            uri = f"{self.uri}/{quote(relative)}"
        except UnicodeEncodeError:
            raise UnusableSkill(
                path.parent, f"has a file {path.name!r:.100}, whose name is not UTF-8", "rename it"
            ) from None
        content = self._content(path)
        if path.name != SKILL_FILE:
            return FolderFile(uri, path.name, content)
        try:
            metadata = parse_frontmatter(content.decode())
            _check_name(metadata["name"], uri)
        except UnicodeDecodeError:
            raise UnusableSkill(path, "is not UTF-8", "save it as UTF-8") from None
        except ValueError as error:
            raise UnusableSkill(
                path, str(error), "see https://agentskills.io/specification"
            ) from None
        return FolderFile(uri, path.name, content, metadata)

    def _content(self, path: Path) -> bytes:
        """Return the bytes of a regular file. Do not follow a link that has replaced the file.
        Raise UnusableSkill if the file cannot be read or exceeds a limit."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise UnusableSkill(path, "is not a regular file", "remove it")
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UnusableSkill(
                path, f"cannot be read: {error.strerror or error}", "correct its permissions"
            ) from None
        if len(content) > MAX_BYTES:
            raise UnusableSkill(path, f"has more than {MAX_BYTES:,} bytes", "make it smaller")
        self.total += len(content)
        if self.total > MAX_TOTAL:
            raise UnusableSkill(
                self.root,
                f"has skills with a total of more than {MAX_TOTAL:,} bytes",
                "divide them among several back ends, or make them smaller",
            )
        return content


def read_skills(root: Path, name: str) -> tuple[Skills, list[UnusableSkill]]:
    """Return the skills of a folder, and the problems of files that cannot be served.

    Args:
        name: the name of the back end, with which every path begins.
    """
    reader = _FolderReader(root, SCHEME + name)
    try:
        reader.read(root, is_in_skill=False, depth=0)
    except UnusableSkill as error:
        reader.problems.append(error)
    entries: dict[str, Mapping[str, Any]] = {}
    for folder in reader.skill_folders:
        if (skill_file := reader.files.get(folder / SKILL_FILE)) is None:
            continue  # its problem is in the list
        manifest = [
            file.manifest() for path, file in reader.files.items() if path.is_relative_to(folder)
        ]
        if problem := _excess(folder, manifest):
            reader.problems.append(problem)
        entries[skill_file.uri] = {
            "uri": skill_file.uri,
            "frontmatter": skill_file.frontmatter,
            "resources": manifest,
        }
    if not reader.skill_folders and not reader.problems:
        remedy = f"add a folder with a {SKILL_FILE}, or correct the path"
        reader.problems.append(UnusableSkill(root, f"has no folder with a {SKILL_FILE}", remedy))
    files = {file.uri: file for file in reader.files.values()}
    paths = frozenset({*reader.folders, *reader.files})
    return Skills(
        entries, files, list_directories(file.definition() for file in files.values()), paths
    ), reader.problems


def _check_name(name: str, uri: str) -> None:
    segment = uri.removesuffix(f"/{SKILL_FILE}").rpartition("/")[2]
    if name != segment:
        raise ValueError(f"has the name {name!r}, but its folder has the name {segment!r}")


def _excess(folder: Path, manifest: Sequence[Mapping[str, Any]]) -> UnusableSkill | None:
    size = sum(file["size"] for file in manifest)
    if len(manifest) <= MAX_FILES and size <= MAX_BYTES:
        return None
    message = (
        f"is a skill with {len(manifest):,} files and {size:,} bytes; hosts load {MAX_FILES} files"
        f" and {MAX_BYTES:,} bytes"
    )
    return UnusableSkill(folder, message, "divide the skill, or make its files smaller")
