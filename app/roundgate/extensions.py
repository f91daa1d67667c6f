"""The parts that other packages add to the gateway and its command line, as entry points.

roundgate.commands     a module with `declare(commands)`, by the name of a command (`roundgate.cli`)
roundgate.pages        a page of the console, by its name (`roundgate_console.frame.ConsolePage`)
roundgate.extensions   a function, by a name that the gateway knows
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from roundgate.errors import UsageError


def entries(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by their names, sorted. They are not loaded. Of several
    with one name, that of this distribution counts."""
    found = sorted(entry_points(group=group), key=lambda entry: (entry.name, _is_own(entry)))
    return {entry.name: entry for entry in found}


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "roundgate"


def load_extension(name: str) -> Any:
    """Return the function that an installed package registers under a name.

    Raises:
        UsageError: no package registers it.
    """
    entry = entries("roundgate.extensions").get(name)
    if entry is None:
        raise UsageError(f"no installed package registers {name}: install roundgate again")
    return entry.load()
