"""`roundgate cassette record|verify|serve|schema`: recorded conversations.

`verify` returns 1 if a response differs from the recording. An invalid cassette is wrong usage (2);
`cli.remote` lists the other exit statuses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundgate.cli import remote
from roundgate.cli.arguments import Commands, command, flag, repeated
from roundgate.cli.output import say
from roundgate.client import Bearer
from roundgate.errors import ConfigError, GatewayError, UsageError
from roundgate_testing import cassettes


def declare(commands: Commands) -> None:
    """Add `roundgate cassette`."""
    about = "record conversations, and replay the client or the server"
    cassette = command(commands, "cassette", about, run=run)
    actions = cassette.add_subparsers(dest="action", required=True)

    about = "run a proxy that records a conversation"
    record = _cassette_action(actions, "record", about)
    record.add_argument("url", help="the server's endpoint, such as http://127.0.0.1:8000/mcp")
    _add_listen(record)
    about = "member with a secret value: arguments.pin, or pin; may be repeated"
    repeated(record, "--redact", "PATH", about)
    about = "environment variable whose value is redacted everywhere; may be repeated"
    repeated(record, "--redact-env", "NAME", about)
    repeated(record, "--ignore", "PATH", "path that verify does not compare; may be repeated")
    about = "pattern of values that differ from run to run; may be repeated"
    repeated(record, "--rule", "NAME=PATTERN", about)

    about = "send the recorded requests again, and compare the answers"
    verify = _cassette_action(actions, "verify", about)
    about = "endpoint of the server, or of its replicas, which take turns"
    verify.add_argument("urls", nargs="+", metavar="URL", help=about)
    about = "report only interaction N; may be repeated"
    verify.add_argument("--only", type=int, action="append", metavar="N", help=about)
    flag(verify, "--update", "record differing interactions again (with --only, just these)")
    repeated(verify, "--ignore", "PATH", "further path that is not compared; may be repeated")
    about = "time limit for each answer in seconds (default: %(default)s)"
    verify.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help=about)
    remote.add_token(verify)

    serve = _cassette_action(actions, "serve", "serve the recorded answers")
    _add_listen(serve)

    actions.add_parser("schema", help="print the JSON Schema of cassettes, for editors")


def _cassette_action(actions: Commands, name: str, about: str) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=about)
    about = "the cassette: YAML, or JSON if it ends in .json"
    action.add_argument("file", type=Path, help=about)
    return action


def _add_listen(parser: argparse.ArgumentParser) -> None:
    about = "address to listen on (default: %(default)s; port 0 is any free port)"
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Run a `cassette` action and return its exit status."""
    try:
        return asyncio.run(_ACTIONS[arguments.action](arguments))
    except ConfigError as error:
        for line in str(error).splitlines():
            say(line, to=sys.stderr)
        return remote.USAGE
    except KeyboardInterrupt:
        return remote.INTERRUPTED
    except GatewayError as error:
        return remote.refused(error)


async def _record(arguments: argparse.Namespace) -> int:
    host, port = cassettes.address(arguments.listen)
    _check_writable(arguments.file)
    recorder = cassettes.Recorder(
        arguments.file,
        arguments.url,
        rules=(*cassettes.RULES, *map(_rule, arguments.rule)),
        ignore=cassettes.check_paths("--ignore", arguments.ignore),
        redact=cassettes.check_paths("--redact", arguments.redact),
        secrets={name: _from_environment(name) for name in arguments.redact_env},
    )
    proxy = cassettes.Proxy(arguments.url, recorder)
    async with cassettes.serving(proxy.answer, host, port) as port:
        proxy.listens_at(_origin(host, port))
        _announce(host, port, proxy.path, f"recording to {arguments.file}; press Ctrl-C to stop")
        await _wait_for_signal()
    await recorder.close()
    say(f"{len(recorder.cassette.interactions)} interactions in {arguments.file}", to=sys.stderr)
    return remote.DONE


def _check_writable(path: Path) -> None:
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: choose another file")


def _rule(text: str) -> cassettes.Rule:
    name, equals, pattern = text.partition("=")
    try:
        if equals:
            return cassettes.Rule(name, pattern=pattern)
    except ValueError:  # the name or the pattern is invalid
        pass
    raise UsageError(
        f"--rule {text}: write it as NAME=PATTERN, such as order=ORD-[0-9]+, with a regular "
        "expression of at most 200 characters that does not match the empty text"
    )


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UsageError(f"--redact-env {name}: the variable is not set")
    return value


async def _serve(arguments: argparse.Namespace) -> int:
    host, port = cassettes.address(arguments.listen)
    cassette = cassettes.read(arguments.file)
    stand_in: cassettes.StandIn | None = None  # created once the port is known

    async def answer(request: cassettes.IncomingRequest) -> cassettes.WebReply | None:
        assert stand_in is not None
        return await stand_in.answer(request.method, request.headers, request.body)

    async with cassettes.serving(answer, host, port) as port:
        stand_in = cassettes.StandIn(cassette, origin=_origin(host, port))
        _announce(host, port, "/mcp", f"answering from {arguments.file}; press Ctrl-C to stop")
        await _wait_for_signal()
    return remote.DONE


def _origin(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(host: str, port: int, path: str, note: str) -> None:
    print(f"{_origin(host, port)}{path}", flush=True)
    say(note, to=sys.stderr)


async def _wait_for_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, stop.set)
    await stop.wait()


async def _verify(arguments: argparse.Namespace) -> int:
    cassette = cassettes.read(arguments.file)
    number = len(cassette.interactions)
    only = set(arguments.only or range(1, number + 1))
    if not only <= set(range(1, number + 1)):
        raise UsageError(f"--only: the cassette has interactions 1 to {number}")
    ignore = (*cassette.ignore, *cassettes.check_paths("--ignore", arguments.ignore))
    compared = replace(cassette, ignore=ignore)
    token = os.environ.get(arguments.token_env)
    recorder = _recorder(arguments, cassette) if arguments.update else None
    verifier = cassettes.CassetteVerifier(
        compared,
        arguments.urls,
        transport=recorder,
        auth=Bearer(token) if token else None,
        headers=list(remote.headers(arguments.header).items()),
        timeout_s=arguments.timeout,
    )
    outcomes = [outcome async for outcome in verifier.run()]
    differing = [result for result in outcomes if result.number in only and result.differences]
    if recorder is not None:
        return _update(arguments, cassette, recorder, [outcome.number for outcome in differing])
    return _report(differing, len(only))


def _recorder(arguments: argparse.Namespace, cassette: cassettes.Cassette) -> cassettes.Recorder:
    if len(arguments.urls) > 1:
        raise UsageError("--update accepts one URL")
    secrets = {name: os.environ.get(name, "") for name in cassettes.secret_names(cassette)}
    return cassettes.Recorder(
        None,
        arguments.urls[0],
        rules=cassette.rules,
        ignore=cassette.ignore,
        redact=cassette.redact,
        secrets=secrets,
    )


def _update(
    arguments: argparse.Namespace,
    cassette: cassettes.Cassette,
    recorder: cassettes.Recorder,
    numbers: Sequence[int],
) -> int:
    recorded, fresh = cassette.interactions, recorder.cassette.interactions
    if len(fresh) != len(recorded):
        raise UsageError(
            f"The conversation differs from the cassette ({len(fresh)} interactions instead of "
            f"{len(recorded)}): record it again with the client"
        )
    if numbers:
        pairs = enumerate(zip(recorded, fresh, strict=True), 1)
        interactions = tuple(new if number in numbers else old for number, (old, new) in pairs)
        cassettes.write(replace(cassette, interactions=interactions), arguments.file)
    named = ", ".join(map(str, numbers)) or "nothing"
    say(f"recorded again in {arguments.file}: {named}", to=sys.stderr)
    return remote.DONE


def _report(differing: Sequence[cassettes.Outcome], total: int) -> int:
    for outcome in differing:
        say(f"{outcome.number}: {outcome.title}")
        for difference in outcome.differences:
            for line in str(difference).splitlines():
                say(f"  {line}")
    if differing:
        say(f"{len(differing)} of {total} interactions differ", to=sys.stderr)
        return remote.FAILED
    say(f"{total} interactions, all as recorded", to=sys.stderr)
    return remote.DONE


async def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(cassettes.SCHEMA, indent=2))
    return remote.DONE


_ACTIONS: Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "record": _record,
    "verify": _verify,
    "serve": _serve,
    "schema": _schema,
}
