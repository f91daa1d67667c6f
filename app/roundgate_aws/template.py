"""The stack's template: the user's overlay, evaluation with parameters, and the version for a package.

`stack-overlay.yaml` beside gateway.yaml is merged into the template as its `parts` are.

`env` of gateway.yaml becomes parameters of the stack:

    env: {SHOP_URL: https://…}              parameter EnvShopUrl, the variable SHOP_URL of both functions
    env: {SHOP_KEY: "${secret:shop/key}"}   the same; the functions read the secret when they start
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.settings import expressions, is_kept_at_aws
from roundgate_aws import machine, parts

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_PSEUDO: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "AWS::AccountId": "123456789012",
        "AWS::NoValue": None,
        "AWS::Partition": "aws",
        "AWS::Region": "eu-central-1",
        "AWS::StackName": "roundgate",
        "AWS::URLSuffix": "amazonaws.com",
    }
)


# The user's overlay

OVERLAY: Final = "stack-overlay.yaml"
_SECTIONS: Final = (
    "Metadata",
    "Parameters",
    "Rules",
    "Mappings",
    "Conditions",
    "Resources",
    "Outputs",
)


def with_overlay(source: dict[str, Any], config: Path) -> dict[str, Any]:
    """Return a template with the overlay beside gateway.yaml, if there is one.

    Raises:
        ConfigError: the overlay cannot be read, or changes a resource that does not exist.
    """
    path = config.parent / OVERLAY
    if not path.exists():
        return source
    try:
        overlay = parts.load(path)
    except (yaml.YAMLError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            [Problem(str(path), "(file)", f"cannot be read: {reason}", "correct it")]
        ) from None
    if problems := list(_misplaced(source, overlay, str(path))):
        raise ConfigError(problems)
    found: dict[str, Any] = parts.merged(source, overlay)
    parts.keep_declared(found)
    return found


def _misplaced(source: Mapping[str, Any], overlay: Any, file: str) -> Iterator[Problem]:
    """Yield a problem for each change of an overlay that has no effect or no sense."""
    sections = overlay if isinstance(overlay, dict) else {"(file)": overlay}
    for section, entries in sections.items():
        if section not in _SECTIONS or not isinstance(entries, dict):
            remedy = f"write a mapping of one of {', '.join(_SECTIONS)}"
            yield Problem(file, str(section), "is no section of a template", remedy)
            continue
        known = source.get(section, {})
        for name, entry in entries.items():
            is_new = section == "Resources" and isinstance(entry, dict) and "Type" in entry
            if entry is None and name not in known:
                message = "is not in the template, so it cannot be removed"
                yield Problem(file, f"{section}.{name}", message, "correct its name")
            elif section == "Resources" and entry is not None and name not in known and not is_new:
                message = "is not in the template and has no Type"
                remedy = "give it a Type, or correct its name"
                yield Problem(file, f"{section}.{name}", message, remedy)


@dataclass(frozen=True)
class TemplateFunction:
    """A function as the template deploys it."""

    name: str
    handler: str
    zip: Path
    timeout_s: int
    memory_mb: int
    runtime: str
    environment: Mapping[str, str]
    events: Mapping[str, Any]


class StackTemplate:
    """A template, evaluated with parameters: conditions and intrinsic functions have their values.

    References to resources get the values in `known`, such as `Queue.Arn`. Other references become
    `unknown:Queue.Arn`.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any] = _NOTHING,
        known: Mapping[str, str] = _NOTHING,
        source: dict[str, Any] | None = None,
        directory: Path = machine.TEMPLATE.parent,
    ) -> None:
        """Evaluate `source`, by default the whole template for `ApiType` of the parameters. The
        functions' code is relative to `directory`.

        Raises:
            ValueError: the template lacks one of the parameters.
        """
        self.source = source or parts.assembled(parameters.get("ApiType", parts.HTTP))
        self._directory = directory
        defaults = {
            name: parameter.get("Default") for name, parameter in self.source["Parameters"].items()
        }
        if unknown := parameters.keys() - defaults.keys():
            raise ValueError(f"the template has no parameters {', '.join(sorted(unknown))}")
        self._values: dict[str, Any] = {**_PSEUDO, **defaults, **parameters, **known}

    def properties(self, resource: str) -> dict[str, Any]:
        """Return the properties of a resource."""
        properties: dict[str, Any] = self.value(
            self.source["Resources"][resource].get("Properties", {})
        )
        return properties

    def function(self, resource: str) -> TemplateFunction:
        """Return a function, with the properties in `Globals`."""
        own, shared = (
            self.properties(resource),
            self.value(self.source["Globals"]["Function"]),
        )
        variables = {**_variables(shared), **_variables(own)}
        return TemplateFunction(
            name=resource,
            handler=own["Handler"],
            zip=self._directory / own["CodeUri"],
            timeout_s=int(own["Timeout"]),
            memory_mb=int(own["MemorySize"]),
            runtime=own.get("Runtime", shared["Runtime"]),
            environment={name: str(value) for name, value in variables.items()},
            events=own.get("Events", {}),
        )

    def named(self, kind: str) -> list[str]:
        """Return the names of the resources of a type that exist with the parameters."""
        return [
            name
            for name, resource in self.source["Resources"].items()
            if resource["Type"] == kind
            and ("Condition" not in resource or self.holds({"Condition": resource["Condition"]}))
        ]

    def routes(self) -> list[tuple[str, str]]:
        """Return the method and path of each route of the API: `$default` and "" for the default
        route."""
        routes = self.named("AWS::ApiGatewayV2::Route")
        keys = (self.properties(name)["RouteKey"].partition(" ") for name in routes)
        return [(method, path) for method, _, path in keys]

    def value(self, value: Any) -> Any:
        """Return the value of a part of the template, without the members and items that have no
        value."""
        match value:
            case {"Ref": str(name)}:
                return self._values.get(name, f"unknown:{name}")
            case {"Fn::GetAtt": [resource, attribute]}:
                name = f"{resource}.{attribute}"
                return self._values.get(name, f"unknown:{name}")
            case {"Fn::FindInMap": [str(name), first, second]}:
                mapping = self.source["Mappings"][name]
                return mapping[str(self.value(first))][str(self.value(second))]
            case {"Fn::Sub": str(text)}:
                return self._filled(text, {})
            case {"Fn::Sub": [text, dict(more)]}:
                return self._filled(text, {name: self.value(item) for name, item in more.items()})
            case {"Fn::If": [condition, yes, no]}:
                return self.value(yes if self.holds({"Condition": condition}) else no)
            case {"Fn::Select": [index, items]}:
                return self.value(items)[int(index)]
            case {"Fn::Split": [separator, text]}:
                return self.value(text).split(separator)
            case dict():
                members = {name: self.value(item) for name, item in value.items()}
                return {name: item for name, item in members.items() if item is not None}
            case list():
                return [item for item in map(self.value, value) if item is not None]
        return value

    def _filled(self, text: str, more: Mapping[str, Any]) -> str:
        values = {**self._values, **more}
        return re.sub(
            r"\$\{([A-Za-z0-9:.]+)\}",
            lambda match: str(values.get(match[1], f"unknown:{match[1]}")),
            text,
        )

    def holds(self, condition: Any) -> bool:
        """Return whether a condition of `Conditions` or an assertion of `Rules` is true.

        Raises:
            ValueError: the condition uses a function that this evaluator lacks.
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
                return str(self.value(one)) == str(self.value(other))
        raise ValueError(f"unknown condition {condition}")


def _variables(properties: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = properties.get("Environment", {}).get("Variables", {})
    return variables


# `env` of gateway.yaml

_OF_AWS: Final = ("AWS_", "GATEWAY_", "LAMBDA_")


def parameter_name(variable: str) -> str:
    """Return the parameter for a variable. CloudFormation allows only letters and digits."""
    return "Env" + "".join(part[:1].upper() + part[1:].lower() for part in variable.split("_"))


MAX_ENV_BYTES: Final = 3_400
"""The maximum size of `env`: AWS Lambda takes 4,096 bytes of variables, and the gateway's own have
up to 700."""


def env_parameters(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the stack's parameters for the variables. A text that refers to another variable does
    not become a default."""
    parameters: dict[str, dict[str, Any]] = {}
    for name, text in env.items():
        has_default = "${" not in text or is_kept_at_aws(text)
        default = {"Default": text} if has_default else {}
        about = f"The variable {name} of both functions."
        parameters[parameter_name(name)] = {"Type": "String", **default, "Description": about}
    return parameters


def undeclared(source: Mapping[str, Any], file: str) -> Iterator[Problem]:
    """Yield a problem for each reference to a variable that the functions lack, for each variable
    whose parameter would have the name of another variable's parameter, and for variables that do
    not fit into a function."""
    env = source.get("env") or {}
    size = sum(len(f"{name}{text}".encode()) for name, text in env.items())
    if size > MAX_ENV_BYTES:
        message = f"has {size} bytes of names and texts, but functions take {MAX_ENV_BYTES}"
        remedy = "keep long texts in AWS Systems Manager or Secrets Manager: ${ssm:NAME}"
        yield Problem(file, "env", message, remedy)
    rest = {name: expression for name, expression in source.items() if name != "env"}
    variables = [expression for expression in expressions(rest) if expression.source in ("", "env")]
    for name in sorted({expression.name for expression in variables if expression.default is None}):
        if name not in env and not name.startswith(_OF_AWS):
            message = f"the functions have no variable {name}, to which ${{{name}}} refers"
            remedy = f"declare it: `env: {{{name}: …}}` makes it a parameter of the stack"
            yield Problem(file, "env", message, remedy)
    seen: dict[str, str] = {}
    for name in env:
        if (other := seen.setdefault(parameter_name(name), name)) != name:
            message = f"would be the same parameter of the stack as {other}"
            yield Problem(file, f"env.{name}", message, "give it another name")


# The template beside the zips

_CODE: Final = {
    "GatewayFunction": "gateway.zip",
    "WorkerFunction": "worker.zip",
    "RotationFunction": "rotation",
}
_DEPLOYMENT: Final = re.compile(r"\bRestDeployment\w*")
_HEAD: Final = "# Written by `roundgate package`, which overwrites it. Set parameters, or write stack-overlay.yaml.\n"
_EJECTED: Final = (
    "# Written by `roundgate package --eject`; yours from here. `roundgate package` makes the zips, and\n"
    "# `sam deploy --template FILE` deploys them. Changed endpoints and `env` of gateway.yaml are not followed.\n"
)


def write(source: Mapping[str, Any], out: Path) -> Path:
    """Write the template and the code of the key rotation into the folder of the zips; return the
    template's path."""
    rotation = out / _CODE["RotationFunction"]
    shutil.rmtree(rotation, ignore_errors=True)
    rotation.mkdir(parents=True)
    shutil.copyfile(machine.ROTATION, rotation / machine.ROTATION.name)
    target = out / "template.yaml"
    target.write_text(_HEAD + parts.dump(source), "utf-8")
    return target


def eject(written: Path, target: Path) -> None:
    """Copy a written template to `target`, for users who maintain it themselves.

    Raises:
        UsageError: the file exists.
    """
    if target.exists():
        raise UsageError(f"{target} exists: move it away first, because you may have changed it")
    code = {file: os.path.relpath(written.parent / file, target.parent) for file in _CODE.values()}
    target.write_text(_EJECTED + parts.dump(_with_code(parts.load(written), code)), "utf-8")


def name_deployment(template: Path, digest: str) -> None:
    """Give the deployment of a REST API the name of its content. A stage serves what its deployment
    was made from, and CloudFormation makes another one only under another name."""
    text = template.read_text("utf-8")
    template.write_text(_DEPLOYMENT.sub(f"RestDeployment{digest}", text), "utf-8")


def point_to(template: Path, code: Mapping[str, str]) -> None:
    """Write the URLs of the functions' code into a template, and name its deployment by its content.
    `code` has the URL of each file."""
    text = parts.dump(_with_code(parts.load(template), code))
    template.write_text(_HEAD + text, "utf-8")
    unnamed = _DEPLOYMENT.sub("", text)
    name_deployment(template, hashlib.sha256(unnamed.encode()).hexdigest()[:16])


def _with_code(source: dict[str, Any], code: Mapping[str, str]) -> dict[str, Any]:
    for name, file in _CODE.items():
        if name in source["Resources"]:
            source["Resources"][name]["Properties"]["CodeUri"] = code[file]
    return source


def rendered(file: ConfigFile, arch: str, config: Path, api: str = parts.HTTP) -> dict[str, Any]:
    """Return the template for a configuration: code, endpoints and variables are filled in, and the
    overlay beside gateway.yaml is merged.

    Raises:
        ConfigError: the overlay is invalid.
    """
    source = _with_code(parts.assembled(api), {file: file for file in _CODE.values()})
    source["Parameters"]["Architecture"]["Default"] = arch
    _name_endpoints(source, file)
    _declare_variables(source, file.config.env)
    return with_overlay(source, config)


def _name_endpoints(source: dict[str, Any], file: ConfigFile) -> None:
    """Write the paths of the endpoints into the outputs. All endpoints use the API's default
    route."""
    usual, *of_views = file.config.endpoints
    source["Mappings"]["Endpoints"]["Usual"]["Path"] = usual
    if of_views:
        base = source["Outputs"]["Endpoint"]["Value"]["Fn::Sub"][1]["Base"]
        text = ", ".join(f"${{Base}}{path}" for path in of_views)
        for refusal in {"RestNoToken", "RestBadToken"} & source["Resources"].keys():
            # the challenge is one text for all endpoints; clients look for the metadata by themselves
            headers = source["Resources"][refusal]["Properties"]["ResponseParameters"]
            headers["gatewayresponse.header.WWW-Authenticate"] = "'Bearer'"
        source["Outputs"]["ViewEndpoints"] = {
            "Description": "The MCP endpoints of views.",
            "Value": {"Fn::Sub": [text, {"Base": deepcopy(base)}]},
        }


def _declare_variables(source: dict[str, Any], env: Mapping[str, str]) -> None:
    if not env:
        return
    own = env_parameters(env)
    source["Parameters"].update(own)
    groups = source["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    groups.append({"Label": {"default": "Variables"}, "Parameters": list(own)})
    for function in ("GatewayFunction", "WorkerFunction"):
        environment = source["Resources"][function]["Properties"]["Environment"]
        environment["Variables"].update({name: {"Ref": parameter_name(name)} for name in env})
