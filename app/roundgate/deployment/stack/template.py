"""`template.yaml` as it would be deployed: functions with their environment,
time-outs and triggers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms: `!Ref X` becomes `{"Ref": "X"}`,
    `!Sub …` `{"Fn::Sub": …}`."""


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    match node:
        case yaml.ScalarNode():
            value = loader.construct_scalar(node)
        case yaml.SequenceNode():
            value = loader.construct_sequence(node, deep=True)
        case _:
            value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _short_form)


@dataclass(frozen=True)
class Function:
    """One function as deployed."""

    name: str
    handler: str
    zip: Path
    timeout_s: int
    memory_mb: int
    runtime: str
    environment: Mapping[str, str]
    events: Mapping[str, Any]
    allows_loops: bool
    """Whether it may be invoked by messages that it caused itself, again and again."""


class Template:
    """The template, with what `Ref` and `GetAtt` of its resources stand for here."""

    def __init__(
        self,
        path: Path,
        parameters: Mapping[str, Any],
        known: Mapping[str, str],
        source: dict[str, Any] | None = None,
    ) -> None:
        self.source: dict[str, Any] = source or yaml.load(path.read_text("utf-8"), _Loader)
        """What is in the file, unless it is given, such as expanded."""
        self._directory = path.parent
        defaults = {name: one.get("Default") for name, one in self.source["Parameters"].items()}
        unknown = parameters.keys() - defaults.keys()
        if unknown:
            raise ValueError(f"the template has no parameters {', '.join(sorted(unknown))}")
        pseudo = {
            "AWS::AccountId": "123456789012",
            "AWS::NoValue": None,
            "AWS::Partition": "aws",
            "AWS::Region": "eu-central-1",
            "AWS::StackName": "roundgate",
            "AWS::URLSuffix": "amazonaws.com",
        }
        self._known: dict[str, Any] = {**pseudo, **defaults, **parameters, **known}

    def properties(self, resource: str) -> dict[str, Any]:
        """What a resource is made with."""
        found: dict[str, Any] = self._resolve(
            self.source["Resources"][resource].get("Properties", {})
        )
        return found

    def value(self, value: Any) -> Any:
        """A value of the template, with what its references stand for."""
        return self._resolve(value)

    def function(self, resource: str) -> Function:
        """A function, with what `Globals` gives it."""
        own, shared = self.properties(resource), self._resolve(self.source["Globals"]["Function"])
        variables = {**_variables(shared), **_variables(own)}
        return Function(
            name=resource,
            handler=own["Handler"],
            zip=self._directory / own["CodeUri"],
            timeout_s=int(own["Timeout"]),
            memory_mb=int(own["MemorySize"]),
            runtime=own.get("Runtime", shared["Runtime"]),
            environment={name: str(value) for name, value in variables.items()},
            events=own.get("Events", {}),
            allows_loops=own.get("RecursiveLoop") == "Allow",
        )

    def named(self, kind: str) -> list[str]:
        """The resources of a type."""
        return [name for name, one in self.source["Resources"].items() if one["Type"] == kind]

    def routes(self) -> list[tuple[str, str]]:
        """Return the method and path of each route of the API: `$default` and "" for the default
        route."""
        keys = [
            self.properties(name)["RouteKey"] for name in self.named("AWS::ApiGatewayV2::Route")
        ]
        return [(method, path) for method, _, path in (key.partition(" ") for key in keys)]

    def _resolve(self, value: Any) -> Any:
        match value:
            case {"Ref": str(name)}:
                return self._known.get(name, f"unknown:{name}")
            case {"Fn::GetAtt": [resource, attribute]}:
                return self._known.get(f"{resource}.{attribute}", f"unknown:{resource}.{attribute}")
            case {"Fn::FindInMap": [str(name), first, second]}:
                found = self.source["Mappings"][name]
                return found[str(self._resolve(first))][str(self._resolve(second))]
            case {"Fn::Sub": str(text)}:
                return self._filled(text, {})
            case {"Fn::Sub": [text, dict(more)]}:
                return self._filled(text, {name: self._resolve(one) for name, one in more.items()})
            case {"Fn::If": [condition, yes, no]}:
                return self._resolve(yes if self.holds({"Condition": condition}) else no)
            case {"Fn::Select": [index, items]}:
                return self._resolve(items)[int(index)]
            case {"Fn::Split": [separator, text]}:
                return self._resolve(text).split(separator)
            case dict():
                resolved = {name: self._resolve(one) for name, one in value.items()}
                return {name: one for name, one in resolved.items() if one is not None}
            case list():
                resolved_items = (self._resolve(one) for one in value)
                return [one for one in resolved_items if one is not None]
        return value

    def _filled(self, text: str, more: Mapping[str, Any]) -> str:
        def found(match: re.Match[str]) -> str:
            return str(
                more[match[1]]
                if match[1] in more
                else self._known.get(match[1], f"unknown:{match[1]}")
            )

        return re.sub(r"\$\{([A-Za-z0-9:.]+)\}", found, text)

    def holds(self, condition: Any) -> bool:
        """Whether a condition is met, as one of `Conditions` or of `Rules` says it.

        Raises:
            ValueError: it is of a kind that is not known here.
        """
        match condition:
            case {"Condition": str(name)}:
                return self.holds(self.source["Conditions"][name])
            case {"Fn::Not": [one]}:
                return not self.holds(one)
            case {"Fn::And": [*all_of]}:
                return all(map(self.holds, all_of))
            case {"Fn::Or": [*any_of]}:
                return any(map(self.holds, any_of))
            case {"Fn::Equals": [one, other]}:
                return bool(self._resolve(one) == self._resolve(other))
        raise ValueError(f"unknown condition {condition}")


def _variables(properties: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = properties.get("Environment", {}).get("Variables", {})
    return found
