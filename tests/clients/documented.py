"""The table of docs/clients.md: what was driven, as `expected.json` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.clients.capabilities import NO_MEANS, RIGHT, YES
from tests.clients.subjects import ROOT

PAGE: Final = ROOT / "docs/clients.md"
MARKS: Final = (YES, NO_MEANS)
BEGIN: Final = "<!-- what was driven: scripts/clients --update writes this table -->"
END: Final = "<!-- end of what was driven -->"


def table(expected: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows in Markdown."""
    heads = ["client", "version", "speaks", *RIGHT]
    lines = [heads, ["---"] * len(heads)]
    for row in expected.values():
        cells = [row[name] if row[name] in MARKS else "no" for name in RIGHT]
        lines.append([f"`{row['client']}`", row["version"], row["revision"] or "", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_page() -> str:
    """The table as the page has it."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write(expected: Mapping[str, Mapping[str, Any]]) -> None:
    """Put it into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(expected)}\n{END}{after}")
