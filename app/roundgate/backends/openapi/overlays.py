"""Overlays (Overlay Specification 1.0): changes to a third party's document, in a separate file.

An overlay is a list of actions. Each selects parts of the document with JSONPath (RFC 9535), and
merges a value into them or removes them. An invalid action is an error with its file and place: a
document is changed by all of its overlays, or not at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from roundgate.errors import ConfigError, Problem

Location: TypeAlias = tuple[int | str, ...]
"""Keys and indexes from the root of a document to one of its values."""
Find: TypeAlias = Callable[[Any], list[Location]]

MAX_ADDED: Final = 1_000_000
"""The maximum number of values that all overlays together may add to a document."""
_WORDS: Final = frozenset({"target", "description", "update", "remove"})


class OverlayAction(Struct, frozen=True):
    """One change ("Action Object"), and its place in the overlay."""

    file: str
    pointer: str
    target: str
    find: Find
    is_removal: bool
    update: Any

    def problem(self, message: str, remedy: str) -> Problem:
        """Return a problem at the place of the action."""
        return Problem(self.file, self.pointer, message, remedy)


def read_actions(file: str, overlay: Any) -> list[OverlayAction]:
    """Return the actions of a parsed overlay, in order. `file` is its name in problems.

    Raises:
        ConfigError: the document is not an overlay, or has invalid actions.
    """
    if not isinstance(overlay, dict) or not str(overlay.get("overlay", "")).startswith("1."):
        remedy = "begin it with `overlay: 1.0.0`, `info` and `actions`"
        raise ConfigError([Problem(file, "", "is not an overlay of version 1", remedy)])
    entries = overlay.get("actions")
    if not isinstance(entries, list) or not entries:
        raise ConfigError([Problem(file, "/actions", "has no actions", "list at least one")])
    compile_path = _jsonpath(file)
    actions = [
        _action(file, f"/actions/{n}", entry, compile_path) for n, entry in enumerate(entries)
    ]
    if problems := [entry for entry in actions if isinstance(entry, Problem)]:
        raise ConfigError(problems)
    return [entry for entry in actions if isinstance(entry, OverlayAction)]


def _action(
    file: str, at: str, entry: Any, compile_path: Callable[[str], Find]
) -> OverlayAction | Problem:
    if not isinstance(entry, dict) or not isinstance(entry.get("target"), str):
        return Problem(
            file, at, "is not an action", "give it a `target`, and `update` or `remove: true`"
        )
    if unknown := [word for word in entry if word not in _WORDS and not str(word).startswith("x-")]:
        remedy = f"an action has {', '.join(sorted(_WORDS))}"
        return Problem(file, f"{at}/{unknown[0]}", "is not a member of an action", remedy)
    removes = entry.get("remove", False)
    if not isinstance(removes, bool) or not (removes or "update" in entry):
        return Problem(file, at, "changes nothing", "give it an `update`, or `remove: true`")
    try:
        find = compile_path(entry["target"])
    except ValueError as error:
        remedy = 'write JSONPath (RFC 9535), such as $.paths["/pets"].get'
        return Problem(file, f"{at}/target", f"is not JSONPath: {error}", remedy)
    return OverlayAction(file, at, entry["target"], find, removes, entry.get("update"))


def _jsonpath(file: str) -> Callable[[str], Find]:
    """Return a function that compiles an expression, or raises ValueError."""
    try:
        import jsonpath_rfc9535 as jsonpath
    except ImportError:
        remedy = "pip install 'roundgate[openapi]'; a gateway with an index does not need it"
        problem = Problem(file, "", "overlays need the package jsonpath-rfc9535", remedy)
        raise ConfigError([problem]) from None

    def compiled(expression: str) -> Find:
        try:
            query = jsonpath.compile(expression)
        except (jsonpath.JSONPathError, RecursionError) as error:
            raise ValueError(str(error).splitlines()[0][:200]) from None
        return lambda document: [node.location for node in query.finditer(document)]

    return compiled


def overlaid(document: Any, actions: Sequence[OverlayAction]) -> tuple[Any, list[Problem]]:
    """Return a changed copy of a document, and a problem for each action without a target. The
    specification allows such actions, but most are mistakes.

    Raises:
        ConfigError: an update does not fit its target, or the actions add more than MAX_ADDED
            values.
    """
    changed, idle, remaining = copy.deepcopy(document), [], MAX_ADDED
    for action in actions:
        locations = _found(action, changed)
        if not locations:
            remedy = "correct `target`, or remove the action"
            idle.append(action.problem(f"target {action.target!r} is not in the document", remedy))
        elif action.is_removal:
            _remove(action, changed, locations)
        else:
            remaining -= len(locations) * _count(action.update)
            if remaining < 0:
                message = f"the overlays add more than {MAX_ADDED:,} values"
                raise ConfigError([action.problem(message, "choose fewer targets")])
            _update(action, changed, locations)
    return changed, idle


def _found(action: OverlayAction, document: Any) -> list[Location]:
    import jsonpath_rfc9535 as jsonpath

    try:
        return list(dict.fromkeys(action.find(document)))
    except (jsonpath.JSONPathError, RecursionError) as error:
        message = f"target {action.target!r} cannot be evaluated: {str(error)[:200]}"
        raise ConfigError([action.problem(message, "use a simpler `target`")]) from None


def _remove(action: OverlayAction, document: Any, locations: Sequence[Location]) -> None:
    if () in locations:
        raise ConfigError([action.problem("removes the whole document", "choose a part of it")])

    def depth_and_index(location: Location) -> tuple[int, int]:
        return len(location), location[-1] if isinstance(location[-1], int) else 0

    # remove inner values first, and a list's items from the end, so that other locations stay valid
    for location in sorted(locations, key=depth_and_index, reverse=True):
        del _at(document, location[:-1])[location[-1]]


def _update(action: OverlayAction, document: Any, locations: Sequence[Location]) -> None:
    for location, node in [(place, _at(document, place)) for place in locations]:
        if isinstance(node, list):
            node.append(copy.deepcopy(action.update))
        elif isinstance(node, dict) and isinstance(action.update, dict):
            _merge(node, action.update)
        else:
            raise ConfigError([_misfit(action, location, node)])


def _misfit(action: OverlayAction, location: Location, node: Any) -> Problem:
    where = "".join(f"/{step}" for step in location)
    if isinstance(node, dict):
        message, remedy = "the update of an object is not an object", "give the members that change"
    else:
        message, remedy = (
            "only objects and lists can be updated",
            "choose the object that contains the value",
        )
    return action.problem(f"{message}: at {where[:200] or 'the root'}", remedy)


def _merge(node: dict[str, Any], update: Mapping[str, Any]) -> None:
    """Merge objects, join lists, and replace other values."""
    for name, value in update.items():
        existing = node.get(name)
        if isinstance(existing, dict) and isinstance(value, dict):
            _merge(existing, value)
        elif isinstance(existing, list) and isinstance(value, list):
            existing.extend(copy.deepcopy(value))
        else:
            node[name] = copy.deepcopy(value)


def _at(document: Any, location: Location) -> Any:
    for step in location:
        document = document[step]
    return document


def _count(value: Any) -> int:
    count, waiting = 0, [value]
    while waiting:
        current = waiting.pop()
        count += 1
        if isinstance(current, (dict, list)):
            waiting.extend(current.values() if isinstance(current, dict) else current)
    return count
