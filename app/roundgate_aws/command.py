"""`roundgate package`, `deploy` and `stack`: a repository as AWS Lambda functions, at
AWS or on the local machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from roundgate import config
from roundgate.cli.arguments import Commands, add_config, command, configuration_file, flag
from roundgate.errors import ConfigError, UsageError
from roundgate.runtime import loading
from roundgate.settings import kept_at_aws
from roundgate_aws import deploying, machine, options, packaging, parts, template, upload


def declare(commands: Commands) -> None:
    """Add the commands of this module."""
    package = command(
        commands, "package", "make the zips of the AWS Lambda functions",
        "roundgate package --list", "roundgate package --s3 releases/shop", run=_package,
    )  # fmt: skip
    add_config(package)
    architectures, about = ("arm64", "x86_64"), "architecture of the functions (default: arm64)"
    package.add_argument("--arch", choices=architectures, default="arm64", help=about)
    about = "output folder (default: .build beside gateway.yaml)"
    package.add_argument("--out", type=Path, help=about)
    about = "type of the API; rest streams (default: http)"
    package.add_argument("--api", choices=(parts.HTTP, parts.REST), default=parts.HTTP, help=about)
    about = "also put the zips and the template into a bucket, and print their URLs"
    package.add_argument("--s3", metavar="BUCKET[/PREFIX]", help=about)
    flag(package, "--lock", "resolve the newest versions of packages")
    flag(package, "--list", "only list the contents")
    about = "also write the template to a new file, to maintain it yourself"
    package.add_argument("--eject", type=Path, metavar="FILE", help=about)

    deploy = command(
        commands, "deploy", "package and deploy the stack with AWS SAM", "roundgate deploy",
        "roundgate deploy --config-env staging",
        "roundgate deploy shop gateway.yaml --parameter-overrides LogLevel=debug",
        usage="roundgate deploy [STACK] [CONFIG] [options of sam deploy]", run=_deploy,
    )  # fmt: skip
    deploy.complete = with_stack
    about = "name of the stack (default: stack_name in samconfig.toml)"
    deploy.add_argument("stack", metavar="STACK", help=about)
    about = "gateway.yaml (default: as for serve), then options of sam deploy, such as"
    about += " --parameter-overrides LogLevel=debug WorkerConcurrency=50"
    deploy.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help=about)

    stack = command(
        commands, "stack", "run the deployed stack on this machine", "roundgate stack --demo",
        "roundgate stack --port 9000 --directory logs", run=_run_stack,
    )  # fmt: skip
    add_config(stack)
    flag(stack, "--demo", "show a call with rounds and a task, replica by replica")
    for name, default, about in (
        ("--gateways", 3, "number of gateway functions"),
        ("--workers", 2, "number of worker functions"),
        ("--executions", 10, "limit on concurrent functions; 10 in a new account"),
    ):
        about += " (default: %(default)s)"
        stack.add_argument(name, type=int, default=default, help=about)
    about = "file that declares the functions that back ends of the kind lambda invoke, such as functions.yaml"
    stack.add_argument("--functions", type=Path, help=about)
    stack.add_argument("--port", type=int, help="port of the API (default: any free port)")
    about = "type of the API; rest streams (default: http)"
    stack.add_argument("--api", choices=("http", "rest"), default="http", help=about)
    about = "directory for the functions and their logs (default: a temporary directory)"
    stack.add_argument("--directory", type=Path, help=about)


def with_stack(words: Sequence[str]) -> list[str]:
    """Return the words of `deploy` with a stack name, or an empty name if none was typed.

    Without it, argparse would take the value of a `sam` option for the name. With an empty name,
    the name in samconfig.toml is used.
    """
    word = words[0] if words else ""
    if word in ("-h", "--help"):
        return list(words)
    # an option, or the path of gateway.yaml
    is_none = not word or word.startswith("-") or "." in word or "/" in word
    return ["", *words] if is_none else list(words)


def _package(arguments: argparse.Namespace) -> int:
    path = configuration_file(arguments.config)
    planned = planned_from(path, arguments.arch, anew=arguments.lock)
    print(*planned.lines(), sep="\n")
    if not arguments.list:
        written = _make(planned, arguments.out or path.parent / ".build", arguments.api)
        if arguments.eject is not None:
            template.eject(written, arguments.eject)
            print(arguments.eject)
        if arguments.s3 is not None:
            print(*upload.publish(written.parent, arguments.s3), sep="\n")
    return 0


def planned_from(path: Path, arch: str, *, anew: bool = False) -> packaging.PackagePlan:
    """Return the package plan of a configuration; fail if `roundgate check` would find problems.

    Args:
        path: the path of gateway.yaml.
        arch: the architecture of the functions.
        anew: whether to resolve package versions again.

    Raises:
        ConfigError: the configuration or the content of the package is invalid.
    """
    file = config.load(path, placeholder=packaging.PLACEHOLDER)
    with _environment_as_before():
        loading.compile_documents(file, print)
        try:
            loading.load(file, fetches=True, asks_servers=False)
        except ConfigError as error:
            raise ConfigError([*error.problems, *packaging.stood_for(file)]) from None
    return packaging.plan(file, path, arch, anew=anew)


@contextmanager
def _environment_as_before() -> Iterator[None]:
    """Restore the environment at the end of the block. Loading a configuration sets the functions'
    variables and placeholders, which later commands such as `sam` must not inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _make(planned: packaging.PackagePlan, out: Path, api: str) -> Path:
    """Write the zips and the template into a folder; return the template's path."""
    source = template.rendered(planned.file, planned.arch, planned.path, api)
    packaging.package(planned, out)
    written = template.write(source, out)
    print(written)
    return written


def _deploy(arguments: argparse.Namespace) -> int:
    deploy_options = options.read_options(arguments.stack, arguments.rest)
    path = configuration_file(deploy_options.config)
    deploy_options = options.completed(deploy_options, path)
    deploy_options, account = deploying.of_account(deploy_options, path)
    stored = account.stored
    deploying.check(deploy_options, path, stored, account.executions)
    says = {**stored, **deploying.parameters(deploy_options, stored)}
    planned = planned_from(path, says["Architecture"])
    print(*planned.lines(), sep="\n")
    written = _make(planned, path.parent / ".build", deploying.api_type(says))
    template.name_deployment(written, deploying.release_digest(says, written))
    for remark in deploying.remarks(deploy_options, path, stored):
        print(remark)
    commands = deploying.commands(deploy_options, stored, written, machine.sam())
    return deploying.run(commands, lambda: deploying.is_made(deploy_options))


def _run_stack(arguments: argparse.Namespace) -> int:
    from roundgate_aws.stack import demo
    from roundgate_aws.stack.stack import build_with_functions, find_tools

    path = demo.CONFIG if arguments.demo else configuration_file(arguments.config)
    variables = _variables(path)
    find_tools()
    # handle SIGTERM like Ctrl-C, so processes and temporary files are cleaned up
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as temporary:
        directory: Path = (arguments.directory or Path(temporary)).resolve()
        if arguments.functions is not None:
            asyncio.run(build_with_functions(path, arguments.functions, directory))
        else:
            planned = planned_from(path, machine.architecture())
            print(*planned.lines(), sep="\n")
            packaging.package(planned, directory / "zips")
        return asyncio.run(_serve_stack(arguments, directory, variables))


def _variables(path: Path) -> dict[str, str]:
    """Return the variables of `env` that are set in this process.

    Raises:
        UsageError: a variable that refers to a value at AWS is not set.
    """
    env = config.load(path, placeholder=packaging.PLACEHOLDER).config.env
    references = [name for name, text in env.items() if list(kept_at_aws(text))]
    unset = [name for name in references if name not in os.environ]
    if unset:
        raise UsageError(f"set {', '.join(unset)}: the local stack does not read secrets at AWS")
    return {name: os.environ[name] for name in env if name in os.environ}


async def _serve_stack(arguments: argparse.Namespace, directory: Path, more: dict[str, str]) -> int:
    from roundgate_aws.stack import demo
    from roundgate_aws.stack.stack import running

    counts = {name: getattr(arguments, name) for name in ("gateways", "workers", "executions")}
    others = {
        "port": arguments.port,
        "api": arguments.api,
        "functions": arguments.functions,
        "more": more,
    }
    async with running(directory, directory / "zips", **counts, **others) as stack:
        if arguments.demo:
            return await demo.show(stack)
        logs = stack.deployment.directory
        print(f"{stack.url}\nlogs of the functions: {logs}\nPress Ctrl-C to stop", flush=True)
        await asyncio.Event().wait()
    return 0
