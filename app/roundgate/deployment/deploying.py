"""`roundgate deploy`: chooses parameters so that a second deployment changes nothing by accident.

`sam deploy` keeps the stack's parameters that are not passed. It does not inspect the zips, so
`Architecture` is always passed: the stack's value unless another is requested. A complete stack
protects its table from deletion, but a failed first deployment must be able to delete it. So a new
stack is created with `ProtectTable=later`, and a second deployment of that parameter protects the
table. If the second one is interrupted, the next deployment does it. With SnapStart the API calls a
version of the function. `Release`, a digest of everything deployed, makes each deployment with a
change publish a new version.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from roundgate.deployment import granting, judging
from roundgate.deployment.granting import Named, arn_of, functions_of, resources_of, unqualified
from roundgate.deployment.stack.template import Template
from roundgate.errors import UsageError
from roundgate.settings import kept_at_aws, yaml_file

OVERRIDES: Final = "--parameter-overrides"
OF_SESSIONS: Final = ("--region", "--profile")
"""Options that say whose stack it is."""
_LOOKED_AT: Final = (OVERRIDES, *OF_SESSIONS)
LATER: Final = "later"
"""The value of `ProtectTable` while a new stack is being created."""
_OVERRIDE: Final = re.compile(
    r"""\s*(?:ParameterKey=(?P<key>\w+),ParameterValue|(?P<name>\w+))="""
    r"""(?P<value>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|.*?)(?=\s+(?:\w+=|ParameterKey=)|\s*$)""",
    re.DOTALL,
)
"""`NAME=VALUE` in a word that may have several of them; a value may have
spaces, and quotes around it."""
_NOT_RELEASED: Final = ("Release", "ProtectTable")
"""Parameters of which no function knows anything, and which a first deployment passes twice."""


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
    words = list(_apart(rest))
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


def _apart(words: Sequence[str]) -> Iterator[str]:
    """The words, with an option that is looked at here and its value in two."""
    for word in words:
        option, equals, value = word.partition("=")
        yield from (option, value) if equals and option in _LOOKED_AT else (word,)


def _override(text: str) -> Iterator[tuple[str, str]]:
    """`NAME=VALUE`, several of them in one word, or CloudFormation's long form."""
    end = 0
    while text[end:].strip():
        found = _OVERRIDE.match(text, end)
        if found is None:
            raise UsageError(f"{OVERRIDES} takes NAME=VALUE, not {text[end:].strip()!r}")
        yield found["key"] or found["name"], _unquoted(found["value"])
        end = found.end()


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1].replace('\\"', '"').replace("\\'", "'") if is_quoted else value


def _quoted(value: str) -> str:
    """A value as `sam deploy` takes it: in quotes where it is empty or has a
    space or a quote in it."""
    if value and not re.search(r"[\s\"']", value):
        return value
    return '"' + value.replace('"', '\\"') + '"'


def parameters(asked: Asked, stored: Mapping[str, str]) -> dict[str, str]:
    """All that are passed: what is asked for, and the architecture, which is never left to
    anybody's memory."""
    default = default_of("Architecture")
    known = {"Architecture": stored.get("Architecture", default), **asked.overrides}
    if not stored:
        is_open = known.get("ProtectTable") == "false"
        return known if is_open else {**known, "ProtectTable": LATER}
    if stored.get("ProtectTable") == LATER:
        return {"ProtectTable": "true", **known}
    return known


def read_configuration(path: Path) -> dict[str, Any]:
    """What a file says. Its references are for the function, not for here.

    Raises:
        ConfigError, UsageError: it cannot be read.
    """
    value = yaml_file.read(path).value
    if not isinstance(value, dict):
        raise UsageError(
            f"{path} is no configuration: it has to be a mapping, see `roundgate docs configuration`"
        )
    return value


def variables_of(value: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a configuration declares; what is none, packaging says."""
    env = value.get("env")
    pairs = env.items() if isinstance(env, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def default_of(name: str) -> Any:
    return judging.template().source["Parameters"][name]["Default"]


def commands(
    asked: Asked, stored: Mapping[str, str], template: Path, sam: str = "sam"
) -> list[list[str]]:
    """The calls of `sam`, one after another; a new stack's table is protected by the second."""
    passed = parameters(asked, stored)
    passed |= _released(passed, stored, template)
    first = _sam(sam, template, asked, passed)
    if stored or "--no-execute-changeset" in asked.options:
        return [first]
    if passed["ProtectTable"] != LATER:
        return [first]
    return [first, _sam(sam, template, asked, {**passed, "ProtectTable": "true"})]


def _released(
    passed: Mapping[str, str], stored: Mapping[str, str], template: Path
) -> dict[str, str]:
    """The name of what is deployed, where the functions that are called have names
    and nobody gives another."""
    if {**stored, **passed}.get("SnapStart") != "on" or "Release" in passed:
        return {}
    return {"Release": release_of({**stored, **passed}, template)}


def release_of(says: Mapping[str, str], template: Path) -> str:
    """A digest of all that makes the gateway function: another one for every
    deployment that changes something.

    Args:
        says: the parameters that are known; of others the template's defaults count.
        template: what `roundgate package` wrote, beside the zips.
    """
    text = template.read_bytes()
    parameters: judging.Declared = Template(template, {}, {}).source["Parameters"]
    values = {**judging.defaults(parameters), **says}
    counted = sorted((name, values.get(name)) for name in parameters.keys() - {*_NOT_RELEASED})
    digest = hashlib.sha256(json.dumps(counted).encode())
    for part in (text, template.with_name("gateway.zip").read_bytes()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _sam(sam: str, template: Path, asked: Asked, passed: Mapping[str, str]) -> list[str]:
    return [
        *(sam, "deploy", "--template", str(template), "--stack-name", asked.stack),
        *("--capabilities", "CAPABILITY_IAM", "--resolve-s3", "--no-fail-on-empty-changeset"),
        *asked.options,
        *(OVERRIDES, *(f"{name}={_quoted(value)}" for name, value in passed.items())),
    ]


def run(commands: Sequence[Sequence[str]], is_made: Callable[[], bool] = lambda: True) -> int:
    """Run commands in order; return the status of the first that fails, or 0.

    Args:
        commands: the calls of `sam`.
        is_made: returns whether the stack exists. After a declined change set it does not, and the
            commands after the first, which change the stack, are not run.
    """
    for number, command in enumerate(commands):
        if number and not is_made():
            print("nothing has been deployed: the change set was only looked at", file=sys.stderr)
            return 0
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


def with_secrets(
    asked: Asked, config: Path, session: Any, stored: Mapping[str, str] | None = None
) -> Asked:
    """With the ARNs of the secrets and parameters that the configuration refers
    to, unless they are given.

    A variable counts with the text that the functions are going to have: what is passed, what the
    stack has, what the file says, the first of these.
    """
    if {"SecretArns", "ParameterArns"} <= asked.overrides.keys():
        return asked
    value, says = yaml_file.read(config).value, {**(stored or {}), **asked.overrides}
    env = variables_of(value) if isinstance(value, dict) else {}
    texts = {name: says.get(granting.parameter_name(name), text) for name, text in env.items()}
    references = list(kept_at_aws({**value, "env": texts} if env else value))
    found = {"SecretArns": "none", "ParameterArns": "none"}
    if references:
        caller = session.client("sts").get_caller_identity()["Arn"].split(":")
        found |= resources_of(references, caller[1], session.region_name, caller[4])
    return replace(asked, overrides={**found, **asked.overrides})


# Variables


def with_variables(
    asked: Asked, config: Path, stored: Mapping[str, str], was_default: Mapping[str, str]
) -> Asked:
    """With the texts of the configuration for variables that nobody ever gave another.

    CloudFormation keeps the value that a parameter has, wherever it is from: without this, an
    edited `env` would change nothing. A value that is not what the stack's own template had as
    default was given, and stays.

    Args:
        stored: the parameters that the stack has.
        was_default: the defaults of the template that it was made of.
    """
    found: dict[str, str] = {}
    for name, one in granting.parameters(variables_of(read_configuration(config))).items():
        is_followed = name in stored and stored[name] == was_default.get(name)
        if is_followed and one.get("Default", stored[name]) != stored[name]:
            found[name] = one["Default"]
    return replace(asked, overrides={**found, **asked.overrides})


def remarks(asked: Asked, config: Path, stored: Mapping[str, str]) -> Iterator[str]:
    """What somebody should know who deploys this, a sentence each. No value is in it."""
    env = variables_of(read_configuration(config))
    for name, one in granting.parameters(env).items():
        is_kept = name in stored and name not in asked.overrides
        if is_kept and stored[name] != one.get("Default"):
            yield f"{name} keeps the value that an earlier deployment gave it; pass {name}=… for another."
    says = {**stored, **asked.overrides}
    kept = [
        name
        for name in env
        if list(kept_at_aws(says.get(granting.parameter_name(name), env[name])))
    ]
    if kept and says.get("SnapStart") == "on":
        yield (
            f"With SnapStart {', '.join(kept)} is read when a version is published: after a change of what AWS keeps,"
            " deploy with another Release=…"
        )


# What AWS says


@dataclass(frozen=True)
class Quota:
    """The number of functions that an account may run at once in a region."""

    executions: int
    unreserved: int
    """The part of `executions` that is not reserved for a function."""


@dataclass(frozen=True)
class Found:
    """What AWS says about a stack and its account."""

    stored: Mapping[str, str] = field(default_factory=dict)
    """The parameters that the stack has."""
    quota: Quota | None = None
    """`None` without permission to read the quota."""
    region: str | None = None


_STUCK: Final = {
    "ROLLBACK_COMPLETE": "delete-stack",
    "ROLLBACK_FAILED": "delete-stack",
    "DELETE_FAILED": "delete-stack",
    "UPDATE_ROLLBACK_FAILED": "continue-update-rollback",
}
"""The command that repairs a stack in a state that takes no deployment."""


def stored_parameters(cloudformation: Any, stack: str) -> dict[str, str]:
    """Return the parameters of the stack; empty if the stack does not exist yet.

    Raises:
        UsageError: the stack's state takes no deployment.
    """
    from botocore.exceptions import ClientError

    try:
        (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return {}
        raise
    status = found["StackStatus"]
    if status == "REVIEW_IN_PROGRESS":  # a change set that was never executed
        return {}
    if status.endswith("_IN_PROGRESS"):
        raise UsageError(
            f"The stack {stack} is being changed ({status}).\nDeploy when that is over."
        )
    if status in _STUCK:
        raise UsageError(
            f"The stack {stack} is {status} and takes no deployment.\n"
            f"aws cloudformation describe-stack-events --stack-name {stack} says why. Then:"
            f" aws cloudformation {_STUCK[status]} --stack-name {stack}, wait, and deploy again."
        )
    return {one["ParameterKey"]: one["ParameterValue"] for one in found.get("Parameters", [])}


def quota_of(functions: Any) -> Quota | None:
    """Return the account's concurrency quota; print the reason and return `None` if it cannot be
    read."""
    from botocore.exceptions import ClientError

    try:
        limit = functions.get_account_settings()["AccountLimit"]
    except ClientError as error:
        print(f"the quota of functions at once is not checked: {error}", file=sys.stderr)
        return None
    executions = int(limit["ConcurrentExecutions"])
    return Quota(executions, int(limit.get("UnreservedConcurrentExecutions", executions)))


def default_parameters(cloudformation: Any, stack: str) -> dict[str, str]:
    """The defaults of the template that a stack was made of."""
    found = cloudformation.get_template_summary(StackName=stack).get("Parameters", [])
    return {
        one["ParameterKey"]: one["DefaultValue"]
        for one in found
        if one.get("DefaultValue") is not None
    }


def of_account(asked: Asked, config: Path) -> tuple[Asked, Found]:
    """What is asked for, with the variables and the ARNs that follow from the
    configuration, and what AWS says.

    Raises:
        UsageError: AWS does not say.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        session = _session(asked)
        cloudformation = session.client("cloudformation")
        if stored := stored_parameters(cloudformation, asked.stack):
            was_default = default_parameters(cloudformation, asked.stack)
            asked = with_variables(asked, config, stored, was_default)
        asked = with_secrets(with_functions(asked, config, session), config, session, stored)
        quota = quota_of(session.client("lambda"))
        return asked, Found(stored, quota, session.region_name)
    except (BotoCoreError, ClientError) as error:
        raise UsageError(f"AWS was asked about the stack {asked.stack}: {error}") from None


def is_made(asked: Asked) -> bool:
    """Return whether the stack exists, not only a change set that would create it.

    Raises:
        UsageError: AWS cannot be asked.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return bool(stored_parameters(_session(asked).client("cloudformation"), asked.stack))
    except (BotoCoreError, ClientError) as error:
        raise UsageError(f"AWS was asked about the stack {asked.stack}: {error}") from None


def _session(asked: Asked) -> Any:
    """Return a session of boto3 in the region and with the profile of the command line."""
    import boto3

    names = {"--region": "region_name", "--profile": "profile_name"}
    return boto3.Session(**{names[one]: value for one, value in asked.of_session.items()})
