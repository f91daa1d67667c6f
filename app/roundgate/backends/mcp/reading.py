"""The reading of a server's resources by their URIs, whether the server lists them or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate.backends.mcp.server import Server
from roundgate.backends.mcp.tools import own_meta
from roundgate.client.messages import Listener
from roundgate.client.types import Json, is_object_list
from roundgate.errors import BackendError, ResourceNotFound, UnexpectedAnswer
from roundgate.protocol import BlobResourceContents, ResourceContents, TextResourceContents
from roundgate.replay import Context

REFUSED: Final = ("error -32602", "error -32002")
"""Errors for an unknown resource; -32002 is that of revisions before 2026-07-28."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads the resources of one server."""

    server: Server

    async def read(
        self, context: Context, uri: str, renamed: Callable[[str], str]
    ) -> Sequence[ResourceContents]:
        """Return the contents at a URI of the server.

        Args:
            context: the context of the request.
            uri: the server's URI.
            renamed: returns the gateway's URI for a server's.

        Raises:
            ResourceNotFound: the server has no such resource.
            BackendError: the server refused the request, or did not answer.
        """
        try:
            result = await self.server.request(
                "resources/read",
                {"uri": uri},
                Listener(capabilities={}),
                context.deadline,
                is_repeatable=True,
            )
        except BackendError as error:
            if error.reason in REFUSED:
                raise ResourceNotFound(renamed(uri)) from None
            raise
        return self._contents(result, renamed)

    def _contents(self, result: Json, renamed: Callable[[str], str]) -> Sequence[ResourceContents]:
        contents = result.get("contents")
        if not isinstance(contents, list) or not is_object_list(contents):
            raise UnexpectedAnswer(f"{self.server.name} answered without contents of the resource")
        return [self._part(part, renamed) for part in contents]

    def _part(self, part: Mapping[str, Any], renamed: Callable[[str], str]) -> ResourceContents:
        uri, media_type, meta = part.get("uri"), part.get("mimeType"), part.get("_meta")
        kept = (own_meta(meta) or None) if isinstance(meta, dict) else None
        named = media_type if isinstance(media_type, str) else None
        match part:
            case {"uri": str(uri), "text": str(text)}:
                return TextResourceContents(renamed(uri), text, named, kept)
            case {"uri": str(uri), "blob": str(blob)}:
                return BlobResourceContents(renamed(uri), blob, named, kept)
        raise UnexpectedAnswer(f"{self.server.name} answered with contents that no client can read")
