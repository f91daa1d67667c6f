"""Verification finds records that were changed, removed, added or reordered; a checkpoint finds what
is missing at the end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.audit.records import FIRST, ChainCheckpoint, hash_of
from roundgate.audit.verifying import Line, Report, files_of, records_of_call, verify
from roundgate.json import encode
from tests.support.command import roundgate


def line_of(
    chain: str, number: int, prev: str, at: str, event: str, facts: dict[str, Any]
) -> bytes:
    """A record as a line without its end."""
    return encode({"chain": chain, "n": number, "prev": prev, "at": at, "event": event, **facts})


def chain(name: str = "one", length: int = 6) -> list[bytes]:
    """The lines of a chain."""
    lines: list[bytes] = []
    head = FIRST
    for number in range(length):
        event = "started" if number == 0 else "stopped" if number == length - 1 else "called"
        at = f"2026-11-27T03:00:{number:02}.000Z"
        line = line_of(name, number, head, at, event, {"call": f"c{number}"})
        head = hash_of(line)
        lines.append(line)
    return lines


def checked(lines: list[bytes], *checkpoints: ChainCheckpoint, is_mixed: bool = False) -> Report:
    """What verifying these lines of a file finds."""
    numbered = [Line(Path("f"), number, data) for number, data in enumerate(lines, 1)]
    return verify(numbered, checkpoints, is_mixed=is_mixed)


def checkpoint(lines: list[bytes], records: int | None = None) -> ChainCheckpoint:
    """The checkpoint after so many records, or after all."""
    records = len(lines) if records is None else records
    name = json.loads(lines[0])["chain"]
    return ChainCheckpoint(name, records, hash_of(lines[records - 1]))


def test_a_whole_chain_has_no_problem() -> None:
    lines = chain()
    report = checked(lines, checkpoint(lines), checkpoint(lines, 3))
    assert (report.problems, report.remarks, report.records) == ([], [], 6)


def test_a_changed_record_is_found() -> None:
    lines = chain()
    lines[2] = lines[2].replace(b'"c2"', b'"c9"')
    (problem,) = checked(lines).problems
    assert problem == (
        "f:4: record 3 of chain one does not follow from f:3: one of the two was changed"
    )


def test_a_removed_record_is_found() -> None:
    lines = chain()
    del lines[2:4]
    problems = checked(lines).problems
    assert problems == ["f:3: records 2 to 3 of chain one are missing before this line"]


def test_removed_first_records_are_found() -> None:
    assert checked(chain()[2:]).problems == [
        "f:1: records 0 to 1 of chain one are missing before this line"
    ]


def test_reordered_records_are_found() -> None:
    lines = chain()
    lines[2], lines[3] = lines[3], lines[2]
    problems = checked(lines).problems
    assert "f:4: record 2 of chain one is repeated or out of order" in problems


def test_a_repeated_record_is_found() -> None:
    lines = chain()
    assert checked([*lines[:3], lines[2], *lines[3:]]).problems == [
        "f:4: record 2 of chain one is repeated or out of order"
    ]


def test_a_checkpoint_finds_that_the_last_record_is_missing() -> None:
    lines = chain()
    report = checked(lines[:-1], checkpoint(lines))
    assert report.problems == ["f:5: chain one ends with 5 records; a checkpoint has 6"]


def test_without_a_checkpoint_a_missing_end_is_only_a_remark() -> None:
    report = checked(chain()[:-1])
    assert report.problems == []
    assert report.remarks == [
        "chain one has no end: its process is running or was killed, or its end was removed"
    ]


def test_a_checkpoint_finds_that_the_last_record_was_changed() -> None:
    lines = chain()
    saved = checkpoint(lines)
    lines[-1] = lines[-1].replace(b'"c5"', b'"c9"')
    assert checked(lines).problems == []
    assert checked(lines, saved).problems == [
        "f:6: record 5 of chain one differs from the checkpoint of 6 records"
    ]


def test_a_checkpoint_finds_another_history() -> None:
    saved = checkpoint(chain(), 4)
    other = chain()[:1]
    for number in range(1, 6):
        head = hash_of(other[-1])
        other.append(line_of("one", number, head, "2026", "called", {"call": "forged"}))
    assert checked(other).problems == []
    assert checked(other, saved).problems == [
        "f:4: record 3 of chain one differs from the checkpoint of 4 records"
    ]


def test_a_checkpoint_finds_that_a_chain_is_missing() -> None:
    lines = chain("two")
    assert checked(chain(), checkpoint(lines)).problems == [
        "chain two is missing: a checkpoint has 6 records of it"
    ]


def test_checkpoints_that_contradict_each_other_are_found() -> None:
    lines = chain()
    forged = ChainCheckpoint("one", 6, "0" * 64)
    assert checked(lines, checkpoint(lines), forged).problems == [
        "chain one: two checkpoints of 6 records differ"
    ]


def test_records_after_the_end_are_found() -> None:
    lines = chain()
    more = line_of("one", 6, hash_of(lines[-1]), "2026", "called", {})
    assert checked([*lines, more]).problems == ["f:7: record 6 follows the end of chain one"]


def test_a_line_that_is_no_record_is_found() -> None:
    lines = chain()
    assert checked([*lines, b"{}"]).problems == ["f:7: is not a record"]
    assert checked([b"START RequestId", *lines, b'{"msg":"request"}'], is_mixed=True).problems == []


def test_the_chains_of_one_exported_log_are_told_apart() -> None:
    one, two = chain(), chain("two")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    report = checked(mixed, checkpoint(one), checkpoint(two))
    assert (report.problems, report.remarks, len(report.chains)) == ([], [], 2)


def changed(lines: list[bytes], draw: Any) -> list[bytes]:
    """The lines with one thing done to them."""
    lines, place = list(lines), draw(st.integers(0, len(lines) - 1))
    match draw(st.sampled_from(["byte", "remove", "swap", "repeat", "insert", "cut"])):
        case "byte":
            line, at = bytearray(lines[place]), draw(st.integers(0, len(lines[place]) - 1))
            line[at] ^= draw(st.integers(1, 255))
            lines[place] = bytes(line)
        case "remove":
            del lines[place]
        case "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
        case "repeat":
            lines.insert(draw(st.integers(0, len(lines))), lines[place])
        case "insert":
            forged = line_of("one", place, "0" * 64, "2026", "called", {})
            lines.insert(place, forged)
        case "cut":
            del lines[draw(st.integers(1, len(lines))) :]
    return [part for line in lines for part in line.split(b"\n") if part]


@given(st.data(), st.integers(1, 12))
def test_every_change_of_a_chain_with_a_checkpoint_is_found(data: Any, length: int) -> None:
    lines = chain(length=length)
    broken = changed(lines, data.draw)
    assert (checked(broken, checkpoint(lines)).problems == []) == (broken == lines)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_lines_can_be_verified(lines: list[bytes]) -> None:
    report = checked(lines)
    assert len(report.problems) == len(lines)
    assert records_of_call([Line(Path("f"), 1, line) for line in lines], "c") == []


@given(st.binary(max_size=2_000))
def test_any_file_can_be_verified(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("any")
    (directory / "any.jsonl").write_bytes(content)
    (directory / "heads.jsonl").write_bytes(content)
    from tests.support.audit import verified

    verified(directory)
    shutil.rmtree(directory)


def stored(directory: Path, lines: list[bytes]) -> Path:
    """A directory with a chain and its checkpoint."""
    directory.mkdir()
    (directory / "one.0001.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    facts = {**checkpoint(lines).facts(), "at": "2026-11-27T03:00:09.000Z"}
    (directory / "heads.jsonl").write_text(json.dumps(facts) + "\n")
    return directory


def test_the_command_verifies_a_directory(tmp_path: Path) -> None:
    directory = stored(tmp_path / "audit", chain())
    done = roundgate("audit", "verify", directory)
    assert (done.status, done.out) == (0, "1 chains, 6 records, 1 checkpoints: no problems\n")
    (file,) = directory.glob("*.0001.jsonl")
    file.write_bytes(file.read_bytes().rsplit(b"\n", 2)[0] + b"\n")
    done = roundgate("audit", "verify", directory)
    assert done.status == 1
    assert done.out.splitlines()[0] == (
        f"{file}:5: chain one ends with 5 records; a checkpoint has 6"
    )


def test_the_command_takes_checkpoints_of_a_log(tmp_path: Path) -> None:
    lines = chain()
    directory = stored(tmp_path / "audit", lines)
    (directory / "heads.jsonl").unlink()
    log = tmp_path / "gateway.log"
    line = {"ts": "…", "level": "info", "msg": "audit checkpoint", **checkpoint(lines).facts()}
    log.write_text("INFO: started\n" + json.dumps(line) + "\n")
    assert roundgate("audit", "verify", directory, "--anchors", log).status == 0
    (directory / "one.0001.jsonl").unlink()
    done = roundgate("audit", "verify", directory, "--anchors", log)
    assert done.status == 1
    assert "chain one is missing" in done.out


def test_a_file_that_ends_in_the_middle_of_a_record_is_found(tmp_path: Path) -> None:
    directory = stored(tmp_path / "audit", chain())
    (file,) = directory.glob("*.0001.jsonl")
    file.write_bytes(file.read_bytes()[:-9])
    done = roundgate("audit", "verify", directory)
    assert done.status == 1
    assert f"{file}:6: the file ends in the middle of a record" in done.out


def test_the_command_names_what_does_not_exist(tmp_path: Path) -> None:
    done = roundgate("audit", "verify", tmp_path / "none")
    assert done.status == 2
    assert "does not exist" in done.err
    (tmp_path / "gateway.yaml").write_text("backends: [{kind: python, name: own, path: t.py}]\n")
    done = roundgate("audit", "verify", "--config", tmp_path / "gateway.yaml")
    assert done.status == 2
    assert "has no section audit" in done.err
    assert roundgate("audit", "show", "none", stored(tmp_path / "audit", chain())).status == 1


def test_a_verification_that_reads_no_record_is_no_success(tmp_path: Path) -> None:
    directory = stored(tmp_path / "audit", chain())
    done = roundgate("audit", "verify", directory, "--anchors", tmp_path / "none")
    assert (done.status, done.out) == (2, "")  # 1 would mean that the log was changed
    assert f"No such file or directory: '{tmp_path / 'none'}'" in done.err
    assert "Traceback" not in done.err
    (tmp_path / "empty").mkdir()
    done = roundgate("audit", "verify", tmp_path / "empty")
    assert (done.status, done.out) == (2, "")
    assert f"there are no records in {tmp_path / 'empty'}" in done.err
    done = roundgate("audit", "verify", "--config", tmp_path / "typo.yaml")
    assert done.status == 2
    assert f"{tmp_path / 'typo.yaml'} does not exist" in done.err


def test_a_directory_that_cannot_be_read_is_not_an_empty_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stored(tmp_path / "audit", chain())

    def scandir(path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)  # whatever the user of this test may read
    monkeypatch.setattr(os, "listdir", scandir)
    with pytest.raises(PermissionError):
        files_of([directory])
