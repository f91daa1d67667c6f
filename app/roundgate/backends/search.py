"""Search in place of a long list of tools: three tools and the pinned tools represent the catalog.

    search_tools    words → names and purposes, the best match first
    describe_tool   a name → its description and the schema of its arguments
    call_tool       a name and arguments → the result of the tool itself

Callers find only the tools that their scopes and the rules of `policy` allow. A call through
`call_tool` is a call of the tool that it names (`roundgate.methods.extensions`), with that tool's
questions, approvals, tasks, retries and progress.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from roundgate.backends.base import Returned, Tool, encoded, meta_of
from roundgate.backends.catalog import Catalog, ServedTool, serve
from roundgate.backends.config import SearchConfig
from roundgate.backends.shaping import is_known
from roundgate.errors import ConfigError, Problem, ToolError
from roundgate.protocol import Pages, TextContent, ToolResult
from roundgate.protocol.apps import is_for_models
from roundgate.replay import Context
from roundgate.settings import Origin

K1: Final = 1.2
"""The parameter k₁ of BM25F. With a smaller value, presence counts more than weight."""
B: Final = 0.75
"""The parameter b of BM25F, from 0 to 1, which is the penalty for long fields."""
SYNONYM: Final = 0.5
"""The weight of a synonym, relative to the word itself."""
TITLE: Final = 0.5
"""The part of a score that depends on how much of the title the query covers: "fork" means "Create
a fork" rather than "Get fork settings of private repositories"."""
CORRECTED: Final = 0.8
"""The weight of a word that differs in a letter from a word of the query."""
SHORTEST_CORRECTED: Final = 4
LONGEST_CORRECTED: Final = 24
"""The lengths of stems among which misspelt words are found."""
READS: Final = 0.5
"""The factor of a tool that only reads, if a query asks for a change."""
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ENDINGS: Final = ("ation", "ion", "ing", "or", "er", "ee", "ed")
_SAY_NOTHING: Final = """
    a an and any are as at be been by can do does for from get give has have how i
    if in into is it its many much of often on or our please put so some somebody
    someone that the their them there these this those to us use using want was we
    what when where whether which who will with you your
"""
_STOP: Final = frozenset(_SAY_NOTHING.split())
_SPELLINGS: Final = (
    "repo repos repository repositories",
    "org orgs organization organizations organisation organisations",
    "configuration config configs",
    "information info",
    "email mail",
    "license licence",
    "authentication auth",
    "administrator admin",
    "database db",
    "document docs",
    "identifier id ids",
)
"""The spellings of a word, the preferred one first."""
_SPELLED: Final = {
    other: preferred for preferred, *others in map(str.split, _SPELLINGS) for other in others
}
_ACTIONS: Final = (
    "create add make new open register insert publish",
    "delete remove drop erase destroy discard",
    "update edit change modify set alter adjust rename close reopen archive",
    "send post submit publish",
    "cancel stop abort halt",
    "run trigger start dispatch execute launch",
    "enable activate protect",
    "disable deactivate",
    "approve accept",
    "reject decline refuse deny",
    "upload attach",
)
"""Words with one meaning, which ask for a change."""
_GROUPS: Final = (
    *_ACTIONS,
    "list show all see view display every",
    "fetch read retrieve show see find look view",
    "search find query lookup",
    "branch reference ref tag",
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
    "download export",
    "issue ticket",
)
"""Words with one meaning."""


def word_stems(text: str) -> list[str]:
    """Return the stems of the words in a text or a name (`listForRepo`), without stop words."""
    words = (part.lower() for part in _PARTS.findall(text))
    return [stem(_SPELLED.get(word, word)) for word in words if word not in _STOP]


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """Return a word without its ending. The forms of a word usually share this stem, which need not
    be a word."""
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and word[-2] not in "su":  # not class, status
        word = word[:-1]
    for ending in _ENDINGS:
        if len(word) > len(ending) + 3 and word.endswith(ending):
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "ls":  # runn(ing), but call(ing), pass(ed)
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def _same() -> dict[str, frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for group in _GROUPS:
        stems = {stem(word) for word in group.split()}
        for variant in stems:
            groups.setdefault(variant, set()).update(stems - {variant})
    return {word: frozenset(others) for word, others in groups.items()}


_SAME: Final = _same()
_ACTS: Final = frozenset(stem(word) for group in _ACTIONS for word in group.split())


def _shortened(word: str) -> set[str]:
    """Return a word, and each text that it becomes without one of its letters. Two words that differ
    in a letter, or in the order of two, share one."""
    return {word, *(word[:place] + word[place + 1 :] for place in range(len(word)))}


class Ranking:
    """A BM25F index of documents. A document is a list of fields, the title first:

        tf    = Σ over fields that have the word: weight / (1 − b + b · length / mean length)
        score = (Σ over words: idf · tf / (k₁ + tf)) · (1 − t + t · part of the title that the query covers)

    b is `B`, k₁ is `K1`, t is `TITLE`. A word counts once in a field: in a name or description,
    repetition adds nothing. Synonyms (`_GROUPS`) count less, and so do words that differ in a letter
    from a word that no document has. If a query asks for a change, the documents in `reads` count
    less.
    """

    def __init__(
        self,
        weights: Sequence[float],
        documents: Iterable[Sequence[str]],
        reads: Collection[int] = (),
    ) -> None:
        self._reads = reads
        indexed = [[dict.fromkeys(word_stems(text)) for text in fields] for fields in documents]
        self._where: dict[str, dict[int, float]] = {}
        for place, weight in enumerate(weights):
            mean = sum(len(fields[place]) for fields in indexed) / max(1, len(indexed))
            for number, fields in enumerate(indexed):
                words = fields[place]
                gain = weight / (1 - B + B * len(words) / max(1.0, mean))
                for word in words:
                    places = self._where.setdefault(word, {})
                    places[number] = places.get(number, 0.0) + gain
        self._rarities = {
            word: math.log(1 + (len(indexed) - len(places) + 0.5) / (len(places) + 0.5))
            for word, places in self._where.items()
        }
        self._near: dict[str, list[str]] = {}
        for word in {**self._where, **_SAME}:
            if SHORTEST_CORRECTED <= len(word) <= LONGEST_CORRECTED:
                for part in _shortened(word):
                    self._near.setdefault(part, []).append(word)
        self._titles = [frozenset(fields[0]) for fields in indexed]
        self._wholes = [sum(map(self._rarities.__getitem__, title)) for title in self._titles]

    def best(self, query: str, limit: int, allowed: Callable[[int], bool]) -> list[int]:
        """Return the numbers of the allowed documents that match the query best, the best first."""
        weights = dict.fromkeys(word_stems(query), 1.0)
        for word in list(weights):
            for near in self._corrected(word):
                weights.setdefault(near, CORRECTED)
        for word, weight in list(weights.items()):
            for synonym in _SAME.get(word, ()):
                weights.setdefault(synonym, SYNONYM * weight)
        acts = not _ACTS.isdisjoint(weights)
        scores: dict[int, float] = {}
        for word in [known for known in weights if known in self._where]:
            worth = weights[word] * self._rarities[word]
            for number, gain in self._where[word].items():
                scores[number] = scores.get(number, 0.0) + worth * gain / (K1 + gain)
        for number in scores:
            scores[number] *= 1 - TITLE + TITLE * self._part_of_title(number, weights)
            if acts and number in self._reads:
                scores[number] *= READS
        ranked = sorted(scores, key=lambda number: (-scores[number], number))
        return list(islice((number for number in ranked if allowed(number)), limit))

    def _corrected(self, word: str) -> set[str]:
        """Return the known words that differ in a letter from an unknown word."""
        is_known = word in self._where or not _SAME.get(word, frozenset()).isdisjoint(self._where)
        if is_known or not SHORTEST_CORRECTED - 1 <= len(word) <= LONGEST_CORRECTED:
            return set()
        return {near for part in _shortened(word) for near in self._near.get(part, ())}

    def _part_of_title(self, number: int, weights: Mapping[str, float]) -> float:
        matched = sum(
            weights[word] * self._rarities[word] for word in self._titles[number] if word in weights
        )
        return matched / self._wholes[number] if matched else 0.0


SEARCH: Final = "search_tools"
DESCRIBE: Final = "describe_tool"
CALL: Final = "call_tool"
MAX_RESULTS: Final = 20
MAX_QUERY: Final = 500
_LINE: Final = 160
"""The maximum length of a description in a search result, in characters."""
_READ: Final = 500
"""The number of characters that are indexed of a description's first line, and of the rest."""
_NAME: Final = {"type": "string", "description": f"A name that {SEARCH} has returned."}


def with_search(catalog: Catalog, config: SearchConfig | None, origin: Origin) -> Catalog:
    """Return the catalog with search in place of its list, if it has more tools than `above`.

    Raises:
        ConfigError: a tool has the name of one of the search tools, or no tool has a pinned name.
    """
    if config is None:
        return catalog
    may_be_missing = bool(catalog.missing) or catalog.is_tolerant
    if unknown := not_pinned(catalog.tools, config, origin, may_be_missing=may_be_missing):
        raise ConfigError(unknown)
    if len(catalog.tools) <= config.above:
        return catalog
    clashes = [name for name in (SEARCH, DESCRIBE, CALL) if name in catalog.tools]
    if clashes:
        remedy = "give it another name: `override: {NAME: {name: …}}` of its back end, or a prefix"
        raise ConfigError(
            [
                origin.problem(
                    f"a back end has a tool {name!r}, which is the name of a search tool", remedy
                )
                for name in clashes
            ]
        )
    own = _Search(catalog, config).tools()
    problems: list[Problem] = []
    served = {
        tool.definition["name"]: added
        for tool in own
        if (added := serve(tool.definition["name"], tool, "", problems)) is not None
    }
    assert not problems, problems
    pinned = [
        item
        for item in catalog.tool_pages.items
        if not catalog.tools[item[0]].backend  # the gateway's own, such as read_more
        or not is_for_models(
            meta_of(catalog.tools[item[0]].tool.definition)
        )  # hosts look it up by name
        or any(fnmatchcase(item[0], pattern) for pattern in config.pinned)
    ]
    items = [(tool.definition["name"], encoded(tool.definition)) for tool in own]
    return replace(
        catalog,
        tools={**catalog.tools, **served},
        tool_pages=Pages([*items, *pinned], catalog.tool_pages.size),
        call_tool=CALL,
    )


def not_pinned(
    tools: Collection[str], config: SearchConfig, origin: Origin, *, may_be_missing: bool
) -> list[Problem]:
    """Return a problem for each pinned name without a tool; none if tools may be missing now."""
    if may_be_missing:
        return []
    remedy = "correct the name; `roundgate check` lists them, with their prefixes"
    return [
        origin.at("pinned", number).problem(f"no tool is called {name!r}", remedy)
        for number, name in enumerate(config.pinned)
        if not is_known(name, tools)
    ]


class _Search:
    """The three search tools."""

    def __init__(self, catalog: Catalog, config: SearchConfig) -> None:
        self._served = [
            served
            for served in catalog.tools.values()
            if served.backend and is_for_models(meta_of(served.tool.definition))
        ]
        self._by_name = catalog.tools
        self._results = config.results
        self._checks_scopes = catalog.checks_scopes
        self._ranking: Ranking | None = None

    def tools(self) -> list[Tool]:
        query = {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_QUERY,
            "description": "The task, in a few words.",
        }
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": self._results}
        arguments = {"type": "object", "description": "Its arguments.", "default": {}}
        search = (
            f"Find tools by what they do: there are {len(self._served):,}, and most are not listed."
            " Returns their names, arguments and first lines, the best first. Then use"
            f" {DESCRIBE}, and {CALL}."
        )
        describe = "Return a tool's description and the JSON Schema of its arguments."
        call = f"Call a tool. {DESCRIBE} returns the schema of its arguments."
        return [
            Tool(_definition(SEARCH, search, _READS, query=query, limit=limit), self._search),
            Tool(_definition(DESCRIBE, describe, _READS, name=_NAME), self._describe),
            Tool(_definition(CALL, call, _WRITES, name=_NAME, arguments=arguments), _never_called),
        ]

    async def _search(self, context: Context, arguments: dict[str, Any]) -> Returned:
        if self._ranking is None:  # in a thread: indexing takes some 100 ms for a thousand tools
            self._ranking = await asyncio.to_thread(
                lambda: Ranking(_WEIGHTS, map(_fields, self._served), self._reading())
            )
        matches = self._ranking.best(
            arguments["query"],
            arguments.get("limit", self._results),
            lambda number: self._is_for(context, self._served[number]),
        )
        if not matches:
            return _text(
                "No tool has any of these words. Try others: the action and its object, such as"
                " 'cancel order', in the language of the tools."
            )
        return _text("\n".join(_line(self._served[number]) for number in matches))

    def _reading(self) -> frozenset[int]:
        hints = (served.tool.definition.get("annotations") or {} for served in self._served)
        return frozenset(
            number for number, hint in enumerate(hints) if hint.get("readOnlyHint") is True
        )

    async def _describe(self, context: Context, arguments: dict[str, Any]) -> Returned:
        served = self._by_name.get(arguments["name"])
        if (
            served is None
            or not self._is_for(context, served)
            or not is_for_models(meta_of(served.tool.definition))
        ):
            name = arguments["name"][:64]
            raise ToolError(f"There is no tool {name!r}; search_tools finds the names")
        return _text(encoded(served.tool.definition).decode())

    def _is_for(self, context: Context, served: ServedTool) -> bool:
        return served.is_for(context.principal, checks_scopes=self._checks_scopes)


async def _never_called(context: Context, arguments: dict[str, Any]) -> Returned:
    raise AssertionError("call_tool is replaced by the tool that its arguments name")


_READS: Final = {"readOnlyHint": True, "openWorldHint": False}
_WRITES: Final = {"readOnlyHint": False, "destructiveHint": True}


def _definition(
    name: str, description: str, hints: Mapping[str, bool], /, **properties: Any
) -> dict[str, Any]:
    """Return the definition of a tool whose first argument is required."""
    return {
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": [next(iter(properties))],
            "additionalProperties": False,
        },
        "annotations": dict(hints),
    }


_WEIGHTS: Final = (3.0, 3.0, 1.5, 0.5, 0.5, 1.0)


def _fields(served: ServedTool) -> tuple[str, ...]:
    definition, about = served.tool.definition, served.tool.about
    properties = definition["inputSchema"].get("properties", {})
    first, _, rest = (definition.get("description") or "").strip().partition("\n")
    return (
        definition.get("title") or first[:_LINE],
        served.name,
        first[:_READ],
        rest[:_READ],
        " ".join(properties),
        " ".join([*about.tags, about.path or ""]),
    )


def _line(served: ServedTool) -> str:
    """Return a line about a tool: name, arguments (optional ones in brackets), and purpose."""
    definition = served.tool.definition
    schema = definition["inputSchema"]
    needed = [name for name in schema.get("required", ()) if name in schema.get("properties", {})]
    more = [name for name in schema.get("properties", {}) if name not in needed]
    listed = ", ".join([*needed, *(f"[{name}]" for name in more[:6]), *(["…"] if more[6:] else [])])
    text = (definition.get("description") or definition.get("title") or "").strip()
    first = text.partition("\n")[0]
    shown = first if len(first) <= _LINE else first[: _LINE - 1] + "…"
    return f"{served.name}({listed}): {shown}" if shown else f"{served.name}({listed})"


def _text(text: str) -> ToolResult:
    return ToolResult((TextContent(text),))
