"""The environment as one frozen value, read once at start-up.

What is served is in gateway.yaml; here is only what differs between two places
that serve the same file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from roundgate.errors import ConfigError, Problem

ListenMode: TypeAlias = Literal["auto", "on", "off"]

ShowErrors: TypeAlias = Literal["auto", "on", "off"]

LogFormat: TypeAlias = Literal["auto", "text", "json"]

WorkerMode: TypeAlias = Literal["auto", "on", "off"]

SQLITE: Final = "sqlite:///"
DYNAMODB: Final = "dynamodb://"
SQS: Final = "sqs://"
DEFAULT_STORE: Final = "sqlite:///.roundgate/gateway.sqlite3"
MODES: Final = ("auto", "on", "off")
LOG_FORMATS: Final = ("auto", "text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the environment, one field a variable (`roundgate docs configuration`)."""

    config: Path = Path("gateway.yaml")
    """GATEWAY_CONFIG: the file that says what is served."""
    public_url: str | None = None
    """GATEWAY_PUBLIC_URL: where clients reach the gateway; its host and origin are then allowed."""
    listen: ListenMode = "auto"
    """GATEWAY_LISTEN: serve subscriptions/listen; auto is on except on AWS
    Lambda, which cannot stream."""
    log_level: str = "info"
    """GATEWAY_LOG_LEVEL: debug, info, warning or error; info writes a line a request."""
    log_format: LogFormat = "auto"
    """GATEWAY_LOG_FORMAT: text for people, json, or auto: text on a
    terminal, JSON anywhere else."""
    show_errors: ShowErrors = "auto"
    """GATEWAY_SHOW_ERRORS: callers see what unexpected exceptions say; auto does so for
    serve on loopback alone."""
    state_keys: str | None = field(default=None, repr=False)
    """GATEWAY_STATE_KEYS: base64 keys of 32 bytes, comma-separated, for requestState; the
    first seals, all open."""
    state_keys_secret: str | None = None
    """GATEWAY_STATE_KEYS_SECRET: the AWS Secrets Manager secret that holds the same text."""
    state_keys_kms: str | None = None
    """GATEWAY_STATE_KEYS_KMS: data keys encrypted by AWS KMS, base64, comma-separated."""
    store: str = DEFAULT_STORE
    """GATEWAY_STORE: where tasks and what else must be kept is kept:
    sqlite:///path, or dynamodb://table."""
    queue: str = "local"
    """GATEWAY_QUEUE: how workers hear of tasks: local (a table of a SQLite file), or sqs://url."""
    worker: WorkerMode = "auto"
    """GATEWAY_WORKER: work on tasks in the serving process; auto does so with a local
    queue, except on AWS Lambda."""
    allow_anonymous: bool = False
    """GATEWAY_ALLOW_ANONYMOUS: without authentication, serve at addresses that others
    can reach nevertheless."""
    reload: bool = False
    """GATEWAY_RELOAD: watch gateway.yaml and what it has loaded, and serve what
    changes; true or false."""
    on_lambda: bool = False
    """Whether this is an AWS Lambda function (AWS_LAMBDA_FUNCTION_NAME is set there)."""
    on_demand: bool = False
    """Whether a caller waits while this process starts: on AWS Lambda without provisioned
    concurrency or a snapshot."""

    @property
    def sqlite_path(self) -> Path:
        """The file behind `store`, below the folder of gateway.yaml unless it is absolute, from
        whatever directory the process was started; beside a table, the one of what is local
        nevertheless, under the table's name."""
        table = self.dynamodb_table
        name = self.store.removeprefix(SQLITE)
        if table is not None:
            name = str(Path(DEFAULT_STORE.removeprefix(SQLITE)).with_name(f"{table}.sqlite3"))
        return self.config.resolve().parent / name

    @property
    def dynamodb_table(self) -> str | None:
        """The table behind `store`, if it is one."""
        return self.store.removeprefix(DYNAMODB) if self.store.startswith(DYNAMODB) else None

    @property
    def sqs_url(self) -> str | None:
        """The URL of the queue, if it is one of SQS: https unless
        `sqs://http://…` says otherwise."""
        if not self.queue.startswith(SQS):
            return None
        url = self.queue.removeprefix(SQS)
        return url if url.startswith(("http://", "https://")) else f"https://{url}"

    @property
    def works(self) -> bool:
        """Whether the serving process works on tasks too."""
        return self.worker == "on" or (
            self.worker == "auto" and self.queue == "local" and not self.on_lambda
        )

    @property
    def streams(self) -> bool:
        """Whether subscriptions/listen is advertised and served."""
        return self.listen == "on" or (self.listen == "auto" and not self.on_lambda)


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Settings from environment variables; an empty variable counts as unset.

    Raises:
        ConfigError: every variable that is wrong, with what it may be.
    """
    read = _Reading({name: value for name, value in environ.items() if value})
    on_lambda = read.is_set("AWS_LAMBDA_FUNCTION_NAME")
    found = Settings(
        config=Path(read.text("GATEWAY_CONFIG", "gateway.yaml")),
        listen=cast("ListenMode", read.choice("GATEWAY_LISTEN", MODES)),
        worker=cast("WorkerMode", read.choice("GATEWAY_WORKER", MODES)),
        log_level=read.choice("GATEWAY_LOG_LEVEL", LOG_LEVELS, default="info"),
        log_format=cast("LogFormat", read.choice("GATEWAY_LOG_FORMAT", LOG_FORMATS)),
        show_errors=cast("ShowErrors", read.choice("GATEWAY_SHOW_ERRORS", MODES)),
        allow_anonymous=read.switch("GATEWAY_ALLOW_ANONYMOUS"),
        reload=read.switch("GATEWAY_RELOAD"),
        public_url=read.origin("GATEWAY_PUBLIC_URL"),
        store=read.store("GATEWAY_STORE"),
        queue=read.queue("GATEWAY_QUEUE"),
        state_keys=read.optional("GATEWAY_STATE_KEYS"),
        state_keys_secret=read.optional("GATEWAY_STATE_KEYS_SECRET"),
        state_keys_kms=read.optional("GATEWAY_STATE_KEYS_KMS"),
        on_lambda=on_lambda,
        on_demand=on_lambda
        and read.text("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand") == "on-demand",
    )
    if read.problems:
        raise ConfigError(read.problems)
    return found


class _Reading:
    """Variables as they are read; what is wrong with one is kept in `problems`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` has only variables that are set, and not empty."""
        self._environ = environ
        self.problems: list[Problem] = []

    def is_set(self, name: str) -> bool:
        return name in self._environ

    def optional(self, name: str) -> str | None:
        return self._environ.get(name)

    def text(self, name: str, default: str) -> str:
        return self._environ.get(name, default)

    def choice(self, name: str, allowed: tuple[str, ...], default: str = "auto") -> str:
        value = self.text(name, default)
        if value not in allowed:
            self._add_problem(name, f"is {value!r}", f"use one of {', '.join(allowed)}")
        return value

    def switch(self, name: str) -> bool:
        return self.choice(name, ("false", "true"), default="false") == "true"

    def origin(self, name: str) -> str | None:
        url = self.optional(name)
        if url is not None and not _is_origin(url):
            remedy = "give the URL that clients use, such as https://mcp.example.com"
            self._add_problem(name, "is not an http(s) URL with a host", remedy)
        return url

    def store(self, name: str) -> str:
        store = self.text(name, DEFAULT_STORE)
        if not re.fullmatch(r"sqlite:///.+|dynamodb://[A-Za-z0-9_.-]{3,255}", store):
            remedy = "use sqlite:///path or dynamodb://table"
            self._add_problem(name, "names no store we have", remedy)
        return store

    def queue(self, name: str) -> str:
        queue = self.text(name, "local")
        if not re.fullmatch(r"local|sqs://\S+", queue):
            remedy = "use local, or sqs:// and the URL of the queue without https://"
            self._add_problem(name, "names no queue we have", remedy)
        return queue

    def _add_problem(self, name: str, message: str, remedy: str) -> None:
        self.problems.append(Problem("environment", name, message, remedy))


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
