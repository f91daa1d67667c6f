"""The settings of a process: environment variables, read once at start-up.

gateway.yaml says what is served. A variable is for a setting that differs between deployments of
the same file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from roundgate.errors import ConfigError, Problem

Mode: TypeAlias = Literal["auto", "on", "off"]
LogFormat: TypeAlias = Literal["auto", "text", "json"]

SQLITE: Final = "sqlite:///"
DYNAMODB: Final = "dynamodb://"
SQS: Final = "sqs://"
DEFAULT_STORE: Final = "sqlite:///.roundgate/gateway.sqlite3"
_SWITCH: Final = ("false", "true")
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "listen": get_args(Mode),
    "worker": get_args(Mode),
    "show_errors": get_args(Mode),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": get_args(LogFormat),
    "allow_anonymous": _SWITCH,
    "reload": _SWITCH,
}
_PATTERNS: Final = {
    "store": (
        r"sqlite:///.+|dynamodb://[A-Za-z0-9_.-]{3,255}",
        "names no store we have",
        "use sqlite:///path or dynamodb://table",
    ),
    "queue": (
        r"local|sqs://\S+",
        "names no queue we have",
        "use local, or sqs:// and the URL of the queue without https://",
    ),
}
"""A pattern, a message and a remedy by field."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in the environment, one field for each variable (`roundgate docs
    configuration`)."""

    config: Path = Path("gateway.yaml")
    """GATEWAY_CONFIG: the path of gateway.yaml."""
    public_url: str | None = None
    """GATEWAY_PUBLIC_URL: the URL of the gateway for clients. Its host and origin are then
    allowed."""
    listen: Mode = "auto"
    """GATEWAY_LISTEN: whether to serve subscriptions/listen. auto: except on AWS Lambda."""
    log_level: str = "info"
    """GATEWAY_LOG_LEVEL: debug, info, warning or error. info writes a line for each request."""
    log_format: LogFormat = "auto"
    """GATEWAY_LOG_FORMAT: text, json or auto. auto: text on a terminal, otherwise JSON."""
    show_errors: Mode = "auto"
    """GATEWAY_SHOW_ERRORS: whether callers see the messages of unexpected exceptions. auto: only
    with `serve` on loopback."""
    state_keys: str | None = field(default=None, repr=False)
    """GATEWAY_STATE_KEYS: 32-byte keys for requestState, in base64, separated by commas. The first
    key seals; all open."""
    state_keys_secret: str | None = None
    """GATEWAY_STATE_KEYS_SECRET: a secret of AWS Secrets Manager with the text of
    GATEWAY_STATE_KEYS."""
    state_keys_kms: str | None = None
    """GATEWAY_STATE_KEYS_KMS: data keys encrypted by AWS KMS, in base64, separated by commas."""
    store: str = DEFAULT_STORE
    """GATEWAY_STORE: the store of tasks and other rows: sqlite:///path or dynamodb://table."""
    queue: str = "local"
    """GATEWAY_QUEUE: the queue that tells workers of tasks: local (a table of a SQLite file) or
    sqs://url."""
    worker: Mode = "auto"
    """GATEWAY_WORKER: whether the serving process also runs tasks. auto: with a local queue, except
    on AWS Lambda."""
    allow_anonymous: bool = False
    """GATEWAY_ALLOW_ANONYMOUS: whether to serve without authentication at addresses that others can
    reach."""
    reload: bool = False
    """GATEWAY_RELOAD: whether to watch gateway.yaml and the files that it loads, and serve their
    changes."""
    on_lambda: bool = False
    """Whether this is an AWS Lambda function (AWS_LAMBDA_FUNCTION_NAME is set there)."""
    on_demand: bool = False
    """Whether a caller waits while this process starts: on AWS Lambda without provisioned
    concurrency or a snapshot."""

    @property
    def sqlite_path(self) -> Path:
        """The SQLite file, relative to the folder of gateway.yaml. With a DynamoDB table, the file
        of the local queue and keys, under the table's name."""
        table = self.dynamodb_table
        name = self.store.removeprefix(SQLITE)
        if table is not None:
            name = str(Path(DEFAULT_STORE.removeprefix(SQLITE)).with_name(f"{table}.sqlite3"))
        return self.config.resolve().parent / name

    @property
    def dynamodb_table(self) -> str | None:
        """The name of the DynamoDB table in `store`, or `None`."""
        return self.store.removeprefix(DYNAMODB) if self.store.startswith(DYNAMODB) else None

    @property
    def sqs_url(self) -> str | None:
        """The URL of the SQS queue, or `None`; https unless `queue` is `sqs://http://…`."""
        if not self.queue.startswith(SQS):
            return None
        url = self.queue.removeprefix(SQS)
        return url if url.startswith(("http://", "https://")) else f"https://{url}"

    @property
    def works(self) -> bool:
        """Whether the serving process also runs tasks."""
        return self.worker == "on" or (
            self.worker == "auto" and self.queue == "local" and not self.on_lambda
        )

    @property
    def streams(self) -> bool:
        """Whether subscriptions/listen is advertised and served."""
        return self.listen == "on" or (self.listen == "auto" and not self.on_lambda)


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables; an empty variable counts as unset.

    Raises:
        ConfigError: lists every invalid variable, with its possible values.
    """
    values: dict[str, Any] = {
        setting.name: value
        for setting in fields(Settings)
        if (value := environ.get(_variable(setting.name)))
    }
    problems = [problem for name, value in values.items() if (problem := _problem(name, value))]
    if problems:
        raise ConfigError(problems)
    values |= {
        name: values[name] == "true" for name in ("allow_anonymous", "reload") if name in values
    }
    if "config" in values:
        values["config"] = Path(values["config"])
    values["on_lambda"] = bool(environ.get("AWS_LAMBDA_FUNCTION_NAME"))
    kind = environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") or "on-demand"
    values["on_demand"] = values["on_lambda"] and kind == "on-demand"
    return Settings(**values)


def _variable(field_name: str) -> str:
    return f"GATEWAY_{field_name.upper()}"


def _problem(name: str, value: str) -> Problem | None:
    """Return the problem of a field's text, or `None`."""
    if name in _CHOICES and value not in _CHOICES[name]:
        message, remedy = f"is {value!r}", f"use one of {', '.join(_CHOICES[name])}"
    elif name in _PATTERNS and not re.fullmatch(_PATTERNS[name][0], value):
        _, message, remedy = _PATTERNS[name]
    elif name == "public_url" and not _is_origin(value):
        message = "is not an http(s) URL with a host"
        remedy = "give the URL that clients use, such as https://mcp.example.com"
    else:
        return None
    return Problem("environment", _variable(name), message, remedy)


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
