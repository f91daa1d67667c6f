"""The users' modules: which are loaded again, and that a failure leaves everything as it was."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundgate.backends.modules import Modules


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]
    sys.path[:] = path


class Project:
    """Files, and the modules that are loaded from them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.modules = Modules()
        self.write("helper.py", "VALUE = 1\n")
        self.write("kit/__init__.py", "")
        self.write("kit/deep.py", "VALUE = 10\n")
        self.write(
            "main_tools.py",
            "import helper\nimport kit.deep\n\ndef total(): return helper.VALUE + kit.deep.VALUE\n",
        )

    def write(self, name: str, text: str) -> None:
        file = self.directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def load(self) -> int:
        module = self.modules.of_file(self.directory / "main_tools.py", "roundgate_backend_project")
        total: int = module.total()
        return total

    def again(self) -> int:
        with self.modules.renewed():
            return self.load()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_change_in_any_source_loads_all_of_them_again(project: Project) -> None:
    assert project.load() == 11
    project.write("kit/deep.py", "VALUE = 20\n")
    assert project.again() == 21
    project.write("helper.py", "VALUE = 2\n")
    assert project.again() == 22


def test_a_change_of_the_same_size_in_the_same_second_is_seen(project: Project) -> None:
    project.load()
    for value in range(2, 9):
        project.write("helper.py", f"VALUE = {value}\n")
        os.utime(project.directory / "helper.py", ns=(10**18 + value, 10**18 + value))
        assert project.again() == 10 + value


def test_without_a_change_modules_stay(project: Project) -> None:
    project.load()
    before = sys.modules["helper"], sys.modules["roundgate_backend_project"]
    assert project.again() == 11
    assert (sys.modules["helper"], sys.modules["roundgate_backend_project"]) == before


@pytest.mark.parametrize(
    "broken", ["VALUE = \n", "raise RuntimeError\n", "raise SystemExit(3)\n", "import nowhere\n"]
)
def test_a_failure_puts_back_what_was_there(project: Project, broken: str) -> None:
    project.load()
    before = {
        name: sys.modules[name]
        for name in ("helper", "kit", "kit.deep", "roundgate_backend_project")
    }
    project.write("kit/deep.py", broken)
    for _ in range(2):
        with pytest.raises((Exception, SystemExit)):
            project.again()
        assert {name: sys.modules[name] for name in before} == before
    assert project.modules.changed() == {project.directory / "kit/deep.py"}
    project.write("kit/deep.py", "VALUE = 30\n")
    assert project.again() == 31


def test_what_was_loaded_before_a_failure_is_loaded_again_after_it(project: Project) -> None:
    project.load()
    project.write("helper.py", "VALUE = 2\n")
    project.write("kit/deep.py", "VALUE = \n")
    with pytest.raises(SyntaxError):
        project.again()
    project.write("helper.py", "VALUE = 3\n")
    project.write("kit/deep.py", "VALUE = 40\n")
    assert project.again() == 43


def test_a_module_that_a_function_imports_while_it_runs_is_loaded_again_too(
    project: Project,
) -> None:
    project.write("main_tools.py", "def total():\n    import helper\n    return helper.VALUE\n")
    assert project.load() == 1
    assert project.directory / "helper.py" in project.modules.files()
    project.write("helper.py", "VALUE = 2\n")
    assert project.again() == 2


def test_a_module_by_name_and_its_package_are_loaded_again(project: Project) -> None:
    assert project.modules.named("kit.deep", project.directory).VALUE == 10
    project.write("kit/deep.py", "from kit import LEVEL\nVALUE = LEVEL\n")
    project.write("kit/__init__.py", "LEVEL = 5\n")
    with project.modules.renewed():
        assert project.modules.named("kit.deep", project.directory).VALUE == 5


def test_installed_modules_stay(project: Project) -> None:
    installed = project.directory / ".venv/lib/site-packages"
    installed.mkdir(parents=True)
    (installed / "bought.py").write_text("VALUE = 1\n")
    sys.path.insert(0, str(installed))
    project.write("main_tools.py", "import bought, helper\ndef total(): return helper.VALUE\n")
    project.load()
    before = sys.modules["bought"]
    project.write("helper.py", "VALUE = 2\n")
    assert project.again() == 2
    assert sys.modules["bought"] is before
    assert installed / "bought.py" not in project.modules.files()


WRITES = """
import helper, pathlib, time
def total(): return helper.VALUE
time.sleep(0.05)
pathlib.Path(helper.__file__).write_text("VALUE = 7")
"""


def test_a_source_that_was_written_while_it_was_loaded_counts_as_changed(project: Project) -> None:
    project.write("main_tools.py", WRITES)
    assert project.load() == 1
    assert project.directory / "helper.py" in project.modules.changed()


def test_a_source_that_is_gone_counts_as_changed(project: Project) -> None:
    project.load()
    (project.directory / "helper.py").unlink()
    assert project.modules.changed() == {project.directory / "helper.py"}
    with pytest.raises(ModuleNotFoundError):
        project.again()
    assert "helper" in sys.modules


def test_a_file_is_one_module_for_the_configuration_and_its_neighbours(project: Project) -> None:
    project.write("other.py", "import main_tools\nASKED = main_tools\n")
    project.load()
    other = project.modules.of_file(project.directory / "other.py", "roundgate_backend_other")
    assert other.ASKED is sys.modules["roundgate_backend_project"]


def test_a_file_that_was_imported_is_not_executed_again(project: Project) -> None:
    sys.path.insert(0, str(project.directory))
    imported = importlib.import_module("main_tools")
    project.load()
    assert project.modules.of_file(project.directory / "main_tools.py", "again") is imported


def test_another_configuration_has_the_same_module_until_its_file_changes(
    project: Project,
) -> None:
    file = project.directory / "main_tools.py"
    first = Modules().of_file(file, "a")
    assert Modules().of_file(file, "b") is first
    project.write("main_tools.py", "CHANGED = True\n")
    second = Modules().of_file(file, "a")
    assert second.CHANGED
    assert sys.modules["main_tools"] is second


def test_a_change_is_loaded_under_each_of_its_names(project: Project) -> None:
    project.load()
    project.write("main_tools.py", "def total(): return 99\n")
    assert project.again() == 99
    assert sys.modules["main_tools"] is sys.modules["roundgate_backend_project"]


def test_a_file_that_fails_is_executed_again_next_time(project: Project) -> None:
    project.write("main_tools.py", "raise RuntimeError\n")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            project.load()
    assert "main_tools" not in sys.modules


def test_a_file_with_the_name_of_another_module_leaves_that_alone(project: Project) -> None:
    project.write("json.py", "MINE = True\n")
    assert project.modules.of_file(project.directory / "json.py", "mine").MINE
    assert sys.modules["json"] is json
