"""docs/architecture.md names files, modules and classes: each exists, and values have
the names of its table."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from roundgate.settings import HttpConfig, TasksConfig
from tests.support.sources import sources

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
PAGE = (ROOT / "docs/architecture.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
PACKAGES = {
    path.stem
    for path in [*APP.iterdir(), *(APP / "roundgate").iterdir()]
    if path.suffix == ".py" or (path / "__init__.py").exists()
}


def paths() -> list[str]:
    """What looks like a file of the sources or of the repository."""
    return sorted(
        {
            name
            for name in CODE
            if re.fullmatch(r"[\w./-]+\.(py|md|yaml|json|toml)", name) and "/" in name
        }
    )


def names() -> list[str]:
    """What looks like a module, or something in one, with or without `roundgate` before it."""
    dotted = {
        name.removeprefix("roundgate.") for name in CODE if re.fullmatch(r"\w+(\.\w+)+", name)
    }
    return sorted(
        name for name in dotted if name.partition(".")[0] in PACKAGES and not is_other(name)
    )


def is_other(name: str) -> bool:
    """Whether it is a file, or a setting of gateway.yaml."""
    section, _, setting = name.partition(".")
    models: dict[str, type[BaseModel]] = {"tasks": TasksConfig, "http": HttpConfig}
    model = models.get(section)
    return name.endswith((".py", ".md", ".yaml", ".json")) or (
        model is not None and setting in model.model_fields
    )


def values() -> list[tuple[str, str]]:
    """The rows of "Each value of a call, one name": name and class."""
    table = PAGE.partition("## Each value of a call, one name")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", table, flags=re.MULTILINE)


@pytest.mark.parametrize("path", paths())
def test_a_file_that_is_named_exists(path: str) -> None:
    assert any((place / path).exists() for place in (APP / "roundgate", APP, ROOT))


@pytest.mark.parametrize("name", names())
def test_a_module_or_what_is_in_one_exists(name: str) -> None:
    place, parts = "roundgate", name.split(".")
    if parts[0].startswith("roundgate_"):
        place = parts.pop(0)
    while parts and is_module(f"{place}.{parts[0]}"):
        place = f"{place}.{parts.pop(0)}"
    found = importlib.import_module(place)
    for part in parts:
        assert hasattr(found, part), f"{place} has no {'.'.join(parts)}"
        found = getattr(found, part)


def is_module(name: str) -> bool:
    path = ROOT / "app" / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_the_page_names_what_it_is_about() -> None:
    """Else the tests above would pass on an empty list."""
    assert len(paths()) > 20
    assert len(names()) > 20
    assert len(values()) > 15


@cache
def annotated() -> Sequence[tuple[str, str, str]]:
    """Return place, name and class of each parameter of the product whose annotation is a plain name."""
    return tuple(parameters())


def parameters() -> Iterator[tuple[str, str, str]]:
    for source in sources(APP):
        where = source.path.relative_to(APP).as_posix().removeprefix("roundgate/")
        for node in source.nodes(ast.arg):
            if isinstance(node.annotation, ast.Name):
                yield f"{where}:{node.lineno}", node.arg, node.annotation.id


OTHER_NAMES = {
    "Principal": {"principal", "owner", "caller"},
    "Request": {"message", "request"},
    "Context": {"ctx", "context"},
    "Params": {"asked"},
    "Answer": {"answer"},
}
"""Where another word says more: a seal has an owner, a thread a caller; JSON-RPC has requests."""
NAMESAKES = {"Context": "replay/", "Answer": "replay/", "Request": "protocol/"}
"""Classes of which there are others of the same name, and where those of the table are."""


@pytest.mark.parametrize(("name", "cls"), values())
def test_a_value_has_one_name_wherever_it_is_passed(name: str, cls: str) -> None:
    short = cls.rpartition(".")[2]
    allowed, within = {name, *OTHER_NAMES.get(short, ())}, NAMESAKES.get(short, "")
    others = [
        f"{where} {given}"
        for where, given, annotation in annotated()
        if annotation == short and given.lstrip("_") not in allowed and where.startswith(within)
    ]
    assert others == []
