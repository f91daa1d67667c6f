"""`roundgate package` imports the tools of a repository, and has none of the
secrets of the functions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roundgate.errors import ConfigError
from roundgate_aws import command as deploy
from roundgate_aws import packaging
from tests.support.command import roundgate

CONFIG = """
env:
  SHOP_PIN: ${ssm:/shop/pin}
  SHOP_URL: https://shop.example
backends:
  - {kind: python, name: tools, path: tools.py}
"""
TOOLS = """
import os
from roundgate import tool

%s

@tool
def one() -> int:
    return 1
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SHOP_PIN", "SHOP_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    return tmp_path


def planned(repository: Path, line: str) -> packaging.PackagePlan:
    (repository / "tools.py").write_text(TOOLS % line)
    return deploy.planned_from(repository / "gateway.yaml", "arm64")


def test_what_stands_for_a_secret_is_there_for_modules_and_for_nobody_else(
    repository: Path,
) -> None:
    line = "assert os.environ['SHOP_PIN'] and os.environ['SHOP_URL'] == 'https://shop.example'"
    planned(repository, line)
    assert not os.environ.keys() & {"SHOP_PIN", "SHOP_URL"}, "sam would have them"


def test_a_module_that_cannot_do_with_it_is_told_which_variable_that_is(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "PIN = int(os.environ['SHOP_PIN'])"
    with pytest.raises(
        ConfigError, match=r"(?s)tools\.py.*SHOP_PIN cannot be read while packaging"
    ):
        planned(repository, line)
    assert "SHOP_PIN" not in os.environ
    monkeypatch.setenv("SHOP_PIN", "1234")
    planned(repository, line)
    assert os.environ["SHOP_PIN"] == "1234"


OF_FUNCTIONS = {
    "audit: {to: stdout, key: '${secret:audit}'}": "audit.key: may not be a reference to AWS",
    "audit: {}": "audit.to: is files",
    "console: {}": "console: is on, but functions do not serve the console",
    "http: {metrics: true}": "http.metrics: is on, but each instance",
    "tasks: {max_result_bytes: 5000000}": "tasks.max_result_bytes: is 5000000",
}


@pytest.mark.parametrize("section", OF_FUNCTIONS)
def test_what_functions_would_refuse_at_their_start_is_not_packed(
    repository: Path, section: str
) -> None:
    (repository / "gateway.yaml").write_text(CONFIG + section)
    with pytest.raises(ConfigError) as refused:
        planned(repository, "")
    (problem,) = refused.value.problems
    assert OF_FUNCTIONS[section] in str(problem)


def test_a_key_from_a_variable_of_the_stack_is_packed(repository: Path) -> None:
    config = CONFIG.replace("env:\n", "env:\n  AUDIT_KEY: ${secret:audit}\n")
    (repository / "gateway.yaml").write_text(config + "audit: {to: stdout, key: '${AUDIT_KEY}'}\n")
    assert planned(repository, "").contents.files


def test_a_file_with_an_authorizer_is_checked_for_functions(repository: Path) -> None:
    auth = "auth: {authorizer: api-gateway, issuer: https://i.example}\nhttp: {metrics: true}\n"
    backends = "backends:\n  - {kind: python, name: tools, path: tools.py}\n"
    (repository / "gateway.yaml").write_text(auth + backends)
    (repository / "tools.py").write_text(TOOLS % "")
    ran = roundgate("check", directory=repository)
    assert ran.status == 1
    assert "http.metrics: is on, but each instance" in ran.err
