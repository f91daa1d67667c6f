"""What of an expanded template is there with its parameters, and in which order it can be made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

PSEUDO: Final = {
    "AWS::AccountId": "123456789012",
    "AWS::NoValue": None,
    "AWS::Partition": "aws",
    "AWS::Region": "eu-central-1",
    "AWS::StackName": "roundgate",
    "AWS::URLSuffix": "amazonaws.com",
}


class Circular(Exception):
    """Resources that wait for each other."""

    def __init__(self, ring: list[str]) -> None:
        super().__init__(" waits for ".join([*ring, ring[0]]))


class Settled:
    """An expanded template once its parameters are known: conditions are decided, references to
    resources are left."""

    def __init__(self, expanded: Mapping[str, Any]) -> None:
        self._conditions = expanded.get("Conditions", {})
        self._values: dict[str, Any] = {
            name: one.get("Default") for name, one in expanded["Parameters"].items()
        }
        self._values |= PSEUDO
        self._mappings = expanded.get("Mappings", {})
        self.resources = self._there(expanded["Resources"])
        self.outputs = self._there(expanded.get("Outputs", {}))

    def _there(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.settle(one) for name, one in declared.items() if self._is_there(one)}

    def _is_there(self, one: Mapping[str, Any]) -> bool:
        return "Condition" not in one or self.holds({"Condition": one["Condition"]})

    def settle(self, value: Any) -> Any:
        """The value with parameters in the place of their names; a member without a value is
        gone."""
        match value:
            case {"Ref": str(name)} if name in self._values:
                return self._values[name]
            case {"Fn::If": [condition, yes, no]}:
                return self.settle(yes if self.holds({"Condition": condition}) else no)
            case {"Fn::FindInMap": [str(name), first, second]}:
                return self._mappings[name][str(self.settle(first))][str(self.settle(second))]
            case {"Fn::Sub": str(text)}:
                filled = self._filled(text)
                return {"Fn::Sub": filled} if "${" in filled else filled
            case {"Fn::Sub": [text, dict(more)]}:
                return {"Fn::Sub": [self._filled(text), self.settle(more)]}
            case dict():
                settled = {name: self.settle(one) for name, one in value.items()}
                return {name: one for name, one in settled.items() if one is not None}
            case list():
                return [one for one in map(self.settle, value) if one is not None]
        return value

    def _filled(self, text: str) -> str:
        return re.sub(
            r"\$\{([\w:]+)\}", lambda found: str(self._values.get(found[1], found[0])), text
        )

    def holds(self, condition: Any) -> bool:
        """Whether a condition is met.

        Raises:
            ValueError: it is of a kind that is not known here.
        """
        match condition:
            case {"Condition": str(name)}:
                return self.holds(self._conditions[name])
            case {"Fn::Not": [one]}:
                return not self.holds(one)
            case {"Fn::And": [*all_of]}:
                return all(map(self.holds, all_of))
            case {"Fn::Or": [*any_of]}:
                return any(map(self.holds, any_of))
            case {"Fn::Equals": [one, other]}:
                return str(self.settle(one)) == str(self.settle(other))
        raise ValueError(f"unknown condition {condition}")


def order(resources: Mapping[str, Any]) -> list[str]:
    """The names of the resources, each after what it needs.

    Raises:
        Circular: there is no such order.
        KeyError: something is referred to that is not there.
    """
    ordered: dict[str, None] = {}
    for name in resources:
        _visit(name, resources, ordered, [])
    return list(ordered)


def _visit(
    name: str, resources: Mapping[str, Any], ordered: dict[str, None], path: list[str]
) -> None:
    if name in ordered:
        return
    if name in path:
        raise Circular(path[path.index(name) :])
    for needed in sorted(set(references(resources[name]))):
        _visit(needed, resources, ordered, [*path, name])
    ordered[name] = None


def references(value: Any) -> Iterator[str]:
    """The logical names that a resource, or a part of one, refers to."""
    match value:
        case {"Ref": str(name)}:
            yield name
        case {"Fn::GetAtt": [str(name), _]}:
            yield name
        case {"Fn::GetAtt": str(text)}:
            yield text.partition(".")[0]
        case {"Fn::Sub": [str(text), dict(more)]}:
            yield from (name for name in _named(text) if name not in more)
            yield from references(more)
        case {"Fn::Sub": str(text)}:
            yield from _named(text)
        case {"DependsOn": str(name), **others}:
            yield name
            yield from references(others)
        case {"DependsOn": [*names], **others}:
            yield from names
            yield from references(others)
        case dict():
            for one in value.values():
                yield from references(one)
        case list():
            for one in value:
                yield from references(one)


def _named(text: str) -> Iterator[str]:
    for found in re.finditer(r"\$\{(\w+)(?:\.[\w.]+)?\}", text):
        yield found[1]
