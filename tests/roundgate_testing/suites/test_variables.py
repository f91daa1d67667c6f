"""References in suites: what they lead to, and what is said where one leads to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundgate.settings.redacting import Secrets
from roundgate_testing.suites.variables import MAX_FILE_BYTES, Variables

ENVIRON = {"HOST": "api.example", "EMPTY": "", "TOKEN": "hunter2-hunter2", "PIN": "12"}
VALUES = {"order": {"id": 7, "note": None}, "name": "Ann", "nothing": None}


def variables(folder: Path, secrets: Secrets | None = None) -> Variables:
    return Variables(VALUES, folder, ENVIRON, secrets or Secrets())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("${name}", "Ann"),
        ("${order.id}", 7),
        ("no. ${order.id}", "no. 7"),
        ("${order}", {"id": 7, "note": None}),
        ("${nothing}", None),
        ("$${name}", "${name}"),
        ("${env:HOST}/x", "api.example/x"),
        ("${env:MISSING:-a default}", "a default"),
        ("${env:EMPTY:-a default}", "a default"),
        ("${file:body.txt}", "text\n"),
        ({"${name}": ["${name}", 1]}, {"Ann": ["Ann", 1]}),
    ],
)
def test_a_reference_alone_keeps_its_type(tmp_path: Path, given: Any, expected: Any) -> None:
    (tmp_path / "body.txt").write_text("text\n")
    assert variables(tmp_path).filled(given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("${", "does not begin a valid reference"),
        ("${who}", "there is no variable who: define it in `variables` or with `save`"),
        ("${order.note}", "order.note has no value"),
        ("${order.id.of}", "has no value"),
        ("${env:MISSING}", r"MISSING is not set: set it, or write \$\{env:MISSING:-default\}"),
        ("${secret:MISSING}", r"\$\{secret:MISSING:-default\}"),
        ("${secret:PIN}", "the secret PIN has fewer than"),
        ("${file:nowhere.txt}", "the file nowhere.txt: No such file"),
        ("${file:.}", "the file .: Is a directory"),
        ("${file:image.png}", "the file image.png: is not text"),
        ("${file:large.txt}", f"the file large.txt has more than {MAX_FILE_BYTES} bytes"),
    ],
)
def test_a_reference_that_leads_to_nothing_says_what_to_do(
    tmp_path: Path, given: str, said: str
) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ValueError, match=said):
        variables(tmp_path).filled(given)


def test_a_secret_of_the_environment_is_hidden_from_then_on(tmp_path: Path) -> None:
    secrets = Secrets()
    assert variables(tmp_path, secrets).text("Bearer ${secret:TOKEN}") == "Bearer hunter2-hunter2"
    assert secrets.without({"hunter2-hunter2": ["a hunter2-hunter2"]}) == {"***": ["a ***"]}


def test_secrets_are_found_in_whatever_holds_them() -> None:
    secrets = Secrets()
    secrets.add({"pin": 123456789, "of": ["swordfish!"]})
    given = [123456789, "123456789", {"is": "swordfish!"}, True, None, 12]
    assert secrets.without(given) == ["***", "***", {"is": "***"}, True, None, 12]
