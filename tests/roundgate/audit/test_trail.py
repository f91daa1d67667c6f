"""The audit log of a process: its chain, its files, its checkpoints, and what happens when it
cannot be written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate.audit import Trail
from roundgate.audit.records import FIRST
from roundgate.audit.sinks import Files, StandardOutput
from roundgate.audit.trail import MAX_WAITING
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock, Timer
from roundgate.errors import Unavailable
from roundgate.observability.tracing import Correlation, correlated
from roundgate.settings import AuditConfig
from tests.support.audit import DIGESTS, checkpointed, files, records, text, verified
from tests.support.documents import ROOT
from tests.support.log_lines import log_lines


def trail_in(directory: Path, **settings: Any) -> Trail:
    """An audit log in a directory."""
    config = AuditConfig(**settings)

    def make_files(chain: str) -> Files:
        most = config.max_file_bytes
        return Files(directory, chain, most, is_durable=config.durable)

    return Trail(config, make_files, DIGESTS, Clock())


class Disk:
    """A destination that is full for a while."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_full = False
        self.flushed = 0

    def write(self, line: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.lines.append(line)

    def mark(self, line: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")

    def flusher(self) -> Callable[[], None]:
        written = len(self.lines)

        def flush() -> None:
            if self.is_full:
                raise OSError(5, "Input/output error")
            self.flushed = written

        return flush

    def close(self) -> None:
        return

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.lines]


def trail_on(disk: Disk, **settings: Any) -> Trail:
    """An audit log on such a destination."""
    return Trail(AuditConfig(**settings), lambda _: disk, DIGESTS, Clock())


async def test_each_record_has_the_hash_of_the_line_before(tmp_path: Path) -> None:
    trail = trail_in(tmp_path)
    for number in range(3):
        trail.record("called", {"number": number})
    await trail.aclose()
    (file,) = files(tmp_path, "*.0001.jsonl")
    lines = file.read_bytes().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", *["called"] * 3, "stopped"]
    hashes = [FIRST, *(hashlib.sha256(line).hexdigest() for line in lines)]
    assert [json.loads(line)["prev"] for line in lines] == hashes[:-1]
    assert [json.loads(line)["n"] for line in lines] == [0, 1, 2, 3, 4]


async def test_a_chain_goes_on_in_the_next_file(tmp_path: Path) -> None:
    trail = trail_in(tmp_path, max_file_bytes=4_096, durable=True)
    for number in range(100):
        trail.record("called", {"number": number})
    await trail.aclose()
    parts = files(tmp_path, "*.0*.jsonl")
    assert len(parts) > 3
    assert all(part.stat().st_size <= 4_096 for part in parts)
    report = verified(tmp_path)
    assert (report.problems, report.remarks) == ([], [])
    assert len(report.chains) == 1
    assert report.records == 102


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "audit"
    trail = trail_in(directory)
    trail.record("called", {})
    await trail.aclose()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files(directory)} == {0o600}


async def test_no_file_is_made_without_a_record(tmp_path: Path) -> None:
    await trail_in(tmp_path).aclose()
    assert files(tmp_path, "*") == []


async def test_a_checkpoint_has_the_head_of_the_chain_in_the_file_and_in_the_log(
    tmp_path: Path,
) -> None:
    with log_lines() as logged:
        trail = trail_in(tmp_path)
        trail.record("called", {})
        await trail.aclose()
    (line,) = logged.of("audit checkpoint")
    (stored,) = (tmp_path / "heads.jsonl").read_text().splitlines()
    facts = {name: line[name] for name in ("chain", "records", "head")}
    assert facts.items() <= json.loads(stored).items()
    (file,) = files(tmp_path, "*.0001.jsonl")
    *_, last = file.read_bytes().splitlines()
    assert facts["head"] == hashlib.sha256(last).hexdigest()
    assert facts["records"] == 3


async def test_a_checkpoint_is_not_logged_as_part_of_the_call_that_began_it(tmp_path: Path) -> None:
    trail = trail_in(tmp_path, checkpoint_s=1)
    with log_lines() as lines:
        with correlated(Correlation(tool="pay", known_call_id="call-of-a-caller")):
            trail.record("called", {})
        await checkpointed(tmp_path)
    (line,) = lines.of("audit checkpoint")
    assert not line.keys() & {"call", "tool"}


async def test_a_checkpoint_follows_a_record_by_itself(tmp_path: Path) -> None:
    trail = trail_in(tmp_path, checkpoint_s=1)
    trail.record("called", {})
    await checkpointed(tmp_path)
    trail.record("called", {})
    await trail.aclose()
    assert verified(tmp_path).problems == []
    assert verified(tmp_path).checkpoints == 2


async def test_a_call_is_refused_while_its_record_cannot_be_written() -> None:
    disk = Disk()
    trail = trail_on(disk)
    trail.record("called", {})
    disk.is_full = True
    with log_lines() as logged:
        for _ in range(3):
            with pytest.raises(Unavailable, match="audit log"):
                trail.record("called", {"number": "refused"}, must=True)
        with pytest.raises(Unavailable):
            trail.check()
        trail.record("ended", {"number": "of a call that had begun"})
        disk.is_full = False
        trail.check()
        trail.record("called", {"number": "served"}, must=True)
    assert trail.trouble is None
    expected = ["started", "called", "ended", "resumed", "checked", "called"]
    assert disk.events() == expected
    assert len(logged.of("the audit log cannot be written")) == 1
    assert len(logged.of("the audit log is written again")) == 1


class HastyClock(Clock):
    """The real clock, whose timers do not wait."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(min(seconds, 0.001), callback)


@pytest.mark.parametrize("records", [0, 1])
async def test_a_log_is_written_again_without_a_call(records: int) -> None:
    """A balancer sends no call to a gateway that is not ready."""
    disk = Disk()
    trail = Trail(AuditConfig(), lambda _: disk, DIGESTS, HastyClock())
    for _ in range(records):
        trail.record("called", {})
    disk.is_full = True
    with log_lines() as logged:
        trail.open()
        with pytest.raises(Unavailable):
            trail.record("called", {}, must=True)
        await asyncio.sleep(0.05)
        assert trail.refuses
        disk.is_full = False
        async with asyncio.timeout(60):
            while "resumed" not in disk.events():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
    assert disk.events() == ["started", *["called"] * records, "resumed"]
    assert len(logged.of("the audit log cannot be written")) == 1
    assert len(logged.of("the audit log is written again")) == 1
    await trail.aclose()


async def test_calls_go_on_without_records_if_configured() -> None:
    disk = Disk()
    trail = trail_on(disk, on_failure="continue")
    disk.is_full = True
    with log_lines() as logged:
        for number in range(MAX_WAITING + 5):
            trail.record("called", {"number": number}, must=True)
        trail.check()
    assert len(logged.of("the audit log cannot be written")) == 1
    assert disk.lines == []
    disk.is_full = False
    trail.record("called", {"number": "last"}, must=True)
    assert disk.events().count("called") == MAX_WAITING + 1
    resumed = json.loads(disk.lines[-2])
    assert (resumed["event"], resumed["lost"]) == ("resumed", 5)


async def test_records_that_never_reach_the_disk_are_counted_at_the_end() -> None:
    disk = Disk()
    trail = trail_on(disk)
    trail.record("called", {})
    disk.is_full = True
    trail.record("ended", {})
    with log_lines() as logged:
        await trail.aclose()
    (line,) = logged.of("records of the audit log are lost")
    assert line["records"] == 1


async def test_a_log_that_never_began_is_not_begun_after_its_end() -> None:
    made: list[str] = []

    def make_nothing(chain: str) -> Disk:
        made.append(chain)
        raise OSError(28, "No space left on device")

    trail = Trail(AuditConfig(), make_nothing, DIGESTS, HastyClock())
    trail.open()
    trail.record("ended", {})
    with log_lines() as logged:
        await trail.aclose()
    (line,) = logged.of("records of the audit log are lost")
    assert line["records"] == 1
    attempts = len(made)
    await asyncio.sleep(0.05)
    assert len(made) == attempts


async def test_a_record_is_on_the_disk_when_it_is_settled() -> None:
    disk = Disk()
    trail = trail_on(disk, durable=True)

    async def call() -> None:
        trail.record("called", {})
        written = len(disk.lines)
        await trail.settled()
        assert disk.flushed >= written

    await asyncio.gather(*(call() for _ in range(20)))
    assert disk.flushed == 21


async def test_a_call_may_wait_for_the_disk_at_each_moment_of_a_flush() -> None:
    disk = Disk()
    trail = trail_on(disk, durable=True)

    async def calls(turns: int) -> None:
        for _ in range(30):
            for _ in range(turns):
                await asyncio.sleep(0)
            trail.record("called", {})
            written = len(disk.lines)
            await trail.settled()
            assert disk.flushed >= written

    await asyncio.gather(*(calls(turns) for turns in range(8)))


async def test_a_disk_that_cannot_flush_refuses_later_calls() -> None:
    disk = Disk()
    trail = trail_on(disk, durable=True)
    trail.record("called", {})
    disk.is_full = True
    await trail.settled()
    assert trail.trouble is not None
    with pytest.raises(Unavailable):
        trail.record("called", {}, must=True)


async def test_without_durable_nothing_waits_for_the_disk() -> None:
    disk = Disk()
    trail = trail_on(disk)
    trail.record("called", {})
    await trail.settled()
    assert disk.flushed == 0


FULL = """
import asyncio, resource, sys
from pathlib import Path
from roundgate.errors import Unavailable
from tests.roundgate.audit.test_trail import trail_in

async def main(directory):
    trail = trail_in(directory)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    served = refused = 0
    while not refused:
        try:
            trail.record("called", {"number": served}, must=True)
            served += 1
        except Unavailable:
            refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    trail.record("called", {"number": served}, must=True)
    await trail.aclose()
    print(served)

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no RLIMIT_FSIZE on this system")
def test_a_record_that_fits_only_in_part_is_cut_off(tmp_path: Path) -> None:
    """A limit on the size of files fails like a full disk: a part of the record is written."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    report = verified(tmp_path)
    assert report.problems == []
    served = [record["number"] for record in records(tmp_path, "called")]
    assert served == list(range(int(done.stdout) + 1))
    assert len(records(tmp_path, "resumed")) == 1


def test_lines_of_standard_output_are_records(capfd: pytest.CaptureFixture[str]) -> None:
    trail = Trail(AuditConfig(to="stdout"), lambda _: StandardOutput(1), DIGESTS, Clock())
    trail.record("called", {})
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", "called"]


async def test_the_chains_of_two_processes_are_apart(tmp_path: Path) -> None:
    first, second = trail_in(tmp_path), trail_in(tmp_path)
    for trail in (first, second, first, second):
        trail.record("called", {})
    await first.aclose()
    await second.aclose()
    report = verified(tmp_path)
    assert len(report.chains) == 2
    assert report.problems == []


async def test_a_record_from_another_thread_is_in_the_chain(tmp_path: Path) -> None:
    trail = trail_in(tmp_path)
    await asyncio.gather(
        *(asyncio.to_thread(trail.record, "called", {"number": number}) for number in range(50))
    )
    await trail.aclose()
    assert verified(tmp_path).problems == []
    assert verified(tmp_path).records == 52


async def test_digests_hide_values_and_names_are_short(tmp_path: Path) -> None:
    trail = trail_in(tmp_path)
    trail.answered(LOCAL, "u.1", {"pin" * 1_000: {"action": "accept", "content": {"pin": 4711}}})
    trail.answered(LOCAL, "u.1", {str(number): "4711" for number in range(1_000)})
    await trail.aclose()
    assert "4711" not in text(tmp_path)
    first, second = records(tmp_path, "answered")
    ((key, answer),) = first["answers"].items()
    assert (len(key), answer["action"]) == (200, "accept")
    assert len(second["answers"]) == 101
    assert second["answers"]["…"] == {"more": 900}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_the_files_of_a_command_of_root_belong_to_the_owner_of_the_directory(
    tmp_path: Path,
) -> None:
    os.chown(tmp_path, 65534, 65533)  # of the gateway
    sink = Files(tmp_path, "chain", 1_000, is_durable=False)
    sink.write(b"{}\n")
    sink.mark(b"{}\n")
    sink.close()
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tmp_path.iterdir()}
    assert owners == dict.fromkeys(("chain.0001.jsonl", "heads.jsonl"), (65534, 65533))


def test_a_link_in_the_place_of_the_checkpoints_is_not_followed(tmp_path: Path) -> None:
    """Its directory belongs to a gateway that may have been taken over; a command of root writes."""
    other = tmp_path / "other"
    other.write_text("1")
    directory = tmp_path / "audit"
    directory.mkdir()
    (directory / "heads.jsonl").symlink_to(other)
    sink = Files(directory, "chain", 1_000, is_durable=False)
    sink.write(b"{}\n")
    with pytest.raises(OSError, match="symbolic links"):
        sink.mark(b"{}\n")
    sink.close()
    assert other.read_text() == "1"
