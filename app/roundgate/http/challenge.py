"""What an unknown or unauthorised caller is told: RFC 6750 challenges, and
the metadata of RFC 9728.

WWW-Authenticate: Bearer error="invalid_token", error_description="…", scope="…",
    resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from roundgate.errors import AuthError
from roundgate.settings import AuthorizerConfig, JwtAuthConfig

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ResourceMetadata(BaseModel):
    """The metadata document of a protected resource (RFC 9728 section 2)."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str]
    scopes_supported: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """This gateway, or a view of it, as OAuth sees it: a resource at an explicit public URL, never
    one guessed from a request."""

    origin: str
    path: str
    config: JwtAuthConfig | AuthorizerConfig
    tool_scopes: Iterable[str] = ()
    is_usual: bool = True
    """Whether it is the one whose document is at the root too."""

    @property
    def resource(self) -> str:
        """The resource identifier: the URL of the MCP endpoint."""
        return self.origin + self.path

    @property
    def metadata_paths(self) -> tuple[str, ...]:
        """Where the document is: path-inserted, and at the root (RFC 9728 section 3.1)."""
        own = WELL_KNOWN + self.path
        return (own, WELL_KNOWN) if self.is_usual else (own,)

    def metadata(self) -> ResourceMetadata:
        """Return the metadata document."""
        offered = self.config.scopes_supported
        scopes = sorted({*self.config.scopes, *self.tool_scopes}) if offered is None else offered
        return ResourceMetadata(
            resource=self.resource,
            authorization_servers=[self.config.issuer],
            bearer_methods_supported=["header"],
            scopes_supported=scopes or None,
        )

    def challenge(self, error: AuthError) -> bytes:
        """The value of WWW-Authenticate for an error."""
        # all at once: a token with these will do
        scopes = dict.fromkeys((*self.config.scopes, *error.scopes))
        members = {
            "error": error.error,
            "error_description": str(error) if error.error else None,
            "scope": " ".join(scopes) or None,
            "resource_metadata": self.origin + self.metadata_paths[0],
        }
        pairs = ", ".join(
            f'{name}="{_quotable(value)}"' for name, value in members.items() if value is not None
        )
        return f"Bearer {pairs}".encode()


def _quotable(value: str) -> str:
    """RFC 6750 allows neither quotes nor backslashes nor anything but visible
    ASCII in these values."""
    return "".join(char for char in value if " " <= char <= "~" and char not in '"\\')
