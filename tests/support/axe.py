"""axe-core, which finds what keeps people from using a page: `scripts/tools axe` installs it from npm."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.chromium import Chromium
from tests.support.documents import ROOT

AXE = ROOT / ".cache/axe/node_modules/axe-core/axe.min.js"
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""WCAG 2.2 at level AA, and what its authors advise."""


@cache
def _source() -> str:
    return AXE.read_text()


async def findings(browser: Chromium) -> list[str]:
    """What axe-core finds on the page, each with its rule and elements."""
    await browser.evaluate(_source() + ";0")
    only = {"runOnly": list(TAGS), "resultTypes": ["violations"]}
    found: list[dict[str, Any]] = await browser.evaluate(
        f"axe.run(document, {only}).then(found => found.violations)"
    )
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:5]]}"
        for each in found
    ]
