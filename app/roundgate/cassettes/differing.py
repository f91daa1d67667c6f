"""Two recordings of one conversation, and what differs between them, in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from roundgate.cassettes.document import interaction_document
from roundgate.cassettes.matching import Bindings, compare
from roundgate.cassettes.model import Cassette
from roundgate.cassettes.placeholders import parse


def differences(recorded: Cassette, now: Cassette) -> list[str]:
    """What to tell, a line each; empty if both say the same, whatever their
    placeholders stand for."""
    return list(_differences(recorded, now))


def _differences(recorded: Cassette, now: Cassette) -> Iterator[str]:
    bindings = Bindings()
    pairs = zip_longest(recorded.interactions, now.interactions)
    for number, (before, after) in enumerate(pairs, 1):
        if before is None or after is None:
            there = before or after
            title = "" if there is None else there.title
            yield f"{number}: {title} {'is new' if before is None else 'does not come any more'}"
            continue
        told = compare(
            interaction_document(before),
            _as_said(interaction_document(after)),
            bindings,
            (),
            recorded.ignore,
        )
        for count, one in enumerate(told):
            if count == 0:
                yield f"{number}: {before.title}"
            yield from (f"  {line}" for line in str(one).splitlines())


def _as_said(value: Any) -> Any:
    """A value of a cassette with its placeholders as if they were what was said."""
    match value:
        case str():
            return "".join(map(str, parse(value)))
        case dict():
            return {key: _as_said(item) for key, item in value.items()}
        case list():
            return [_as_said(item) for item in value]
    return value
