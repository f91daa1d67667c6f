"""`template.yaml` in the form that CloudFormation receives: expanded by AWS's own translator, with
one set of parameters.

python -m infra.template.expand template.yaml [NAME=VALUE …]    print it as JSON, with its conditions
python -m infra.template.expand --schemas template.yaml         print the schemas of its resources
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

REGION: Final = "eu-central-1"
MANAGED: Final = {
    name: f"arn:aws:iam::aws:policy/service-role/{name}"
    for name in ("AWSLambdaBasicExecutionRole", "AWSLambdaSQSQueueExecutionRole")
}
"""The managed policies that the translator may attach to a role, by name. On AWS, the translator
looks them up in IAM."""


def expand(path: Path, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the expanded template. The parameters become its defaults, so a linter sees their
    values.

    Raises:
        ValueError: the template lacks one of the parameters.
    """
    # YAML aliases are shared values, which the translator would change together
    source = json.loads(json.dumps(yaml_parse(path.read_text("utf-8"))))
    if unknown := parameters.keys() - source["Parameters"].keys():
        raise ValueError(f"the template has no parameters {', '.join(sorted(unknown))}")
    for name, value in parameters.items():
        source["Parameters"][name]["Default"] = value
    for resource in source["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":  # as after the upload by `sam deploy`
            resource["Properties"]["CodeUri"] = f"s3://bucket/{resource['Properties']['CodeUri']}"
    os.environ.setdefault("AWS_DEFAULT_REGION", REGION)
    expanded = Translator(None, Parser()).translate(
        source, dict(parameters), get_managed_policy_map=lambda: MANAGED
    )
    as_json: dict[str, Any] = json.loads(json.dumps(expanded, default=str))
    return as_json


def schemas(path: Path) -> dict[str, Any]:
    """Return the schema of each resource type in the expanded template, as AWS publishes it."""
    kinds = {resource["Type"] for resource in expand(path, {})["Resources"].values()}
    get = PROVIDER_SCHEMA_MANAGER.get_resource_schema
    return {kind: get(REGION, kind).schema for kind in sorted(kinds)}


if __name__ == "__main__":
    if sys.argv[1] == "--schemas":
        json.dump(schemas(Path(sys.argv[2])), sys.stdout)
    else:
        chosen = dict(argument.split("=", 1) for argument in sys.argv[2:])
        json.dump(expand(Path(sys.argv[1]), chosen), sys.stdout, indent=1)
