"""The cost of a YAML text, checked before any value is created.

An alias (`*name`) repeats a whole value, so a few lines can stand for any number of values.
PyYAML's parser reports events without following aliases, in time proportional to the text; the
later stages, composing and constructing, are recursive and follow each alias.
"""

from __future__ import annotations

import re
from typing import Any, Final

from roundgate.errors import YamlTooCostly

MAX_DEPTH: Final = 200
MAX_NUMBER: Final = 400
"""The most characters of a number: the time to read one grows with the square of its length."""
_NUMBER: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|[0-9_.:eE+-]+)")


def check(text: bytes, *, max_values: int, max_aliased: int) -> None:
    """Raise YamlTooCostly unless a YAML text can be read at an acceptable cost.

    Args:
        text: the text.
        max_values: the limit on values and keys, including those that aliases repeat.
        max_aliased: the limit on values and keys that aliases repeat; 0 forbids aliases.

    Raises:
        YamlTooCostly: the text is nested too deeply, stands for too many values, contains itself,
            or has a very long number.
        yaml.YAMLError: the text is not YAML.
    """
    import yaml

    counter = _Counter(max_values, max_aliased)
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        counter.take(event, yaml)


class _Counter:
    """A counter of the values of a text, event by event."""

    def __init__(self, max_values: int, max_aliased: int) -> None:
        self._max_values = max_values
        self._max_aliased = max_aliased
        self._values = 0
        self._aliased = 0
        self._open: list[tuple[str | None, int]] = []
        """The anchor of each open list and mapping, and the number of values before it."""
        self._sizes: dict[str, int] = {}
        """The number of values under each anchor."""

    def take(self, event: Any, yaml: Any) -> None:
        line = event.start_mark.line + 1
        match event:
            case yaml.AliasEvent():
                self._take_alias(event.anchor, line)
            case yaml.ScalarEvent():
                _check_number(event, line)
                self._values += 1
                self._close(event.anchor, self._values - 1)
            case yaml.CollectionStartEvent():
                self._open.append((event.anchor, self._values))
                self._values += 1
                if len(self._open) > MAX_DEPTH:
                    raise YamlTooCostly(f"is nested too deeply: {MAX_DEPTH} levels at most", line)
            case yaml.CollectionEndEvent():
                self._close(*self._open.pop())
        if self._values > self._max_values:
            raise YamlTooCostly(f"has more than {self._max_values:,} values", line)

    def _take_alias(self, anchor: str, line: int) -> None:
        if not self._max_aliased:
            raise YamlTooCostly("has an alias (*name)", line)
        if any(anchor == one for one, _ in self._open):
            raise YamlTooCostly(f"contains itself: *{anchor} is within &{anchor}", line)
        size = self._sizes.get(anchor, 0)  # an undefined anchor is an error of the composer
        self._values += size
        self._aliased += size
        if self._aliased > self._max_aliased:
            raise YamlTooCostly(
                f"has aliases (*{anchor}) that repeat more than {self._max_aliased:,} values", line
            )

    def _close(self, anchor: str | None, before: int) -> None:
        if anchor is not None:
            self._sizes[anchor] = self._values - before


def _check_number(event: Any, line: int) -> None:
    if len(event.value) <= MAX_NUMBER:
        return
    is_tagged = (event.tag or "").endswith((":int", ":float"))
    if is_tagged or (not event.style and _NUMBER.fullmatch(event.value)):
        raise YamlTooCostly(
            f"has a number of more than {MAX_NUMBER} characters; put it in quotes", line
        )
