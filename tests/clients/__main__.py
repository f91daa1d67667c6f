"""`scripts/clients`: which clients, and what is done with the table."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from roundgate_aws.stack.functions import why_not
from tests.chaos.tasks import store
from tests.clients import documented
from tests.clients.capabilities import RIGHT, YES
from tests.clients.environments import EnvironmentMissingError, make
from tests.clients.matrix import READ_S, Row, drive, drive_and_kill, mortal, replicas, stack
from tests.clients.subjects import CACHE, EXTRA, SUBJECTS, Subject

EXPECTED: Final = Path(__file__).with_name("expected.json")
EXPECTED_AFTER_A_KILL: Final = Path(__file__).with_name("expected-kill.json")
EXPECTED_ON_THE_STACK: Final = Path(__file__).with_name("expected-stack.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Drive them; the exit status says whether anything differs from what is expected."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.kill and options.store == "stack":
        parser.error("--kill is of replicas; there are none of them behind API Gateway")
    asked: tuple[Subject, ...] = EXTRA if options.extra else SUBJECTS
    if options.names:
        asked = tuple(one for one in (*SUBJECTS, *EXTRA) if one.name in options.names)
    # leave by the `finally` that stops the servers
    signal.signal(signal.SIGTERM, lambda received, _: sys.exit(128 + received))
    expected = EXPECTED
    if options.store == "stack":
        if reason := why_not():
            print(f"skipped: clients on AWS Lambda: {reason}")
            return 0
        expected = EXPECTED_ON_THE_STACK
    if options.kill:
        expected = EXPECTED_AFTER_A_KILL
    rows, unmade = _drive(asked, options.store, kills=options.kill)
    found = {row.subject.name: row.to_json() for row in rows}
    print(json.dumps(found, indent=1) if options.json else _table(rows))
    if options.update:
        _keep(found, expected)
        return int(bool(unmade))
    differences = [*unmade, *_differences(rows, expected)]
    for difference in differences:
        print(difference, file=sys.stderr)
    return int(bool(differences))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/clients",
        description="Drives unmodified clients against three replicas, each request at another one.",
    )
    names = [subject.name for subject in (*SUBJECTS, *EXTRA)]
    parser.add_argument(
        "names", nargs="*", choices=[*names, []], metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--extra",
        action="store_true",
        help=f"versions between those that are driven else: {', '.join(one.name for one in EXTRA)}",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument(
        "--store",
        choices=("sqlite", "dynamodb"),
        default="sqlite",
        help="what the replicas share: a file, or DynamoDB Local (default: %(default)s)",
    )
    parser.add_argument(
        "--stack",
        action="store_const",
        dest="store",
        const="stack",
        help="behind API Gateway, on the emulated AWS Lambda, where nothing streams",
    )
    parser.add_argument(
        "--kill",
        action="store_true",
        help="the replica that asks the first question is killed before its answer comes",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="keep what was found as what is expected from now on, also in docs/clients.md",
    )
    return parser


def _drive(subjects: Sequence[Subject], kind: str, *, kills: bool) -> tuple[list[Row], list[str]]:
    """What was found, and which clients could not be installed."""
    rows, unmade = [], []
    logs = CACHE / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with _driving(kind, directory, kills=kills) as driven:
            for subject in subjects:
                try:
                    make(subject)
                except EnvironmentMissingError as error:
                    unmade.append(f"{subject.name}: {error}")
                    continue
                row = driven(subject, logs / f"{subject.name}.log")
                print(_line(row), file=sys.stderr, flush=True)
                rows.append(row)
    return rows, unmade


@contextmanager
def _driving(
    kind: str, directory: Path, *, kills: bool
) -> Iterator[Callable[[Subject, Path], Row]]:
    if kind == "stack":
        with stack(directory) as urls:
            yield lambda subject, log: drive(subject, urls, log)
        return
    with store(kind, directory) as shared:
        alone = shared.environment | {"GATEWAY_WORKER": "off"}
        if not kills:
            with replicas(alone, directory) as urls:
                yield lambda subject, log: drive(subject, urls, log, READ_S)
            return

        def killing(subject: Subject, log: Path) -> Row:
            with mortal(alone, directory) as servers:
                return drive_and_kill(subject, servers, log)

        yield killing


def _line(row: Row) -> str:
    wrong = {name: cell for name, cell in row.cells.items() if cell not in documented.MARKS}
    return f"{row.subject.name}: {', '.join(row.revisions)} {wrong or 'ok'}"


def _table(rows: Sequence[Row]) -> str:
    lines = [("client", "version", "revision", *RIGHT)]
    for row in rows:
        cells = (
            cell if cell in documented.MARKS else "FAILED"
            for name, cell in row.cells.items()
            if name in RIGHT
        )
        known = row.to_json()
        lines.append((known["client"], known["version"], str(known["revision"]), *cells))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _differences(rows: Sequence[Row], of: Path) -> list[str]:
    """What is other than expected, and not better: some things on the stack are a matter of moments."""
    expected = {**_read(of), **_read(extra(of))}
    found: list[str] = []
    for row in rows:
        name, before, now = row.subject.name, expected.get(row.subject.name), row.to_json()
        if before is None:
            found.append(f"{name}: is not expected at all: keep it with --update")
            continue
        found += [
            f"{name}: {key}: {now.get(key)}, not {before.get(key)}"
            for key in {**before, **now}
            if now.get(key) not in {before.get(key), YES}
            and not _are_wrong_values(before.get(key), now.get(key))
        ]
        if row.replicas < 2 and of == EXPECTED:
            found.append(f"{name}: all of its requests went to one replica")
    return found


def _are_wrong_values(*told: Any) -> bool:
    """Whether both are values that are not those that were wanted; which ones they are may be a matter of moments."""
    return all(isinstance(one, str) and re.match("not .*: ", one) for one in told)


def extra(of: Path) -> Path:
    """Where it is kept what is expected of `EXTRA`, beside what is expected of the others."""
    return of.with_name(of.name.replace("expected", "extra"))


def _keep(found: dict[str, Any], of: Path) -> None:
    """Those that were not driven stay as they were. The page has those that are driven always."""
    _kept(found, SUBJECTS, of)
    documented.write()
    _kept(found, EXTRA, extra(of))


def _kept(found: dict[str, Any], subjects: Sequence[Subject], of: Path) -> None:
    kept = {**_read(of), **found}
    ordered = {one.name: kept[one.name] for one in subjects if one.name in kept}
    if ordered:
        of.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def _read(of: Path) -> dict[str, Any]:
    return json.loads(of.read_text()) if of.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
