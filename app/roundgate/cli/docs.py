"""`roundgate docs [PAGE]`: the documents of this version, without a network."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from roundgate.errors import UsageError

_PACKAGE: Final = Path(__file__).parents[1]
_IN_WHEEL: Final = _PACKAGE / "docs"
DOCS: Final = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parents[1] / "docs"
"""The folder of the documents: in the wheel, or in the repository that builds it."""


def run(arguments: argparse.Namespace) -> int:
    """Print a page, or the list of all.

    Raises:
        UsageError: there is no such page.
    """
    found = pages()
    if arguments.page is None:
        width = max(map(len, found))
        print(*(f"{name:<{width}}  {_title(path)}" for name, path in found.items()), sep="\n")
        return 0
    wanted = arguments.page.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if wanted not in found:
        near = get_close_matches(wanted, found, 3)
        meant = f"is {' or '.join(near)} meant?" if near else "`roundgate docs` lists them"
        raise UsageError(f"there is no page {wanted!r}: {meant}")
    print(found[wanted].read_text("utf-8"), end="")
    return 0


def pages() -> dict[str, Path]:
    """Return the pages by name, such as `configuration` or `runbooks/rotate-keys`."""
    files = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "site"]
    named = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in files}
    return dict(sorted(named.items(), key=lambda one: ("/" in one[0], one[0])))


def _title(page: Path) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
