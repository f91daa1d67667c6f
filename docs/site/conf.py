"""How Sphinx makes the site of the documents; scripts/tools docs calls it on a copy of the repository."""

import runpy
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

project = "Roundgate"
author = "The Roundgate authors"
release = runpy.run_path(str(REPOSITORY / "app/roundgate/version.py"))["VERSION"]
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "index"
include_patterns = [
    "index.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**",
    "bench/*.md",
    "examples/**",
    "tests/README.md",
]
exclude_patterns = ["docs/site"]

html_theme = "furo"
html_title = f"Roundgate {release}"
html_copy_source = False

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
