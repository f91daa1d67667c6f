"""The pages of a module's tools (MCP Apps): HTML files beside the module, read at the start and
served as `ui://` resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from roundgate.backends.base import Resource
from roundgate.errors import Inside
from roundgate.protocol import ResourceContents, TextResourceContents
from roundgate.protocol.apps import HTML, SCHEME, App
from roundgate.replay import Context

MAX_BYTES: Final = 4_000_000
"""The maximum size of a page in bytes. A response of AWS Lambda is limited to 6 MB, in which quotes
are escaped."""


class UnusablePage(Inside):
    """A page that cannot be served, with the remedy."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class PythonPages:
    """The pages of one back end, each read once."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._apps: dict[str, tuple[App, Path]] = {}
        self.resources: list[Resource] = []
        self.files: set[Path] = set()

    def tool_meta(self, declared: App | str, folder: Path) -> dict[str, Any]:
        """Return the `_meta.ui` of a tool, and add the resource of its page.

        Args:
            declared: the value of `@tool(ui=…)`.
            folder: the folder of the tool's module.

        Raises:
            UnusablePage: the file cannot be served.
        """
        app = App(declared) if isinstance(declared, str) else declared
        if app.file is None:
            return app.tool_meta(None)
        path = _path_in(folder, app.file)
        uri = f"{SCHEME}{self._backend}/{quote(path.relative_to(folder).as_posix())}"
        known = self._apps.get(uri)
        if known is None:
            self.files.add(path)
            self.resources.append(_resource(uri, app, _read(path)))
            self._apps[uri] = app, path
        elif known[1] != path:
            raise UnusablePage(
                f"{path} has the URI of {known[1]}, {uri}", "give one of the files another name"
            )
        elif known[0].page_meta() != app.page_meta():
            raise UnusablePage(
                f"{app.file} is the page of another tool, with other options",
                "give both tools the same csp, permissions, domain and prefers_border",
            )
        return app.tool_meta(uri)


def _path_in(folder: Path, name: str) -> Path:
    """Return the path of a file below a folder.

    Raises:
        UnusablePage: the file is outside of the folder; a symbolic link counts as its target.
    """
    try:
        path = folder / name
        is_inside = path.resolve().is_relative_to(folder.resolve())
        relative = Path(name)
        if is_inside and not relative.is_absolute() and ".." not in relative.parts:
            return path
    except (ValueError, OSError, RuntimeError):  # a NUL byte, a loop of links
        pass
    raise UnusablePage(
        f"{name!r} is not a path below {folder}",
        "write a relative path of a file beside the module",
    )


def _read(path: Path) -> str:
    """Return the text of a page.

    Raises:
        UnusablePage: the file is missing, unreadable or too large, or is not UTF-8.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "there is no such file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnusablePage(
            f"{path} cannot be read: {error.strerror or error}",
            "correct the path, which is relative to the module; a package for AWS Lambda needs the file in"
            " `package: {include: […]}`",
        ) from None
    if len(content) > MAX_BYTES:
        raise UnusablePage(
            f"{path} has more than {MAX_BYTES:,} bytes",
            "make the page smaller, or load parts of it from an origin in csp.resourceDomains",
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UnusablePage(f"{path} is not UTF-8", "save the page as UTF-8") from None


def _resource(uri: str, app: App, text: str) -> Resource:
    page_meta = app.page_meta()
    meta = {"ui": page_meta} if page_meta else None
    contents = [TextResourceContents(uri, text, HTML, meta)]

    async def read(
        context: Context, uri: str, values: Mapping[str, Any]
    ) -> Sequence[ResourceContents]:
        return contents

    definition = {
        "uri": uri,
        "name": app.file,
        "mimeType": HTML,
        **({"_meta": meta} if meta else {}),
    }
    return Resource(definition, read)
