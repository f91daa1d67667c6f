"""Values that differ from run to run, replaced by placeholders, numbered in the order
of their first appearance.

A value that the client sends stays as it is unless the server said it before: only
then can a replay know it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from roundgate.cassettes.model import Json, Rule
from roundgate.cassettes.paths import escape
from roundgate.cassettes.redacting import Hidden

_MADE_BY_CLIENTS: Final = frozenset({"token"})
_WHOLE_ONLY: Final = frozenset({"state", "cursor", "token", "id"})
"""Kinds whose values are not looked for within other texts."""
_SHORTEST_WITHIN: Final = 8
_OF_SECRETS: Final = "${secret:"

Piece = tuple[str, bool]
"""A part of a text, and whether it is a placeholder."""


class Namer:
    """Names the values of one conversation."""

    def __init__(
        self,
        rules: Sequence[Rule],
        fixed: Mapping[str, str],
        escaped: Sequence[tuple[re.Pattern[str], str]] = (),
    ) -> None:
        """
        Args:
            rules: select and name the values that become placeholders.
            fixed: placeholders of values that are known in advance.
            escaped: patterns of escaped secrets, with their placeholders.
        """
        self._escaped = escaped
        self._members = {name: rule for rule in rules for name in rule.members}
        self._headers = {name: rule for rule in rules for name in rule.headers}
        self._patterns = [(rule, re.compile(rule.pattern)) for rule in rules if rule.pattern]
        self._known: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}
        self._within: dict[str, str] = dict(fixed)
        self._regex: re.Pattern[str] | None = None
        self._sent: set[str] = set()
        """What looks like such a value and came from the client: it stays as it is."""

    def name(self, kind: str, value: Any, *, numbered: bool = True) -> str:
        """The placeholder of a value, a new one if it was not seen before."""
        if not numbered:
            return f"${{{kind}}}"
        key = (kind, value)
        if key not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[key] = f"${{{kind}:{self._counts[kind]}}}"
            if (
                isinstance(value, str)
                and len(value) >= _SHORTEST_WITHIN
                and kind not in _WHOLE_ONLY
                and value not in self._within
            ):
                self._within[value] = self._known[key]
                self._regex = None
        return self._known[key]

    def known(self, kind: str, value: Any) -> str | None:
        """The placeholder of a value that was seen before."""
        return self._known.get((kind, value))

    def header(self, name: str, value: str, *, is_sent: bool) -> str:
        """A header's value."""
        rule = self._headers.get(name)
        found = None if rule is None else self._by_rule(rule, value, is_sent=is_sent)
        return self.text(value, is_sent=is_sent) if found is None else found

    def value(self, value: Any, *, is_sent: bool) -> Any:
        """A JSON value of a message."""
        match value:
            case Hidden():
                return str(value)
            case str():
                return self.text(value, is_sent=is_sent)
            case dict():
                return self._mapping(value, is_sent=is_sent)
            case list():
                return [self.value(item, is_sent=is_sent) for item in value]
            case int() | float() if not isinstance(value, bool):
                named = self._within.get(str(value), "")
                return named if named.startswith(_OF_SECRETS) else value
        return value

    def _mapping(self, members: Json, *, is_sent: bool) -> Json:
        found: Json = {}
        for key, item in members.items():
            rule = self._members.get(key)
            named = None if rule is None else self._member(rule, item, is_sent=is_sent)
            found[self._key(key)] = self.value(item, is_sent=is_sent) if named is None else named
        return found

    def _key(self, key: str) -> str:
        """The name of a member: as it is, but without secrets."""
        for pattern, name in self._escaped:
            key = "".join(one for one, _ in _split((key, False), pattern, _always(name)))
        for value, name in self._within.items():
            if name.startswith(_OF_SECRETS) and value in key:
                key = key.replace(value, name)
        return key

    def _member(self, rule: Rule, item: Any, *, is_sent: bool) -> Any:
        if isinstance(item, list):
            named = [self._member(rule, one, is_sent=is_sent) for one in item]
            return named if named and None not in named else None
        if not isinstance(item, (str, int)) or isinstance(item, (bool, Hidden)) or item == "":
            return None
        return self._by_rule(rule, item, is_sent=is_sent)

    def _by_rule(self, rule: Rule, value: Any, *, is_sent: bool) -> str | None:
        if is_sent and rule.name not in _MADE_BY_CLIENTS:
            return self.known(rule.name, value)
        if rule.name == "id" and (of_server := self.known("request", value)) is not None:
            return of_server
        return self.name(rule.name, value, numbered=rule.numbered)

    def text(self, text: str, *, is_sent: bool) -> str:
        """A text, with what it mentions of named values."""
        if isinstance(text, Hidden):
            return str(text)
        pieces = [(text, False)]
        for escaped, name in self._escaped:
            pieces = [one for piece in pieces for one in _split(piece, escaped, _always(name))]
        pieces = self._mentions(pieces)
        for rule, pattern in self._patterns:
            named = self._pattern_named(rule, is_sent=is_sent)
            pieces = [one for piece in pieces for one in _split(piece, pattern, named)]
        return "".join(one if is_placeholder else escape(one) for one, is_placeholder in pieces)

    def _mentions(self, pieces: list[Piece]) -> list[Piece]:
        if not self._within:
            return pieces
        if self._regex is None:
            longest_first = sorted(self._within, key=lambda one: (-len(one), one))
            self._regex = re.compile("|".join(map(self._pattern, longest_first)))
        return [
            one for piece in pieces for one in _split(piece, self._regex, self._within.__getitem__)
        ]

    def _pattern(self, value: str) -> str:
        """What a value is found by: a secret everywhere, any other where it does not
        stand within a longer word."""
        if self._within[value].startswith(_OF_SECRETS):
            return re.escape(value)
        return _bounded(value)

    def _pattern_named(self, rule: Rule, *, is_sent: bool) -> Callable[[str], str | None]:
        def named(value: str) -> str | None:
            if is_sent:
                if self.known(rule.name, value) is None:
                    self._sent.add(value)
                return self.known(rule.name, value)
            return (
                None if value in self._sent else self.name(rule.name, value, numbered=rule.numbered)
            )

        return named


def _always(name: str) -> Callable[[str], str | None]:
    return lambda _: name


def _bounded(value: str) -> str:
    """A value that does not stand within a longer word."""
    before = r"(?<!\w)" if value[:1].isalnum() else ""
    after = r"(?!\w)" if value[-1:].isalnum() else ""
    return before + re.escape(value) + after


def _split(
    piece: Piece, pattern: re.Pattern[str], named: Callable[[str], str | None]
) -> list[Piece]:
    text, is_placeholder = piece
    if is_placeholder:
        return [piece]
    found: list[Piece] = []
    at = 0
    for match in pattern.finditer(text):
        if match[0] and (name := named(match[0])) is not None:
            found += [(text[at : match.start()], False), (name, True)]
            at = match.end()
    return [*found, (text[at:], False)]
