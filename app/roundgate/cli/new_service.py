"""The back end that `roundgate new --from` writes for an OpenAPI document."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from roundgate.backends.openapi.compiling import compile_to_file, compiled
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import Index, SchemeSlot, chosen
from roundgate.backends.openapi.servers import base_url_for
from roundgate.config import load
from roundgate.errors import UnreadableDocument, UsageError
from roundgate.settings import Origin
from roundgate.settings.yaml_file import Located

SEARCH_ABOVE: Final = 40
"""The number of tools above which a new repository searches them; a model chooses badly among more."""
_PLACEHOLDER_URL: Final = "http://127.0.0.1:8080"
_UNSET: Final = "unset"
"""The default of a credential, so that checks and tests pass before it is set."""
_MAX_NAME: Final = 20
_MAX_TAGS: Final = 3
_SAYS_NOTHING: Final = frozenset(
    ["api", "apis", "document", "index", "json", "openapi", "rest", "schema", "spec", "swagger"]
)


@dataclass(frozen=True, slots=True)
class NewService:
    """A document with the lines about it."""

    file: str
    raw: bytes = field(repr=False)
    entry: str
    """The entry of `backends` in gateway.yaml."""
    sections: str
    """The other sections of gateway.yaml, or an empty text."""
    variables: str
    """The lines of .env.example."""

    @classmethod
    def of(cls, openapi: Path, taken: str) -> NewService:
        """Return the lines for a document.

        Args:
            taken: the name of the back end that the repository has already.

        Raises:
            UsageError: the file cannot be read, or is not an OpenAPI document.
            ConfigError: no operation can be offered.
        """
        raw = _content(openapi)
        try:
            base_url = base_url_for(raw, openapi.name, _PLACEHOLDER_URL)
        except UnreadableDocument as error:
            raise UsageError(str(error)) from None
        settings: dict[str, Any] = {"kind": "openapi", "name": "x", "document": openapi.name}
        if base_url is not None:
            settings["base_url"] = base_url[0]
        origin = Origin(Located(openapi.absolute().with_name("gateway.yaml"), {}, {}))
        index = compiled(OpenApiBackendConfig.model_validate(settings), origin, fetches=False)
        name = _name(openapi.stem, index)
        name = f"{name}_api" if name == taken else name
        variable = name.upper()
        lines = [
            f"  - kind: openapi\n    name: {name}",
            f"    document: {json.dumps(openapi.name)}",
        ]
        if base_url is not None:
            lines.append(f"    base_url: {json.dumps(base_url[0])}  # {base_url[1]}")
        lines.append("    approve: destructive    # the user confirms each call that may destroy")
        credentials = list(_credentials(index, variable))
        lines += [f"    {line}" for line in credentials]
        lines += _include(index)
        count = len(index.rows)
        search = (
            f"\nsearch: {{above: {SEARCH_ABOVE}}}    # {count:,} operations are found by search_tools, not listed\n"
            if count > SEARCH_ABOVE
            else ""
        )
        variables = "".join(
            f"# {name}=\n" for name in sorted(set(_VARIABLE.findall("\n".join(credentials))))
        )
        return cls(openapi.name, raw, "\n".join(lines) + "\n", search, variables)

    @staticmethod
    def compile(directory: Path) -> Path:
        """Write the index of the document in a new repository; return its path in the repository."""
        file = load(directory / "gateway.yaml", placeholder=_UNSET)
        (number, config), *_ = (
            (number, backend)
            for number, backend in enumerate(file.backends)
            if isinstance(backend, OpenApiBackendConfig)
        )
        compile_to_file(config, file.backend_origin(number))
        return Path(config.index_file)


_VARIABLE: Final = re.compile(r"\$\{([A-Z0-9_]+):-")


def _content(openapi: Path) -> bytes:
    if re.match(r"https?:/", str(openapi)):
        raise UsageError(f"{openapi} is a URL: download the document, and pass the file")
    try:
        return openapi.read_bytes()
    except OSError as error:
        raise UsageError(f"{openapi} cannot be read: {error.strerror}") from None


def _name(stem: str, index: Index) -> str:
    hosts = [re.sub(r"^.*://|[:/].*$", "", server) for server in index.servers]
    for text in (stem, *(host.removeprefix("api.").rpartition(".")[0] for host in hosts)):
        words = list(re.findall(r"[a-z0-9]+", text.lower()))
        words = [word for word in words if word not in _SAYS_NOTHING]
        name = "_".join(words)[:_MAX_NAME].strip("_")
        if name and not name[0].isdigit():
            return name
    return "service"


def _credentials(index: Index, variable: str) -> Iterator[str]:
    """Yield the lines with credentials for the operations that need one."""
    needed = Counter(
        name
        for row in index.rows
        if chosen(index.security[row.security], ()) is None
        for name in index.security[row.security][0]
    )
    if not needed:
        yield f'# credential: {{bearer: "${{{variable}_TOKEN:-{_UNSET}}}"}}    # if the service wants one'
        return
    yield "credentials:"
    for name, count in needed.items():
        slot = index.slots.get(name, SchemeSlot(name, "a credential"))
        example = slot.example(f"${{{variable}_{_suffix(name)}:-{_UNSET}}}")
        sign = "" if example else "# "
        value = example or f"{{}}    # {slot.description}"
        yield f"  {sign}{json.dumps(name)}: {value}    # for {count:,} operations; see .env.example"


def _suffix(name: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()).strip("_")


def _include(index: Index) -> list[str]:
    """Return a commented line with the largest tags, or without tags the beginning of the paths."""
    if len(index.rows) <= SEARCH_ABOVE:
        return []
    tags = Counter(tag for row in index.rows for tag in row.tags)
    if tags:
        chosen_ = ", ".join(f"{{tag: {json.dumps(tag)}}}" for tag, _ in tags.most_common(_MAX_TAGS))
    else:
        starts = Counter(re.sub(r"^((?:/[^/{]+){1,2}).*", r"\1", row.path) for row in index.rows)
        chosen_ = ", ".join(
            f"{{path: {json.dumps(start + '*')}}}" for start, _ in starts.most_common(_MAX_TAGS)
        )
    return [f"    # include: [{chosen_}]    # models choose better among few"]
