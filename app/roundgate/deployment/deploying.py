"""`roundgate deploy`: what is deployed with which parameters, so that a second deployment changes
nothing by accident.

`sam deploy` keeps the parameters of the stack that it is not given. The zips it knows nothing of:
so their architecture is the stack's, unless another is asked for, and it is always passed. Nobody
can delete the table of a stack that is up, but one that could not be made has to go: a new stack is
protected by a second deployment, of that one parameter. With SnapStart the API calls a version of
the function, and `Release`, a digest of all that is deployed, has each deployment that changes
something publish one.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

from roundgate.config import kept_at_aws, yaml_file
from roundgate.deployment import granting, judging
from roundgate.deployment.invoked import Named, arn_of, functions_of, unqualified
from roundgate.deployment.referred import resources_of
from roundgate.deployment.stack.template import Template
from roundgate.errors import UsageError
from roundgate.values import dataclass

OVERRIDES: Final = "--parameter-overrides"
OF_SESSIONS: Final = ("--region", "--profile")
"""Options that say whose stack it is."""
_LOOKED_AT: Final = (OVERRIDES, *OF_SESSIONS)
GATEWAYS_SHARE: Final = 2
"""Of the account's executions, workers may take one in so many."""
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
    default = _default("Architecture")
    known = {"Architecture": stored.get("Architecture", default), **asked.overrides}
    return known if stored else {**known, "ProtectTable": "false"}


def check(
    asked: Asked,
    config: Path,
    stored: Mapping[str, str],
    executions: int | None,
    region: str | None = None,
) -> None:
    """Raises UsageError: CloudFormation would refuse the parameters, everybody could call or
    nobody, or the functions would starve each other."""
    says = {**stored, **asked.overrides}
    value = _configuration(config)
    if wrong := judging.refused(asked.overrides, says, judging.declared(_env(value))):
        raise UsageError("\n".join(wrong))
    _check_callers(config, value.get("auth", "none"), says)
    _check_domain(says, region)
    workers = int(says.get("WorkerConcurrency", _default("WorkerConcurrency")))
    if executions is not None and workers > executions // GATEWAYS_SHARE:
        raise UsageError(
            f"The account may have {executions} functions at once,"
            f" and WorkerConcurrency={workers} leaves too few to the gateway.\n"
            f"Set it to {max(2, executions // GATEWAYS_SHARE)} at most, or ask AWS for more"
            " (Service Quotas, AWS Lambda, Concurrent executions)."
        )


def _check_callers(config: Path, auth: Any, says: Mapping[str, str]) -> None:
    """Raises UsageError: by what the configuration and the authorizer say together, everybody
    could call, or nobody."""
    issuer = says.get("AuthorizerIssuer", "")
    is_behind = isinstance(auth, dict) and "authorizer" in auth
    if auth == "none" and says.get("AllowAnonymous") != "true":
        how = f"auth: {{authorizer: api-gateway, issuer: {issuer}}}" if issuer else "auth"
        raise UsageError(
            f"{config} configures no authentication: everybody who knows the URL could call"
            f"{', and all whom the authorizer lets pass would be one caller' if issuer else ''}.\n"
            f"Configure {how}, or say {OVERRIDES} AllowAnonymous=true if that is meant."
        )
    if is_behind and not issuer and not _has_another_authorizer():
        raise UsageError(
            f"{config} leaves it to an authorizer of API Gateway who may call, and the stack has none: nobody could.\n"
            f"Say {OVERRIDES} AuthorizerIssuer=… AuthorizerAudience=…"
        )
    own = auth.get("issuer", "") if isinstance(auth, dict) else ""
    if issuer and own and "${" not in own and own != issuer:
        raise UsageError(
            f"AuthorizerIssuer={issuer} and auth.issuer of {config}, {own}, are two: whom one lets pass,"
            " the other refuses.\nMake them the same, to the slash at the end."
        )


def _has_another_authorizer() -> bool:
    """Whether somebody has written one into the template."""
    return judging.template().named("AWS::ApiGatewayV2::Authorizer") != ["Authorizer"]


def _check_domain(says: Mapping[str, str], region: str | None) -> None:
    """Raises UsageError: what CloudFormation finds out late, or clients."""
    name, url = says.get("DomainName", ""), says.get("PublicUrl", "")
    there = says.get("CertificateArn", "").split(":")
    if name and region and len(there) > 3 and there[3] != region:
        raise UsageError(
            f"CertificateArn is of {there[3]}, and the domain of an API wants one of the stack's region, {region}.\n"
            f"Request it there: aws acm request-certificate --region {region} --domain-name {name} …"
        )
    if name and url.removeprefix("https://").startswith(f"{name}/"):
        raise UsageError(
            f"PublicUrl={url} has a path, and the API is mapped to the root of {name}.\n"
            f'Leave it empty (PublicUrl=""), or map another domain to the path yourself.'
        )


def _configuration(path: Path) -> dict[str, Any]:
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


def _env(value: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a configuration declares; what is none, packaging says."""
    env = value.get("env")
    pairs = env.items() if isinstance(env, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _default(name: str) -> Any:
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
    protect = {**passed, "ProtectTable": asked.overrides.get("ProtectTable", "true")}
    is_open = protect["ProtectTable"] == "false"
    return [first] if is_open else [first, _sam(sam, template, asked, protect)]


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
    env = _env(value) if isinstance(value, dict) else {}
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
    for name, one in granting.parameters(_env(_configuration(config))).items():
        is_followed = name in stored and stored[name] == was_default.get(name)
        if is_followed and one.get("Default", stored[name]) != stored[name]:
            found[name] = one["Default"]
    return replace(asked, overrides={**found, **asked.overrides})


def remarks(asked: Asked, config: Path, stored: Mapping[str, str]) -> Iterator[str]:
    """What somebody should know who deploys this, a sentence each. No value is in it."""
    env = _env(_configuration(config))
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
class Found:
    """What AWS says about a stack and its account."""

    stored: Mapping[str, str] = field(default_factory=dict)
    """The parameters that the stack has."""
    executions: int | None = None
    """How many functions the account may run at once, if we may know."""
    region: str | None = None


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
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    names = {"--region": "region_name", "--profile": "profile_name"}
    try:
        session = boto3.Session(**{names[one]: value for one, value in asked.of_session.items()})
        cloudformation = session.client("cloudformation")
        if stored := stored_parameters(cloudformation, asked.stack):
            was_default = default_parameters(cloudformation, asked.stack)
            asked = with_variables(asked, config, stored, was_default)
        asked = with_secrets(with_functions(asked, config, session), config, session, stored)
        executions = executions_of(session.client("lambda"))
        return asked, Found(stored, executions, session.region_name)
    except (BotoCoreError, ClientError) as error:
        raise UsageError(f"AWS was asked about the stack {asked.stack}: {error}") from None
