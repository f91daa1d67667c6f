"""The zips of the functions: what is in them, what is not, and that the same
input makes the same zip."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from roundgate.config import load
from roundgate_aws import locking, machine
from roundgate_aws import packaging as package
from roundgate_aws.locking import Requirements

pytestmark = (
    pytest.mark.stack
)  # some twenty seconds, and no version of Python under test changes them

ARCH = "arm64"
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
WORKERS_NEVER_IMPORT = {
    "fastapi",
    "starlette",
    "mangum",
    "jwt",
    "opentelemetry",
}
NOBODY_IMPORTS = {
    "yaml",
    "uvicorn",
    "uvloop",
    "click",
    "boto3",
    "botocore",
    "pip",
    "pytest",
    "datasette",
}
NOBODY_RUNS = {"cassettes/", "cli/", "client/", "console/", "deployment/", "suites/", "testing/"}
"""Parts of the app that the configuration does not use."""


@dataclass
class Zip:
    """What is in one."""

    path: Path

    def __post_init__(self) -> None:
        with zipfile.ZipFile(self.path) as archive:
            self.names = archive.namelist()
            self.config = json.loads(archive.read("gateway.json"))

    @property
    def top(self) -> set[str]:
        """What can be imported, and the metadata beside it."""
        return {name.partition("/")[0] for name in self.names} - {"__pycache__"}

    @property
    def packages(self) -> set[str]:
        """The distributions, as the lock names them."""
        found = {name for name in self.top if name.endswith(".dist-info")}
        return {
            name.removesuffix(".dist-info").rpartition("-")[0].replace("_", "-").lower()
            for name in found
        }

    def under(self, directory: str) -> set[str]:
        """The sources in a directory, by their names in it."""
        found = (
            name.removeprefix(f"{directory}/")
            for name in self.names
            if name.startswith(f"{directory}/")
        )
        return {name for name in found if name.endswith(".py")}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with what lies beside one on a developer's machine."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "gateway.yaml").write_text(
        "backends:\n  - {kind: python, name: tools, path: tools.py}\n"
    )
    (folder / "tools.py").write_text(
        "from roundgate import tool\n\n\n@tool\ndef one() -> int:\n    return 1\n"
    )
    (folder / "__pycache__").mkdir()
    for name in (
        ".env",
        "gateway.key",
        "gateway.sqlite3",
        "gateway.sqlite3-wal",
        "__pycache__/tools.cpython-311.pyc",
    ):
        (folder / name).write_bytes(b"of this machine")
    return folder / "gateway.yaml"


@pytest.fixture(scope="module")
def zips(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Zip]:
    if machine.interpreter() is None:
        pytest.skip(f"the functions need Python {machine.PYTHON}")
    out = tmp_path_factory.mktemp("zips")
    build(config, out)
    return {function.name: Zip(out / f"{function.name}.zip") for function in package.FUNCTIONS}


def build(config: Path, out: Path) -> None:
    package.package(package.plan(load(config), config, ARCH), out)


def locked() -> set[str]:
    return {
        line.partition("==")[0]
        for line in machine.LOCK.read_text().splitlines()
        if not line.startswith("#")
    }


NAMES = pytest.mark.parametrize("name", ["gateway", "worker"])


def test_the_gateway_has_the_script_that_replaces_the_runtime(zips: Mapping[str, Zip]) -> None:
    with zipfile.ZipFile(zips["gateway"].path) as archive:
        (script,) = (one for one in archive.infolist() if one.filename == package.STREAM)
        assert script.external_attr >> 16 == 0o755, "AWS Lambda runs it"
    assert "stream.py" in zips["gateway"].under("roundgate_aws")
    assert package.STREAM not in zips["worker"].names
    assert "stream.py" not in zips["worker"].under("roundgate_aws")


def test_only_functions_with_skills_have_a_reader_of_yaml(tmp_path: Path) -> None:
    if machine.interpreter() is None:
        pytest.skip(f"the functions need Python {machine.PYTHON}")
    config = tmp_path / "served" / "gateway.yaml"
    (config.parent / "skills" / "pay").mkdir(parents=True)
    (config.parent / "skills" / "pay" / "SKILL.md").write_text(
        "---\nname: pay\ndescription: How to pay.\n---\nPay.\n"
    )
    config.write_text("backends:\n  - {kind: skills, name: skills, path: skills}\n")
    build(config, tmp_path / "zips")
    for function in package.FUNCTIONS:
        assert "pyyaml" in Zip(tmp_path / "zips" / f"{function.name}.zip").packages


@NAMES
def test_nothing_is_in_it_but_the_app_the_locked_packages_and_the_configuration(
    zips: Mapping[str, Zip], name: str, tmp_path: Path
) -> None:
    made, (function,) = zips[name], [one for one in package.FUNCTIONS if one.name == name]
    assert made.packages == locked() - function.does_without - {"pyyaml"}
    own = {"roundgate", "roundgate_aws", "gateway.json", "tools.py"}
    theirs = {entry for entry in made.top - own if not entry.endswith(".dist-info")}
    lock = locking.for_repository(Requirements(None), tmp_path, ARCH)
    installed = {path.name for path in locking.packages(lock, ARCH).iterdir()}
    assert own <= made.top
    assert theirs <= installed


@NAMES
def test_what_is_of_no_use_there_is_left_out(zips: Mapping[str, Zip], name: str) -> None:
    made = zips[name]
    assert not made.top & NOBODY_IMPORTS
    parts = {part for entry in made.names for part in entry.split("/")}
    assert not parts & {"tests", "INSTALLER", "RECORD", "REQUESTED", "WHEEL", "py.typed", ".env"}
    assert not [
        entry
        for entry in made.names
        if entry.endswith((".pyi", ".key", ".sqlite3", ".sqlite3-wal", ".yaml"))
    ]


@NAMES
def test_licenses_and_what_importlib_reads_come_along(zips: Mapping[str, Zip], name: str) -> None:
    made = zips[name]
    distributions = {entry for entry in made.top if entry.endswith(".dist-info")}
    assert {f"{one}/METADATA" for one in distributions} <= set(made.names)
    assert [entry for entry in made.names if entry.startswith("pydantic-") and "LICENSE" in entry]


def test_the_worker_has_no_web_framework(zips: Mapping[str, Zip]) -> None:
    assert zips["gateway"].top >= WORKERS_NEVER_IMPORT
    assert not zips["worker"].top & WORKERS_NEVER_IMPORT


def test_both_have_the_means_to_seal_the_tokens_of_events(zips: Mapping[str, Zip]) -> None:
    assert all(made.top >= {"cryptography", "cffi"} for made in zips.values())


def test_each_has_the_parts_of_the_app_that_its_entry_reaches(zips: Mapping[str, Zip]) -> None:
    gateway, worker = (zips[name].under("roundgate") for name in ("gateway", "worker"))
    assert {"main.py", "http/__init__.py"} <= gateway - worker
    assert not worker - gateway
    entries = [zips[name].under("roundgate_aws") for name in ("gateway", "worker")]
    assert entries == [
        {"__init__.py", "api_gateway.py", "http.py", "stream.py"},
        {"__init__.py", "worker.py"},
    ]
    assert not {name for name in gateway | worker if name.startswith(tuple(NOBODY_RUNS))}


def test_a_kind_of_a_users_own_is_packed_with_what_it_imports_by_name(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/own-kinds.md").read_text()
    module = page.partition("```python\n")[2].partition("```")[0]
    dynamic = "import importlib\n\nPLUGIN = importlib.import_module('plugins.milk')\n"
    for name, text in {
        "gateway.yaml": "package: {include: [notes]}\n"
        "backends: [{kind: 'notes:Notes', name: notes, folder: notes}]\n",
        "notes.py": f"{module}\n\n{dynamic}",
        "notes/milk.txt": "Buy milk",
        "plugins/__init__.py": "",
        "plugins/milk.py": "from roundgate.client import Client\n",
        "other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    file = tmp_path / "gateway.yaml"
    # for this machine, where the packed files alone are loaded once
    package.package(package.plan(load(file), file, machine.architecture()), tmp_path / "zips")
    for name in ("gateway", "worker"):
        made = Zip(tmp_path / f"zips/{name}.zip")
        assert {"notes.py", "notes/milk.txt", "plugins/milk.py"} <= set(made.names)
        assert "other.py" not in made.names
        assert {"backends/registry.py", "client/__init__.py"} <= made.under("roundgate")
        assert "backends/python/backend.py" not in made.names


def test_what_a_packed_file_imports_of_the_app_comes_along(config: Path, tmp_path: Path) -> None:
    served = shutil.copytree(config.parent, tmp_path / "served")
    with (served / "tools.py").open("a") as file:
        file.write("\n\ndef two() -> None:\n    from roundgate.client import Client\n")
    build(served / "gateway.yaml", tmp_path / "zips")
    names = Zip(tmp_path / "zips/worker.zip").under("roundgate")
    assert "client/__init__.py" in names
    assert not {name for name in names if name.startswith(tuple(NOBODY_RUNS - {"client/"}))}


@NAMES
def test_the_configuration_is_json(zips: Mapping[str, Zip], name: str) -> None:
    assert zips[name].config == {
        "backends": [{"kind": "python", "name": "tools", "path": "tools.py"}]
    }


@NAMES
def test_every_source_has_its_byte_code_beside_it(zips: Mapping[str, Zip], name: str) -> None:
    made = zips[name]
    compiled = {entry for entry in made.names if entry.endswith(".cpython-313.pyc")}
    sources = [Path(entry) for entry in made.names if entry.endswith(".py")]
    missing = [
        one
        for one in sources
        if str(one.parent / "__pycache__" / f"{one.stem}.cpython-313.pyc") not in compiled
    ]
    assert missing == []
    assert len(compiled) == len([entry for entry in made.names if entry.endswith(".pyc")])


@NAMES
def test_native_code_is_for_the_functions_machine(zips: Mapping[str, Zip], name: str) -> None:
    native = [entry for entry in zips[name].names if entry.endswith(".so")]
    assert native
    assert all(MACHINES[ARCH] in entry or ".abi3." in entry for entry in native), native


def test_the_same_input_makes_the_same_zip(
    zips: Mapping[str, Zip], config: Path, tmp_path: Path
) -> None:
    elsewhere = shutil.copytree(config.parent, tmp_path / "elsewhere")  # other times, another path
    build(elsewhere / "gateway.yaml", tmp_path / "out")
    assert (tmp_path / "out/worker.zip").read_bytes() == zips["worker"].path.read_bytes()


def test_the_lock_can_be_installed_for_the_other_machine(tmp_path: Path) -> None:
    lock = locking.for_repository(Requirements(None), tmp_path, "x86_64")
    native = [path.name for path in locking.packages(lock, "x86_64").rglob("*.so")]
    assert native
    assert all("x86_64" in name or ".abi3." in name for name in native), native
