"""What neither a hostile server, nor a link, nor somebody else's suite makes of the command line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from roundgate.cli import main
from roundgate.cli.remote import SECRET_VARIABLE
from roundgate_testing.suites.expecting import differences
from tests.roundgate.cli.test_refusals import refusing


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("option", ["--transcript", "--cassette"])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_was_said_is_for_the_owner_alone(
    tmp_path: Path, option: str, is_there: bool, open_umask: object
) -> None:
    file = tmp_path / "said.yaml"
    if is_there:
        file.write_text("of a run before " * 1_000)
        file.chmod(0o644)
    with refusing(404, b"no") as url:
        assert main(["list", url, option, str(file)]) == 3
    assert mode(file) == 0o600
    assert "server/discover" in file.read_text()
    assert "of a run before" not in file.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["said.yaml"]


def test_a_transcript_follows_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("precious")
    link.symlink_to(precious)
    with refusing(404, b"no") as url:
        assert main(["list", url, "--transcript", str(link)]) == 2
    assert "--transcript" in capsys.readouterr().err
    assert precious.read_text() == "precious"


def test_a_transcript_is_no_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refusing(404, b"no") as url:
        assert main(["list", url, "--transcript", str(tmp_path / "pipe")]) == 2


def test_a_cassette_takes_the_place_of_a_link(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link.yaml"
    precious.write_text("precious")
    link.symlink_to(precious)
    with refusing(404, b"no") as url:
        main(["list", url, "--cassette", str(link)])
    assert precious.read_text() == "precious"
    assert not link.is_symlink()
    assert mode(link) == 0o600


def test_a_secret_goes_to_no_issuer_that_the_server_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "hush-hush")
    with refusing(401, b"") as url:
        assert main(["list", url, "--client-id", "me"]) == 2
    said = capsys.readouterr().err
    assert "--client-id needs --issuer" in said
    assert "hush-hush" not in said


SUITE = """\
variables: {{stolen: "{reference}"}}
server: {{url: "{url}", command: [touch, "{marker}"]}}
cases: [{{name: c, call: t, arguments: {{stolen: "${{stolen}}"}}}}]
"""


def test_with_a_url_nothing_of_a_suite_is_started(tmp_path: Path) -> None:
    suite, marker = tmp_path / "suite.yaml", tmp_path / "started"
    with refusing(404, b"no") as url:
        suite.write_text(SUITE.format(reference="x", url=url, marker=marker))
        assert main(["test", str(suite), "--url", url]) != 0
    assert not marker.exists()


@pytest.mark.parametrize("reference", ["../secret", "/etc/hostname", "link", "sub/../../secret"])
def test_a_suite_reads_no_file_outside_of_its_folder(
    tmp_path: Path, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    (tmp_path / "secret").write_text("hush-hush")
    (folder / "link").symlink_to(tmp_path / "secret")
    suite = folder / "suite.yaml"
    with refusing(404, b"no") as url:
        text = SUITE.format(reference=f"${{file:{reference}}}", url=url, marker=folder / "x")
        suite.write_text(text)
        assert main(["test", str(suite), "--url", url]) != 0
    told = capsys.readouterr()
    assert "is not in the suite's folder" in told.out + told.err
    assert "hush-hush" not in told.out + told.err


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(a+)+$", "a" * 40 + "!"),
        (r"(a+)+\1$", "a" * 3_000 + "!"),
        (r"(?=(a+)+b)c", "a" * 3_000 + "!"),
        (r"(\w+\s?)*(?<!x)$", "a " * 20_000 + "!"),
    ],
)
def test_an_expression_of_a_suite_ends(pattern: str, text: str) -> None:
    """Python's own engine takes years for the first."""
    assert differences({"$regex": pattern}, text, "text")
