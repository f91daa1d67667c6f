"""`roundgate docs`, and that whoever has only the wheel can follow what a message says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from roundgate.cli import main, repository
from tests.support.documents import ROOT

CODE = [*ROOT.glob("app/roundgate/**/*.py"), *ROOT.glob("app/roundgate/**/*.txt")]


def test_it_lists_every_page_and_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"start", "configuration", "runbooks/rotate-keys"} <= set(listed)
    for spelling in ("openapi", "docs/openapi.md", "openapi.md#overlays"):
        assert main(["docs", spelling]) == 0
        assert capsys.readouterr().out == (ROOT / "docs/openapi.md").read_text()


def test_a_page_that_is_not_there_is_named_with_one_that_is_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["docs", "configuraton"]) == 2
    assert "did you mean configuration?" in capsys.readouterr().err
    assert main(["docs", "../pyproject"]) == 2
    assert "run `roundgate docs` to list the pages" in capsys.readouterr().err


@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(ROOT / "app")))
def test_what_the_code_names_is_a_page_that_the_wheel_has(file: Path) -> None:
    text = file.read_text()
    if file.name != "docs.py":
        assert not re.findall(r"docs/[a-z-]+\.md", text), "write `roundgate docs NAME`"
    named = set(re.findall(r"`roundgate docs ([a-z/-]+)", text))
    assert named <= repository.pages().keys()


def test_the_text_of_the_package_leads_nowhere_outside_of_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    page = (ROOT / project["project"]["readme"]).read_text()
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if "://" not in link] == []
    assert not re.findall(r"(?:docs|scripts|examples)/\w+", page)
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["docs"] == "roundgate/docs"


def test_the_image_is_built_with_every_file_that_the_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    there = {name for names in copied for name in names.split()}
    assert {*included, *project["project"]["license-files"]} <= there
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert [name for name in there if f"!{name}" not in allowed] == []
