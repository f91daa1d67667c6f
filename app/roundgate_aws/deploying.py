"""`roundgate deploy`: chooses parameters so that a repeated deployment changes nothing by accident,
and refuses a deployment that is open to everyone or that no caller can use.

`sam deploy` keeps the stack's parameters that are not passed. It does not inspect the zips, so
`Architecture` is always passed: the stack's value unless another is requested. A complete stack
protects its table from deletion, but a failed first deployment must be able to delete the table. So
a new stack is created with `ProtectTable=later`, and a second deployment sets it to true. If the
second deployment is interrupted, the next `roundgate deploy` does it. With SnapStart or Rollout the
API calls a version of the function. `Release`, a digest of everything deployed, makes each deployment with a
change publish a new version.

CloudFormation validates the other values when it makes the change set.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from roundgate.errors import UsageError
from roundgate.settings import Reference, kept_at_aws, yaml_file
from roundgate_aws import parts
from roundgate_aws.options import NO_EXECUTE, OVERRIDES, DeployOptions
from roundgate_aws.template import env_parameters, parameter_name, with_overlay

LATER: Final = "later"
"""The value of `ProtectTable` while a new stack is being created."""
_NOT_RELEASED: Final = ("Release", "ProtectTable")
"""The parameters that no function depends on and that may differ between two deployments of one
release."""
_GATEWAYS_SHARE: Final = 2
"""The divisor of the account's concurrency that limits `WorkerConcurrency`."""
_RSA: Final = ("RS", "PS")
"""The prefixes of algorithms that sign with RSA."""


def read_configuration(path: Path) -> dict[str, Any]:
    """Return the content of gateway.yaml, with its references unresolved.

    Raises:
        ConfigError, UsageError: the file cannot be read.
    """
    value = yaml_file.read(path).value
    if not isinstance(value, dict):
        raise UsageError(
            f"{path} is not a configuration: write a mapping, see `roundgate docs configuration`"
        )
    return value


def _env(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a configuration declares. Packaging reports invalid variables."""
    env = value.get("env")
    pairs = env.items() if isinstance(env, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


# Refused before anything is packed, because AWS would not report it


def check(
    options: DeployOptions, config: Path, stored: Mapping[str, str], executions: int | None = None
) -> None:
    """Raise UsageError if `sam` would ignore a parameter, if the API would be open to everyone or
    closed to all, or if the workers would leave too little concurrency to the gateway.

    Args:
        options: the options of the command line.
        config: the path of gateway.yaml.
        stored: the parameters of the existing stack.
        executions: the account's limit on concurrent executions; `None` if unknown.
    """
    value, says = read_configuration(config), {**stored, **options.overrides}
    api = api_type(says)
    source = with_overlay(parts.assembled(api), config)
    parameters_of_template = {**source["Parameters"], **env_parameters(_env(value))}
    other_api = parts.HTTP if api == parts.REST else parts.REST
    for name in options.overrides.keys() - parameters_of_template.keys():
        if name in parts.assembled(other_api)["Parameters"]:
            raise UsageError(
                f"{name} needs ApiType={other_api}. Remove it, or pass the other ApiType."
            )
        alike = get_close_matches(name, parameters_of_template, n=1)
        hint = (
            f"; did you mean {alike[0]}?"
            if alike
            else f". There are {', '.join(parameters_of_template)}."
        )
        raise UsageError(f"There is no parameter {name}{hint}")
    _check_callers(config, value.get("auth", "none"), says, source)
    _check_domain(says)
    workers = says.get(
        "WorkerConcurrency", str(parameters_of_template["WorkerConcurrency"]["Default"])
    )
    most = None if executions is None else max(2, executions // _GATEWAYS_SHARE)
    if most is not None and workers.isdecimal() and int(workers) > most:
        raise UsageError(
            f"The account may run {executions} functions at once,"
            f" and WorkerConcurrency={workers} leaves too few for the gateway.\n"
            f"Set WorkerConcurrency to at most {most}, or ask AWS to raise the quota"
            " (Service Quotas, AWS Lambda, Concurrent executions)."
        )


def api_type(says: Mapping[str, str]) -> str:
    """Return the kind of API that the parameters choose."""
    return says.get("ApiType", parts.HTTP)


def _check_callers(
    config: Path, auth: Any, says: Mapping[str, str], source: Mapping[str, Any]
) -> None:
    """Raise UsageError if the configuration and the authorizer together leave the API open to
    everyone or closed to all."""
    issuer = says.get("AuthorizerIssuer", "")
    settings: Mapping[str, Any] = auth if isinstance(auth, dict) else {}
    if auth == "none" and says.get("AllowAnonymous") != "true":
        how = f"auth: {{authorizer: api-gateway, issuer: {issuer}}}" if issuer else "auth"
        raise UsageError(
            f"{config} configures no authentication: anyone who knows the URL could call"
            f"{', and all callers that the authorizer accepts would be one caller' if issuer else ''}.\n"
            f"Configure {how}, or pass {OVERRIDES} AllowAnonymous=true if anonymous calls are intended."
        )
    if "authorizer" in settings and says.get("ApiType") == "rest":
        raise UsageError(
            f"{config} relies on an authorizer that verifies JWTs,"
            " and a REST API has none: no caller would be accepted.\n"
            "Configure auth with jwks_url, and the gateway verifies tokens; or deploy with ApiType=http."
        )
    kinds = {name: resource["Type"] for name, resource in source["Resources"].items()}
    authorizers = {name for name, kind in kinds.items() if kind == "AWS::ApiGatewayV2::Authorizer"}
    has_another = bool(authorizers - {"Authorizer"})
    if "authorizer" in settings and not issuer and not has_another:
        raise UsageError(
            f"{config} relies on an authorizer of API Gateway, and the stack has none: no caller would be accepted.\n"
            f"Pass {OVERRIDES} AuthorizerIssuer=… AuthorizerAudience=…"
        )
    algorithms = settings.get("algorithms")
    if (
        issuer
        and isinstance(algorithms, list)
        and not any(str(name).startswith(_RSA) for name in algorithms)
    ):
        raise UsageError(
            "The authorizer of an HTTP API accepts only tokens signed with RSA,"
            f" and auth.algorithms of {config} lists {', '.join(map(str, algorithms))}: no token is valid for both.\n"
            "Configure the issuer to sign with RS256, or let only the gateway verify tokens"
            ' (AuthorizerIssuer="" AuthorizerAudience=none).'
        )
    own = settings.get("issuer", "")
    if issuer and own and "${" not in own and own != issuer:
        raise UsageError(
            f"AuthorizerIssuer={issuer} differs from auth.issuer of {config}, {own}: no token is valid for both.\n"
            "Make them equal, including a slash at the end."
        )


def _check_domain(says: Mapping[str, str]) -> None:
    """Raise UsageError if clients could not use the domain."""
    name, url = says.get("DomainName", ""), says.get("PublicUrl", "")
    if name.startswith("*.") and not url:
        raise UsageError(
            f"DomainName={name} covers many names, but tokens and metadata need one URL.\n"
            f"Pass PublicUrl=https://…{name.removeprefix('*')}, the URL that clients use."
        )
    if name and url.removeprefix("https://").startswith(f"{name}/"):
        raise UsageError(
            f"PublicUrl={url} has a path, but the API is mapped to the root of {name}.\n"
            f'Set it to the empty text (PublicUrl=""), or map another domain to the path yourself.'
        )


# Arguments of `sam deploy`


def parameters(options: DeployOptions, stored: Mapping[str, str]) -> dict[str, str]:
    """Return all parameters to pass, always including the architecture."""
    default = parts.assembled()["Parameters"]["Architecture"]["Default"]
    values = {"Architecture": stored.get("Architecture", default), **options.overrides}
    if not stored:
        is_open = values.get("ProtectTable") == "false"
        return values if is_open else {**values, "ProtectTable": LATER}
    if stored.get("ProtectTable") == LATER:
        return {"ProtectTable": "true", **values}
    return values


def commands(
    options: DeployOptions, stored: Mapping[str, str], template: Path, sam: str = "sam"
) -> list[list[str]]:
    """Return the calls of `sam` in order. The second call protects a new stack's table."""
    passed = parameters(options, stored)
    says = {**stored, **passed}
    has_versions = says.get("SnapStart") == "on" or says.get("Rollout", "none") != "none"
    if has_versions and "Release" not in passed:
        passed["Release"] = release_digest(says, template)
    first = _sam(sam, template, options, passed)
    if stored or NO_EXECUTE in options.options or passed["ProtectTable"] != LATER:
        return [first]
    return [first, _sam(sam, template, options, {**passed, "ProtectTable": "true"})]


def release_digest(says: Mapping[str, str], template: Path) -> str:
    """Return a digest of everything that makes the gateway function.

    Args:
        says: the known parameters; for others the template's defaults count.
        template: the file that `roundgate package` wrote beside the zips.
    """
    declared: Mapping[str, Any] = parts.load(template)["Parameters"]
    values = {
        name: str(parameter["Default"])
        for name, parameter in declared.items()
        if "Default" in parameter
    }
    values |= says
    counted = sorted((name, values.get(name)) for name in declared.keys() - {*_NOT_RELEASED})
    digest = hashlib.sha256(json.dumps(counted).encode())
    for file in (template, template.with_name("gateway.zip")):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _sam(sam: str, template: Path, options: DeployOptions, passed: Mapping[str, str]) -> list[str]:
    return [
        *(sam, "deploy", "--template", str(template), "--stack-name", options.stack),
        *("--capabilities", "CAPABILITY_IAM", "--resolve-s3", "--no-fail-on-empty-changeset"),
        *options.options,
        *(word for option in options.session.items() for word in option),
        *(OVERRIDES, *(f"{name}={_quoted(value)}" for name, value in passed.items())),
    ]


def _quoted(value: str) -> str:
    """Return a value as `sam deploy` expects it: quoted if it is empty or contains white space or a
    quotation mark."""
    if value and not re.search(r"[\s\"']", value):
        return value
    return '"' + value.replace('"', '\\"') + '"'


def run(commands: Sequence[Sequence[str]], is_made: Callable[[], bool] = lambda: True) -> int:
    """Run commands in order; return the status of the first that fails, or 0.

    Args:
        commands: the calls of `sam`.
        is_made: returns whether the stack exists. It does not exist after a declined change set;
            the remaining commands, which change the stack, are then skipped.
    """
    for number, command in enumerate(commands):
        if number and not is_made():
            print("nothing was deployed: the change set was not executed", file=sys.stderr)
            return 0
        has_json = "{" in "".join(command)
        print("+", json.dumps(command) if has_json else " ".join(command), file=sys.stderr)
        if code := subprocess.run(command, check=False).returncode:
            return code
    return 0


# Functions, secrets and parameters that the configuration names. Both functions of the stack may
# invoke or read them.


@dataclass(frozen=True)
class Named:
    """A function as a configuration names it."""

    function: str
    """The name, ARN, or partial ARN, possibly with a qualifier at its end."""
    qualifier: str | None
    region: str | None
    may_be_durable: bool
    """Whether the gateway may follow the function's durable executions."""

    def arn(self, partition: str, region: str, account: str) -> str:
        """Return the complete ARN, with the qualifier of the invocation."""
        function = self.function
        if not function.startswith("arn:"):
            own, _, name = function.rpartition(":function:")
            place = f"{self.region or region}:{own or account}"
            function = f"arn:{partition}:lambda:{place}:function:{name}"
        is_qualified = self.qualifier is None or function.count(":") > 6
        return function if is_qualified else f"{function}:{self.qualifier}"


def with_functions(options: DeployOptions, config: Path, session: Any) -> DeployOptions:
    """Add the ARNs of the functions that the configuration names, unless the options have them.

    Raises:
        UsageError: a name is a reference, which can only be resolved where the gateway runs.
    """
    if {"FunctionArns", "DurableFunctionArns"} <= options.overrides.keys():
        return options
    value = read_configuration(config)
    named = dict.fromkeys(
        function
        for entry in value.get("backends") or []
        if isinstance(entry, dict) and entry.get("kind") == "lambda"
        for function in _functions_from_entry(entry)
    )
    for function_name in named:
        if "${" in f"{function_name.function}{function_name.qualifier}{function_name.region}":
            raise UsageError(
                f"The function {function_name.function} is named by a reference, which is only known where "
                "the gateway runs.\n"
                f"Write its name, or pass FunctionArns and DurableFunctionArns ({OVERRIDES})."
            )
    partition, account = _caller(session) if named else ("", "")
    arns = {
        function_name: function_name.arn(partition, session.region_name, account)
        for function_name in named
    }
    durable = [
        f"{':'.join(arn.split(':')[:7])}:*"
        for function_name, arn in arns.items()
        if function_name.may_be_durable
    ]
    lists = {"FunctionArns": _listed(arns.values()), "DurableFunctionArns": _listed(durable)}
    return replace(options, overrides={**lists, **options.overrides})


def _functions_from_entry(entry: Mapping[str, Any]) -> Iterator[Named]:
    general, qualifier, region = (entry.get(name) for name in ("function", "qualifier", "region"))
    if entry.get("describe") and general:
        # the gateway may follow a described tool as a durable execution
        yield Named(general, qualifier, region, may_be_durable=True)
    for tool in entry.get("tools") or []:
        own = tool.get("function")
        chosen = tool.get("qualifier") or (None if own else qualifier)
        if function := own or general:
            yield Named(function, chosen, region, may_be_durable=tool.get("durable") is not None)
        if polled := (tool.get("job") or {}).get("function"):
            yield Named(polled, None, region, may_be_durable=False)


def with_secrets(
    options: DeployOptions, config: Path, session: Any, stored: Mapping[str, str] | None = None
) -> DeployOptions:
    """Add the ARNs of the secrets and parameters to which the configuration refers, unless the
    options have them.

    A variable's text comes from the command line, the stack, or the file, in this order.
    """
    if {"SecretArns", "ParameterArns"} <= options.overrides.keys():
        return options
    value, says = read_configuration(config), {**(stored or {}), **options.overrides}
    env = _env(value)
    texts = {name: says.get(parameter_name(name), text) for name, text in env.items()}
    references = list(kept_at_aws({**value, "env": texts} if env else value))
    partition, account = _caller(session) if references else ("", "")
    account_place = f"{session.region_name}:{account}"
    secrets = [
        arn
        for reference in references
        if reference.kept == "secret"
        for arn in _arns_of_secret(
            reference, f"arn:{partition}:secretsmanager:{account_place}:secret:"
        )
    ]
    parameters = [
        reference.name
        if reference.name.startswith("arn:")
        else f"arn:{partition}:ssm:{account_place}:parameter/{reference.name.partition(':')[0].lstrip('/')}"
        for reference in references
        if reference.kept == "ssm"
    ]
    lists = {"SecretArns": _listed(secrets), "ParameterArns": _listed(parameters)}
    return replace(options, overrides={**lists, **options.overrides})


def _arns_of_secret(reference: Reference, prefix: str) -> Iterator[str]:
    """Yield patterns for a secret's ARN. AWS appends six characters to the name, and a complete ARN
    may lack them."""
    if reference.name.startswith("arn:"):
        yield reference.name
        yield f"{reference.name}-??????"
    else:
        yield f"{prefix}{reference.name}-??????"


def _caller(session: Any) -> tuple[str, str]:
    arn = session.client("sts").get_caller_identity()["Arn"].split(":")
    return arn[1], arn[4]


def _listed(arns: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(arns)) or "none"


# Variables


def with_variables(
    options: DeployOptions, config: Path, stored: Mapping[str, str], was_default: Mapping[str, str]
) -> DeployOptions:
    """Add the configuration's texts for variables that were never set explicitly.

    CloudFormation keeps a parameter's value, whatever its source, so an edited `env` alone would
    change nothing. A value that differs from the default of the stack's own template was set
    explicitly and is kept.

    Args:
        options: the options of the command line.
        config: the path of gateway.yaml.
        stored: the parameters of the existing stack.
        was_default: the parameter defaults of the existing stack's template.
    """
    edited: dict[str, str] = {}
    for name, variable in env_parameters(_env(read_configuration(config))).items():
        is_followed = name in stored and stored[name] == was_default.get(name)
        if is_followed and variable.get("Default", stored[name]) != stored[name]:
            edited[name] = variable["Default"]
    return replace(options, overrides={**edited, **options.overrides})


def remarks(options: DeployOptions, config: Path, stored: Mapping[str, str]) -> Iterator[str]:
    """Yield remarks on this deployment, one sentence each, without any values."""
    env = _env(read_configuration(config))
    for name, variable in env_parameters(env).items():
        is_kept = name in stored and name not in options.overrides
        if is_kept and stored[name] != variable.get("Default"):
            yield f"{name} keeps the value of an earlier deployment; pass {name}=… to change it."
    says = {**stored, **options.overrides}
    texts = {name: says.get(parameter_name(name), text) for name, text in env.items()}
    at_aws = [name for name, text in texts.items() if list(kept_at_aws(text))]
    if at_aws and says.get("SnapStart") == "on":
        yield (
            f"With SnapStart {', '.join(at_aws)} is read when a version is published: after changing the value at AWS,"
            " deploy with another Release=…"
        )


# The state at AWS


@dataclass(frozen=True)
class DeployedState:
    """The state of a stack and its account at AWS."""

    stored: Mapping[str, str]
    """The parameters of the existing stack."""
    executions: int | None
    """The limit on concurrent executions; `None` without permission to read it."""


def stored_parameters(cloudformation: Any, stack: str) -> dict[str, str]:
    """Return the parameters of the stack; empty if the stack does not exist yet."""
    from botocore.exceptions import ClientError

    try:
        (description,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return {}
        raise
    if description["StackStatus"] == "REVIEW_IN_PROGRESS":  # a change set that was never executed
        return {}
    return {
        parameter["ParameterKey"]: parameter["ParameterValue"]
        for parameter in description.get("Parameters", [])
    }


def concurrency_limit(functions: Any) -> int | None:
    """Return the account's concurrency limit. If it cannot be read, print the reason and return
    `None`."""
    from botocore.exceptions import ClientError

    try:
        return int(functions.get_account_settings()["AccountLimit"]["ConcurrentExecutions"])
    except ClientError as error:
        print(f"the account's concurrency limit was not checked: {error}", file=sys.stderr)
        return None


def default_parameters(cloudformation: Any, stack: str) -> dict[str, str]:
    """Return the parameter defaults of a stack's template."""
    summary = cloudformation.get_template_summary(StackName=stack).get("Parameters", [])
    return {
        parameter["ParameterKey"]: parameter["DefaultValue"]
        for parameter in summary
        if parameter.get("DefaultValue") is not None
    }


def of_account(options: DeployOptions, config: Path) -> tuple[DeployOptions, DeployedState]:
    """Add the variables and ARNs that follow from the configuration; also return the state at AWS.

    Raises:
        UsageError: a request to AWS failed.
    """
    with _asking_aws(options.stack):
        session = _session(options)
        cloudformation = session.client("cloudformation")
        if stored := stored_parameters(cloudformation, options.stack):
            was_default = default_parameters(cloudformation, options.stack)
            options = with_variables(options, config, stored, was_default)
        options = with_secrets(with_functions(options, config, session), config, session, stored)
        return options, DeployedState(stored, concurrency_limit(session.client("lambda")))


def is_made(options: DeployOptions) -> bool:
    """Return whether the stack exists, as opposed to a change set that would create it.

    Raises:
        UsageError: a request to AWS failed.
    """
    with _asking_aws(options.stack):
        return bool(stored_parameters(_session(options).client("cloudformation"), options.stack))


@contextmanager
def _asking_aws(stack: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise UsageError(f"A request to AWS about the stack {stack} failed: {error}") from None


def _session(options: DeployOptions) -> Any:
    import boto3

    names = {"--region": "region_name", "--profile": "profile_name"}
    return boto3.Session(**{names[name]: value for name, value in options.session.items()})
