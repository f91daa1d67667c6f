"""`samconfig.toml` beside gateway.yaml: what `roundgate deploy` takes from it, and
what it leaves to `sam`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from roundgate.cli import parse
from roundgate.errors import UsageError
from roundgate_aws import deploying, options
from roundgate_aws.parts import assembled

TABLE = """
version = 0.1

[default.global.parameters]
stack_name = "shop"
region = "eu-central-1"

[default.deploy.parameters]
tags = "team=shop"
[default.deploy.parameters.parameter_overrides]
LogLevel = "debug"
WorkerConcurrency = 50
AllowAnonymous = true

[staging.deploy.parameters]
stack_name = "shop-staging"
profile = "tests"
no_execute_changeset = true
parameter_overrides = "LogLevel=info ParameterKey=StageName,ParameterValue=s 'EnvMotto=two words'"
"""
YAML = """
version: 0.1
default:
  deploy:
    parameters:
      stack_name: shop
      parameter_overrides: [LogLevel=debug, {WorkerConcurrency: 50}, "EnvMotto=two words"]
"""


def completed(folder: Path, *rest: str, stack: str = "") -> options.DeployOptions:
    return options.completed(options.read_options(stack, rest), folder / "gateway.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with the file."""
    (tmp_path / "samconfig.toml").write_text(TABLE)
    return tmp_path


def test_stack_region_and_parameters_are_those_of_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = completed(folder)
    assert asked.stack == "shop"
    assert asked.overrides == {
        "LogLevel": "debug",
        "WorkerConcurrency": "50",
        "AllowAnonymous": "true",
    }
    assert asked.session == {"--region": "eu-central-1"}
    assert f"{folder / 'samconfig.toml'} [default] LogLevel=debug" in capsys.readouterr().err
    (command,) = deploying.commands(asked, {"Architecture": "arm64"}, Path("t.yaml"))
    at = command.index("--config-file")
    assert command[at : at + 4] == [
        *("--config-file", str(folder / "samconfig.toml"), "--config-env", "default")
    ]


def test_the_command_line_goes_first(folder: Path) -> None:
    asked = completed(
        folder, "--region", "us-east-1", "--parameter-overrides", "LogLevel=error", stack="other"
    )
    assert (asked.stack, asked.session) == ("other", {"--region": "us-east-1"})
    assert (asked.overrides["LogLevel"], asked.overrides["WorkerConcurrency"]) == ("error", "50")


def test_an_option_and_its_value_may_be_one_word(folder: Path) -> None:
    asked = completed(folder, "--region=us-east-1", "--parameter-overrides=LogLevel=error")
    assert asked.session == {"--region": "us-east-1"}
    assert asked.overrides["LogLevel"] == "error"


@pytest.mark.parametrize("said", [("--config-env", "staging"), ("--config-env=staging",)])
def test_another_environment_is_another_stack(folder: Path, said: tuple[str, ...]) -> None:
    asked = completed(folder, *said)
    assert asked.stack == "shop-staging"
    assert asked.session == {"--profile": "tests"}
    assert asked.overrides == {"LogLevel": "info", "StageName": "s", "EnvMotto": "two words"}
    assert len(deploying.commands(asked, {}, Path("t.yaml"))) == 1  # nothing is executed
    assert asked.options.count("--config-env") == 1


@pytest.mark.parametrize("name", ["samconfig.yaml", "elsewhere.yaml"])
def test_yaml_is_read_as_well_and_the_file_may_be_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(YAML)
    asked = completed(tmp_path, "--config-file", str(tmp_path / name))
    assert asked.overrides == {
        "LogLevel": "debug",
        "WorkerConcurrency": "50",
        "EnvMotto": "two words",
    }
    if name in options.FILES:
        assert completed(tmp_path).options == asked.options


def test_without_a_file_everything_is_on_the_command_line(tmp_path: Path) -> None:
    asked = options.read_options("shop", ["--region", "us-east-1"])
    assert options.completed(asked, tmp_path / "gateway.yaml") == asked


@pytest.mark.parametrize(
    ("text", "rest", "says"),
    [
        (None, (), r"the stack has no name"),
        (None, ("--config-env", "prod"), "there is no .*samconfig.toml"),
        (None, ("--config-file", "none.toml"), "there is no none.toml"),
        (TABLE, ("--config-env", "prod"), r"has no \[prod\]; it has default, staging"),
        ("[default\n", (), "cannot be read: .*line 1"),
        ("[default.deploy.parameters]\nregion = 'x'\n", (), "the stack has no name"),
        ("[default.deploy.parameters]\nparameter_overrides = 3", (), "must be a table"),
        ("[default.deploy.parameters]\nparameter_overrides = 'LogLevel'", (), "needs NAME=VALUE"),
        (
            '[default.deploy.parameters]\nparameter_overrides = "EnvMotto=it\'s"',
            (),
            "has an unclosed quotation mark",
        ),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_packed(
    tmp_path: Path, text: str | None, rest: tuple[str, ...], says: str
) -> None:
    if text is not None:
        (tmp_path / "samconfig.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        completed(tmp_path, *rest)


@pytest.mark.parametrize(
    ("words", "stack", "rest"),
    [
        ("", "", []),
        ("shop", "shop", []),
        ("shop --region x", "shop", ["--region", "x"]),
        ("--region x", "", ["--region", "x"]),
        ("prod/gateway.yaml --region x", "", ["prod/gateway.yaml", "--region", "x"]),
    ],
)
def test_the_name_of_the_stack_may_be_left_out(words: str, stack: str, rest: list[str]) -> None:
    read = parse(["deploy", *words.split()])
    assert (read.stack, read.rest) == (stack, rest)


def test_the_file_to_begin_with_has_every_parameter_that_is_somebodys_to_choose() -> None:
    commented = options.commented()
    bare = "\n".join(
        line.removeprefix("# ") for line in commented.splitlines() if " = " in line and "#" in line
    )
    values = tomllib.loads(bare)
    parameters = {**assembled("rest")["Parameters"], **assembled("http")["Parameters"]}
    ours = {"FunctionArns", "DurableFunctionArns", "SecretArns", "ParameterArns", "Release"}
    assert values == {name: one["Default"] for name, one in parameters.items() if name not in ours}
