"""Text on a terminal: what callers and services said must not move the cursor, hide a line or turn text around."""

from __future__ import annotations

import sys
from typing import TextIO

from roundgate.logs import escaped


def say(*values: object, to: TextIO | None = None) -> None:
    """Print one line, with every character that a terminal would act on written as its escape."""
    print(" ".join(escaped(str(value)) for value in values), file=to or sys.stdout)
