"""The parts of the stack's template, and how they are merged.

    template.yaml                   state, functions and an HTTP API; `sam deploy` takes it as it is
    + infra/stack/versions.yaml     SnapStart and gradual deployments
    + infra/stack/alarms.yaml       alarms, and the dashboard of dashboard.json
    + infra/stack/rest.yaml         with ApiType=rest: a REST API in place of the HTTP API

Intrinsic functions have their long forms: `!Ref X` is read as `{"Ref": "X"}`, and written as `!Ref X`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from roundgate_aws import machine


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


class _Dumper(yaml.SafeDumper):
    """YAML with CloudFormation's short forms, and without aliases, which CloudFormation refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _with_short_form(dumper: _Dumper, value: dict[str, Any]) -> yaml.Node:
    if _is_intrinsic(value):
        ((name, content),) = value.items()
        tag = f"!{name.removeprefix('Fn::')}"
        if tag == "!GetAtt" and isinstance(content, list):
            content = ".".join(content)
        if isinstance(content, str):
            return dumper.represent_scalar(tag, content)
        if isinstance(content, list):
            return dumper.represent_sequence(tag, content)
    return dumper.represent_dict(value)


def _with_lines(dumper: _Dumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, "|" if "\n" in value else None)


_Dumper.add_representer(dict, _with_short_form)
_Dumper.add_representer(str, _with_lines)


def load(path: Path) -> dict[str, Any]:
    """Return the content of a template, with long forms and without shared values."""
    content: dict[str, Any] = json.loads(_json(path.read_text("utf-8")))
    return content


@lru_cache(maxsize=16)
def _json(text: str) -> str:
    return json.dumps(yaml.load(text, _Loader))


def dump(source: Mapping[str, Any]) -> str:
    """Return a template as YAML."""
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 110}
    text: str = yaml.dump(source, Dumper=_Dumper, default_flow_style=None, **style)
    return text


HTTP: Final = "http"
REST: Final = "rest"


def assembled(api: str = HTTP) -> dict[str, Any]:
    """Return the whole template for a kind of API, `http` or `rest`."""
    names = ("versions", "alarms", *([REST] if api == REST else []))
    source = load(machine.TEMPLATE)
    for name in names:
        source = merged(source, load(machine.PARTS / f"{name}.yaml"))
    alarms = source.pop("Alarms")
    source["Resources"] |= {name: _alarm(alarm) for name, alarm in alarms.items()}
    dashboard = source["Resources"]["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    dashboard[0] = (machine.PARTS / dashboard[0]).read_text("utf-8")
    keep_declared(source)
    return source


def keep_declared(source: Mapping[str, Any]) -> None:
    """Remove the parameters that a part has removed from the groups, and groups without any."""
    interface = source["Metadata"]["AWS::CloudFormation::Interface"]
    for group in interface["ParameterGroups"]:
        group["Parameters"] = [one for one in group["Parameters"] if one in source["Parameters"]]
    interface["ParameterGroups"] = [
        one for one in interface["ParameterGroups"] if one["Parameters"]
    ]


def merged(base: Any, change: Any) -> Any:
    """Return a template with the changes of another one: mappings are merged, `null` removes a
    member, and any other value replaces the base's. Groups of parameters are added to the base's
    groups with the same label."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    if _is_intrinsic(base) or _is_intrinsic(change):
        return change
    found = dict(base)
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        elif name == "ParameterGroups":
            found[name] = _groups([*found.get(name, []), *value])
        else:
            found[name] = merged(found.get(name, {}), value)
    return found


def _is_intrinsic(value: Mapping[str, Any]) -> bool:
    (name, *more) = value or [""]
    return not more and (name in ("Ref", "Condition") or name.startswith("Fn::"))


def _groups(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    by_label: dict[str, list[str]] = {}
    for group in groups:
        by_label.setdefault(group["Label"]["default"], []).extend(group["Parameters"])
    return [{"Label": {"default": label}, "Parameters": names} for label, names in by_label.items()]


def _alarm(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource of a row of `Alarms` (infra/stack/alarms.yaml)."""
    period = row.get("Period", 300)
    metrics = {name: _metric(metric) for name, metric in row["Metrics"].items()}
    looked_at: dict[str, Any]
    if "Expression" in row:
        text = row["Expression"]
        formula = {"Expression": {"Fn::Sub": text} if "${" in text else text, "Label": row["Label"]}
        terms = [
            {
                "Id": name,
                "ReturnData": False,
                "MetricStat": {"Metric": metric, "Period": period, "Stat": stat},
            }
            for name, (metric, stat) in metrics.items()
        ]
        looked_at = {"Metrics": [{"Id": "value", **formula}, *terms]}
    else:
        ((metric, stat),) = metrics.values()
        looked_at = {**metric, "Statistic": stat, "Period": period}
    tickets = {"Fn::If": ["HasTicketTopic", {"Ref": "TicketTopicArn"}, {"Ref": "AlarmTopicArn"}]}
    is_told, topic = (
        ("HasAlarmTopic", {"Ref": "AlarmTopicArn"})
        if row.get("IsPage")
        else ("HasTickets", tickets)
    )
    actions = {"Fn::If": [is_told, [topic], {"Ref": "AWS::NoValue"}]}
    properties = {
        "AlarmDescription": row["Description"],
        **looked_at,
        "EvaluationPeriods": row.get("Periods", 1),
        "Threshold": row["Threshold"],
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing" if row.get("NeedsData") else "notBreaching",
        "AlarmActions": actions,
        "OKActions": actions,
        **({"InsufficientDataActions": actions} if row.get("NeedsData") else {}),
    }
    condition = {"Condition": row["Condition"]} if "Condition" in row else {}
    return {"Type": "AWS::CloudWatch::Alarm", **condition, "Properties": properties}


def _metric(row: list[Any]) -> tuple[dict[str, Any], str]:
    """Return a metric and its statistic."""
    namespace, name, *rest = row
    stat = rest.pop()["stat"] if len(rest) % 2 else "Sum"
    pairs = zip(rest[::2], rest[1::2], strict=True)
    dimensions = [{"Name": dimension, "Value": value} for dimension, value in pairs]
    return {"Namespace": namespace, "MetricName": name, "Dimensions": dimensions}, stat
