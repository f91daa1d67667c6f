"""The audit log of a process, as the section `audit` describes it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from roundgate.audit import Trail
from roundgate.audit.digests import Digests
from roundgate.audit.sinks import KEY_FILE, STDERR, STDOUT, Files, Sink, StandardOutput
from roundgate.audit.trail import config_text
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.settings import AuditConfig, Settings
from roundgate.tokens import Key, keys
from roundgate.version import VERSION

COMMAND: Final = "command"
"""The role of a command of an operator."""
_KEY_REMEDY: Final = "make a key with `roundgate keys new`, and write audit.key: ${AUDIT_KEY}"


def make_trail(
    file: ConfigFile, config: AuditConfig, using: Settings, clock: Clock, role: str
) -> Trail:
    """Return the audit log of a process. No file of it is opened before the first record.

    Args:
        file: the configuration.
        config: its section `audit`.
        using: the settings of the environment.
        clock: the clock of the process.
        role: the kind of process for the first record: `gateway`, `worker` or `COMMAND`.

    Raises:
        ConfigError: this process cannot write such a log, or cannot use its key.
    """
    if found := list(problems(file, config, using)):
        raise ConfigError(found)
    digests = make_digests(file, config)
    facts = {
        "role": role,
        "version": VERSION,
        "config": digests.of(config_text(file.origin.located.file)),
    }
    directory = audit_directory(file, config)

    def make_sink(chain: str) -> Sink:
        if config.to == "stdout":
            return StandardOutput(STDERR if role == COMMAND else STDOUT)
        return Files(directory, chain, config.max_file_bytes, is_durable=config.durable)

    return Trail(config, make_sink, digests, clock, facts)


def audit_directory(file: ConfigFile, config: AuditConfig) -> Path:
    """Return the directory of the audit log's files."""
    return file.origin.base_dir / config.directory


def make_digests(file: ConfigFile, config: AuditConfig) -> Digests:
    """Return the maker of digests. Without `audit.key`, make a key file in the directory of the log.

    Raises:
        ConfigError: the key is invalid, or the key file cannot be used.
    """
    if config.key is None:
        path = audit_directory(file, config) / KEY_FILE
        return Digests(keys.from_file(path, "the key file of the audit log", _KEY_REMEDY)[0])
    try:
        return Digests(Key(base64.b64decode(config.key.get_secret_value(), validate=True)))
    except ValueError:
        message = "is not 32 bytes in base64, or its variable is not set here"
        raise ConfigError([file.origin.at("audit", "key").problem(message, _KEY_REMEDY)]) from None


def problems(file: ConfigFile, config: AuditConfig, using: Settings) -> Iterator[Problem]:
    """Yield the reasons why a process with these settings cannot write the audit log."""
    origin = file.origin.at("audit")
    if using.on_lambda and config.to == "files":
        message = "is files, and the files of an AWS Lambda function vanish with its environment"
        remedy = "set audit.to: stdout; the records go to the log group of each function"
        yield origin.at("to").problem(message, remedy)
    elif config.to == "files" and not _is_writable(audit_directory(file, config)):
        message = "is not a directory in which this process can write"
        remedy = "create it for this user, or name another directory"
        yield origin.at("directory").problem(message, remedy)
    if config.to == "stdout" and config.durable:
        message = "is true, but the gateway cannot tell when a line of standard output is durable"
        yield origin.at("durable").problem(message, "remove it, or set audit.to: files")
    if config.key is None and config.to == "stdout":
        message = "is not set, and without files there is no key file"
        yield origin.at("key").problem(message, _KEY_REMEDY)
    elif config.key is not None and config.key.get_secret_value() != file.placeholder:
        try:
            make_digests(file, config)
        except ConfigError as error:
            yield from error.problems


def _is_writable(directory: Path) -> bool:
    """Return whether this process can write to a directory, or can create it."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
