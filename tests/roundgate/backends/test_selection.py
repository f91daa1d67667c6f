"""`include` and `exclude`: which tools of a back end are served."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from roundgate import tool
from roundgate.backends.config import Selector
from roundgate.runtime import loading
from tests.support.asgi import config_file
from tests.support.openapi import document, file_of, operation

PATHS = (
    operation("get", "/pets", operationId="listPets", tags=["pets", "public"])
    | operation("delete", "/pets/{id}", operationId="deletePet", tags=["pets"])
    | operation(
        "post", "/admin/reset", **{"operationId": "reset", "tags": ["admin"], "x-internal": True}
    )
    | operation("put", "/orders/{id}", **{"operationId": "putOrder", "x-team": "sales"})
)


def chosen(folder: Path, **selection: Any) -> list[str]:
    return list(loading.load(file_of(folder, document(PATHS), **selection)).catalog.tools)


ALL = ["listPets", "deletePet", "reset", "putOrder"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({"name": "*Pet*"}, ["listPets", "deletePet"]),
        ({"tag": "p*"}, ["listPets", "deletePet"]),
        ({"path": "/admin/*"}, ["reset"]),
        ({"method": "get"}, ["listPets"]),
        ({"hint": "read_only"}, ["listPets"]),
        ({"hint": "destructive"}, ["deletePet", "reset", "putOrder"]),
        ({"hint": "idempotent"}, ["listPets", "deletePet", "putOrder"]),
        ({"extension": "x-internal"}, ["reset"]),
        ({"extension": "x-internal=true"}, ["reset"]),
        ({"extension": "x-team=sa*"}, ["putOrder"]),
        ({"tag": "pets", "method": "DELETE"}, ["deletePet"]),
    ],
)
def test_a_selector_means_the_tools_that_all_of_it_holds_for(
    tmp_path: Path, selector: Any, names: list[str]
) -> None:
    assert chosen(tmp_path, include=[selector]) == names
    assert chosen(tmp_path, exclude=[selector]) == [name for name in ALL if name not in names]


def test_several_selectors_add_up_and_exclude_wins(tmp_path: Path) -> None:
    include = [{"tag": "pets"}, {"name": "reset"}]
    assert chosen(tmp_path, include=include, exclude=[{"method": "delete"}]) == [
        "listPets",
        "reset",
    ]


def test_a_selector_that_says_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least one of"):
        Selector.model_validate({})


def test_tools_of_every_kind_are_chosen() -> None:
    @tool(read_only=True)
    def look() -> str:
        return "seen"

    @tool
    def change() -> str:
        return "done"

    file = config_file(look, change, backend={"exclude": [{"hint": "destructive"}]})
    assert list(loading.load(file).catalog.tools) == ["look"]


def test_only_what_is_chosen_needs_credentials(tmp_path: Path) -> None:
    secured = operation("get", "/secret", operationId="secret", security=[{"token": []}])
    described = document(
        PATHS | secured, components={"securitySchemes": {"token": {"type": "http"}}}
    )
    catalog = loading.load(file_of(tmp_path, described, exclude=[{"name": "secret"}])).catalog
    assert list(catalog.tools) == ALL
