"""The sets of parameters for checks of template.yaml."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

Parameters: TypeAlias = Mapping[str, str]
Choices: TypeAlias = Mapping[str, tuple[str, ...]]

FUNCTION: Final = "arn:aws:lambda:eu-central-1:123456789012:function:orders"
CERTIFICATE: Final = "arn:aws:acm:eu-central-1:123456789012:certificate/12345678"
KEY: Final = "arn:aws:kms:eu-central-1:123456789012:key/12345678-1234-1234-1234-123456789012"
SECRET: Final = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:roundgate/keys-AbCdEf"
LAYERS: Final = (
    "arn:aws:lambda:eu-central-1:123456789012:layer:agent:1,"
    "arn:aws:lambda:eu-central-1:123456789012:layer:other:2"
)
MATTERS: Final[Choices] = {
    "PublicUrl": ("", "https://mcp.example.com"),
    "StageName": ("$default", "prod"),
    "ApiEndpoint": ("auto", "enabled", "disabled"),
    "DomainName": ("", "mcp.example.com"),
    "HostedZoneId": ("", "Z0123456789ABCDEFGHIJ"),
    "AllowAnonymous": ("false", "true"),
    "Architecture": ("arm64", "x86_64"),
    "WorkerTimeout": ("900", "300"),
    "Rollout": ("none", "Canary10Percent5Minutes"),
    "SubnetIds": ("none", "subnet-0123456789abcdef0,subnet-0123456789abcdef1"),
    "GatewayConcurrency": ("0", "50"),
    "FunctionArns": ("none", f"{FUNCTION},{FUNCTION}:live"),
    "DurableFunctionArns": ("none", f"{FUNCTION}:*"),
    "Layers": ("none", LAYERS),
    "PermissionsBoundary": ("", "arn:aws:iam::123456789012:policy/boundary"),
    "KmsKeyArn": ("", KEY),
    "Tracing": ("PassThrough", "Active"),
    "TableName": ("", "restored"),
    "StateKeysArn": ("", SECRET),
    "TableEncryption": ("aws-owned", "aws-managed"),
    "ProtectTable": ("true", "false"),
    "AlarmTopicArn": ("", "arn:aws:sns:eu-central-1:123456789012:alarms"),
    "TicketTopicArn": ("", "arn:aws:sns:eu-central-1:123456789012:tickets"),
    "ExecWrapper": ("", "/opt/otel-instrument"),
}
"""The values of each parameter of both kinds of API that determines which resources exist, the
default first."""
OF_HTTP: Final[Choices] = {
    "AuthorizerIssuer": ("", "https://issuer.example"),
    "GatewayTimeout": ("29", "10"),
    "SnapStart": ("off", "on"),
}
OF_REST: Final[Choices] = {
    "ApiType": ("rest",),
    "VpcEndpointIds": ("none", "vpce-0123456789abcdef0"),
    "WebAclArn": ("", "arn:aws:wafv2:eu-central-1:123456789012:regional/webacl/acl/1234"),
}
OF_API: Final[Mapping[str, Choices]] = {
    "http": {**OF_HTTP, **MATTERS},
    "rest": {**OF_REST, **MATTERS},
}
WITH_DOMAIN: Final = {"DomainName": "mcp.example.com", "CertificateArn": CERTIFICATE}
NEEDS: Final[Mapping[str, Parameters]] = {
    "DomainName": WITH_DOMAIN,
    "HostedZoneId": WITH_DOMAIN,
    "AuthorizerIssuer": {"AuthorizerAudience": "https://mcp.example.com/mcp,other"},
    "SubnetIds": {"SecurityGroupIds": "sg-0123456789abcdef0"},
}
"""The parameters that a non-default value requires, according to the template's rules."""
CANDIDATES: Final = 40
"""The number of random sets of which the best is chosen."""


def whole(chosen: Parameters, matters: Choices) -> Parameters:
    """Return the chosen parameters with the parameters that their values require."""
    others = [name for name, value in chosen.items() if value != matters[name][0]]
    needed = {
        key: needed_value for name in others for key, needed_value in NEEDS.get(name, {}).items()
    }
    return {**chosen, **needed}


def each_alone(matters: Choices) -> Iterator[tuple[str, Parameters]]:
    """Yield each non-default value, as text and with the parameters that it requires."""
    for name, values in matters.items():
        for value in values[1:]:
            yield f"{name}={value}", whole({name: value}, matters)


def every_few(matters: Choices, few: int) -> list[Parameters]:
    """Return the defaults, and sets in which any `few` parameters have all combinations of their
    values."""
    draw = random.Random(20261122)  # a fixed seed, for the same sets each time
    left = {
        tuple(zip(names, values, strict=True))
        for names in itertools.combinations(matters, few)
        for values in itertools.product(*(matters[name] for name in names))
    }
    chosen = [{name: values[0] for name, values in matters.items()}]
    left -= _covered(chosen[0], few)
    while left:
        begun = dict(min(left))
        drawn = [
            {
                name: begun[name] if name in begun else draw.choice(values)
                for name, values in matters.items()
            }
            for _ in range(CANDIDATES)
        ]
        best = max(drawn, key=lambda parameters: len(left & _covered(parameters, few)))
        left -= _covered(best, few)
        chosen.append(best)
    return [whole(parameters, matters) for parameters in chosen]


def _covered(chosen: Parameters, few: int) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(chosen.items(), few))
