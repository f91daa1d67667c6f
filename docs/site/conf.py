"""How Sphinx makes the site of the documents; scripts/docs calls it on a copy of the repository."""

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

project = "Roundgate"
author = "The Roundgate authors"
release = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
root_doc = "index"
include_patterns = [
    "index.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**",
    "bench/README.md",
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
