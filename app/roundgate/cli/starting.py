"""What `serve` would find wrong with its environment, without serving and without making anything.

A file with `auth: {authorizer: …}` is for AWS Lambda: what an environment here
lacks is no problem of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from roundgate.cli.exposure import check_exposure
from roundgate.cli.ports import bind
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.runtime.startup import shows_errors
from roundgate.settings import AuthorizerConfig, Settings
from roundgate.settings import process as settings
from roundgate.tokens import keys

_ENVIRONMENT = "environment"


def environment(environ: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """The settings of an environment as far as they are right, and what is
    wrong with the others."""
    try:
        return settings.from_environment(environ), []
    except ConfigError as error:
        wrong = {problem.path for problem in error.problems}
        rest = {name: value for name, value in environ.items() if name not in wrong}
        return settings.from_environment(rest), list(error.problems)


def of_environment(using: Settings) -> Iterator[Problem]:
    """What is wrong with keys and stores, whatever is served."""
    yield from _said_by(lambda: _check_keys(using))
    if using.dynamodb_table is None:
        yield from _of_sqlite(using.sqlite_path)
    at_aws = {
        "GATEWAY_STORE": using.dynamodb_table,
        "GATEWAY_QUEUE": using.sqs_url,
        "GATEWAY_STATE_KEYS_SECRET": using.state_keys_secret,
        "GATEWAY_STATE_KEYS_KMS": using.state_keys_kms,
    }
    for name, value in at_aws.items():
        if value is not None and find_spec("boto3") is None:
            remedy = "pip install 'roundgate[aws]'"
            yield Problem(_ENVIRONMENT, name, "needs the extra aws, which is not installed", remedy)


def of_serving(file: ConfigFile, using: Settings, host: str, port: int | None) -> Iterator[Problem]:
    """What is wrong between a file, the environment and where it is to be served."""
    auth = file.config.auth
    if isinstance(auth, AuthorizerConfig):
        return
    yield from _said_by(lambda: shows_errors(file, using))
    yield from _said_by(lambda: check_exposure(file, using, host))
    if auth != "none" and using.public_url is None:
        message = "is needed with auth: tokens and metadata are about a URL"
        remedy = (
            "set it to the URL that clients use, such as https://mcp.example.com; or `roundgate "
            "check --file-only`, if this is not where the file is served"
        )
        yield Problem(_ENVIRONMENT, "GATEWAY_PUBLIC_URL", message, remedy)
    if port is not None:
        try:
            bind(host, port).close()
        except UsageError as error:
            yield Problem(
                "command line", "--port", str(error), "choose another, or end what has it"
            )


def _said_by(check: Callable[[], object]) -> Iterator[Problem]:
    try:
        check()
    except ConfigError as error:
        yield from error.problems


def _check_keys(using: Settings) -> None:
    """Raises ConfigError for keys that cannot be used; those kept at AWS are not asked
    for, and none is made."""
    if using.state_keys is not None:
        keys.parse(using.state_keys, "GATEWAY_STATE_KEYS")
    elif using.state_keys_secret is None and using.state_keys_kms is None:
        file = using.sqlite_path.with_suffix(".key")
        if file.exists():
            keys.from_file(file)


def _of_sqlite(path: Path) -> Iterator[Problem]:
    """A store's file has to be one, or there has to be a place for it."""
    remedy = (
        "choose a file in a directory that can be written, such as "
        "sqlite:///.roundgate/gateway.sqlite3"
    )
    if path.is_dir():
        yield Problem(_ENVIRONMENT, "GATEWAY_STORE", f"{path} is a directory", remedy)
        return
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    is_usable = there.is_file() if there == path else there.is_dir()
    if not is_usable or not os.access(there, os.W_OK):
        yield Problem(_ENVIRONMENT, "GATEWAY_STORE", f"{path} cannot be written", remedy)
