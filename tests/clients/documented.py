"""The tables of docs/clients.md: what was driven, as the files `expected` and
`expected-stack` have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.clients.capabilities import NO_MEANS, RIGHT, YES
from tests.clients.subjects import ROOT

PAGE: Final = ROOT / "docs/clients.md"
MARKS: Final = (YES, NO_MEANS)
_END: Final = "<!-- end of the table -->"


def table(expected: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows in Markdown."""
    heads = ["client", "version", "speaks", *RIGHT]
    lines = [heads, ["---"] * len(heads)]
    for row in expected.values():
        cells = [row[name] if row[name] in MARKS else "no" for name in RIGHT]
        lines.append([f"`{row['client']}`", row["version"], row["revision"] or "", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_page(name: str) -> str:
    """A table as the page has it."""
    return PAGE.read_text().partition(_begin(name))[2].partition(_END)[0].strip()


def write(name: str, expected: Mapping[str, Mapping[str, Any]]) -> None:
    """Put it into the page."""
    before, _, rest = PAGE.read_text().partition(_begin(name))
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_begin(name)}\n{table(expected)}\n{_END}{after}")


def _begin(name: str) -> str:
    return f"<!-- from tests/clients/{name}.json: scripts/clients --update writes this table -->"
