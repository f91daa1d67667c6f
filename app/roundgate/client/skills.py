"""Skills of a server (SEP-2640): their entries, and files that are verified when they are read.

A file is read only if the entry lists it, and used only if its size and digest are those of the
entry. The frontmatter of SKILL.md must equal the entry's, because users choose skills by it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.client.types import Json, ReadResult, member, optional
from roundgate.errors import BadAnswer, ClientError
from roundgate.protocol.skills import DYNAMIC
from roundgate.settings.frontmatter import read_frontmatter

_WHAT: Final = "a skill"
_ALGORITHM: Final = "sha256:"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill: its digest, `sha256:…`, and its size in bytes."""

    uri: str
    digest: str
    size: int

    @classmethod
    def read(cls, raw: Any) -> SkillFile:
        if not isinstance(raw, dict):
            raise BadAnswer("The server sent a skill with a file that is not an object")
        what = "a file of a skill"
        uri, digest = member(raw, "uri", str, what), member(raw, "digest", str, what)
        return cls(uri, digest, member(raw, "size", int, what))


@dataclass(frozen=True, slots=True)
class Skill:
    """An entry of skills/list. `uri` is the URI of its SKILL.md."""

    uri: str
    name: str
    description: str
    frontmatter: Json
    files: Mapping[str, SkillFile] | None
    """The files by URI; `None` if the server offers no stable digests."""
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Any) -> Skill:
        """Read an entry. Raise `BadAnswer` if it is malformed."""
        if not isinstance(raw, dict):
            raise BadAnswer("The server sent a skill that is not an object")
        frontmatter: Json = member(raw, "frontmatter", dict, _WHAT)
        files = None
        if raw.get("resources") != DYNAMIC:
            listed: list[Any] = member(raw, "resources", list, _WHAT)
            files = {file.uri: file for file in map(SkillFile.read, listed)}
        return cls(
            member(raw, "uri", str, _WHAT),
            member(frontmatter, "name", str, "the frontmatter of a skill"),
            member(frontmatter, "description", str, "the frontmatter of a skill"),
            frontmatter,
            files,
            raw,
        )

    def require_listed(self, uri: str) -> None:
        """Raise `ClientError` if the entry lists its files, but not this one."""
        if self.files is not None and uri not in self.files:
            raise ClientError(f"The skill {self.name[:80]!r} has no file {uri[:200]}")

    def verified(self, uri: str, result: ReadResult) -> bytes:
        """Return the content of a file. Raise `BadAnswer` if it differs from the entry."""
        content = _content(uri, result)
        if self.files is not None:
            file = self.files[uri]
            digest = f"{_ALGORITHM}{hashlib.sha256(content).hexdigest()}"
            if len(content) != file.size or digest != file.digest:
                raise BadAnswer(
                    f"The content of {uri[:200]} does not match the entry of its skill: ask the "
                    "server for the entry again, or do not use the skill"
                )
        if uri == self.uri:
            self._compare_frontmatter(content)
        return content

    def _compare_frontmatter(self, content: bytes) -> None:
        try:
            frontmatter = read_frontmatter(content.decode())
        except (ValueError, UnicodeDecodeError):
            frontmatter = {}
        if frontmatter != self.frontmatter:
            raise BadAnswer(
                f"The frontmatter of {self.uri[:200]} is not that of the entry: do not use the skill"
            )


def _content(uri: str, result: ReadResult) -> bytes:
    contents = [part for part in result.contents if part.get("uri") == uri]
    if len(contents) == 1 and isinstance(text := contents[0].get("text"), str):
        return text.encode()
    blob: str | None = optional(contents[0], "blob", str, "a file") if len(contents) == 1 else None
    if blob is None:
        raise BadAnswer(f"The server did not answer with the content of {uri[:200]}")
    try:
        return base64.b64decode(blob, validate=True)
    except ValueError:  # also for text that is not ASCII
        raise BadAnswer(f"The server sent {uri[:200]} in invalid base64") from None
