"""The back end of the kind `skills`: the files of a folder as resources, and its skills."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from roundgate.backends.base import Offering, Resource, Shared
from roundgate.backends.skills.config import SkillsBackendConfig
from roundgate.backends.skills.folder import FolderFile, Skills, UnusableSkill, read_skills
from roundgate.backends.skills.source import Directory
from roundgate.errors import ConfigError, Problem, ResourceNotFound
from roundgate.protocol import BlobResourceContents, ResourceContents, TextResourceContents
from roundgate.protocol.skills import SCHEME
from roundgate.replay import Context
from roundgate.settings import Origin


class SkillsBackend:
    """A back end of the kind `skills`: one folder, which each load reads."""

    def __init__(self, config: SkillsBackendConfig, origin: Origin, shared: Shared) -> None:
        self._config = config
        self._origin = origin

    async def offer(self) -> Offering:
        """Return the skills of the folder. Raise ConfigError with the problems of all unusable files."""
        root, name = self._origin.base_dir / self._config.path, self._config.name
        skills, problems = await asyncio.to_thread(read_skills, root, name)
        if problems:
            raise ConfigError([self._problem(problem) for problem in problems])
        return Offering(
            resources=[_file_resource(skills.files[uri]) for uri in skills.entries],
            unlisted={f"{SCHEME}{name}/": _folder_resource(skills, f"{SCHEME}{name}/")},
            skill_source=FolderSkills(skills),
            files=skills.paths,
        )

    async def aclose(self) -> None: ...

    def _problem(self, problem: UnusableSkill) -> Problem:
        message = f"{problem.path} {problem}"
        return self._origin.at("path").problem(message, problem.remedy)


class FolderSkills(Struct, frozen=True):
    """The skills of a folder (`SkillSource`)."""

    skills: Skills
    scopes: frozenset[str] = frozenset()

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """See `SkillSource`."""
        return list(self.skills.entries.values())

    async def get(self, uri: str) -> Mapping[str, Any] | None:
        """See `SkillSource`."""
        return self.skills.entries.get(uri)

    async def directory(self, uri: str, cursor: str | None) -> Directory | None:
        """See `SkillSource`. A directory is one page."""
        children = self.skills.directories.get(uri)
        return None if children is None or cursor is not None else Directory(children)


def _file_resource(file: FolderFile) -> Resource:
    async def read(
        context: Context, uri: str, values: Mapping[str, Any]
    ) -> Sequence[ResourceContents]:
        return [_contents(file)]

    return Resource(file.definition(), read)


def _folder_resource(skills: Skills, start: str) -> Resource:
    async def read(
        context: Context, uri: str, values: Mapping[str, Any]
    ) -> Sequence[ResourceContents]:
        file = skills.files.get(uri)
        if file is None:
            raise ResourceNotFound(uri)
        return [_contents(file)]

    return Resource({"uri": start, "name": start}, read)


def _contents(file: FolderFile) -> ResourceContents:
    text = file.text
    if text is None:
        return BlobResourceContents(file.uri, file.content, file.media_type)
    return TextResourceContents(file.uri, text, file.media_type)
