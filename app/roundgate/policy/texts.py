"""The texts of rules, in which `*` stands for any text, and the URIs of rules.

A server may decode and normalize a URI before it reads a resource. So a rule that denies applies if
any reading of the URI matches, and a rule that allows only if all readings match:

    file:///%73ecret/a   FILE:///secret/a   file:////secret//a   file:///secret     for file:///secret/*
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from itertools import product
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

from roundgate.protocol.uri_template import (
    decodings_of,
    has_dot_segments,
    normal_readings,
)

_DELIMITER: Final = re.compile(r"%(?=[01]|2[356ABCFabcf]|3[ABDFabdf]|40|5[BCDbcd]|7[Ff])")
"""The percent sign of an encoded delimiter or control character, which is another text than the
character itself (RFC 3986 section 2.2)."""
_USER: Final = re.compile(r"//[^/?#]*@")
_FILE_HOST: Final = re.compile(r"\Afile://[^/?#]+")
_LAST_SLASHES: Final = re.compile(r"(?<=[^:/])/+\Z")
_FOLDER: Final = re.compile(r"(?<=[^:/*])/\*+\Z")
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


class RuleTexts:
    """Texts of a rule; `*` stands for any text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._exact = frozenset(text for text in texts if "*" not in text)
        # as fnmatch writes it, a pattern with many stars takes no exponential time
        self._patterns = [
            re.compile(translate(text.replace("[", "[[]").replace("?", "[?]")))
            for text in texts
            if "*" in text
        ]

    def match(self, value: str) -> bool:
        """Return whether a value is one of the texts."""
        return value in self._exact or any(pattern.match(value) for pattern in self._patterns)

    def match_any(self, values: Collection[str]) -> bool:
        """Return whether any of the values is one of the texts."""
        return not self._exact.isdisjoint(values) or (
            bool(self._patterns) and any(map(self.match, values))
        )


class UriReadings(Struct, frozen=True):
    """The texts as which a server may read a URI, or as which people may write a pattern."""

    spelled: frozenset[str]
    """The URI, and its text after each decoding."""
    normal: frozenset[str]
    """These texts as URL parsers normalize them."""
    is_ambiguous: bool
    """Whether the URI has dot segments, so that its text does not say which resource it names."""

    @classmethod
    def of(cls, uri: str) -> UriReadings:
        """Return the readings of a URI or pattern."""
        decodings = [unquote(_DELIMITER.sub("%25", uri)), *decodings_of(uri)[1:]]
        return cls(
            frozenset(map(_with_lower_scheme, decodings)),
            frozenset(map(_trimmed, normal_readings(decodings))),
            has_dot_segments(uri),
        )

    def all(self) -> Iterator[str]:
        """Yield all readings, also for servers that ignore the user, the host of a file, the query or
        the fragment."""
        for text in self.spelled | self.normal:
            yield text
            for rest in (_USER.sub("//", text), _FILE_HOST.sub("file://", text)):
                yield rest
                yield from (_trimmed(rest.partition(end)[0]) for end in "?#" if end in rest)


def _with_lower_scheme(uri: str) -> str:
    scheme, colon, rest = uri.partition(":")
    return f"{scheme.lower()}{colon}{rest}"


def _trimmed(uri: str) -> str:
    """Return a URI with slashes instead of backslashes, and without a slash at the end."""
    return _LAST_SLASHES.sub("", _with_lower_scheme(uri).replace("\\", "/"))


class UriTexts:
    """URIs of a rule; `*` stands for any text, and `/*` at the end also for nothing."""

    def __init__(self, texts: Sequence[str]) -> None:
        readings = [UriReadings.of(text) for text in texts]
        spelled = {text for each in readings for text in _with_folders(each.spelled)}
        normal = {text for each in readings for text in _with_folders(each.normal)}
        self._spelled, self._normal = RuleTexts(sorted(spelled)), RuleTexts(sorted(normal))
        self._all = RuleTexts(sorted(spelled | normal))
        self._texts = sorted(spelled | normal)

    def match_any(self, uri: UriReadings) -> bool:
        """Return whether any reading of a URI matches, for a rule that denies."""
        return self._all.match_any(set(uri.all()))

    def match_all(self, uri: UriReadings) -> bool:
        """Return whether all readings of a URI match, for a rule that allows."""
        return all(map(self._spelled.match, uri.spelled)) and all(
            map(self._normal.match, uri.normal)
        )

    def covers(self, pattern: UriReadings) -> bool:
        """Return whether all URIs of a pattern match."""
        return any(map(self._all.match, pattern.spelled | pattern.normal))

    def overlaps(self, pattern: UriReadings) -> bool:
        """Return whether some URI of a pattern may match."""
        return any(
            _intersect(text, other)
            for text, other in product(self._texts, pattern.spelled | pattern.normal)
        )


def _with_folders(patterns: Iterable[str]) -> Iterator[str]:
    """Yield patterns, and the folder itself for a pattern of everything in it."""
    for pattern in patterns:
        yield pattern
        if _FOLDER.search(pattern) is not None:
            yield _FOLDER.sub("", pattern)


def _intersect(one: str, other: str) -> bool:
    """Return whether some text matches two patterns. Two patterns with stars have a common text if
    their beginnings and ends do not differ."""
    if "*" not in one:
        return RuleTexts([other]).match(one)
    if "*" not in other:
        return RuleTexts([one]).match(other)
    (start, *_, end), (other_start, *_, other_end) = one.split("*"), other.split("*")
    starts = start.startswith(other_start) or other_start.startswith(start)
    return starts and (end.endswith(other_end) or other_end.endswith(end))


def template_pattern(template: str, values: Mapping[str, str]) -> str:
    """Return the pattern of the URIs of a template. `values` has texts for variables that stand
    alone; all other expressions become `*`."""

    def text(expression: re.Match[str]) -> str:
        value = values.get(expression[0][1:-1].lstrip("+"))
        return "*" if value is None else quote(value, safe="/:?#@!$&'()+,;=~")

    return _EXPRESSION.sub(text, template)
