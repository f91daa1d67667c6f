"""Exceptions are of one tree, defined where they belong, and carry facts and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import roundgate
from roundgate.errors import (
    BackendError,
    CallTimeout,
    ConfigError,
    GatewayError,
    Inside,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    Problem,
    ProtocolError,
    ResourceNotFound,
    RoundgateError,
    Suspend,
    ToolError,
    TransportError,
    UnsupportedVersion,
)

APP = Path(roundgate.__path__[0]).parent
PACKAGES = {path.name for path in APP.iterdir() if (path / "__init__.py").exists()}


def ours() -> list[type[BaseException]]:
    """Every exception class in the code of `roundgate`."""
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            importlib.import_module(module.name)
    found, left = [], [BaseException]
    while left:
        subclasses = left.pop().__subclasses__()
        found += [cls for cls in subclasses if cls.__module__.partition(".")[0] in PACKAGES]
        left += subclasses
    return found


def test_every_exception_is_of_the_tree() -> None:
    assert [cls for cls in ours() if not issubclass(cls, RoundgateError | Suspend)] == []


def test_an_exception_that_is_defined_elsewhere_never_leaves_its_package() -> None:
    defined = {cls for cls in ours() if cls.__module__ != "roundgate.errors"}
    assert [cls for cls in defined if not issubclass(cls, Inside)] == []
    for path in APP.rglob("*.py"):
        own, words = package_of(path), set(re.findall(r"\w+", path.read_text()))
        for cls in defined:
            home = package_of(APP / f"{cls.__module__.replace('.', '/')}.py")
            assert own == home or cls.__name__ not in words, (
                f"{path} names {cls.__name__} of another package: move it to roundgate/errors.py"
            )


def package_of(path: Path) -> str:
    first, *rest = path.relative_to(APP).parts
    return rest[0] if first == "roundgate" else first


def test_every_branch_is_kept_apart_from_the_others() -> None:
    assert issubclass(BackendError, ToolError)
    assert issubclass(CallTimeout, ToolError)
    assert not any(
        issubclass(cls, ProtocolError)
        for cls in (ToolError, TransportError, InternalError, ConfigError)
    )


def test_facts_are_attributes_and_data() -> None:
    assert MissingCapability("no", {"sampling": {}}).data == {
        "requiredCapabilities": {"sampling": {}}
    }
    assert UnsupportedVersion("1", ("2", "3")).data == {"supported": ["2", "3"], "requested": "1"}
    assert ResourceNotFound("file:///a").data == {"uri": "file:///a"}
    assert MethodNotFound("no", ("2",)).data == {"supported": ["2"]}
    assert InvalidRequest("no", 0).request_id == 0
    assert TransportError(405, "no", [(b"allow", b"POST")]).headers == [(b"allow", b"POST")]


@pytest.mark.parametrize(
    "error", [GatewayError("a"), ToolError("a"), MethodNotFound("a"), InvalidRequest("a", 1)]
)
def test_an_error_without_facts_has_no_data(error: GatewayError) -> None:
    assert (str(error), error.data) == ("a", None)


def test_the_message_of_an_unsupported_version_repeats_nothing_that_was_sent() -> None:
    assert str(UnsupportedVersion("<script>", ["2026-07-28"])).endswith(
        "this server speaks 2026-07-28"
    )


def test_the_message_of_a_missing_resource_names_its_uri_as_far_as_it_is_read() -> None:
    assert "file:///a;" in str(ResourceNotFound("file:///a"))
    assert len(str(ResourceNotFound("file:///" + "a" * 8_000))) < 400


def test_the_message_of_a_missing_capability_names_it() -> None:
    missing = {
        "elicitation": {"form": {}},
        "roots": {},
        "extensions": {"io.example/x": {"depth": 2}},
    }
    named = "elicitation.form, roots, extensions.io.example/x.depth"
    assert f": {named}." in str(MissingCapability("this", missing))


def test_an_internal_error_says_its_reference_and_nothing_else() -> None:
    assert (
        str(InternalError("abc"))
        == "Internal error; the server's log has the details under reference abc"
    )


def test_a_problem_says_where_what_and_how_to_mend_it() -> None:
    problem = Problem(
        "gateway.yaml", "backends[0].module", "cannot be imported", "correct the name", line=7
    )
    assert (
        str(problem)
        == "gateway.yaml:7: backends[0].module: cannot be imported\n    → correct the name"
    )
    assert str(Problem("gateway.yaml", "backends", "is missing", "add it")).startswith(
        "gateway.yaml: backends: is"
    )


def test_a_config_error_says_every_problem() -> None:
    problems = [Problem("a.yaml", "x", "one", "mend"), Problem("b.yaml", "y", "two", "mend")]
    error = ConfigError(problems)
    assert error.problems == tuple(problems)
    assert str(error) == f"{problems[0]}\n{problems[1]}"
