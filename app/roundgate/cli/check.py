"""`roundgate check`: everything that is wrong with a configuration, or
everything that it serves."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from roundgate import config
from roundgate.backends import Catalog, Fallback, Tool, kind_of
from roundgate.cli.arguments import configuration_file
from roundgate.cli.output import show_table
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.runtime import loading
from roundgate.runtime.startup import shows_errors
from roundgate.settings import AuthorizerConfig, Settings
from roundgate.settings import process as settings
from roundgate.tokens import keys

MAX_NAMED: Final = 5
"""Tools that one remark names."""


def run(arguments: argparse.Namespace) -> int:
    """Print what is served.

    Raises:
        ConfigError: every problem: in the file, in what it refers to, in the
            environment, and between them.
    """
    path = configuration_file(arguments.config)
    inspected = config.inspect(path)
    problems = list(inspected.problems)
    file, served = inspected.file, None
    fetched: dict[str, bytes] = {}
    if file is not None:
        try:
            served = loading.load(file, fetches=True, fetched=fetched).catalog
        except ConfigError as error:
            problems += error.problems
    if not getattr(arguments, "file_only", False):
        problems += _of_starting(file, arguments)
    if problems or file is None or served is None:
        raise ConfigError(_in_order(problems))
    _print_served(file, served, fetched)
    print(f"{path}: no problems")
    return 0


def _of_starting(file: ConfigFile | None, arguments: argparse.Namespace) -> list[Problem]:
    path = configuration_file(arguments.config)
    using, problems = environment({**os.environ, "GATEWAY_CONFIG": str(path)})
    is_elsewhere = file is not None and isinstance(file.config.auth, AuthorizerConfig)
    if not is_elsewhere:
        problems += of_environment(using)
    if file is not None:
        host = getattr(arguments, "host", "127.0.0.1")
        problems += of_serving(file, using, host, getattr(arguments, "port", None))
    return problems


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Each once, by file and line."""
    each = {str(problem): problem for problem in problems}
    return sorted(each.values(), key=lambda one: (one.file, one.line or 0))


def _print_served(file: ConfigFile, served: Catalog, fetched: dict[str, bytes]) -> None:
    _print_catalog(served)
    for view in file.config.views:
        print(f"view {view.name} at {view.effective_path}")
        _print_catalog(served.of_view(view.name))
    if served.left_out:
        print(f"left out ({len(served.left_out)})", *served.left_out, sep="\n")
    remarks = [
        *_unasked_scopes(file, served),
        *_remarks(file, fetched),
        *client_remarks(file, served),
    ]
    if remarks:
        print(f"remarks ({len(remarks)})", *remarks, sep="\n")


def _unasked_scopes(file: ConfigFile, served: Catalog) -> list[Problem]:
    """Return a remark if tools require scopes but `auth` is none, which gives every caller all
    scopes."""
    if file.config.auth != "none":
        return []
    catalogs = [served, *(served.of_view(view.name) for view in file.config.views)]
    scoped = [name for one in catalogs for name, tool in one.tools.items() if tool.tool.scopes]
    if not scoped:
        return []
    named = list(dict.fromkeys(scoped))
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    message = f"{', '.join(named[:MAX_NAMED])}{more}: scopes are required, and without `auth` every caller has them"
    remedy = "set `auth`, which says whose tokens are taken, or remove the scopes"
    return [file.origin.at("auth").problem(message, remedy)]


def _remarks(file: ConfigFile, fetched: dict[str, bytes]) -> list[Problem]:
    """What is wrong and keeps nothing from being served."""
    found: list[Problem] = []
    for index, backend in enumerate(file.config.backends):
        check_with = kind_of(backend).check_with()
        if check_with is not None:
            found += check_with(backend, file.backend_origin(index), fetched)
    return found


def _print_catalog(served: Catalog) -> None:
    prompts, resources = served.prompts.items(), served.resources.items()
    templates = [template.resource.definition for template in served.templates]
    for kind, entries in (
        (
            "tools",
            [
                (name, tool.tool.definition.get("description"))
                for name, tool in served.tools.items()
            ],
        ),
        ("prompts", [(name, prompt.definition.get("description")) for name, prompt in prompts]),
        ("resources", [(uri, resource.definition.get("name")) for uri, resource in resources]),
        ("resource templates", [(one["uriTemplate"], one.get("name")) for one in templates]),
    ):
        if entries:
            print(f"{kind} ({len(entries)})")
            lines = [(name, (about or "").partition("\n")[0][:100]) for name, about in entries]
            show_table(lines, indent="  ")


_SHOWN: Final = 5
_ASKED: Final = frozenset({"elicitation", "sampling", "roots"})


def client_remarks(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark for each client capability that some tools require."""
    fallback = Fallback.of(served, file.config.fallback)
    tools = {name: one.tool for name, one in served.tools.items()}
    at = file.origin.at("fallback")
    asking = [name for name, one in tools.items() if _asks(one) and name not in fallback.in_words]
    if asking:
        yield at.problem(
            f"{_named(asking)}: a client that cannot be asked gets an error (-32021)",
            "set ask_in_words: true if a model may answer for its user; `roundgate docs clients` "
            "says which clients can be asked",
        )
    if approved := [name for name, one in tools.items() if one.asks_first]:
        yield at.problem(
            f"{_named(approved)}: a client that shows no forms gets an error (-32021), because a "
            "person has to approve each call",
            "use clients that show forms (`roundgate docs clients`); there is no substitute",
        )
    substituted = fallback.waiting | fallback.with_handles
    tasks = [
        name for name, one in tools.items() if one.task == "required" and name not in substituted
    ]
    if tasks:
        yield at.problem(
            f"{_named(tasks)}: a client that knows no tasks gets an error (-32021)",
            "set without_tasks: wait for work of up to some minutes, or tools for a handle; most "
            "clients know no tasks",
        )


def _asks(tool: Tool) -> bool:
    return tool.may_ask or bool(_ASKED & tool.requires.keys())


def _named(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


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


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; port 0 is one that the system chooses.

    Raises:
        UsageError: the address or the port cannot be used.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # a name such as localhost may stand for both: clients of either kind try IPv4
        addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)
        family, kind, protocol, _, address = addresses[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host {host}: this is no address of this machine ({error})") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"--port {port}: it cannot be had at {host} ({error.strerror}); "
            "end what has it, or choose another (0: any that is free)"
        ) from None
    bound.set_inheritable(True)
    return bound


LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def check_exposure(file: ConfigFile, using: Settings, host: str) -> None:
    """Refuse a public address without authentication, where every caller is the one local subject.

    Raises:
        ConfigError: unless --allow-anonymous is given.
    """
    if file.config.auth != "none" or host in LOOPBACK or using.allow_anonymous:
        return
    remedy = (
        "configure auth, bind to 127.0.0.1, or say --allow-anonymous if something in front "
        "authenticates"
    )
    message = f"there is no authentication, but --host {host} can be reached from outside"
    raise ConfigError([file.origin.at("auth").problem(message, remedy)])
