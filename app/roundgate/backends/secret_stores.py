"""Where secrets are kept, and how each is read. Nothing of AWS is imported before the
first of its secrets is."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from roundgate import aws
from roundgate.errors import ConfigError, Unavailable, UnresolvedReference
from roundgate.settings import Reference, read_file

_REGION: Final = re.compile(r"arn:[a-z-]+:[a-z]+:([a-z0-9-]+):")


class SecretStore(Protocol):
    """Where texts are kept under names."""

    async def read(self, name: str) -> str:
        """The text of now.

        Raises:
            UnresolvedReference: it is not there, may not be read, or cannot be reached; with a
                remedy, and without the text.
        """

    async def aclose(self) -> None:
        """Let go of connections."""


class Files:
    """The file system."""

    async def read(self, name: str) -> str:
        """The text of a file, without the ends of line after it."""
        return read_file(Path(name), name)

    async def aclose(self) -> None:
        """Nothing is held."""


class AtAws:
    """A service of AWS: one client for each region that an ARN names, and one for the
    region of the environment."""

    def __init__(self, service: str, called: str, action: str) -> None:
        self._service = service
        self._called = called
        self._action = action
        self._regions: dict[str | None, aws.Aws] = {}

    async def aclose(self) -> None:
        """Let go of the connections."""
        for one in self._regions.values():
            await one.aclose()

    async def _asked(self, operation: str, name: str, **arguments: Any) -> Any:
        found = _REGION.match(name)
        try:
            return await self._in(found[1] if found else None).call(operation, **arguments)
        except ConfigError as error:
            problem = error.problems[0]
            raise UnresolvedReference(
                f"{name}: {problem.path} {problem.message}", problem.remedy
            ) from None
        except Unavailable as error:
            remedy = "it is tried again; check the network if this stays"
            raise UnresolvedReference(f"{name}: {error}", remedy) from None
        except Exception as error:  # boto3's, most of them made at run time
            raise self._refused(name, error) from None

    def _in(self, region: str | None) -> aws.Aws:
        if region not in self._regions:
            where = {} if region is None else {"region_name": region}
            self._regions[region] = aws.Aws(
                partial(aws.client, self._service, **where), self._called
            )
        return self._regions[region]

    def _refused(self, name: str, error: Exception) -> UnresolvedReference:
        code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
        if code in ("ResourceNotFoundException", "ParameterNotFound"):
            return UnresolvedReference(
                f"{name} is not in {self._called}",
                "correct its name, or the region, or create it",
            )
        if "AccessDenied" in code or code == "403":
            return UnresolvedReference(
                f"{name} of {self._called} may not be read",
                f"allow {self._action} on it, and kms:Decrypt where its key is one of yours",
            )
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return UnresolvedReference(
                f"{name} of {self._called} needs credentials of AWS, and there are none",
                "give the process a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return UnresolvedReference(
            f"{name} of {self._called} cannot be read ({code or type(error).__name__})",
            "check its name, the region, and what the role may do",
        )


class SecretsManager(AtAws):
    """AWS Secrets Manager: the version AWSCURRENT of a secret."""

    def __init__(self) -> None:
        super().__init__("secretsmanager", "AWS Secrets Manager", "secretsmanager:GetSecretValue")

    async def read(self, name: str) -> str:
        """The string of a secret."""
        answer = await self._asked("get_secret_value", name, SecretId=name)
        if "SecretString" not in answer:
            raise UnresolvedReference(f"{name} is binary", "store it as a string")
        return str(answer["SecretString"])


class ParameterStore(AtAws):
    """AWS Systems Manager Parameter Store."""

    def __init__(self) -> None:
        super().__init__("ssm", "the Parameter Store of AWS Systems Manager", "ssm:GetParameter")

    async def read(self, name: str) -> str:
        """The value of a parameter, decrypted."""
        answer = await self._asked("get_parameter", name, Name=name, WithDecryption=True)
        return str(answer["Parameter"]["Value"])


def stores() -> dict[str, SecretStore]:
    """By what a reference says before the colon."""
    return {"secret": SecretsManager(), "ssm": ParameterStore(), "file": Files()}


def is_file(reference: Reference) -> bool:
    """Whether it is cheap to see that what is kept there has changed."""
    return reference.kept == "file"
