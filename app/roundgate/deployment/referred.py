"""The ARNs of secrets and parameters that a configuration refers to: what both functions of
the template may read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roundgate.settings import Reference


def resources_of(
    references: Sequence[Reference], partition: str, region: str, account: str
) -> dict[str, str]:
    """The parameters of the template for these references.

    The ARN of a secret ends with six characters that AWS makes up, so a name becomes a pattern; a
    whole ARN may be one without them.
    """
    here = f"{region}:{account}"
    secrets = [
        arn
        for one in references
        if one.kept == "secret"
        for arn in _of_secret(one.name, f"arn:{partition}:secretsmanager:{here}:secret:")
    ]
    parameters = [
        one.name
        if one.name.startswith("arn:")
        else f"arn:{partition}:ssm:{here}:parameter/{one.name.partition(':')[0].lstrip('/')}"
        for one in references
        if one.kept == "ssm"
    ]
    lists = {"SecretArns": secrets, "ParameterArns": parameters}
    return {name: ",".join(dict.fromkeys(found)) or "none" for name, found in lists.items()}


def _of_secret(name: str, prefix: str) -> Iterator[str]:
    if name.startswith("arn:"):
        yield name
        yield f"{name}-??????"
    else:
        yield f"{prefix}{name}-??????"
