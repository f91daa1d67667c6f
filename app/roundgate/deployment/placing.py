"""The template beside the zips that it deploys: `template.yaml` of roundgate, as
this repository needs it."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from roundgate.deployment import granting, places
from roundgate.deployment.packaging import Plan
from roundgate.deployment.stack.template import Template

_CODE: Final = {
    "GatewayFunction": "gateway.zip",
    "WorkerFunction": "worker.zip",
    "RotationFunction": "rotation",
}
_HEAD: Final = (
    "# Written by `roundgate package`; parameters change it, edits are lost with the next one.\n"
)


def write(planned: Plan, out: Path) -> Path:
    """The template in the folder that has the zips, and the code of the
    rotation; returns its path."""
    rotation = out / "rotation"
    shutil.rmtree(rotation, ignore_errors=True)
    rotation.mkdir(parents=True)
    shutil.copyfile(places.ROTATION, rotation / places.ROTATION.name)
    target = out / "template.yaml"
    text = yaml.safe_dump(rendered(planned), sort_keys=False, allow_unicode=True, width=110)
    target.write_text(_HEAD + text, "utf-8")
    return target


def rendered(planned: Plan) -> dict[str, Any]:
    """The template for what is packed."""
    source = Template(places.TEMPLATE, {}, {}).source
    for name, code in _CODE.items():
        source["Resources"][name]["Properties"]["CodeUri"] = code
    source["Parameters"]["Architecture"]["Default"] = planned.arch
    _name_endpoints(source, planned)
    _grant(source, planned)
    return source


def _name_endpoints(source: dict[str, Any], planned: Plan) -> None:
    """Write the paths of the endpoints into the outputs. All of them use the API's default
    route."""
    usual, *of_views = planned.file.config.endpoints
    source["Mappings"]["Endpoints"]["Usual"]["Path"] = usual
    if of_views:
        base = source["Outputs"]["Endpoint"]["Value"]["Fn::Sub"][1]["Base"]
        text = ", ".join(f"${{Base}}{path}" for path in of_views)
        source["Outputs"]["ViewEndpoints"] = {
            "Description": "The MCP endpoints of views.",
            "Value": {"Fn::Sub": [text, {"Base": deepcopy(base)}]},
        }


def _grant(source: dict[str, Any], planned: Plan) -> None:
    """The variables of the configuration, as parameters that both functions get."""
    env = planned.file.config.env
    if not env:
        return
    own = granting.parameters(env)
    source["Parameters"].update(own)
    groups = source["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    groups.append({"Label": {"default": "Variables"}, "Parameters": list(own)})
    for function in ("GatewayFunction", "WorkerFunction"):
        environment = source["Resources"][function]["Properties"]["Environment"]
        environment["Variables"].update(granting.variables(env))
