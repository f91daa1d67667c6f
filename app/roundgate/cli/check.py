"""`roundgate check`: everything that is wrong with a configuration, or everything that it serves."""

from __future__ import annotations

import argparse

from roundgate import config
from roundgate.backends import Catalog, kind_of, loading
from roundgate.cli.arguments import configuration_file
from roundgate.config import ConfigFile
from roundgate.errors import Problem


def run(arguments: argparse.Namespace) -> int:
    """Print what is served.

    Raises:
        ConfigError: every problem, in the file and in what it refers to.
    """
    path = configuration_file(arguments.config)
    file = config.load(path)
    served = loading.load(file, fetches=True).catalog
    _print_catalog(served)
    for view in file.config.views:
        print(f"view {view.name} at {view.effective_path}")
        _print_catalog(served.of_view(view.name))
    if served.left_out:
        print(f"left out ({len(served.left_out)})", *served.left_out, sep="\n")
    if remarks := _remarks(file):
        print(f"remarks ({len(remarks)})", *remarks, sep="\n")
    print(f"{path}: no problems")
    return 0


def _remarks(file: ConfigFile) -> list[Problem]:
    """What is wrong and keeps nothing from being served."""
    found: list[Problem] = []
    for index, backend in enumerate(file.config.backends):
        check_with = kind_of(backend).check_with()
        if check_with is not None:
            found += check_with(backend, file.origin.at("backends", index))
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
