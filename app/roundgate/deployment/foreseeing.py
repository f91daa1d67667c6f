"""Checks for errors that would fail late in a deployment, made before anything is packed or
uploaded.

CloudFormation finds some errors after the upload, AWS Lambda some when it creates the first
function, and some appear only to clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from roundgate.deployment import granting, judging, places
from roundgate.deployment.deploying import (
    OVERRIDES,
    Asked,
    Quota,
    default_of,
    read_configuration,
    variables_of,
)
from roundgate.deployment.stack.template import Template
from roundgate.errors import UsageError

GATEWAYS_SHARE: Final = 2
"""The divisor of the account's executions that limits `WorkerConcurrency`."""
UNRESERVED: Final = 100
"""Executions that an account must leave unreserved; all of them if it has fewer."""
MAX_ENVIRONMENT_BYTES: Final = 4_096
"""The limit on names and values of a function's variables, in bytes (AWS Lambda quotas)."""
_RSA: Final = ("RS", "PS")
"""The prefixes of algorithms that sign with RSA."""


def check(
    asked: Asked,
    config: Path,
    stored: Mapping[str, str],
    quota: Quota | None,
    region: str | None = None,
) -> None:
    """Raise UsageError if the parameters are invalid, leave the API open or unreachable, or exceed
    the account's concurrency."""
    says = {**stored, **asked.overrides}
    value = read_configuration(config)
    if wrong := judging.refused(asked.overrides, says, judging.declared(variables_of(value))):
        raise UsageError("\n".join(wrong))
    _check_callers(config, value.get("auth", "none"), says)
    _check_domain(says, region)
    _check_topic(says, region)
    _check_environment(asked.stack, says, variables_of(value), region or "")
    if quota is not None:
        _check_concurrency(says, stored, quota)


def _check_concurrency(says: Mapping[str, str], stored: Mapping[str, str], quota: Quota) -> None:
    """Raise UsageError if the account cannot provide the functions' concurrency."""
    workers, gateways = (
        int(says.get(name, default_of(name)))
        for name in ("WorkerConcurrency", "GatewayConcurrency")
    )
    more = "or ask AWS for more (Service Quotas, AWS Lambda, Concurrent executions)."
    if workers > quota.executions // GATEWAYS_SHARE:
        raise UsageError(
            f"The account may have {quota.executions} functions at once,"
            f" and WorkerConcurrency={workers} leaves too few to the gateway.\n"
            f"Set it to {max(2, quota.executions // GATEWAYS_SHARE)} at most, {more}"
        )
    if not gateways:
        return
    free = quota.unreserved + int(stored.get("GatewayConcurrency", 0))
    most = max(0, free - min(UNRESERVED, quota.executions))
    if gateways > most:
        remedy = f"Set it to {most} at most" if most else "Leave it at 0"
        raise UsageError(
            f"GatewayConcurrency={gateways} reserves more than the account can:"
            f" of its {quota.executions} functions at once {free} are not reserved by others,"
            f" and {min(UNRESERVED, quota.executions)} have to stay unreserved.\n"
            f"{remedy}, {more}"
        )
    if workers > free - gateways:
        raise UsageError(
            f"GatewayConcurrency={gateways} leaves {free - gateways} to WorkerConcurrency={workers}.\n"
            f"Make one of them smaller, {more}"
        )


def _check_topic(says: Mapping[str, str], region: str | None) -> None:
    """Raise UsageError if the region's alarms cannot reach the topic."""
    there = says.get("AlarmTopicArn", "").split(":")
    if region and len(there) > 3 and there[3] != region:
        raise UsageError(
            f"AlarmTopicArn is of {there[3]}, and alarms reach topics of their own region alone, {region}.\n"
            f"Make one there: aws sns create-topic --region {region} --name alarms"
        )


def _check_environment(
    stack: str, says: Mapping[str, str], env: Mapping[str, str], region: str
) -> None:
    """Raise UsageError if a function's variables exceed the limit of AWS Lambda on their total
    size. Placeholders of the same length stand for names that AWS generates."""
    known = {
        "Table": f"{stack}-Table-{'X' * 13}",
        "Queue": f"https://sqs.{region}.amazonaws.com/{'0' * 12}/{stack}-Queue-{'X' * 12}",
        "StateKeys": f"arn:aws:secretsmanager:{region}:{'0' * 12}:secret:StateKeys-{'X' * 19}",
        "Api": "X" * 10,
        "AWS::Region": region,
    }
    source = judging.template().source
    parameters = {name: value for name, value in says.items() if name in source["Parameters"]}
    function = Template(places.TEMPLATE, parameters, known, source).function("GatewayFunction")
    own = {name: says.get(granting.parameter_name(name), text) for name, text in env.items()}
    sizes = {
        name: len(f"{name}{text}".encode())
        for name, text in {**function.environment, **own}.items()
    }
    if own and (size := sum(sizes.values())) > MAX_ENVIRONMENT_BYTES:
        longest = sorted(own, key=lambda name: -sizes[name])[:3]
        raise UsageError(
            f"The variables of a function have {size:,} bytes, and AWS Lambda takes {MAX_ENVIRONMENT_BYTES:,}."
            f" The longest of `env`: {', '.join(f'{name} {sizes[name]:,}' for name in longest)}.\n"
            "Keep long texts in a file (package.include), or at AWS (${ssm:NAME}, ${secret:NAME})."
        )


def _check_callers(config: Path, auth: Any, says: Mapping[str, str]) -> None:
    """Raise UsageError if the configuration and the authorizer together leave the API open to
    everyone or closed to all."""
    issuer = says.get("AuthorizerIssuer", "")
    is_behind = isinstance(auth, dict) and "authorizer" in auth
    if auth == "none" and says.get("AllowAnonymous") != "true":
        how = f"auth: {{authorizer: api-gateway, issuer: {issuer}}}" if issuer else "auth"
        raise UsageError(
            f"{config} configures no authentication: everybody who knows the URL could call"
            f"{', and all whom the authorizer lets pass would be one caller' if issuer else ''}.\n"
            f"Configure {how}, or say {OVERRIDES} AllowAnonymous=true if that is meant."
        )
    if is_behind and not issuer and not _has_another_authorizer():
        raise UsageError(
            f"{config} leaves it to an authorizer of API Gateway who may call, and the stack has none: nobody could.\n"
            f"Say {OVERRIDES} AuthorizerIssuer=… AuthorizerAudience=…"
        )
    algorithms = auth.get("algorithms") if isinstance(auth, dict) else None
    if (
        issuer
        and isinstance(algorithms, list)
        and not any(str(one).startswith(_RSA) for one in algorithms)
    ):
        raise UsageError(
            "The authorizer of an HTTP API takes tokens that are signed with RSA,"
            f" and auth.algorithms of {config} takes {', '.join(map(str, algorithms))}: nobody could call.\n"
            "Have the issuer sign with RS256, or let the gateway alone verify"
            ' (AuthorizerIssuer="" AuthorizerAudience=none).'
        )
    own = auth.get("issuer", "") if isinstance(auth, dict) else ""
    if issuer and own and "${" not in own and own != issuer:
        raise UsageError(
            f"AuthorizerIssuer={issuer} and auth.issuer of {config}, {own}, are two: whom one lets pass,"
            " the other refuses.\nMake them the same, to the slash at the end."
        )


def _has_another_authorizer() -> bool:
    """Return whether the template has been given an authorizer of another name."""
    return judging.template().named("AWS::ApiGatewayV2::Authorizer") != ["Authorizer"]


def _check_domain(says: Mapping[str, str], region: str | None) -> None:
    """Raise UsageError for a domain that CloudFormation would refuse late, or that clients could
    not use."""
    name, url = says.get("DomainName", ""), says.get("PublicUrl", "")
    there = says.get("CertificateArn", "").split(":")
    if name and region and len(there) > 3 and there[3] != region:
        raise UsageError(
            f"CertificateArn is of {there[3]}, and the domain of an API wants one of the stack's region, {region}.\n"
            f"Request it there: aws acm request-certificate --region {region} --domain-name {name} …"
        )
    if name.startswith("*.") and not url:
        raise UsageError(
            f"DomainName={name} stands for many names, and tokens and metadata are about one URL.\n"
            f"Say PublicUrl=https://…{name.removeprefix('*')}, the name that clients use."
        )
    if name and url.removeprefix("https://").startswith(f"{name}/"):
        raise UsageError(
            f"PublicUrl={url} has a path, and the API is mapped to the root of {name}.\n"
            f'Leave it empty (PublicUrl=""), or map another domain to the path yourself.'
        )
