"""`samconfig.toml` beside gateway.yaml: what is deployed where, in the form that AWS SAM has for
it.

    version = 0.1

    [default.deploy.parameters]
    stack_name = "shop"
    region = "eu-central-1"

    [default.deploy.parameters.parameter_overrides]
    LogLevel = "debug"

What the command line says goes first. `sam` reads the file as well: what is for it alone, such as
tags, is not looked at here.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from roundgate.deployment import places
from roundgate.deployment.deploying import OF_SESSIONS, Asked
from roundgate.deployment.stack.template import Template
from roundgate.errors import UsageError
from roundgate.settings import yaml_file

FILES: Final = ("samconfig.toml", "samconfig.yaml", "samconfig.yml")
"""The names that SAM looks for, in its order."""
_STACK: Final = re.compile(r"[A-Za-z][-A-Za-z0-9]{0,127}")
_FILE: Final = "--config-file"
_ENVIRONMENT: Final = "--config-env"
_NO_EXECUTE: Final = "--no-execute-changeset"
_OVERRIDES: Final = "parameter_overrides"


@dataclass(frozen=True, slots=True)
class Saved:
    """What the file says of one environment."""

    file: Path
    environment: str
    parameters: Mapping[str, Any]
    """Of `sam deploy`, by their names there: `stack_name`, `region`, …"""

    @property
    def overrides(self) -> dict[str, str]:
        """Parameters of the stack.

        Raises:
            UsageError: one is malformed, or the stack has none of its name.
        """
        found = dict(_pairs(self.parameters.get(_OVERRIDES), self.file))
        for name in found:
            _check_name(name, self.file)
        return found

    def options(self, given: Sequence[str]) -> Iterator[str]:
        """What has to be on the command line of `sam` beside what is given: we need it as well."""
        for option in OF_SESSIONS:
            value = self.parameters.get(option.removeprefix("--"))
            if value is not None and option not in given:
                yield from (option, str(value))
        if self.parameters.get("no_execute_changeset") is True and _NO_EXECUTE not in given:
            yield _NO_EXECUTE
        yield from (_FILE, str(self.file.resolve()), _ENVIRONMENT, self.environment)


def completed(asked: Asked, config: Path) -> Asked:
    """A command line with what the file beside gateway.yaml adds to it; prints
    which parameters that are.

    Raises:
        UsageError: the stack has no name, or the file is wrong.
    """
    file, options = _taken(asked.options, _FILE)
    environment, options = _taken(options, _ENVIRONMENT)
    saved = _read(config.parent, file, environment)
    if saved is not None:
        overrides = saved.overrides
        print(f"{saved.file} [{saved.environment}]", *_shown(overrides), file=sys.stderr)
        asked = replace(
            asked,
            stack=asked.stack or str(saved.parameters.get("stack_name", "")),
            overrides={**overrides, **asked.overrides},
            options=[*options, *saved.options(options)],
        )
    if not asked.stack:
        raise UsageError(
            "which stack? Give its name, as in `roundgate deploy shop`, or stack_name in"
            f" {config.parent / FILES[0]}"
        )
    if not _STACK.fullmatch(asked.stack):
        raise UsageError(
            f"{asked.stack!r} is no name of a stack: a letter, then letters, digits and hyphens, 128 at most"
        )
    return asked


def _shown(overrides: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in overrides.items())


def _taken(options: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """The value of an option, and the others."""
    found, rest, words = None, [], iter(options)
    for word in words:
        if word == name:
            found = next(words, None)
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
        else:
            rest.append(word)
    return found, rest


def _read(folder: Path, named: str | None, environment: str | None) -> Saved | None:
    """The file that is named, or else that of the folder, if there is one."""
    there = (folder / name for name in FILES)
    file = Path(named) if named else next((one for one in there if one.is_file()), None)
    if file is None and environment is None:
        return None
    if file is None or not file.is_file():
        raise UsageError(f"there is no {file or folder / FILES[0]}")
    whole, environment = _parsed(file), environment or "default"
    section = whole.get(environment)
    if not isinstance(section, Mapping):
        known = sorted(name for name, one in whole.items() if isinstance(one, Mapping))
        raise UsageError(f"{file} has no [{environment}]; it has {', '.join(known) or 'none'}")
    parameters = {**_of_command(section, "global"), **_of_command(section, "deploy")}
    if "s3_bucket" in parameters:
        raise UsageError(
            f"{file}: s3_bucket cannot be chosen, SAM makes one (resolve_s3): take it out"
        )
    return Saved(file, environment, parameters)


def _parsed(file: Path) -> Mapping[str, Any]:
    try:
        is_toml = file.suffix == ".toml"
        value = tomllib.loads(file.read_text("utf-8")) if is_toml else yaml_file.read(file).value
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if not isinstance(value, Mapping):
        raise UsageError(f"{file} is not a table")
    return value


def _of_command(section: Mapping[str, Any], command: str) -> Mapping[str, Any]:
    found = section.get(command)
    found = found.get("parameters") if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _pairs(given: Any, file: Path) -> Iterator[tuple[str, str]]:
    """Overrides in each form that SAM takes: a table, a list, `NAME=VALUE NAME=VALUE`."""
    match given:
        case None:
            return
        case Mapping():
            yield from ((str(name), _text(value)) for name, value in given.items())
        case str():
            for word in _words(given, file):
                yield _pair(word, file)
        case [*items]:
            for one in items:
                if isinstance(one, str):
                    yield _pair(one, file)
                else:
                    yield from _pairs(one, file)
        case _:
            raise UsageError(f"{file}: {_OVERRIDES} has to be a table, such as LogLevel = 'debug'")


def _words(given: str, file: Path) -> list[str]:
    try:
        return shlex.split(given)
    except ValueError:  # the text may be a secret's
        raise UsageError(f"{file}: {_OVERRIDES} has a quote that is not closed") from None


def _pair(word: str, file: Path) -> tuple[str, str]:
    name, equals, value = word.strip().partition("=")
    if name == "ParameterKey":
        name, equals, value = value.partition(",ParameterValue=")
    if not equals:
        raise UsageError(f"{file}: {_OVERRIDES} takes NAME=VALUE, not {word!r}")
    return name, value


def _text(value: Any) -> str:
    """A value as CloudFormation has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value)


def _check_name(name: str, file: Path) -> None:
    known = Template(places.TEMPLATE, {}, {}).source["Parameters"]
    if name in known or name.startswith("Env"):
        return
    meant = get_close_matches(name, known, 1)
    hint = f"; is {meant[0]} meant?" if meant else f"; there are {', '.join(known)}"
    raise UsageError(f"{file}: the stack has no parameter {name}{hint}")


# A file to begin with

_FOUND_BY_US: Final = frozenset(
    {"FunctionArns", "DurableFunctionArns", "SecretArns", "ParameterArns", "Release"}
)
"""What `roundgate deploy` finds out."""


def commented() -> str:
    """All parameters that are somebody's to choose, with what they mean and their
    defaults, as comments of TOML."""
    source = Template(places.TEMPLATE, {}, {}).source
    parameters: Mapping[str, Mapping[str, Any]] = source["Parameters"]
    parts = []
    for group in source["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]:
        names = [one for one in group["Parameters"] if one not in _FOUND_BY_US]
        if names:
            lines = (line for name in names for line in _comment(name, parameters[name]))
            parts.append("\n".join((f"## {group['Label']['default']}", *lines)))
    return "\n\n".join(parts)


def _comment(name: str, parameter: Mapping[str, Any]) -> Iterator[str]:
    default = parameter.get("Default", "")
    shown = default if isinstance(default, int) else f'"{default}"'
    meaning = " ".join(str(parameter.get("Description", "")).split())
    yield from textwrap.wrap(meaning, 110, initial_indent="# ", subsequent_indent="# ")
    yield f"# {name} = {shown}"
