"""`env`: variables that gateway.yaml gives to tools and to references, and what
becomes of them in the stack."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from roundgate.config import load
from roundgate.errors import ConfigError
from roundgate.runtime import loading
from roundgate_aws import packaging, template
from tests.support.moto_server import running

TOOLS = """
import os
from roundgate import tool

@tool(description=os.environ["SHOP_NAME"])
def one() -> int:
    return 1
"""
BACKENDS = "backends: [{kind: python, name: tools, path: tools.py}]\n"


def written(folder: Path, text: str) -> Path:
    (folder / "tools.py").write_text(TOOLS)
    (folder / "gateway.yaml").write_text(text + BACKENDS)
    return folder / "gateway.yaml"


def test_references_and_tools_see_a_variable_and_the_environment_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "env: {SHOP_NAME: Pears}\nserver: {title: '${SHOP_NAME}'}\n"
    file = load(written(tmp_path, text), {})
    assert (file.config.server.title, file.environment) == ("Pears", {"SHOP_NAME": "Pears"})
    assert "Pears" not in repr(file)
    assert load(tmp_path / "gateway.yaml", {"SHOP_NAME": "Figs"}).config.server.title == "Figs"
    monkeypatch.setenv("SHOP_NAME", "before")  # and given back after this test
    (tool,) = loading.load(file).catalog.tools.values()
    assert tool.tool.definition["description"] == "Pears"


@pytest.mark.parametrize("name", ["GATEWAY_STORE", "AWS_REGION", "_HANDLER", "A-B", "LAMBDA_X"])
def test_a_name_that_is_somebody_elses_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, f"env: {{{name}: x}}\n"), {})
    assert raised.value.problems[0].path.startswith("env")


@pytest.fixture(scope="module")
def at_aws() -> Iterator[Mapping[str, str]]:
    """Secrets Manager and Parameter Store, with something in them."""
    boto3 = pytest.importorskip("boto3")
    with running() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }.items():
            patch.setenv(name, value)
        secrets, parameters = boto3.client("secretsmanager"), boto3.client("ssm")
        secrets.create_secret(Name="shop/key", SecretString='{"token": "${not-a-reference}"}')
        parameters.put_parameter(Name="/shop/pin", Value="1234", Type="SecureString")
        yield dict(os.environ)
        secrets.close()
        parameters.close()


def test_what_aws_keeps_is_read_here_and_from_a_parameter_of_the_stack(
    tmp_path: Path, at_aws: Mapping[str, str]
) -> None:
    text = "env: {KEY: '${secret:shop/key#token}', PIN: '${ssm:/shop/pin}', OTHER: none}\n"
    path = written(tmp_path, text)
    found = load(path, {**at_aws, "OTHER": "${ssm:/shop/pin}"}).environment
    assert found == {"KEY": "${not-a-reference}", "PIN": "1234", "OTHER": "1234"}


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("${secret:shop/gone}", "shop/gone cannot be read from AWS: ResourceNotFoundException"),
        ("${secret:shop/key#pin}", "not a JSON object with the member pin"),
        ("Bearer ${ssm:/shop/pin}", "must be the whole value"),
    ],
)
def test_what_cannot_be_read_is_a_problem_of_its_line_without_the_secret(
    tmp_path: Path, at_aws: Mapping[str, str], reference: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        load(written(tmp_path, f"env:\n  KEY: '{reference}'\n"), at_aws)
    (problem,) = raised.value.problems
    assert (problem.path, problem.line) == ("env.KEY", 2)
    assert "not-a-reference" not in str(problem)


def test_who_packs_needs_no_secret(tmp_path: Path) -> None:
    path = written(tmp_path, "env: {KEY: '${secret:shop/key}'}\n")
    assert load(path, {}, placeholder="unset").environment == {"KEY": "unset"}


def test_each_is_a_parameter_of_the_stack_that_both_functions_get(tmp_path: Path) -> None:
    text = "env: {SHOP_NAME: Pears, KEY: '${secret:shop/key}', URL: 'https://${HOST}'}\n"
    path = written(tmp_path, text)
    file = load(path, {"HOST": "h"}, placeholder="unset")
    source = template.rendered(file, "arm64", path)
    parameters = source["Parameters"]
    assert parameters["EnvShopName"]["Default"] == "Pears"
    assert parameters["EnvKey"]["Default"] == "${secret:shop/key}"
    assert "Default" not in parameters["EnvUrl"]
    for name in ("GatewayFunction", "WorkerFunction"):
        given = source["Resources"][name]["Properties"]["Environment"]["Variables"]
        assert given["SHOP_NAME"] == {"Ref": "EnvShopName"}


def test_a_variable_that_functions_would_not_have_is_named_before_anything_is_made(
    tmp_path: Path,
) -> None:
    text = (
        "server: {title: '${TITLE}', name: '${NAME:-shop}', instructions: '$${X} ${AWS_REGION}'}\n"
    )
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"the functions have no variable TITLE") as raised:
        packaging.plan(load(path, {}, placeholder="unset"), path, "arm64")
    assert len(raised.value.problems) == 1
    twins = list(template.undeclared({"env": {"A_B": "", "AB": "", "a_b": ""}}, "gateway.yaml"))
    assert [one.path for one in twins] == ["env.a_b"]


def test_variables_that_do_not_fit_into_a_function_are_named_before_anything_is_made() -> None:
    for size, fits in ((template.MAX_ENV_BYTES - 4, True), (template.MAX_ENV_BYTES, False)):
        problems = list(template.undeclared({"env": {"TEXT": "x" * size}}, "gateway.yaml"))
        assert [one.path for one in problems] == ([] if fits else ["env"])
