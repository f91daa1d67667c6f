"""The commands and their options.

`roundgate.cli` builds the parser from this module. To start fast, the module imports nothing that
only one command needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final, Protocol

from roundgate.cli.arguments import age_ms, number, task_ref

TOKEN_VARIABLE: Final = "ROUNDGATE_TOKEN"  # noqa: S105 — a name
"""The default environment variable for a bearer token."""
SECRET_VARIABLE: Final = "ROUNDGATE_CLIENT_SECRET"  # noqa: S105 — a name
KINDS: Final = ("tools", "prompts", "resources", "templates")


class Commands(Protocol):
    """The subparsers of a parser, as `ArgumentParser.add_subparsers` returns them."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


class Options(Protocol):
    """A parser or an argument group."""

    def add_argument(self, *names: Any, **options: Any) -> Any: ...


def add_commands(commands: Commands) -> None:
    """Add all commands, in the order of `roundgate --help`."""
    _add_local_commands(commands)
    _add_deployment(commands)
    _add_tasks(commands)
    _add_audit(commands)
    _add_policy(commands)
    _add_calls(commands)
    _add_reading(commands)
    _add_test(commands)
    _add_cassette(commands)


def _command(
    commands: Commands, name: str, module: str | None, about: str, *examples: str, **options: Any
) -> argparse.ArgumentParser:
    """Add a command, run by `module`. If `module` is None, add an action of a command."""
    if examples:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        options["epilog"] = "\n  ".join(("examples:", *examples))
    command = commands.add_parser(name, help=about, **options)
    if module is not None:
        command.set_defaults(module=module)
    return command


def _flag(parser: Options, name: str, about: str) -> None:
    parser.add_argument(name, action="store_true", help=about)


def _repeated(parser: Options, name: str, metavar: str, about: str) -> None:
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=about)


def _add_local_commands(commands: Commands) -> None:
    new = _command(
        commands, "new", "repository", "create a repository for your tools",
        "roundgate new weather", "roundgate new shop --from openapi.json", "roundgate new shop --aws",
    )  # fmt: skip
    new.add_argument(
        "directory", type=Path, help="directory to create; the repository has its name"
    )
    about = "OpenAPI document to copy and serve as well"
    new.add_argument("--from", dest="openapi", type=Path, metavar="FILE", help=about)
    _flag(new, "--aws", "add samconfig.toml, and a workflow that deploys the stack")

    about = "print a page of this version's documentation, or list the pages"
    docs = _command(
        commands, "docs", "repository", about, "roundgate docs", "roundgate docs configuration"
    )
    docs.add_argument(
        "page",
        nargs="?",
        metavar="PAGE",
        help="name of a page, such as configuration (default: list the pages)",
    )

    serve = _command(
        commands, "serve", "serve", "serve a configuration over HTTP",
        "roundgate serve --reload", "roundgate serve gateway.yaml --port 0 --log-level debug",
        "roundgate serve --host 0.0.0.0 --workers 4",
    )  # fmt: skip
    _add_config(serve)
    about = "address to bind to (default: %(default)s)"
    serve.add_argument("--host", default="127.0.0.1", help=about)
    about = "port to bind to, 0 for any free port (default: %(default)s)"
    serve.add_argument("--port", type=_PORT, default=8000, help=about)
    _flag(serve, "--allow-anonymous", "bind to any address without authentication")
    about = "processes that share the port (default: %(default)s)"
    serve.add_argument("--workers", type=int, default=1, help=about)
    about = "watch gateway.yaml and the modules that it loads, and serve their changes (SIGHUP reloads once)"
    _flag(serve, "--reload", about)
    _add_log(serve)

    about = "find every problem in a configuration, and list what it serves"
    check = _command(
        commands, "check", "check", about,
        "roundgate check", "roundgate check --file-only deployments/prod.yaml",
    )  # fmt: skip
    _add_config(check)
    about = "skip checks of this environment, if another machine serves the file"
    _flag(check, "--file-only", about)
    check.add_argument(
        "--host", default="127.0.0.1", help="address to check (default: %(default)s)"
    )
    check.add_argument("--port", type=_PORT, help="also check whether this port is free")

    about = "compile the documents of back ends into indexes, and pin the definitions of servers"
    _add_config(_command(commands, "compile", "deploy", about, "roundgate compile gateway.yaml"))

    about = "ask each MCP server behind a gateway, and print its state"
    upstreams = _command(
        commands, "upstreams", "upstreams", about,
        "roundgate upstreams", "roundgate upstreams gateway.yaml --json | jq -r .name",
    )  # fmt: skip
    _add_config(upstreams)
    _flag(upstreams, "--json", "print JSON objects, one a line")

    keys = _command(
        commands, "keys", "repository", "make and rotate the keys that seal requestState",
        "roundgate keys new", "roundgate keys rotate --stage 1",
    )  # fmt: skip
    actions = keys.add_subparsers(dest="action", required=True)
    actions.add_parser("new", help="print a new key for GATEWAY_STATE_KEYS")
    about = "print GATEWAY_STATE_KEYS for the next stage of a rotation"
    rotate = actions.add_parser("rotate", help=about)
    about = "1: add a key, 2: seal with the new key, 3: drop the old keys"
    rotate.add_argument("--stage", type=int, choices=(1, 2, 3), required=True, help=about)

    about = "run tasks in a separate process"
    worker = _command(commands, "worker", "worker", about, "roundgate worker gateway.yaml")
    _add_config(worker)
    _add_log(worker)
    _flag(worker, "--reload", "watch gateway.yaml and its modules, and use their changes")
    # passed by a worker to the process that it starts for a suspect task
    worker.add_argument("--suspect", type=task_ref, help=argparse.SUPPRESS)

    schema = _command(
        commands, "schema", "repository", "print a JSON Schema for editors",
        "roundgate schema > gateway.schema.json", "roundgate schema --suite",
    )  # fmt: skip
    _flag(schema, "--suite", "print the schema of suites (default: of gateway.yaml)")


_PORT: Final = number(int, 0, 65_535)


def _add_config(command: argparse.ArgumentParser) -> None:
    about = "gateway.yaml (default: GATEWAY_CONFIG, or the nearest, here or in a directory above)"
    command.add_argument("config", nargs="?", type=Path, help=about)


def _add_log(command: argparse.ArgumentParser) -> None:
    about = "log level (default: GATEWAY_LOG_LEVEL, or info)"
    levels = ("debug", "info", "warning", "error")
    command.add_argument("--log-level", choices=levels, help=about)
    about = "log format (default: GATEWAY_LOG_FORMAT, or auto: text on a terminal, otherwise JSON)"
    command.add_argument("--log-format", choices=("auto", "text", "json"), help=about)


def _add_deployment(commands: Commands) -> None:
    package = _command(
        commands, "package", "deploy", "make the zips of the AWS Lambda functions",
        "roundgate package --list", "roundgate package --s3 releases/shop",
    )  # fmt: skip
    _add_config(package)
    architectures, about = ("arm64", "x86_64"), "architecture of the functions (default: arm64)"
    package.add_argument("--arch", choices=architectures, default="arm64", help=about)
    about = "output folder (default: .build beside gateway.yaml)"
    package.add_argument("--out", type=Path, help=about)
    about = "also put the zips and the template into a bucket, and print their URLs"
    package.add_argument("--s3", metavar="BUCKET[/PREFIX]", help=about)
    _flag(package, "--lock", "resolve the newest versions of packages")
    _flag(package, "--list", "only list the contents")

    deploy = _command(
        commands, "deploy", "deploy", "package and deploy the stack with AWS SAM",
        "roundgate deploy", "roundgate deploy --config-env staging",
        "roundgate deploy shop gateway.yaml --parameter-overrides LogLevel=debug",
        usage="roundgate deploy [STACK] [CONFIG] [options of sam deploy]",
    )  # fmt: skip
    about = "name of the stack (default: stack_name in samconfig.toml)"
    deploy.add_argument("stack", metavar="STACK", help=about)
    about = "gateway.yaml (default: as for serve), then options of sam deploy, such as"
    about += " --parameter-overrides LogLevel=debug WorkerConcurrency=50"
    deploy.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help=about)

    stack = _command(
        commands, "stack", "deploy", "run the deployed stack on this machine",
        "roundgate stack --demo", "roundgate stack --port 9000 --directory logs",
    )  # fmt: skip
    _add_config(stack)
    _flag(stack, "--demo", "show a call with rounds and a task, replica by replica")
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


_AS_LISTED: Final = "task, as `list` prints it"


def _add_tasks(commands: Commands) -> None:
    tasks = _command(commands, "tasks", "tasks", "list and manage tasks, as the operator")
    actions = tasks.add_subparsers(dest="action", required=True)

    listed = _task_action(
        actions, "list", "list tasks",
        "roundgate tasks list --status working --older-than 1h",
        "roundgate tasks list --status failed --tool refund --json | jq -r .task",
        "roundgate tasks list --outcome step_failed",
    )  # fmt: skip
    _add_filters(listed)
    about = "maximum number of tasks to show (default: %(default)s)"
    listed.add_argument("--limit", type=number(int, 1, 999_999_999), default=100, help=about)
    listed.add_argument(
        "--cursor", help="continue a list from the value that the previous page printed"
    )

    about = "show a task, without its arguments, answers and result"
    show = _task_action(actions, "show", about, "roundgate tasks show OWNER.ID")
    show.add_argument("task", type=task_ref, help=_AS_LISTED)
    about = "print a line for each change of a task, until it ends"
    watch = _task_action(actions, "watch", about, "roundgate tasks watch OWNER.ID")
    watch.add_argument("task", type=task_ref, help=_AS_LISTED)
    seconds, about = number(float, 0.1, 3_600), "seconds between two reads (default: %(default)s)"
    watch.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS", help=about)

    about = "count open tasks, and show the age of the oldest"
    _task_action(actions, "count", about, "roundgate tasks count")
    about = "count open tasks by their version of a changed handler (ctx.version)"
    versions = _task_action(actions, "versions", about, "roundgate tasks versions --tool refund")
    versions.add_argument("--tool", help="only tasks of this tool")
    about = "print recorded histories of tasks, one per line, to replay in a test"
    export = _command(
        actions, "export", None, about,
        "roundgate tasks export --tool refund > histories.jsonl",
        "roundgate tasks export --values --redact email --limit 20 > histories.jsonl",
    )  # fmt: skip
    _add_config_option(export, "of the tasks")
    _add_filters(export)
    about = "maximum number of tasks to export (default: %(default)s)"
    export.add_argument("--limit", type=number(int, 1, 1_000_000), default=100, help=about)
    about = "skip tasks with a longer history, in bytes (default: %(default)s)"
    export.add_argument("--max-bytes", type=number(int, 1, 10**9), default=1_000_000, help=about)
    _flag(
        export, "--values", "include arguments, results, answers and callers, for an exact replay"
    )
    about = "redact the values of this member, step or field; may be repeated"
    _repeated(export, "--redact", "NAME", about)
    for name, about, *examples in (
        ("cancel", "cancel tasks",
         "roundgate tasks cancel OWNER.ID",
         "roundgate tasks cancel --tool refund --older-than 1d --dry-run"),
        ("requeue", "queue waiting tasks again, and named tasks even if a worker runs them",
         "roundgate tasks requeue OWNER.ID"),
        ("retry", "continue tasks at their failed step, and parked tasks",
         "roundgate tasks retry OWNER.ID",
         "roundgate tasks retry OWNER.ID --from charge",
         "roundgate tasks retry --tool refund --outcome step_failed --yes"),
        ("purge", "delete tasks that ended, with their results",
         "roundgate tasks purge OWNER.ID",
         "roundgate tasks purge --owner OWNER --older-than 30d --yes"),
    ):  # fmt: skip
        action = _task_action(actions, name, about, *examples)
        action.add_argument("task", type=task_ref, nargs="*", help=_AS_LISTED)
        _add_filters(action)
        _flag(action, "--dry-run", "only print the tasks")
        _flag(action, "--yes", "do not ask for confirmation")
        if name == "retry":
            about = "repeat this step, named as `show` prints it, and all later steps; for one task"
            action.add_argument("--from", dest="from_step", metavar="STEP", help=about)
    about = "deliver an external event that a task waits for"
    event = _task_action(
        actions, "event", about,
        "roundgate tasks event OWNER.ID paid --payload-file payment.json",
        "roundgate tasks event OWNER.ID paid --payload-file - < payment.json",
    )  # fmt: skip
    event.add_argument("task", type=task_ref, help=_AS_LISTED)
    event.add_argument("event", metavar="NAME", help="name of the event, as `show` prints it")
    about = "file with the payload as JSON; - for standard input (default: null)"
    event.add_argument("--payload-file", metavar="FILE", help=about)


def _add_audit(commands: Commands) -> None:
    audit = _command(commands, "audit", "audit", "verify and read the audit log")
    actions = audit.add_subparsers(dest="action", required=True)
    about = "find records that were changed, removed or reordered"
    verify = _command(
        actions, "verify", None, about,
        "roundgate audit verify", "roundgate audit verify /var/log/roundgate --anchors gateway.log",
    )  # fmt: skip
    _add_audit_paths(verify)
    about = "file with checkpoints that were kept elsewhere, such as a JSON log; may be repeated"
    verify.add_argument(
        "--anchors", type=Path, action="append", default=[], metavar="FILE", help=about
    )
    _flag(verify, "--mixed", "skip lines that are not records, as in an exported log")
    about = "print the records of a call, with its rounds and tasks"
    show = _command(actions, "show", None, about, "roundgate audit show V1Xq0d3nRkmzk1m2Yb9S7w")
    show.add_argument("call", metavar="CALL", help="id of the call, as the log has it")
    _add_audit_paths(show)
    _flag(show, "--json", "print the records as JSON, one per line")
    about = "print the digest of arguments or of an answer, to compare it with a record"
    digest = _command(actions, "digest", None, about, "roundgate audit digest arguments.json")
    about = "file with the value as JSON (default: standard input)"
    digest.add_argument("file", nargs="?", type=Path, metavar="FILE", help=about)
    _add_config_option(digest, "of the log")


def _add_policy(commands: Commands) -> None:
    about = "explain the decisions of the rules in gateway.yaml"
    policy = _command(commands, "policy", "policy", about)
    actions = policy.add_subparsers(dest="action", required=True)
    about = "print which rules apply to a call, and which of them decides"
    explain = _command(
        actions, "explain", None, about,
        "roundgate policy explain ann refund",
        "roundgate policy explain '{\"sub\": \"ann\", \"groups\": \"ops\"}' refund --arguments '{\"amount\": 70}'",
        "roundgate policy explain ann file:///secret/plan.md",
    )  # fmt: skip
    about = "subject of the caller, or the claims of its token as JSON"
    explain.add_argument("principal", metavar="PRINCIPAL", help=about)
    about = "tool, prompt, or URI of a resource or skill, as `check` prints it"
    explain.add_argument("name", metavar="NAME", help=about)
    about = "arguments of the call as JSON (default: unknown)"
    explain.add_argument("--arguments", metavar="JSON", help=about)
    explain.add_argument("--view", metavar="NAME", help="view that is called (default: none)")
    about = "print what the rules decide about the calls of an audit log"
    replay = _command(
        actions, "replay", None, about, "roundgate policy replay", "roundgate policy replay audit/"
    )
    _add_audit_paths(replay)
    _add_config_option(explain, "with the rules")


def _add_audit_paths(action: argparse.ArgumentParser) -> None:
    about = "files or directories of the log (default: the directory of gateway.yaml)"
    action.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=about)
    _add_config_option(action, "of the log")


def _add_config_option(action: argparse.ArgumentParser, content: str) -> None:
    about = f"gateway.yaml {content} (default: as for serve)"
    action.add_argument("--config", type=Path, metavar="FILE", help=about)


def _task_action(
    actions: Commands, name: str, about: str, *examples: str
) -> argparse.ArgumentParser:
    action = _command(actions, name, None, about, *examples)
    _add_config_option(action, "of the tasks")
    _flag(action, "--json", "print JSON objects, one per line")
    return action


def _add_filters(parser: argparse.ArgumentParser) -> None:
    about = "only tasks of this owner: the part of OWNER.ID before the dot"
    parser.add_argument("--owner", help=about)
    parser.add_argument("--tool", help="only tasks of this tool")
    statuses = ("working", "input_required", "completed", "failed", "cancelled")
    about = "only tasks with this status, where a failed step counts as failed; may be repeated"
    parser.add_argument("--status", choices=statuses, action="append", help=about)
    outcomes = ("ok", "tool_error", "step_failed", "error", "cancelled")
    about = "only tasks with this outcome; may be repeated"
    parser.add_argument("--outcome", choices=outcomes, action="append", help=about)
    about = "only tasks older than this age: 90s, 15m, 2h, 1d"
    parser.add_argument("--older-than", type=age_ms, metavar="AGE", help=about)


def _add_calls(commands: Commands) -> None:
    call = _command(
        commands, "call", "call", "call a tool of a server",
        "roundgate call http://127.0.0.1:8000/mcp calculate expression='2 * 21'",
        "roundgate call https://host/mcp search filter:='{\"year\": 2026}' tag=a tag=b | jq .items",
        "roundgate call https://host/mcp deploy env=prod --answers answers.yaml --detach",
    )  # fmt: skip
    _add_url(call)
    call.add_argument("tool", help="the tool's name, as `list` prints it")
    _add_pairs(call, "arguments, also as KEY:=JSON or KEY=@FILE")
    _flag(call, "--detach", "print a handle as soon as the call is a task")
    about = "maximum number of rounds of the call (default: 10)"
    call.add_argument("--max-rounds", type=int, metavar="N", help=about)
    levels = ("debug", "info", "notice", "warning", "error")
    call.add_argument(
        "--log-level", choices=levels, help="show log messages of this level and above"
    )
    _add_timeout(call)
    _add_answers(call)
    _add_connection(call)

    wait = _command(
        commands, "wait", "call", "wait for a task",
        "roundgate wait 'https://host/mcp#task=786512e2'",
        "roundgate wait 'https://host/mcp#task=786512e2' --cancel",
    )  # fmt: skip
    _add_cassette_option(wait)
    wait.add_argument("handle", help="the handle that `call --detach` printed")
    _flag(wait, "--cancel", "ask the server to cancel the task instead")
    _add_timeout(wait)
    _add_answers(wait)
    _add_connection(wait)


def _add_reading(commands: Commands) -> None:
    listed = _command(
        commands, "list", "reading", "list tools, prompts and resources of a server",
        "roundgate list https://host/mcp", "roundgate list https://host/mcp tools --json",
    )  # fmt: skip
    _add_url(listed)
    listed.add_argument("kind", nargs="?", choices=KINDS, help="list only this kind")
    _add_connection(listed)

    about = "describe a server, or one of its tools, prompts or resources"
    describe = _command(
        commands, "describe", "reading", about,
        "roundgate describe https://host/mcp", "roundgate describe https://host/mcp search",
    )  # fmt: skip
    _add_url(describe)
    describe.add_argument("name", nargs="?", help="a name or a URI (default: the server itself)")
    _add_connection(describe)

    example = "roundgate read https://host/mcp file:///logo.png > logo.png"
    read = _command(commands, "read", "reading", "read a resource", example)
    _add_url(read)
    read.add_argument("uri", help="URI of the resource")
    _add_answers(read)
    _add_connection(read)

    example = "roundgate prompt https://host/mcp review language=python"
    prompt = _command(commands, "prompt", "reading", "fill in a prompt", example)
    _add_url(prompt)
    prompt.add_argument("name", help="name of the prompt")
    _add_pairs(prompt, "arguments of the prompt, as text")
    _add_answers(prompt)
    _add_connection(prompt)

    about = "list possible values of an argument of a prompt or a resource template"
    example = "roundgate complete https://host/mcp review language py"
    complete = _command(commands, "complete", "reading", about, example)
    _add_url(complete)
    complete.add_argument("name", help="name of the prompt, or the URI template")
    complete.add_argument("argument", help="the argument to complete")
    complete.add_argument(
        "value", nargs="?", default="", help="the beginning of the argument's value"
    )
    _add_pairs(complete, "values of other arguments")
    _add_connection(complete)

    listen = _command(
        commands, "listen", "reading", "print changes of a server, one line of JSON each",
        "roundgate listen https://host/mcp tools",
        "roundgate listen https://host/mcp --uri file:///config.yaml",
    )  # fmt: skip
    _add_url(listen)
    choices, about = [*KINDS[:3], []], "kind of changes: tools, prompts, resources (default: all)"
    listen.add_argument("kinds", nargs="*", choices=choices, metavar="KIND", help=about)
    _repeated(listen, "--uri", "URI", "a resource to listen to; may be repeated")
    _add_connection(listen)

    about, example = "measure the time of a round trip", "roundgate ping https://host/mcp"
    ping = _command(commands, "ping", "reading", about, example)
    _add_url(ping)
    _add_connection(ping)


def _add_test(commands: Commands) -> None:
    test = _command(
        commands, "test", "suite", "run suites of cases against a server",
        "roundgate test suite.yaml --jobs 4 --junit results.xml",
        "roundgate test suite.yaml --serve gateway.yaml --filter refund",
        "roundgate test suite.yaml --url https://staging.example/mcp --update",
    )  # fmt: skip
    test.add_argument(
        "suites", nargs="+", type=Path, metavar="SUITE", help="file of a suite, such as suite.yaml"
    )
    against = test.add_mutually_exclusive_group()
    against.add_argument("--url", help="test this server instead of the suites' servers")
    about = "serve this gateway.yaml, and test it"
    against.add_argument("--serve", type=Path, metavar="CONFIG", help=about)
    about = "only cases with this text in their name or tags; may be repeated"
    _repeated(test, "--filter", "TEXT", about)
    jobs, about = number(int, 1, 64), "number of cases to run concurrently (default: %(default)s)"
    test.add_argument("--jobs", type=jobs, default=1, metavar="N", help=about)
    _flag(test, "--fail-fast", "stop after the first failure")
    _flag(test, "--update", "store snapshots instead of comparing them")
    _flag(test, "--list", "print the cases without running them")
    test.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML to a file")
    _add_connection(test)


def _add_url(parser: argparse.ArgumentParser) -> None:
    _add_cassette_option(parser)
    parser.add_argument("url", help="the server's endpoint, such as http://127.0.0.1:8000/mcp")


def _add_pairs(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("pairs", nargs="*", metavar="KEY=VALUE", help=about)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    about = "time limit of the whole command in seconds (default: none)"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=about)


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions of the server")
    about = "file with answers by question or by field (YAML, JSON)"
    group.add_argument("--answers", type=Path, metavar="FILE", help=about)
    _flag(group, "--no-input", "ask no questions, even on a terminal")


def _add_connection(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--json", "print whole results as JSON")
    group = parser.add_argument_group("connection")
    _add_token(group)
    _flag(group, "--login", "log in with the browser, and store tokens in the keyring")
    about = f"id of an OAuth client; set its secret in {SECRET_VARIABLE}, unless --login"
    group.add_argument("--client-id", help=about)
    about = "accept only this authorization server"
    group.add_argument("--issuer", metavar="URL", help=about)
    about = "speak only this revision of the protocol; may be repeated"
    group.add_argument("--revision", action="append", metavar="DATE", help=about)
    about = "write each message to a file, one per line"
    group.add_argument("--transcript", type=Path, metavar="FILE", help=about)


def _add_token(parser: Options) -> None:
    about = "environment variable with a bearer token (default: %(default)s)"
    parser.add_argument("--token-env", default=TOKEN_VARIABLE, metavar="NAME", help=about)
    _repeated(parser, "--header", "NAME:VALUE", "header to send with each request; may be repeated")


def _add_cassette_option(parser: argparse.ArgumentParser) -> None:
    about = "file to record the conversation in, as a cassette"
    parser.add_argument("--cassette", type=Path, metavar="FILE", help=about)


def _add_cassette(commands: Commands) -> None:
    about = "record conversations, and replay the client or the server"
    cassette = _command(commands, "cassette", "cassette", about)
    actions = cassette.add_subparsers(dest="action", required=True)

    about = "run a proxy that records a conversation"
    record = _cassette_action(actions, "record", about)
    record.add_argument("url", help="the server's endpoint, such as http://127.0.0.1:8000/mcp")
    _add_listen(record)
    about = "member with a secret value: arguments.pin, or pin; may be repeated"
    _repeated(record, "--redact", "PATH", about)
    about = "environment variable whose value is redacted everywhere; may be repeated"
    _repeated(record, "--redact-env", "NAME", about)
    _repeated(record, "--ignore", "PATH", "path that verify does not compare; may be repeated")
    about = "pattern of values that differ from run to run; may be repeated"
    _repeated(record, "--rule", "NAME=PATTERN", about)

    about = "send the recorded requests again, and compare the answers"
    verify = _cassette_action(actions, "verify", about)
    about = "endpoint of the server, or of its replicas, which take turns"
    verify.add_argument("urls", nargs="+", metavar="URL", help=about)
    about = "report only interaction N; may be repeated"
    verify.add_argument("--only", type=int, action="append", metavar="N", help=about)
    _flag(verify, "--update", "record differing interactions again (with --only, just these)")
    _repeated(verify, "--ignore", "PATH", "further path that is not compared; may be repeated")
    about = "time limit for each answer in seconds (default: %(default)s)"
    verify.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help=about)
    _add_token(verify)

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
