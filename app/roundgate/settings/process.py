"""The settings of a process: environment variables, read once at start-up.

gateway.yaml defines the content that is served. A variable is for a setting that differs between
deployments of the same file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from roundgate.errors import ConfigError, Problem
from roundgate.net.addresses import host_of
from roundgate.settings.files import read_regular

Mode: TypeAlias = Literal["auto", "on", "off"]
LogFormat: TypeAlias = Literal["auto", "text", "json"]

SQS: Final = "sqs://"
DEFAULT_STORE: Final = "sqlite:///.roundgate/gateway.sqlite3"
DRAIN_S: Final = 10
"""The seconds that calls have after SIGTERM if GATEWAY_DRAIN_S is unset."""
_SWITCH: Final = ("false", "true")
_NUMBERS: Final = ("store_connections", "drain_s")
_SECRETS: Final = ("state_keys", "store")
"""The fields whose text may be in a file, such as a mounted secret: `GATEWAY_STORE_FILE` names the
file with the text of `GATEWAY_STORE`. The text of settings omits them."""
_FILE_REMEDY: Final = "name a file with the secret that the user of this process may read"
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "listen": get_args(Mode),
    "worker": get_args(Mode),
    "show_errors": get_args(Mode),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": get_args(LogFormat),
    "allow_anonymous": _SWITCH,
    "reload": _SWITCH,
}
_HOST: Final = r"(?:[\w.%-]*|\[[\dA-Fa-f:]+\])(?::\d+)?"
_POSTGRESQL: Final = rf"postgres(?:ql)?://(?:[^@:/?#\s]+(?::[^@:/?#\s]*)?@)?{_HOST}(?:,{_HOST})*/[^@/?#\s]+(?:\?[^#\s]*)?"
"""The pattern of a URL that libpq accepts. A driver's error about another URL could quote a part of
the password."""


class StoreKind(Struct, frozen=True):
    """A kind of store.

    Its module has `open_store(opening: storage.opening.Opening) -> storage.opening.Ports`.
    """

    pattern: str
    """The pattern of the text."""
    example: str
    """A text, for an error about another text."""
    module: str
    driver: str | None = None
    """The module that must be installed, if the store needs one."""
    extra: str | None = None
    """The extra of roundgate that installs the driver."""
    is_file: bool = False
    """Whether the text is a scheme, `:///` and a path. Commands of operators do not create the file."""
    needs_keys: bool = False
    """Whether a key file on one host cannot serve all replicas."""
    has_shards: bool = False
    """Whether the number of `tasks.shards` decides where due tasks are found."""

    def missing(self) -> Problem | None:
        """Return the problem of a driver that is not installed."""
        if self.driver is None or find_spec(self.driver) is not None:
            return None
        message = f"needs the extra {self.extra}, which is not installed"
        remedy = f"pip install 'roundgate[{self.extra}]'"
        return Problem("environment", "GATEWAY_STORE", message, remedy)


STORES: Final = (
    StoreKind("sqlite:///.+", "sqlite:///path", "roundgate.storage.sqlite", is_file=True),
    StoreKind(
        *(_POSTGRESQL, "postgresql://user:password@host:5432/database"),
        *("roundgate.storage.postgres", "asyncpg", "postgres"),
        needs_keys=True,
    ),
    StoreKind(
        *(r"dynamodb://[A-Za-z0-9_.-]{3,255}", "dynamodb://table"),
        *("roundgate.storage.dynamodb", "boto3", "aws"),
        has_shards=True,
    ),
)
_PATTERNS: Final = {
    "store": (
        "|".join(kind.pattern for kind in STORES),
        "is not a supported store",
        f"use {' or '.join(kind.example for kind in STORES)}; in a user or "
        "password write @ : / ? # % as %40 %3A %2F %3F %23 %25",
    ),
    "store_connections": (r"[1-9]\d{0,3}", "is not a number of connections", "use 1 to 9999"),
    "drain_s": (r"\d{1,3}", "is not a number of seconds", "use 0 to 999"),
    "queue": (
        r"local|sqs://\S+",
        "is not a supported queue",
        "use local, or sqs:// and the URL of the queue without https://",
    ),
}
"""The pattern, message and remedy of each field."""


class Settings(Struct, frozen=True):
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
    state_keys: str | None = None
    """GATEWAY_STATE_KEYS: 32-byte keys for requestState, in base64, separated by commas. The first
    key seals; all open."""
    state_keys_file: str | None = None
    """GATEWAY_STATE_KEYS_FILE: a file with the text of GATEWAY_STATE_KEYS, which takes precedence."""
    state_keys_secret: str | None = None
    """GATEWAY_STATE_KEYS_SECRET: a secret of AWS Secrets Manager with the text of
    GATEWAY_STATE_KEYS."""
    state_keys_kms: str | None = None
    """GATEWAY_STATE_KEYS_KMS: data keys encrypted by AWS KMS, in base64, separated by commas."""
    store: str = DEFAULT_STORE
    """GATEWAY_STORE: the store of tasks and other rows: sqlite:///path, postgresql://… or
    dynamodb://table."""
    store_connections: int = 10
    """GATEWAY_STORE_CONNECTIONS: the maximum number of connections of a process to PostgreSQL, not
    counting the one that listens."""
    queue: str = "local"
    """GATEWAY_QUEUE: the queue that notifies workers of tasks: local (a table of a SQLite file, or
    of the PostgreSQL database that is the store) or sqs://url."""
    worker: Mode = "auto"
    """GATEWAY_WORKER: whether the serving process also runs tasks. auto: with a local queue, except
    on AWS Lambda."""
    allow_anonymous: bool = False
    """GATEWAY_ALLOW_ANONYMOUS: whether to serve without authentication at addresses that others can
    reach."""
    reload: bool = False
    """GATEWAY_RELOAD: whether to watch gateway.yaml and the files that it loads, and serve their
    changes."""
    drain_s: int | None = None
    """GATEWAY_DRAIN_S: the seconds after SIGTERM in which calls, and steps of tasks, end. `serve`
    accepts connections for the first half of them; if the variable is unset, for none."""
    on_lambda: bool = False
    """Whether the process is an AWS Lambda function (AWS_LAMBDA_FUNCTION_NAME is set)."""
    on_function: str = ""
    """The name of the AWS Lambda function; empty elsewhere."""
    on_demand: bool = False
    """Whether a caller waits while this process starts: on AWS Lambda without provisioned
    concurrency or a snapshot."""

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in _SECRETS)
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def grace_s(self) -> float:
        """The seconds that calls have after SIGTERM."""
        return DRAIN_S if self.drain_s is None else self.drain_s

    @property
    def accepts_s(self) -> float:
        """The seconds after SIGTERM in which balancers notice that the process is not ready, so it
        still accepts connections."""
        return 0.0 if self.drain_s is None else self.drain_s / 2

    @property
    def state_keys_source(self) -> str:
        """The name of `state_keys` in an error: its variable, with the path if it is in a file."""
        file = self.state_keys_file
        return "GATEWAY_STATE_KEYS" if file is None else f"GATEWAY_STATE_KEYS_FILE={file}"

    @property
    def store_kind(self) -> StoreKind:
        return next(kind for kind in STORES if re.fullmatch(kind.pattern, self.store))

    @property
    def store_file(self) -> Path:
        """The file of the store, relative to the folder of gateway.yaml. With a store elsewhere, the
        SQLite file for a local queue and keys, named after the table or database."""
        name = self.store.partition(":///")[2]
        if not self.store_kind.is_file:
            parts = urlsplit(self.store)
            table = parts.path.rpartition("/")[2] or parts.netloc
            name = str(Path(".roundgate", f"{table}.sqlite3"))
        return self.config.resolve().parent / name

    @property
    def names_state_keys(self) -> bool:
        """Return whether a variable names the state keys; otherwise a file on this machine has
        them."""
        return any((self.state_keys, self.state_keys_secret, self.state_keys_kms))

    @property
    def sqs_url(self) -> str | None:
        """The URL of the SQS queue, or `None`. The scheme is https unless `queue` is
        `sqs://http://…`."""
        if not self.queue.startswith(SQS):
            return None
        url = self.queue.removeprefix(SQS)
        return url if url.startswith(("http://", "https://")) else f"https://{url}"

    @property
    def works(self) -> bool:
        """Return whether the serving process also runs tasks."""
        return self.worker == "on" or (
            self.worker == "auto" and self.queue == "local" and not self.on_lambda
        )

    @property
    def streams(self) -> bool:
        """Return whether subscriptions/listen is advertised and served."""
        return self.listen == "on" or (self.listen == "auto" and not self.on_lambda)


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables. An empty variable counts as unset. The text of
    a secret may be in a file, which takes precedence over the variable.

    Raises:
        ConfigError: lists every invalid variable, with its possible values.
    """
    values: dict[str, Any] = {
        name: value
        for name in Settings.__struct_fields__
        if (value := environ.get(_variable(name)))
    }
    sources = {name: _variable(name) for name in values}
    problems = []
    for name in _SECRETS:
        variable = _variable(f"{name}_file")
        if path := environ.get(variable):
            sources[name] = f"{variable}={path}"
            try:
                values[name] = _text_of(path)
            except ValueError as error:
                values.pop(name, None)
                problems.append(Problem("environment", variable, str(error), _FILE_REMEDY))
    for name, value in values.items():
        if problem := _problem(name, value, sources[name]):
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    values |= {
        name: values[name] == "true" for name in ("allow_anonymous", "reload") if name in values
    }
    values |= {name: int(values[name]) for name in _NUMBERS if name in values}
    if "config" in values:
        values["config"] = Path(values["config"])
    values["on_function"] = environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
    values["on_lambda"] = bool(values["on_function"])
    kind = environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") or "on-demand"
    values["on_demand"] = values["on_lambda"] and kind == "on-demand"
    return Settings(**values)


def _variable(field_name: str) -> str:
    return f"GATEWAY_{field_name.upper()}"


def _text_of(path: str) -> str:
    """Return the text of a secret's file without surrounding blanks.

    Raises:
        ValueError: the file cannot be read, or is empty.
    """
    try:
        text = read_regular(Path(path)).strip()
    except OSError as error:
        raise ValueError(f"names a file that cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError("names a file that is not text") from None
    if not text:
        raise ValueError("names a file that is empty")
    return text


def _problem(name: str, value: str, source: str) -> Problem | None:
    if name in _CHOICES and value not in _CHOICES[name]:
        message, remedy = f"does not accept {value!r}", f"use one of {', '.join(_CHOICES[name])}"
    elif name in _PATTERNS and not re.fullmatch(_PATTERNS[name][0], value):
        _, message, remedy = _PATTERNS[name]
    elif name == "public_url" and not _is_origin(value):
        message = "is not an http(s) URL with a host"
        remedy = "give the URL that clients use, such as https://mcp.example.com"
    else:
        return None
    return Problem("environment", source, message, remedy)


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_valid = host_of(parts.netloc) is not None and parts.port != 0
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and is_valid
