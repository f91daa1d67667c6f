"""`roundgate deploy`: what is deployed with which parameters, so that a second deployment changes
nothing by accident.

`sam deploy` keeps the parameters of the stack that it is not given. The zips it knows nothing of:
so their architecture is the stack's, unless another is asked for, and it is always passed. Nobody
can delete the table of a stack that is up, but one that could not be made has to go: a new stack is
protected by a second deployment, of that one parameter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from roundgate.config import kept_at_aws, yaml_file
from roundgate.deployment import places
from roundgate.deployment.invoked import Named, arn_of, functions_of, unqualified
from roundgate.deployment.referred import resources_of
from roundgate.deployment.stack.template import Template
from roundgate.errors import UsageError
from roundgate.values import dataclass

OVERRIDES: Final = "--parameter-overrides"
OF_SESSIONS: Final = ("--region", "--profile")
"""Options that say whose stack it is."""
GATEWAYS_SHARE: Final = 2
"""Of the account's executions, workers may take one in so many."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    stack: str
    config: Path | None
    """What is deployed, if it was said."""
    overrides: Mapping[str, str]
    options: Sequence[str]
    """For `sam deploy`, without the overrides."""

    @property
    def of_session(self) -> dict[str, str]:
        """Region and profile, by the option that has them."""
        pairs = zip(self.options, self.options[1:], strict=False)
        return {name: value for name, value in pairs if name in OF_SESSIONS}


def asked(stack: str, rest: Sequence[str]) -> Asked:
    """The command line, read: the stack's name, and what stands behind it.

    Raises:
        UsageError: an override is none.
    """
    words = list(rest)
    config = Path(words.pop(0)) if words and not words[0].startswith("-") else None
    overrides: dict[str, str] = {}
    options: list[str] = []
    is_override = False
    for text in words:
        if text.startswith("-"):
            is_override = text == OVERRIDES
        if is_override and text != OVERRIDES:
            overrides.update(_override(text))
        elif not is_override:
            options.append(text)
    return Asked(stack, config, overrides, options)


def _override(text: str) -> Iterator[tuple[str, str]]:
    """`NAME=VALUE`, several of them in one word, or CloudFormation's long form."""
    for one in text.split():
        name, equals, value = one.partition("=")
        if name == "ParameterKey":
            name, _, value = value.partition(",ParameterValue=")
        if not equals:
            raise UsageError(f"{OVERRIDES} takes NAME=VALUE, not {one!r}")
        yield name, value


def parameters(asked: Asked, stored: Mapping[str, str]) -> dict[str, str]:
    """All that are passed: what is asked for, and the architecture, which is never left to
    anybody's memory."""
    default = _default("Architecture")
    known = {"Architecture": stored.get("Architecture", default), **asked.overrides}
    return known if stored else {**known, "ProtectTable": "false"}


def check(asked: Asked, config: Path, stored: Mapping[str, str], executions: int | None) -> None:
    """Raises UsageError: the functions would not start, or would starve each other."""
    says = {**stored, **asked.overrides}
    if not _authenticates(config) and says.get("AllowAnonymous") != "true":
        raise UsageError(
            f"{config} configures no authentication: everybody who knows the URL could call.\n"
            f"Configure auth, or say {OVERRIDES} AllowAnonymous=true if that is meant."
        )
    workers = int(says.get("WorkerConcurrency", _default("WorkerConcurrency")))
    if executions is not None and workers > executions // GATEWAYS_SHARE:
        raise UsageError(
            f"The account may have {executions} functions at once,"
            f" and WorkerConcurrency={workers} leaves too few to the gateway.\n"
            f"Set it to {max(2, executions // GATEWAYS_SHARE)} at most, or ask AWS for more"
            " (Service Quotas, AWS Lambda, Concurrent executions)."
        )


def _authenticates(path: Path) -> bool:
    """Whether a configuration says who may call. Its references are for the function, not for here.

    Raises:
        ConfigError, UsageError: it cannot be read.
    """
    value = yaml_file.read(path).value
    if not isinstance(value, dict):
        raise UsageError(
            f"{path} is no configuration: it has to be a mapping, see docs/configuration.md"
        )
    return bool(value.get("auth", "none") != "none")


def _default(name: str) -> Any:
    return Template(places.TEMPLATE, {}, {}).source["Parameters"][name]["Default"]


def commands(
    asked: Asked, stored: Mapping[str, str], template: Path, sam: str = "sam"
) -> list[list[str]]:
    """The calls of `sam`, one after another; a new stack's table is protected by the second."""
    passed = parameters(asked, stored)
    first = _sam(sam, template, asked, passed)
    if stored or "--no-execute-changeset" in asked.options:
        return [first]
    protect = {**passed, "ProtectTable": asked.overrides.get("ProtectTable", "true")}
    is_open = protect["ProtectTable"] == "false"
    return [first] if is_open else [first, _sam(sam, template, asked, protect)]


def _sam(sam: str, template: Path, asked: Asked, passed: Mapping[str, str]) -> list[str]:
    return [
        *(sam, "deploy", "--template", str(template), "--stack-name", asked.stack),
        *("--capabilities", "CAPABILITY_IAM", "--resolve-s3", "--no-fail-on-empty-changeset"),
        *asked.options,
        *(OVERRIDES, *(f"{name}={value}" for name, value in passed.items())),
    ]


def run(commands: Sequence[Sequence[str]]) -> int:
    """Run them one after another; the status of the first that fails, else 0."""
    for command in commands:
        has_json = "{" in "".join(command)
        print("+", json.dumps(command) if has_json else " ".join(command), file=sys.stderr)
        if code := subprocess.run(command, check=False).returncode:
            return code
    return 0


# What tools invoke


def with_functions(asked: Asked, config: Path, session: Any) -> Asked:
    """With the ARNs of the functions that the configuration names, unless they are given.

    Raises:
        UsageError: a name is only known to the function.
    """
    if {"FunctionArns", "DurableFunctionArns"} <= asked.overrides.keys():
        return asked
    value = yaml_file.read(config).value
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


def with_secrets(asked: Asked, config: Path, session: Any) -> Asked:
    """With the ARNs of the secrets and parameters that the configuration refers to, unless they are given."""
    if {"SecretArns", "ParameterArns"} <= asked.overrides.keys():
        return asked
    value = yaml_file.read(config).value
    given = {name: one for name, one in asked.overrides.items() if name.startswith("Env")}
    references = list(kept_at_aws([value, given]))
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


def of_account(asked: Asked, config: Path) -> tuple[Asked, dict[str, str], int | None]:
    """What is asked for with the ARNs that the configuration refers to, the parameters that the stack has, and how many
    functions the account may run at once.

    Raises:
        UsageError: AWS does not say.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    names = {"--region": "region_name", "--profile": "profile_name"}
    try:
        session = boto3.Session(**{names[one]: value for one, value in asked.of_session.items()})
        asked = with_secrets(with_functions(asked, config, session), config, session)
        stored = stored_parameters(session.client("cloudformation"), asked.stack)
        return asked, stored, executions_of(session.client("lambda"))
    except (BotoCoreError, ClientError) as error:
        raise UsageError(f"AWS was asked about the stack {asked.stack}: {error}") from None
