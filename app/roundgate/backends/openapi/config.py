"""Settings of back ends of the kind `openapi`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roundgate.backends.config import NamesConfig
from roundgate.backends.http.config import BaseUrl, RemoteConfig
from roundgate.backends.http.credential_config import Credential

MEDIA_TYPES = (
    "application/json",
    "application/merge-patch+json",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "text/plain",
)


class OpenApiBackendConfig(RemoteConfig):
    """The operations of an OpenAPI document (3.0, 3.1, 3.2) or of a Swagger 2.0 document."""

    kind: Literal["openapi"]
    document: str = Field(
        description="A file or a folder of documents, relative to gateway.yaml, or an http(s) URL, which only"
        " `roundgate check` and `roundgate compile` fetch.",
        min_length=1,
    )
    index: str | None = Field(
        None,
        description="The file that `roundgate compile` writes, relative to gateway.yaml. Unset: NAME.index.",
    )
    base_url: BaseUrl | None = Field(
        None, description="URL of the service, instead of the document's servers."
    )
    variables: dict[str, str] = Field(
        {}, description="Values of variables in the URLs of the document's servers."
    )
    origins: list[str] = Field(
        [],
        description="Allowed origins of servers in the document and its operations, such as"
        " https://uploads.example.com or https://*.example.com. Requests and credentials go nowhere else.",
    )
    references: list[str] = Field(
        [],
        description="Places that the document may refer to besides its own folder: URLs or paths, with everything"
        " below them.",
    )
    overlay: list[str] = Field(
        [],
        description="Overlays (Overlay Specification 1.0) that change the document, in order: files, relative to"
        " gateway.yaml, or URLs, which only `roundgate check` and `roundgate compile` fetch.",
    )
    names: NamesConfig = Field(
        NamesConfig(dots="_"), description="The names of its tools; by default without dots."
    )
    credentials: dict[str, Credential] = Field(
        {}, description="Credentials for the document's security schemes, by the schemes' names."
    )
    media_types: list[str] = Field(
        list(MEDIA_TYPES),
        description="Media types of the body to send if an operation accepts several, best first.",
    )
    output_schemas: list[str] = Field(
        [],
        description='Tools (names without prefix, "*" for any text) that advertise the schema of their result.',
    )
    strict: bool = Field(
        False, description="Whether an operation that cannot be offered is an error."
    )

    @property
    def index_file(self) -> str:
        """The path of the index, relative to gateway.yaml."""
        return self.index or f"{self.name}.index"

    @property
    def packed_files(self) -> tuple[str, ...]:
        """The index, the only file that a start reads."""
        return (self.index_file,)
