"""`roundgate check`: everything that is wrong with a configuration, or
everything that it serves."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Final

from roundgate import config
from roundgate.backends import Catalog, kind_of
from roundgate.cli import starting
from roundgate.cli.arguments import configuration_file
from roundgate.cli.client_remarks import client_remarks
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.runtime import loading
from roundgate.settings import AuthorizerConfig

MAX_NAMED: Final = 5
"""Tools that one remark names."""


def run(arguments: argparse.Namespace) -> int:
    """Print what is served.

    Raises:
        ConfigError: every problem: in the file, in what it refers to, in the
            environment, and between them.
    """
    path = configuration_file(arguments.config)
    inspected = config.inspect(path)
    problems = list(inspected.problems)
    file, served = inspected.file, None
    fetched: dict[str, bytes] = {}
    if file is not None:
        try:
            served = loading.load(file, fetches=True, fetched=fetched).catalog
        except ConfigError as error:
            problems += error.problems
    if not getattr(arguments, "file_only", False):
        problems += _of_starting(file, arguments)
    if problems or file is None or served is None:
        raise ConfigError(_in_order(problems))
    _print_served(file, served, fetched)
    print(f"{path}: no problems")
    return 0


def _of_starting(file: ConfigFile | None, arguments: argparse.Namespace) -> list[Problem]:
    path = configuration_file(arguments.config)
    using, problems = starting.environment({**os.environ, "GATEWAY_CONFIG": str(path)})
    is_elsewhere = file is not None and isinstance(file.config.auth, AuthorizerConfig)
    if not is_elsewhere:
        problems += starting.of_environment(using)
    if file is not None:
        host = getattr(arguments, "host", "127.0.0.1")
        problems += starting.of_serving(file, using, host, getattr(arguments, "port", None))
    return problems


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Each once, by file and line."""
    each = {str(problem): problem for problem in problems}
    return sorted(each.values(), key=lambda one: (one.file, one.line or 0))


def _print_served(file: ConfigFile, served: Catalog, fetched: dict[str, bytes]) -> None:
    _print_catalog(served)
    for view in file.config.views:
        print(f"view {view.name} at {view.effective_path}")
        _print_catalog(served.of_view(view.name))
    if served.left_out:
        print(f"left out ({len(served.left_out)})", *served.left_out, sep="\n")
    remarks = [
        *_unasked_scopes(file, served),
        *_remarks(file, fetched),
        *client_remarks(file, served),
    ]
    if remarks:
        print(f"remarks ({len(remarks)})", *remarks, sep="\n")


def _unasked_scopes(file: ConfigFile, served: Catalog) -> list[Problem]:
    """Return a remark if tools require scopes but `auth` is none, which gives every caller all
    scopes."""
    if file.config.auth != "none":
        return []
    catalogs = [served, *(served.of_view(view.name) for view in file.config.views)]
    scoped = [name for one in catalogs for name, tool in one.tools.items() if tool.tool.scopes]
    if not scoped:
        return []
    named = list(dict.fromkeys(scoped))
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    message = f"{', '.join(named[:MAX_NAMED])}{more}: scopes are required, and without `auth` every caller has them"
    remedy = "set `auth`, which says whose tokens are taken, or remove the scopes"
    return [file.origin.at("auth").problem(message, remedy)]


def _remarks(file: ConfigFile, fetched: dict[str, bytes]) -> list[Problem]:
    """What is wrong and keeps nothing from being served."""
    found: list[Problem] = []
    for index, backend in enumerate(file.config.backends):
        check_with = kind_of(backend).check_with()
        if check_with is not None:
            found += check_with(backend, file.backend_origin(index), fetched)
    return found


def _print_catalog(served: Catalog) -> None:
    _print(
        "tools",
        [(name, tool.tool.definition.get("description")) for name, tool in served.tools.items()],
    )
    _print(
        "prompts",
        [(name, prompt.definition.get("description")) for name, prompt in served.prompts.items()],
    )
    _print(
        "resources",
        [(uri, resource.definition.get("name")) for uri, resource in served.resources.items()],
    )
    templates = [one.resource.definition for one in served.templates]
    _print(
        "resource templates",
        [(definition["uriTemplate"], definition.get("name")) for definition in templates],
    )


def _print(kind: str, entries: list[tuple[str, str | None]]) -> None:
    if not entries:
        return
    print(f"{kind} ({len(entries)})")
    width = max(len(name) for name, _ in entries)
    for name, description in entries:
        print(
            f"  {name:<{width}}  {(description or '').splitlines()[0][:100] if description else ''}".rstrip()
        )
