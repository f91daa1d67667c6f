"""What a repository says that its tools need, and the lock that is made of it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from roundgate.errors import ConfigError
from roundgate_aws import locking, machine
from roundgate_aws.locking import Requirements

SHA = "a" * 64


def test_the_files_of_a_requirements_file_are_one_list(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    text = f"# ours\nRoundgate[aws,otel]>=0.1\n-r more/base.txt\nhttpx==0.28.1 \\\n  --hash=sha256:{SHA}  # why\n"
    (tmp_path / "requirements.txt").write_text(text)
    (tmp_path / "more/base.txt").write_text("-c held.txt\nPython_Slugify>=8 ; python_version>'3'\n")
    found = locking.read_requirements(tmp_path)
    held = f"-c {tmp_path / 'more/held.txt'}"
    assert found.lines == (held, "Python_Slugify>=8 ; python_version>'3'", "httpx==0.28.1")
    assert found.hashes == {"httpx": {SHA}}
    assert found.extras == {"aws", "otel"}
    assert found.names == {"python-slugify", "httpx"}


@pytest.mark.parametrize(
    ("text", "says"),
    [("-r missing.txt", "missing.txt: .*No such file"), ("-r requirements.txt", "includes itself")],
)
def test_a_file_that_cannot_be_included_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(ConfigError, match=says):
        locking.read_requirements(tmp_path)


def test_a_lock_of_uv_gives_versions_and_hashes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "shop"\ndependencies = ["roundgate", "idna>=3"]\n'
    )
    package = (
        f'[[package]]\nname = "idna"\nversion = "3.9"\nsource = {{registry = "https://pypi.org/simple"}}\n\
wheels = [{{url = "https://x/idna.whl", hash = "sha256:{SHA}"}}]\n'
    )
    own = '[[package]]\nname = "shop"\nversion = "1"\nsource = {editable = "."}\n'
    (tmp_path / "uv.lock").write_text(package + own)
    found = locking.read_requirements(tmp_path)
    assert found == Requirements(
        tmp_path / "uv.lock", ("idna>=3",), ("idna==3.9",), {"idna": frozenset({SHA})}
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Foo.Bar_baz[x]>=1", "foo-bar-baz"),
        ("foo @ https://host/foo.whl", "foo"),
        ("./wheels/foo.whl", None),
        ("-e .", None),
        ("--index-url https://host", None),
        ("https://host/foo.whl", None),
        ("wheels/foo-1-py3-none-any.whl", None),
    ],
)
def test_the_name_in_a_line(line: str, name: str | None) -> None:
    assert locking.name_of(line) == name


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and no other place."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(metadata, "requires", lambda name: [])
    return folder


def wheel(folder: Path, name: str, tag: str, requires: str = "") -> str:
    """Put a wheel there; returns its SHA-256."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{name}.py", f"# for {tag}")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
        archive.writestr(f"{name}-1.0.dist-info/METADATA", head)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    (folder / f"{name}-1.0-{tag}.whl").write_bytes(packed.getvalue())
    return hashlib.sha256(packed.getvalue()).hexdigest()


@pytest.mark.long
def test_a_lock_has_the_wheels_of_both_architectures_and_is_made_once(
    index: Path, tmp_path: Path
) -> None:
    both = [
        wheel(index, "fast", f"cp313-cp313-manylinux_2_28_{one}") for one in ("x86_64", "aarch64")
    ]
    plain = wheel(index, "slow", "py3-none-any", "boto3")
    wheel(index, "boto3", "py3-none-any")
    wanted = Requirements(None, ("slow", "fast"))
    made = locking.for_repository(wanted, tmp_path, "arm64")
    assert made.is_new
    assert {pin.name: pin.hashes for pin in made.pins} == {"fast": set(both), "slow": {plain}}
    again = locking.for_repository(wanted, tmp_path, "x86_64")
    assert (again.is_new, again.pins) == (False, made.pins)
    for arch, tag in machine.PLATFORMS.items():
        packages = locking.packages(again, arch)
        assert (packages / "fast.py").read_text() == f"# for cp313-cp313-manylinux_2_28_{tag}"
    assert locking.for_repository(Requirements(None, ("slow",)), tmp_path, "arm64").is_new


@pytest.mark.long
def test_a_package_without_a_wheel_for_the_functions_is_named(index: Path, tmp_path: Path) -> None:
    wheel(index, "windows", "cp313-cp313-win_amd64")
    with pytest.raises(
        ConfigError, match=r"windows==1\.0 has no wheel for python3\.13 on Linux, aarch64"
    ):
        locking.for_repository(Requirements(None, ("windows==1.0",)), tmp_path, "arm64")
    assert not (tmp_path / locking.NAME).exists()


@pytest.mark.long
def test_a_wheel_that_the_repositorys_own_lock_does_not_know_is_refused(
    index: Path, tmp_path: Path
) -> None:
    wheel(index, "slow", "py3-none-any")
    wanted = Requirements(Path("uv.lock"), ("slow",), (), {"slow": frozenset({SHA})})
    with pytest.raises(ConfigError, match="does not have a hash that the file allows"):
        locking.for_repository(wanted, tmp_path, "arm64")


@pytest.mark.long
def test_a_wheel_at_a_url_is_locked_with_it(index: Path, tmp_path: Path) -> None:
    sha256 = wheel(tmp_path, "slow", "py3-none-any")
    url = (tmp_path / "slow-1.0-py3-none-any.whl").as_uri()
    made = locking.for_repository(Requirements(None, (f"slow @ {url}",)), tmp_path, "arm64")
    assert f"slow @ {url} --hash=sha256:{sha256}\n" in made.file.read_text()
    again = locking.for_repository(Requirements(None, (f"slow @ {url}",)), tmp_path, "arm64")
    assert (locking.packages(again, "arm64") / "slow.py").is_file()


@pytest.mark.long
def test_a_lock_without_the_wheel_of_an_architecture_says_what_to_do(
    index: Path, tmp_path: Path
) -> None:
    wheel(index, "fast", "cp313-cp313-manylinux_2_28_aarch64")
    made = locking.for_repository(Requirements(None, ("fast",)), tmp_path, "arm64")
    with pytest.raises(ConfigError, match=r"fast==1\.0 has no wheel for python3\.13"):
        locking.packages(made, "x86_64")
    wheel(index, "fast", "cp313-cp313-manylinux_2_28_x86_64")
    with pytest.raises(ConfigError, match="run `roundgate package --lock --arch x86_64`"):
        locking.packages(made, "x86_64")


@pytest.mark.long
def test_versions_of_our_own_give_way_to_those_that_are_wanted(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(index, "slow", "py3-none-any")
    (tmp_path / "own.lock").write_text(f"slow==2.0 --hash=sha256:{SHA}\n")
    monkeypatch.setattr(machine, "LOCK", tmp_path / "own.lock")
    (pin,) = locking.for_repository(Requirements(None, ("slow==1.0",)), tmp_path, "arm64").pins
    assert pin.version == "1.0"


@pytest.mark.long
def test_what_contradicts_itself_is_an_error_before_anything_is_written(
    index: Path, tmp_path: Path
) -> None:
    wheel(index, "slow", "py3-none-any", "fast<1")
    wheel(index, "fast", "py3-none-any")
    with pytest.raises(ConfigError):
        locking.for_repository(Requirements(None, ("slow", "fast==1.0")), tmp_path, "arm64")
    assert not (tmp_path / locking.NAME).exists()


def test_roundgates_own_lock_has_native_wheels_for_both_architectures() -> None:
    lines = machine.LOCK.read_text().splitlines()[1:]
    assert all(line.count("--hash=sha256:") in (1, len(machine.PLATFORMS)) for line in lines)
    assert {line.partition("==")[0] for line in lines if line.count("--hash") == 2} >= {
        *("cryptography", "jiter", "jsonschema-rs", "orjson", "pydantic-core")
    }
