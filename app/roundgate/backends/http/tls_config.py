"""What can be set of the TLS of connections."""

from __future__ import annotations

from pydantic import Field, SecretStr, model_validator

from roundgate.settings import Model


class TlsConfig(Model):
    """TLS of connections: each a file beside gateway.yaml, or the PEM text itself."""

    ca: str | None = Field(
        None,
        description="Certificates of the authorities that are believed, instead of the public "
        "ones.",
        min_length=1,
    )
    cert: str | None = Field(
        None,
        description="The gateway's certificate, with those between it and the authority.",
        min_length=1,
    )
    key: SecretStr | None = Field(
        None, description="Its private key. Unset: it is in the same file as cert.", min_length=1
    )
    key_password: SecretStr | None = Field(None, description="Where the key is encrypted.")

    @model_validator(mode="after")
    def _belongs_together(self) -> TlsConfig:
        if self.cert is None and (self.key is not None or self.key_password is not None):
            raise ValueError("key and key_password need cert beside them")
        return self
