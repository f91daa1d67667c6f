"""The documents hang together: links and their anchors lead somewhere, and each list of
files has all of them."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import tomllib
from contextlib import suppress
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import roundgate
import roundgate.client
from docs.site import reference
from roundgate.config import GatewayConfig
from tests.support.documents import ROOT, blocks
from tests.support.said import measured

PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("bench/*.md"),
        ROOT / "tests" / "README.md",
    }
)
DOCS = ROOT / "docs"
SITE = DOCS / "site" / "index.md"


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def metrics() -> frozenset[str]:
    """The names of all instruments."""
    return frozenset(said.template for said in measured())


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return frozenset(re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{target} does not exist"
        assert linked.is_relative_to(ROOT), f"{target} is outside the repository"
        if anchor:
            assert anchor in anchors(linked), (
                f"{linked.name} has no heading #{anchor}; it has {sorted(anchors(linked))}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # tells of files that were
        return
    named = re.findall(
        r"`((?:app|bench|docs|examples|infra|scripts|tests)/[\w./-]*\w)(?: [^`]*)?`", prose(page)
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def settings_of(annotation: Any) -> set[str]:
    """The settings that a section of gateway.yaml may have, whichever of its models it is."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return set(annotation.model_fields)
    return {name for one in get_args(annotation) for name in settings_of(one)}


def exists(name: str) -> bool:
    """Whether a dotted name is a module of ours, something in one, or a setting."""
    first, *rest = name.removeprefix("roundgate.").split(".")
    if first.startswith("roundgate_"):
        found: Any = importlib.import_module(first)
        first, *rest = rest
    else:
        found = roundgate
    section = GatewayConfig.model_fields.get(first)
    if section is not None and rest and rest[0] in settings_of(section.annotation):
        return True
    for part in (first, *rest):
        with suppress(ImportError):
            if isinstance(found, ModuleType):
                importlib.import_module(f"{found.__name__}.{part}")
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_of_the_code_that_a_page_uses_is_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # tells of names that were
        return
    modules = {
        path.stem for path in [*(ROOT / "app").iterdir(), *(ROOT / "app/roundgate").iterdir()]
    }
    tops = modules.union(GatewayConfig.model_fields, {"roundgate"}) - {"client", "arguments"}
    dotted = re.findall(r"`([a-z_]\w*(?:\.\w+)+)[`(]", prose(page))
    ours = {
        name
        for name in dotted
        if name.split(".")[0] in tops and not re.search(r"\.(?:py|md|ya?ml|json|lock)$", name)
    }
    assert sorted(name for name in ours - metrics() if not exists(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_longer_than_120_characters(page: Path) -> None:
    lines = (line for line in prose(page).splitlines() if not line.startswith("|"))
    assert [line for line in lines if len(line) > 120 and "://" not in line] == []


def test_every_decision_has_its_line_in_the_list() -> None:
    files = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    listed = re.findall(
        r"^\| \[(\d{4})\]\(([^)]+)\) \| \S",
        (DOCS / "decisions" / "README.md").read_text(),
        re.MULTILINE,
    )
    assert [name for _, name in listed] == files, (
        "docs/decisions/README.md: list each file once, by number: | [0042](0042-its-name.md) | the choice in a line |"
    )
    assert [number for number, _ in listed] == sorted({name[:4] for name in files}), (
        "two decisions have one number"
    )


def test_every_page_is_in_the_list_of_documents() -> None:
    index = (DOCS / "README.md").read_text()
    missing = [
        path.name
        for path in DOCS.glob("*.md")
        if path.name != "README.md" and f"({path.name})" not in index
    ]
    assert missing == [], f"docs/README.md: say in its table for whom these are: {missing}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = {
        line
        for block in re.findall(
            r"^```\{toctree\}\n(.*?)^```", SITE.read_text(), re.MULTILINE | re.DOTALL
        )
        for line in block.splitlines()
    }
    pages = [
        str(path.relative_to(ROOT).with_suffix(""))
        for path in PAGES
        if not path.is_relative_to(DOCS / "site")
    ]
    missing = [
        page for page in pages if page not in named and not page.startswith("docs/decisions/0")
    ]
    assert missing == [], f"docs/site/index.md: put these into one of its lists: {missing}"


def test_the_site_has_the_order_of_the_list_of_documents() -> None:
    listed = [
        str((DOCS / target).resolve().relative_to(ROOT).with_suffix(""))
        for target in re.findall(r"\]\(([^)]*\.md)\)", (DOCS / "README.md").read_text())
    ]
    order = [line for line in SITE.read_text().splitlines() if re.fullmatch(r"[\w/-]+", line)]
    assert [page for page in order if page != "docs/README"] == listed


def test_every_package_is_in_the_table_of_the_architecture() -> None:
    table = (DOCS / "architecture.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    packages = sorted(
        path.parent.name for path in (ROOT / "app" / "roundgate").glob("*/__init__.py")
    )
    missing = [name for name in packages if f"`{name}`" not in table]
    assert missing == [], (
        f"docs/architecture.md: say in its table of packages what these are: {missing}"
    )


@pytest.mark.parametrize(
    "package", [roundgate, roundgate.client], ids=lambda package: package.__name__
)
def test_the_reference_has_every_public_name(package: ModuleType) -> None:
    entry = rf"^### `{re.escape(package.__name__)}\.(\w+)`$"
    listed = re.findall(entry, (DOCS / "reference.md").read_text(), re.MULTILINE)
    exported = [
        alias.asname
        for node in ast.parse(Path(str(package.__file__)).read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    ]
    differing = sorted(set(exported) ^ set(listed))
    assert differing == [], (
        f"docs/site/reference.py: each public name of {package.__name__} once, in GROUPS"
    )
    assert len(listed) == len(set(listed)), "docs/site/reference.py: a name stands there twice"


def test_the_reference_has_the_signatures_and_docstrings_of_the_source() -> None:
    written = (DOCS / "reference.md").read_text()
    assert written == reference.page(), "run scripts/tools reference"
    assert "{eval-rst}" not in written


def test_the_project_says_of_itself_what_an_index_shows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shown = (
        "authors",
        "description",
        "readme",
        "license",
        "keywords",
        "classifiers",
        "urls",
        "requires-python",
    )
    assert [member for member in shown if not project.get(member)] == []
    pythons = {
        one.rpartition(" ")[2]
        for one in project["classifiers"]
        if re.search(r"Python :: 3\.\d+$", one)
    }
    tested = set(re.findall(r"--on (\d\.\d+)", (ROOT / ".ci" / "run").read_text()))
    assert pythons == {project["requires-python"].removeprefix(">="), *tested}


def test_the_installed_entry_points_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    declared = {(group, *entry) for group in groups for entry in groups[group].items()}
    found = distribution("roundgate").entry_points
    installed = {(entry.group, entry.name, entry.value) for entry in found}
    assert installed == declared, "pyproject.toml has changed: run scripts/setup"


def test_the_public_workflow_runs_what_ci_runs() -> None:
    (command,) = re.findall(
        r"run: (.*)$", (ROOT / ".github" / "workflows" / "ci.yml").read_text(), re.MULTILINE
    )
    assert command == ".ci/run"


def test_every_shell_script_can_be_read_by_bash() -> None:
    for page in PAGES:
        for block in blocks(page.read_text(), "(?:sh|bash)"):
            checked = subprocess.run(
                ["bash", "-n"], input=block, capture_output=True, text=True, timeout=60, check=False
            )
            assert checked.returncode == 0, f"{page.name}:\n{block}\n{checked.stderr}"
