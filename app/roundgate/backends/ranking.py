"""Which of many short texts fits some words best: BM25F, in memory.

    tf    = Σ over fields that have the word: weight / (1 − b + b · length of the field / mean length)
    score = (Σ over words: idf · tf / (k₁ + tf)) · how much of the title was asked for

Whether a field has a word counts, not how often: these are names and descriptions, where a word
that is repeated says nothing more. Words lose their endings, so that "listing issues" finds
"list issue". A word also stands for others that people use for the same (`_GROUPS`), with less
weight. Knows nothing of tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

K1: Final = 1.2
B: Final = 0.75
SYNONYM: Final = 0.5
"""What a word counts that only means the same."""
TITLE: Final = 0.5
"""The part of a score that depends on how much of the title was asked for: "fork" means "Create a
fork" rather than "Get fork settings of private repositories"."""
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ENDINGS: Final = ("ation", "ion", "ing", "or", "er", "ee", "ed")
_SAY_NOTHING: Final = """
    a an and any are as at be been by can do does for from get give has have how i
    if in into is it its many much of often on or our please put so some somebody
    someone that the their them there these this those to us use using want was we
    what when where whether which who will with you your
"""
_STOP: Final = frozenset(_SAY_NOTHING.split())
_SPELLED: Final = {
    "repository": "repo",
    "repositories": "repo",
    "repos": "repo",
    "organization": "org",
    "organizations": "org",
    "organisation": "org",
    "organisations": "org",
    "orgs": "org",
    "config": "configuration",
    "configs": "configuration",
    "info": "information",
    "mail": "email",
    "licence": "license",
    "auth": "authentication",
    "admin": "administrator",
    "db": "database",
    "docs": "document",
    "id": "identifier",
    "ids": "identifier",
}
"""Words that are one, however they are written."""
_GROUPS: Final = (
    "create add make new open register insert",
    "delete remove drop erase destroy discard",
    "update edit change modify set alter adjust rename",
    "list show all see view display every",
    "fetch read retrieve show see find look view",
    "search find query lookup",
    "send post submit",
    "cancel stop abort halt",
    "run trigger start dispatch execute launch",
    "enable activate",
    "disable deactivate",
    "approve accept",
    "reject decline refuse deny",
    "user person account people member",
    "my me myself authenticated current own",
    "file content document",
    "folder directory",
    "log logs history",
    "picture image photo",
    "message note comment",
    "permission access right",
    "configuration setting option",
    "information detail",
    "token key credential",
    "upload attach",
    "download export",
    "issue ticket",
)


def words_of(text: str) -> list[str]:
    """The words of a text or a name (`listForRepo`, `list-for-repo`), without their endings; those
    that say nothing are left out."""
    found = (part.lower() for part in _PARTS.findall(text))
    return [stem(_SPELLED.get(word, word)) for word in found if word not in _STOP]


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """A word without its ending. It need not be a word any more: it has to be the
    same for all forms of one."""
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and word[-2] not in "su":
        word = word[:-1]
    for ending in _ENDINGS:
        if len(word) > len(ending) + 3 and word.endswith(ending):
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def _same() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for group in _GROUPS:
        stems = {stem(word) for word in group.split()}
        for one in stems:
            found.setdefault(one, set()).update(stems - {one})
    return {word: frozenset(others) for word, others in found.items()}


_SAME: Final = _same()


class Ranking:
    """An index of documents. A document is a list of as many fields as there are
    weights, its title first."""

    def __init__(self, weights: Sequence[float], documents: Iterable[Sequence[str]]) -> None:
        found = [[dict.fromkeys(words_of(text)) for text in fields] for fields in documents]
        self._where: dict[str, dict[int, float]] = {}
        for place, weight in enumerate(weights):
            mean = sum(len(fields[place]) for fields in found) / max(1, len(found))
            for number, fields in enumerate(found):
                words = fields[place]
                gain = weight / (1 - B + B * len(words) / max(1.0, mean))
                for word in words:
                    places = self._where.setdefault(word, {})
                    places[number] = places.get(number, 0.0) + gain
        self._rarities = {
            word: math.log(1 + (len(found) - len(places) + 0.5) / (len(places) + 0.5))
            for word, places in self._where.items()
        }
        self._titles = [frozenset(fields[0]) for fields in found]
        self._wholes = [sum(map(self._rarities.__getitem__, title)) for title in self._titles]

    def best(self, query: str, limit: int, allowed: Callable[[int], bool]) -> list[int]:
        """The numbers of the documents that fit best, the best first; only
        those that are allowed."""
        given = dict.fromkeys(words_of(query), 1.0)
        for word in list(given):
            for other in _SAME.get(word, ()):
                given.setdefault(other, SYNONYM)
        scores: dict[int, float] = {}
        for word in [one for one in given if one in self._where]:
            worth = given[word] * self._rarities[word]
            for number, gain in self._where[word].items():
                scores[number] = scores.get(number, 0.0) + worth * gain / (K1 + gain)
        for number in scores:
            scores[number] *= 1 - TITLE + TITLE * self._part_of_title(number, given)
        ranked = sorted(scores, key=lambda number: (-scores[number], number))
        return list(islice((number for number in ranked if allowed(number)), limit))

    def _part_of_title(self, number: int, given: Mapping[str, float]) -> float:
        """How much of a title was asked for, from 0 to 1."""
        said = sum(given[one] * self._rarities[one] for one in self._titles[number] if one in given)
        return said / self._wholes[number] if said else 0.0
