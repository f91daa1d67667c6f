"""Skills (SEP-2640): folders with instructions for models, whose files are resources.

An entry of skills/list has the URI of a skill's SKILL.md, its frontmatter, and the digest and size
of each file:

    {"uri": "skill://NAME/refunds/SKILL.md",
     "frontmatter": {"name": "refunds", "description": "…"},
     "resources": [{"uri": "skill://NAME/refunds/SKILL.md", "digest": "sha256:…", "size": 812}]}
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

EXTENSION: Final = "io.modelcontextprotocol/skills"
SCHEME: Final = "skill://"
SKILL_FILE: Final = "SKILL.md"
DYNAMIC: Final = "dynamic"
"""The `resources` of a skill whose files have no stable digests."""
DIRECTORY: Final = "inode/directory"
MARKDOWN: Final = "text/markdown"
MAX_FILES: Final = 512
"""The maximum number of files of a skill (SEP-2640, "Limits")."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""The maximum total size of the files of a skill, in bytes (SEP-2640, "Limits")."""
NAME: Final = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
"""The valid names of skills (Agent Skills specification, "name field")."""


def media_type(name: str, *, is_text: bool) -> str:
    """Return the media type of a file, by the extension of its name."""
    default = "text/plain" if is_text else "application/octet-stream"
    return _types().guess_type(name.lower())[0] or default


@cache
def _types() -> mimetypes.MimeTypes:
    """Return Python's built-in table, because the system's table may differ between replicas."""
    types = mimetypes.MimeTypes()
    types.add_type(MARKDOWN, ".md")
    return types


def list_directories(resources: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the children of each directory that contains resources, by the directory's URI. A child
    has the form of the schema's `Resource`."""
    directories: dict[str, dict[str, Mapping[str, Any]]] = {}
    for child in resources:
        while (parent := child["uri"].rpartition("/")[0]).count("/") >= _ROOT_SLASHES:
            siblings = directories.setdefault(parent, {})
            is_known = child["uri"] in siblings
            siblings.setdefault(child["uri"], child)
            if is_known:
                break
            name = unquote(parent.rpartition("/")[2])
            child = {"uri": parent, "name": name, "mimeType": DIRECTORY}
    return {uri: list(children.values()) for uri, children in directories.items()}


def children_of(
    directory: str, resources: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]] | None:
    """Return the children of one directory, as `list_directories` does; `None` if it has none."""
    start, children = f"{directory}/", dict[str, Mapping[str, Any]]()
    if directory.count("/") < _ROOT_SLASHES:
        return None
    for resource in resources:
        if resource["uri"].startswith(start):
            name, slash, _ = resource["uri"].removeprefix(start).partition("/")
            folder = {"uri": start + name, "name": unquote(name), "mimeType": DIRECTORY}
            children.setdefault(start + name, folder if slash else resource)
    return list(children.values()) or None


_ROOT_SLASHES: Final = SCHEME.count("/")
"""The number of slashes in the URI of a topmost directory, `skill://NAME`."""
