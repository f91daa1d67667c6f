"""`scripts/deploy`: what is deployed with which parameters, so that a second deployment changes
nothing by accident.

`sam deploy` keeps the parameters of the stack that it is not given. The zips it knows nothing of:
so their architecture is the stack's, unless another is asked for, and it is always passed. Nobody
can delete the table of a stack that is up, but one that could not be made has to go: a new stack is
protected by a second deployment, of that one parameter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from infra.invoked import Named, arn_of, functions_of, unqualified
from infra.invoked import Refused as Refused
from infra.referred import resources_of
from infra.stack.template import Template
from roundgate.config import kept_at_aws, yaml_file
from roundgate.errors import ConfigError

ROOT: Final = Path(__file__).parents[1]
USAGE: Final = """scripts/deploy STACK CONFIG [sam deploy's options]
scripts/deploy roundgate gateway.yaml --parameter-overrides AllowAnonymous=true WorkerConcurrency=50"""
OVERRIDES: Final = "--parameter-overrides"
OF_SESSIONS: Final = ("--region", "--profile")
"""Options that say whose stack it is."""
GATEWAYS_SHARE: Final = 2
"""Of the account's executions, workers may take one in so many."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    stack: str
    config: Path
    overrides: Mapping[str, str]
    options: Sequence[str]
    """For `sam deploy`, without the overrides."""

    @property
    def of_session(self) -> dict[str, str]:
        """Region and profile, by the option that has them."""
        pairs = zip(self.options, self.options[1:], strict=False)
        return {name: value for name, value in pairs if name in OF_SESSIONS}


def asked(arguments: Sequence[str]) -> Asked:
    """The command line, read.

    Raises:
        Refused: it is none.
    """
    if len(arguments) < 2 or arguments[0].startswith("-") or arguments[1].startswith("-"):
        raise Refused(USAGE)
    stack, config_file, *rest = arguments
    overrides: dict[str, str] = {}
    options: list[str] = []
    is_override = False
    for text in rest:
        if text.startswith("-"):
            is_override = text == OVERRIDES
        if is_override and text != OVERRIDES:
            overrides.update(_override(text))
        elif not is_override:
            options.append(text)
    return Asked(stack, Path(config_file), overrides, options)


def _override(text: str) -> Iterator[tuple[str, str]]:
    """`NAME=VALUE`, several of them in one word, or CloudFormation's long form."""
    for one in text.split():
        name, equals, value = one.partition("=")
        if name == "ParameterKey":
            name, _, value = value.partition(",ParameterValue=")
        if not equals:
            raise Refused(f"{OVERRIDES} takes NAME=VALUE, not {one!r}")
        yield name, value


def parameters(asked: Asked, stored: Mapping[str, str]) -> dict[str, str]:
    """All that are passed: what is asked for, and the architecture, which is never left to
    anybody's memory."""
    default = Template(ROOT / "template.yaml", {}, {}).source["Parameters"]["Architecture"][
        "Default"
    ]
    known = {"Architecture": stored.get("Architecture", default), **asked.overrides}
    return known if stored else {**known, "ProtectTable": "false"}


def check(asked: Asked, stored: Mapping[str, str], executions: int | None) -> None:
    """Raises Refused: the functions would not start, or would starve each other."""
    says = {**stored, **asked.overrides}
    if not _authenticates(asked.config) and says.get("AllowAnonymous") != "true":
        raise Refused(
            f"{asked.config} configures no authentication: everybody who knows the URL could call.\n"
            f"Configure auth, or say {OVERRIDES} AllowAnonymous=true if that is meant."
        )
    workers = int(says.get("WorkerConcurrency", _default("WorkerConcurrency")))
    if executions is not None and workers > executions // GATEWAYS_SHARE:
        raise Refused(
            f"The account may have {executions} functions at once,"
            f" and WorkerConcurrency={workers} leaves too few to the gateway.\n"
            f"Set it to {max(2, executions // GATEWAYS_SHARE)} at most, or ask AWS for more"
            " (Service Quotas, AWS Lambda, Concurrent executions)."
        )


def _authenticates(path: Path) -> bool:
    """Whether a configuration says who may call. Its references are for the function, not for here.

    Raises:
        ConfigError, Refused: it cannot be read.
    """
    value = yaml_file.read(path).value
    if not isinstance(value, dict):
        raise Refused(
            f"{path} is no configuration: it has to be a mapping, see docs/configuration.md"
        )
    return bool(value.get("auth", "none") != "none")


def _default(name: str) -> Any:
    return Template(ROOT / "template.yaml", {}, {}).source["Parameters"][name]["Default"]


def commands(asked: Asked, stored: Mapping[str, str]) -> list[list[str]]:
    """The calls of `sam`, one after another; a new stack's table is protected by the second."""
    passed = parameters(asked, stored)
    first = _sam(asked, passed)
    if stored or "--no-execute-changeset" in asked.options:
        return [first]
    protect = {**passed, "ProtectTable": asked.overrides.get("ProtectTable", "true")}
    return [first] if protect["ProtectTable"] == "false" else [first, _sam(asked, protect)]


def _sam(asked: Asked, passed: Mapping[str, str]) -> list[str]:
    return [
        *("sam", "deploy", "--template", "template.yaml", "--stack-name", asked.stack),
        *("--capabilities", "CAPABILITY_IAM", "--resolve-s3", "--no-fail-on-empty-changeset"),
        *asked.options,
        *(OVERRIDES, *(f"{name}={value}" for name, value in passed.items())),
    ]


# What tools invoke


def with_functions(asked: Asked, session: Any) -> Asked:
    """With the ARNs of the functions that the configuration names, unless they are given.

    Raises:
        Refused: a name is only known to the function.
    """
    if {"FunctionArns", "DurableFunctionArns"} <= asked.overrides.keys():
        return asked
    value = yaml_file.read(asked.config).value
    named = functions_of(value if isinstance(value, dict) else {})
    found = {"FunctionArns": "none", "DurableFunctionArns": "none"}
    if named:
        found |= parameters_of(named, session)
    return replace(asked, overrides={**found, **asked.overrides})


def parameters_of(named: Sequence[Named], session: Any) -> dict[str, str]:
    """The parameters for these functions, in the account and the region of a session of boto3."""
    caller = session.client("sts").get_caller_identity()["Arn"].split(":")
    arns = [arn_of(one, caller[1], session.region_name, caller[4]) for one in named]
    durable = [
        f"{unqualified(arn)}:*" for arn, one in zip(arns, named, strict=True) if one.may_be_durable
    ]
    lists = {"FunctionArns": arns, "DurableFunctionArns": durable}
    return {name: ",".join(dict.fromkeys(found)) or "none" for name, found in lists.items()}


# What credentials refer to


def with_secrets(asked: Asked, session: Any) -> Asked:
    """With the ARNs of the secrets and parameters that the configuration refers to, unless they are given."""
    if {"SecretArns", "ParameterArns"} <= asked.overrides.keys():
        return asked
    references = list(kept_at_aws(yaml_file.read(asked.config).value))
    found = {"SecretArns": "none", "ParameterArns": "none"}
    if references:
        caller = session.client("sts").get_caller_identity()["Arn"].split(":")
        found |= resources_of(references, caller[1], session.region_name, caller[4])
    return replace(asked, overrides={**found, **asked.overrides})


# What AWS says


def stored_parameters(cloudformation: Any, stack: str) -> dict[str, str]:
    """Those of the stack; nothing if there is none yet."""
    from botocore.exceptions import ClientError

    try:
        (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return {}
        raise
    if found["StackStatus"] == "REVIEW_IN_PROGRESS":  # a change set that was never executed
        return {}
    return {one["ParameterKey"]: one["ParameterValue"] for one in found.get("Parameters", [])}


def executions_of(functions: Any) -> int | None:
    """How many functions the account may have at once, if we may know."""
    from botocore.exceptions import ClientError

    try:
        return int(functions.get_account_settings()["AccountLimit"]["ConcurrentExecutions"])
    except ClientError as error:
        print(f"the quota of functions at once is not checked: {error}", file=sys.stderr)
        return None


def main() -> int:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        wanted = asked(sys.argv[1:])
        names = {"--region": "region_name", "--profile": "profile_name"}
        session = boto3.Session(**{names[name]: value for name, value in wanted.of_session.items()})
        wanted = with_secrets(with_functions(wanted, session), session)
        stored = stored_parameters(session.client("cloudformation"), wanted.stack)
        check(wanted, stored, executions_of(session.client("lambda")))
    except (Refused, ConfigError, BotoCoreError, ClientError) as error:
        print(f"scripts/deploy: {error}", file=sys.stderr)
        return 2
    shutil.rmtree(
        ROOT / "infra/rotation/__pycache__", ignore_errors=True
    )  # the directory is deployed as it is
    package = [
        "scripts/package",
        "--arch",
        parameters(wanted, stored)["Architecture"],
        str(wanted.config.resolve()),
    ]
    for command in [package, *commands(wanted, stored)]:
        print(
            "+",
            json.dumps(command) if "{" in "".join(command) else " ".join(command),
            file=sys.stderr,
        )
        if code := subprocess.run(command, cwd=ROOT, env=os.environ, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
