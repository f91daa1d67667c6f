"""What a deployment with another parameter replaces, as the resource schemas of CloudFormation say
it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from infra.template.expand import REGION

KEEP_STATE: Final = (
    "AWS::DynamoDB::Table",
    "AWS::SQS::Queue",
    "AWS::SecretsManager::Secret",
    "AWS::ApiGatewayV2::Api",
)
"""What is never replaced: rows, messages, keys, and the id in the API's URL."""
NAMED_BY_PARENT: Final = {"AWS::ApiGatewayV2::Stage", "AWS::Lambda::EventInvokeConfig"}
"""What has a name within its parent only, so that two stacks do not meet."""
NAMED_BY_OWNER: Final = {"AWS::ApiGatewayV2::DomainName"}
"""What has the name that somebody owns: a second stack could not have it anyway."""


def schema(kind: str) -> Mapping[str, Any]:
    """The schema of a resource type, as AWS publishes it."""
    found: Mapping[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
    return found


def replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The resources that an update makes anew or takes away: other ones under a new physical
    name."""
    changed = [name for name in before if name in after and _is_replaced(before[name], after[name])]
    return sorted([*changed, *(before.keys() - after.keys())])


def _is_replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    kind = schema(before["Type"])
    fixed = [
        *kind.get("createOnlyProperties", []),
        *kind.get("conditionalCreateOnlyProperties", []),
    ]
    return before["Type"] != after["Type"] or any(
        _at(before["Properties"], path) != _at(after["Properties"], path) for path in fixed
    )


def _at(properties: Any, pointer: str) -> Any:
    """The value at `/properties/A/B`."""
    for step in pointer.split("/")[2:]:
        properties = properties.get(step) if isinstance(properties, dict) else None
    return properties


def named(resources: Mapping[str, Any]) -> Iterator[str]:
    """Resources with a physical name of their own: they could neither be replaced nor be there
    twice in an account."""
    for name, resource in resources.items():
        own = [
            path
            for path in schema(resource["Type"]).get("primaryIdentifier", [])
            if _names(resource, path)
        ]
        if own and resource["Type"] not in NAMED_BY_PARENT | NAMED_BY_OWNER:
            yield f"{name}: {', '.join(path.split('/')[-1] for path in own)}"


def _names(resource: Mapping[str, Any], path: str) -> bool:
    """Whether a part of its identifier is a text, and not what another resource is called."""
    return isinstance(_at(resource.get("Properties", {}), path), str)


def short_enough(resources: Mapping[str, Any]) -> Iterator[str]:
    """Problems of length that neither schema nor linter sees: the environment of a function is 4 KB
    in all."""
    for name, resource in resources.items():
        variables = resource.get("Properties", {}).get("Environment", {}).get("Variables", {})
        size = sum(len(key) + len(str(value)) for key, value in variables.items())
        if size > 3_000:  # references become longer
            yield f"{name}: {size} bytes of environment"
