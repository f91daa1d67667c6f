"""`roundgate audit`: verify the audit log, show the records of a call, and compute digests.

The commands read files and need no gateway. Without paths they read the directory of the nearest
gateway.yaml.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundgate import config
from roundgate.audit.verifying import (
    Report,
    checkpoints_of,
    files_of,
    lines_of,
    records_of_call,
    verify,
)
from roundgate.cli.arguments import Commands, add_config_option, command, configuration_file, flag
from roundgate.cli.output import say, show_json
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, ParseError, UsageError
from roundgate.json import decode
from roundgate.runtime.audit_log import audit_directory, make_digests
from roundgate.settings import AuditConfig


def declare(commands: Commands) -> None:
    """Add `roundgate audit`."""
    audit = command(commands, "audit", "verify and read the audit log")
    actions = audit.add_subparsers(dest="action", required=True)
    about = "find records that were changed, removed or reordered"
    verify = command(
        actions, "verify", about, "roundgate audit verify",
        "roundgate audit verify /var/log/roundgate --anchors gateway.log", run=_verify,
    )  # fmt: skip
    add_audit_paths(verify)
    about = "file with checkpoints that were kept elsewhere, such as a JSON log; may be repeated"
    verify.add_argument(
        "--anchors", type=Path, action="append", default=[], metavar="FILE", help=about
    )
    flag(verify, "--mixed", "skip lines that are not records, as in an exported log")
    about = "print the records of a call, with its rounds and tasks"
    show = command(actions, "show", about, "roundgate audit show V1Xq0d3nRkmzk1m2Yb9S7w", run=_show)
    show.add_argument("call", metavar="CALL", help="id of the call, as the log has it")
    add_audit_paths(show)
    flag(show, "--json", "print the records as JSON, one per line")
    about = "print the digest of arguments or of an answer, to compare it with a record"
    digest = command(actions, "digest", about, "roundgate audit digest arguments.json", run=_digest)
    about = "file with the value as JSON (default: standard input)"
    digest.add_argument("file", nargs="?", type=Path, metavar="FILE", help=about)
    add_config_option(digest, "of the log")


def add_audit_paths(action: argparse.ArgumentParser) -> None:
    about = "files or directories of the log (default: the directory of gateway.yaml)"
    action.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=about)
    add_config_option(action, "of the log")


def _verify(arguments: argparse.Namespace) -> int:
    paths = _paths(arguments)
    try:
        checkpoints = checkpoints_of(paths, arguments.anchors)
        report = verify(lines_of(files_of(paths)), checkpoints, is_mixed=arguments.mixed)
    except OSError as error:  # status 1 would mean that the log was changed
        raise UsageError(str(error)) from None
    if not report.records and not report.problems:
        raise UsageError(f"there are no records in {', '.join(map(str, paths))}")
    for problem in report.problems:
        say(problem)
    if report.more_problems:
        say(f"and {report.more_problems} more problems")
    for remark in report.remarks:
        say(f"remark: {remark}")
    say(_summary(report))
    return 1 if report.problems else 0


def _summary(report: Report) -> str:
    count = len(report.problems) + report.more_problems
    problems = f"{count} problem{'s' * (count != 1)}" if count else "no problems"
    return (
        f"{len(report.chains)} chains, {report.records} records, {report.checkpoints} checkpoints:"
        f" {problems}"
    )


def _show(arguments: argparse.Namespace) -> int:
    records = records_of_call(lines_of(files_of(_paths(arguments))), arguments.call)
    if not records:
        say(f"there is no record of the call {arguments.call}", to=sys.stderr)
        return 1
    for record in records:
        if arguments.json:
            show_json(record)
        else:
            say(_text(record))
    return 0


def _text(record: dict[str, Any]) -> str:
    facts = {
        name: value
        for name, value in record.items()
        if name not in ("chain", "n", "prev", "at", "event", "call")
    }
    shown = " ".join(f"{name}={_value(value)}" for name, value in facts.items() if value != "")
    return f"{record['at']}  {record['event']:12}  {shown}  ({record['chain']} {record['n']})"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        members = ",".join(f"{name}:{_value(item)}" for name, item in value.items() if item != "")
        return f"{{{members}}}"
    return str(value)


def _digest(arguments: argparse.Namespace) -> int:
    file, settings = _configured(arguments)
    source = sys.stdin.buffer if arguments.file is None else None
    try:
        data = arguments.file.read_bytes() if source is None else source.read()
        value = decode(data)
    except (OSError, ParseError) as error:
        raise UsageError(f"{arguments.file or 'standard input'}: {error}") from None
    say(make_digests(file, settings).of(value))
    return 0


def _paths(arguments: argparse.Namespace) -> Sequence[Path]:
    return arguments.paths or [audit_directory(*_configured(arguments))]


def _configured(arguments: argparse.Namespace) -> tuple[ConfigFile, AuditConfig]:
    path = configuration_file(arguments.config)
    inspected = config.inspect(path, placeholder="")
    if (file := inspected.file) is None:
        raise ConfigError(inspected.problems)
    if file.config.audit is None:
        raise UsageError(f"{path} has no section audit: name the files, or pass --config")
    return file, file.config.audit
