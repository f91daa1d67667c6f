"""The rotation of the keys of requestState. AWS Secrets Manager invokes `handler` for each step.

The secret is a ring of up to three keys, in base64, separated by commas: the first seals, all open.
A rotation moves the key that every replica has known since the previous rotation to the front,
keeps the key that sealed until now, and adds the next:

    [A]  ──▶  [A, B]  ──▶  [B, A, C]  ──▶  [C, B, D]  ──▶ …

Every replica can open every token if the rotation period is longer than the interval at which
replicas read their keys (5 minutes on AWS Lambda) and the lifetime of a round (15 minutes). The
module imports only the standard library and boto3, which the runtime provides.
"""

from __future__ import annotations

import base64
import secrets
from typing import Any

import boto3

KEY_BYTES = 32


def handler(event: dict[str, str], context: Any, client: Any = None) -> None:
    """Run a step of a rotation: {"SecretId", "ClientRequestToken", "Step"}.

    Raises:
        ValueError: the step is unknown, the version is unknown or not pending, or a new key has the
            wrong length.
    """
    client = client or boto3.client("secretsmanager")
    secret, version, step = event["SecretId"], event["ClientRequestToken"], event["Step"]
    stages = client.describe_secret(SecretId=secret)["VersionIdsToStages"]
    if version not in stages:
        raise ValueError(f"version {version} does not belong to the secret")
    if "AWSCURRENT" in stages[version]:
        return  # an earlier attempt finished the rotation
    if "AWSPENDING" not in stages[version]:
        raise ValueError(f"version {version} is not pending")
    match step:
        case "createSecret":
            _create(client, secret, version)
        case "setSecret":
            pass  # no service needs an update: replicas read the secret
        case "testSecret":
            pending = _ring(client, secret, version, "AWSPENDING")
            if not all(len(_decoded(key)) == KEY_BYTES for key in pending):
                raise ValueError("a key of the new ring has the wrong length")
        case "finishSecret":
            current = next(
                candidate for candidate, marks in stages.items() if "AWSCURRENT" in marks
            )
            client.update_secret_version_stage(
                SecretId=secret,
                VersionStage="AWSCURRENT",
                MoveToVersionId=version,
                RemoveFromVersionId=current,
            )
        case _:
            raise ValueError(f"{step!r} is not a step of a rotation")


def rotated(ring: list[str], fresh: str) -> list[str]:
    """Return the ring for the next period."""
    if len(ring) == 1:
        return [ring[0], fresh]
    sealing, upcoming = ring[0], ring[-1]
    return [upcoming, sealing, fresh]


def _create(client: Any, secret: str, version: str) -> None:
    try:
        client.get_secret_value(SecretId=secret, VersionId=version, VersionStage="AWSPENDING")
    except client.exceptions.ResourceNotFoundException:
        fresh = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
        ring = rotated(_ring(client, secret, None, "AWSCURRENT"), fresh)
        client.put_secret_value(
            SecretId=secret,
            ClientRequestToken=version,
            SecretString=",".join(ring),
            VersionStages=["AWSPENDING"],
        )


def _ring(client: Any, secret: str, version: str | None, stage: str) -> list[str]:
    which = {} if version is None else {"VersionId": version}
    text: str = client.get_secret_value(SecretId=secret, VersionStage=stage, **which)[
        "SecretString"
    ]
    return [key.strip() for key in text.split(",")]


def _decoded(key: str) -> bytes:
    return base64.b64decode(key + "=" * (-len(key) % 4), validate=True)
