"""Results on standard output: bare, so that another program can read them;
notes go to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from roundgate.cli.terminal import escaped_lines, say
from roundgate.client import CallResult

_INDENT: Final = 2


def show_json(value: Any) -> None:
    """A value as JSON: indented on a terminal, on one line in a pipe."""
    if sys.stdout.isatty():
        print(escaped_lines(json.dumps(value, indent=_INDENT, ensure_ascii=False)))
    else:
        print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def show_text(text: str) -> None:
    """Text as it is in a pipe; on a terminal, what would act on it is escaped."""
    print(escaped_lines(text) if sys.stdout.isatty() else text)


def show_result(result: CallResult) -> None:
    """What a tool answered: its structured content where there is some, else its text.

    Of images, sounds and resources only a note says that they are there: `--json` has them whole.
    """
    if "structuredContent" in result.raw:
        show_json(result.structured)
        return
    if result.text:
        show_text(result.text)
    for block in result.content:
        if block.get("type") != "text":
            kind = block.get("mimeType") or block.get("uri") or ""
            say(f"(a block of type {block.get('type')} {kind}: --json shows it)", to=sys.stderr)
