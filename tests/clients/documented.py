"""The table of docs/clients.md: what was driven, as `expected.json`, `expected-kill.json` and
`expected-stack.json` have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.clients.capabilities import NO_MEANS, RIGHT, YES
from tests.clients.subjects import ROOT

PAGE: Final = ROOT / "docs/clients.md"
MARKS: Final = (YES, NO_MEANS)
_BEGIN: Final = (
    "<!-- from tests/clients/expected*.json: scripts/clients --update writes this table -->"
)
_END: Final = "<!-- end of the table -->"
_FILES: Final = {
    "expected": "",
    "expected-kill": " with `--kill`",
    "expected-stack": " with `--stack`",
}
"""Each file of results, and what the table adds to a failure in it."""


def table() -> str:
    """Return the rows in Markdown: what each client has no means for, and what failed."""
    heads = ["client", "version", "speaks", "has no means for", "fails"]
    lines = [heads, ["---"] * len(heads)]
    results = {name: _read(name) for name in _FILES}
    for subject, row in results["expected"].items():
        lacks = [name for name in RIGHT if row[name] == NO_MEANS]
        fails = [
            f"{name}{_FILES[file]}"
            for file, rows in results.items()
            for name in RIGHT
            if rows[subject][name] not in MARKS
        ]
        client = [f"`{row['client']}`", row["version"], row["revision"] or ""]
        lines.append([*client, ", ".join(lacks), ", ".join(fails)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_page() -> str:
    """Return the table as the page has it."""
    return PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0].strip()


def write() -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{after}")


def _read(name: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name(f"{name}.json").read_text()
    )
    return rows
