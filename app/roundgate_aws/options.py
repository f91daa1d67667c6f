"""The options of `roundgate deploy`: its command line, and `samconfig.toml` beside gateway.yaml.

    version = 0.1

    [default.deploy.parameters]
    stack_name = "shop"
    region = "eu-central-1"

    [default.deploy.parameters.parameter_overrides]
    LogLevel = "debug"

The command line takes precedence. `sam` also reads the file, for options such as tags.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from roundgate.errors import UsageError
from roundgate.settings import yaml_file
from roundgate_aws import parts

OVERRIDES: Final = "--parameter-overrides"
OF_SESSIONS: Final = ("--region", "--profile")
"""The options that select account and region."""
FILES: Final = ("samconfig.toml", "samconfig.yaml", "samconfig.yml")
"""The file names that SAM looks for, in its order."""
NO_EXECUTE: Final = "--no-execute-changeset"
_FILE: Final = "--config-file"
_ENVIRONMENT: Final = "--config-env"
_IN_FILE: Final = "parameter_overrides"
_OVERRIDE: Final = re.compile(
    r"""\s*(?:ParameterKey=(?P<key>\w+),ParameterValue|(?P<name>\w+))="""
    r"""(?P<value>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|.*?)(?=\s+(?:\w+=|ParameterKey=)|\s*$)""",
    re.DOTALL,
)
"""The pattern of a `NAME=VALUE` in a word with one or more. A value may have spaces and quotes."""


@dataclass(frozen=True)
class DeployOptions:
    """The options of `roundgate deploy`."""

    stack: str
    config: Path | None
    """The path of gateway.yaml on the command line, if any."""
    overrides: Mapping[str, str]
    options: Sequence[str]
    """The other options for `sam deploy`."""
    session: Mapping[str, str]
    """The options that select account and region, with their values."""
    file: str | None
    """The value of --config-file."""
    environment: str | None
    """The value of --config-env."""


def read_options(stack: str, rest: Sequence[str]) -> DeployOptions:
    """Parse the command line after the stack's name.

    Raises:
        UsageError: an override is not NAME=VALUE.
    """
    words = list(rest)
    config = Path(words.pop(0)) if words and not words[0].startswith("-") else None
    parser = argparse.ArgumentParser("roundgate deploy", add_help=False, allow_abbrev=False)
    parser.add_argument(OVERRIDES, nargs="*", action="extend", default=[])
    for option in (*OF_SESSIONS, _FILE, _ENVIRONMENT):
        parser.add_argument(option, dest=option)
    parsed, others = parser.parse_known_args(words)
    known = vars(parsed)
    overrides = dict(
        pair for text in parsed.parameter_overrides for pair in _parsed_overrides(text, OVERRIDES)
    )
    session = {option: known[option] for option in OF_SESSIONS if known[option] is not None}
    return DeployOptions(
        stack, config, overrides, others, session, known[_FILE], known[_ENVIRONMENT]
    )


def _parsed_overrides(text: str, place: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each `NAME=VALUE`, or of each pair in CloudFormation's long form.
    Raise UsageError for any other text."""
    end = 0
    while text[end:].strip():
        match = _OVERRIDE.match(text, end)
        if match is None:
            raise UsageError(f"{place} needs NAME=VALUE, not {text[end:].strip()!r}")
        yield match["key"] or match["name"], _unquoted(match["value"])
        end = match.end()


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1].replace('\\"', '"').replace("\\'", "'") if is_quoted else value


# samconfig.toml


def completed(deployment: DeployOptions, config: Path) -> DeployOptions:
    """Add the settings of the file beside gateway.yaml; print its parameters.

    Raises:
        UsageError: the stack has no name, or the file is invalid.
    """
    beside = (config.parent / name for name in FILES)
    file = next((path for path in beside if path.is_file()), None)
    if deployment.file is not None:
        file = Path(deployment.file)
    elif file is None and deployment.environment is not None:
        file = config.parent / FILES[0]
    if file is not None:
        environment = deployment.environment or "default"
        saved = _read(file, environment)
        overrides = dict(_saved_overrides(saved.get(_IN_FILE), f"{file}: {_IN_FILE}"))
        shown = (f"{name}={value}" for name, value in overrides.items())
        print(f"{file} [{environment}]", *shown, file=sys.stderr)
        named = {option: saved.get(option.removeprefix("--")) for option in OF_SESSIONS}
        session = {option: str(value) for option, value in named.items() if value is not None}
        options = [*deployment.options, _FILE, str(file.resolve()), _ENVIRONMENT, environment]
        if saved.get("no_execute_changeset") is True and NO_EXECUTE not in options:
            options.append(NO_EXECUTE)
        deployment = replace(
            deployment,
            stack=deployment.stack or str(saved.get("stack_name", "")),
            overrides={**overrides, **deployment.overrides},
            session={**session, **deployment.session},
            options=options,
        )
    if not deployment.stack:
        raise UsageError(
            "the stack has no name: pass it, as in `roundgate deploy shop`, or set stack_name in"
            f" {config.parent / FILES[0]}"
        )
    return deployment


def _read(file: Path, environment: str) -> Mapping[str, Any]:
    """Return the file's parameters of `sam deploy` in an environment. Raise UsageError if the file
    cannot be read or lacks the environment."""
    if not file.is_file():
        raise UsageError(f"there is no {file}; correct the path")
    try:
        is_toml = file.suffix == ".toml"
        whole = tomllib.loads(file.read_text("utf-8")) if is_toml else yaml_file.read(file).value
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    sections = {name: part for name, part in whole.items() if isinstance(part, Mapping)}
    if environment not in sections:
        section_names = ", ".join(sorted(sections)) or "none"
        raise UsageError(f"{file} has no [{environment}]; it has {section_names}")
    section = sections[environment]
    return {
        name: value
        for command in ("global", "deploy")
        for name, value in section.get(command, {}).get("parameters", {}).items()
    }


def _saved_overrides(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield overrides in each form that SAM accepts: a table, a list, `NAME=VALUE NAME=VALUE`.
    Raise UsageError for any other form."""
    match value:
        case None:
            return
        case Mapping():
            yield from ((str(name), _text(entry)) for name, entry in value.items())
        case str():
            try:
                words = shlex.split(value)
            except ValueError:  # its message would quote a text that may be a secret
                raise UsageError(f"{place} has an unclosed quotation mark") from None
            for word in words:
                yield from _parsed_overrides(word, place)
        case [*items]:
            for item in items:
                is_word = isinstance(item, str)
                yield from (
                    _parsed_overrides(item, place) if is_word else _saved_overrides(item, place)
                )
        case _:
            raise UsageError(f"{place} must be a table, such as LogLevel = 'debug'")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value)


# A new samconfig.toml

_FOUND_BY_DEPLOY: Final = frozenset(
    {"FunctionArns", "DurableFunctionArns", "SecretArns", "ParameterArns", "Release"}
)
"""The parameters that `roundgate deploy` sets automatically."""


def commented() -> str:
    """Return TOML comments that list the parameters a user may set, with descriptions and
    defaults."""
    seen = set(_FOUND_BY_DEPLOY)
    groups = []
    for api in (parts.HTTP, parts.REST):
        source = parts.assembled(api)
        for group in source["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]:
            names = [name for name in group["Parameters"] if name not in seen]
            seen.update(names)
            if names:
                only = " (with ApiType=rest)" if api == parts.REST else ""
                lines = (
                    line for name in names for line in _comment(name, source["Parameters"][name])
                )
                groups.append("\n".join((f"## {group['Label']['default']}{only}", *lines)))
    return "\n\n".join(groups)


def _comment(name: str, parameter: Mapping[str, Any]) -> Iterator[str]:
    default = parameter.get("Default", "")
    shown = default if isinstance(default, int) else f'"{default}"'
    meaning = " ".join(str(parameter.get("Description", "")).split())
    yield from textwrap.wrap(meaning, 110, initial_indent="# ", subsequent_indent="# ")
    yield f"# {name} = {shown}"
