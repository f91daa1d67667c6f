"""How Sphinx makes the site of the documents; scripts/tools docs calls it on a copy of the repository."""

import runpy
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[2]

project = "Roundgate"
author = "The Roundgate authors"
release = runpy.run_path(str(REPOSITORY / "app/roundgate/version.py"))["VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
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

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "literal"  # docstrings write code between single backticks


def setup(app: Sphinx) -> None:
    """Have napoleon leave the docstrings of properties as they are. Sphinx calls this."""
    app.connect("autodoc-process-docstring", _without_types, priority=400)


def _without_types(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    # napoleon takes what stands before a colon in the first line of a property for its type
    if what in {"attribute", "property"} and lines:
        lines.insert(0, "")
