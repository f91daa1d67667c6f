"""`roundgate check`: all problems of a configuration, or everything that it serves."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundgate import config
from roundgate.backends import Catalog, Fallback, ServedTool, Snapshot, Tool, kind_of
from roundgate.backends.base import meta_of
from roundgate.backends.config import NOT_PLAIN
from roundgate.backends.http.config import RemoteConfig
from roundgate.backends.registry import imported
from roundgate.backends.schema_values import ArgumentSchema, ambiguous
from roundgate.backends.shaping import override_of
from roundgate.cli.arguments import (
    PORT,
    Commands,
    add_config,
    bind,
    command,
    configuration_file,
    flag,
)
from roundgate.cli.output import escaped_lines, show_table
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.protocol.apps import page_uris
from roundgate.runtime import checks, loading
from roundgate.runtime.startup import require_one_host
from roundgate.settings import AuthorizerConfig, Origin, Settings
from roundgate.settings import process as settings
from roundgate.tokens import keys

if TYPE_CHECKING:  # loaded only if there is a policy
    from roundgate.policy.rules import PolicyRule

_MAX_NAMED: Final = 5
"""The limit on the tools that one remark names."""
_ASKS: Final = frozenset({"elicitation", "sampling", "roots"})
"""The client capabilities that a tool's questions need."""
_ENVIRONMENT: Final = "environment"


def declare(commands: Commands) -> None:
    """Add `roundgate check`."""
    about = "find every problem in a configuration, and list what it serves"
    check = command(
        commands, "check", about, "roundgate check",
        "roundgate check --file-only deployments/prod.yaml", run=run,
    )  # fmt: skip
    add_config(check)
    about = "skip checks of this environment, if another machine serves the file"
    flag(check, "--file-only", about)
    check.add_argument(
        "--host", default="127.0.0.1", help="address to check (default: %(default)s)"
    )
    check.add_argument("--port", type=PORT, help="also check whether this port is free")


def run(arguments: argparse.Namespace) -> int:
    """Print everything that a configuration serves, with remarks; return 0.

    Raises:
        ConfigError: lists all problems of the file, its documents, and the environment.
    """
    path = configuration_file(arguments.config)
    inspected = config.inspect(path)
    problems = list(inspected.problems)
    file, served = inspected.file, None
    fetched: dict[str, bytes] = {}
    if file is not None:
        try:
            served = loading.load(file, fetches=True, fetched=fetched)
        except ConfigError as error:
            problems += error.problems
    if not arguments.file_only:
        using, wrong = _environment({**os.environ, "GATEWAY_CONFIG": str(path)})
        problems += wrong
        if file is None or not isinstance(file.config.auth, AuthorizerConfig):
            problems += _stores_and_keys(using)
        if file is not None:
            problems += _serving(file, using, arguments.host, arguments.port)
    if problems or file is None or served is None:
        unique = {str(problem): problem for problem in problems}
        raise ConfigError(sorted(unique.values(), key=lambda entry: (entry.file, entry.line or 0)))
    _print_served(file, served, fetched)
    print(f"{path}: no problems")
    return 0


def _print_served(file: ConfigFile, snapshot: Snapshot, fetched: dict[str, bytes]) -> None:
    served = snapshot.catalog
    _print_servers(snapshot)
    _print_policy(served)
    _print_catalog(served)
    for view in file.config.views:
        print(f"view {view.name} at {view.effective_path}")
        _print_catalog(served.of_view(view.name))
    if served.left_out:
        lines = map(escaped_lines, map(str, served.left_out))  # may quote a server
        print(f"left out ({len(served.left_out)})", *lines, sep="\n")
    remarks = [
        *_unasked_scopes(file, served),
        *_nameless_callers(file),
        *_uncovered(file, served),
        *_argument_remarks(file, served),
        *_backend_remarks(file, fetched),
        *_dotted_names(file, served),
        *_useless_pages(file, served),
        *_client_remarks(file, served),
    ]
    if remarks:
        print(f"remarks ({len(remarks)})", *remarks, sep="\n")


def _print_servers(snapshot: Snapshot) -> None:
    states = snapshot.servers()
    if states:
        print(f"servers ({len(states)})")
        lines = [
            (
                state.name,
                f"{state.software}, revision {state.revision}, {state.tools} tools, {state.prompts} prompts, "
                f"{state.resources} resources",
            )
            for state in states
        ]
        show_table(lines, indent="  ")


def _print_policy(served: Catalog) -> None:
    if served.policy is None:
        return
    print(f"policy ({len(served.policy.rules)})")
    targets = _rules_of_targets(served)
    lines = []
    for rule in served.policy.rules:
        match = rule.config.match
        members = {
            **match.model_dump(exclude_none=True, exclude={"claims", "arguments"}),
            **{f"claims.{name}": texts for name, texts in match.claims.items()},
        }
        texts = [f"{name} {'|'.join(values)}" for name, values in members.items()]
        texts += ["arguments"] if match.arguments is not None else []
        counts = {kind: sum(rule in rules for rules in targets[kind]) for kind in targets}
        concerned = [
            f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items() if count
        ]
        effect = "allow" if rule.allows else "deny"
        lines.append(
            (rule.name, effect, ", ".join(texts) or "all calls", ", ".join(concerned) or "nothing")
        )
    show_table(lines, indent="  ")


def _rules_of_targets(served: Catalog) -> Mapping[str, Sequence[Sequence[PolicyRule]]]:
    targets: dict[str, list[Sequence[PolicyRule]]] = {"tool": [], "prompt": [], "resource": []}
    targets["tool"] += (
        tool.rules.rules for tool in served.tools.values() if tool.rules is not None
    )
    for kind, name, item in served.items():
        if served.item_rules is not None:
            targets[kind].append(served.item_rules.rules_of(kind, name, item.backend))
    return targets


def _uncovered(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark if no rule allows calls, and for prompts and resources that no rule concerns."""
    if served.policy is not None and not any(rule.allows for rule in served.policy.rules):
        yield file.origin.at("policy").problem(
            "no rule has an allow, so all calls are refused",
            "add `- allow: {}` at the end to allow the calls that no other rule matches",
        )
    for kind in loading.uncovered_kinds(served):
        yield file.origin.at("policy").problem(
            f"no rule names a {kind}, so every caller may use all {kind}s, "
            "whatever the other rules deny",
            f'add `- allow: {{{kind}: "*"}}` at the end; all rules then apply to {kind}s, too',
        )


def _print_catalog(served: Catalog) -> None:
    tools = [(name, tool.tool.definition) for name, tool in served.tools.items()]
    prompts = [(name, prompt.definition) for name, prompt in served.prompts.items()]
    resources = [(uri, resource.definition) for uri, resource in served.resources.items()]
    templates = [template.resource.definition for template in served.templates]
    for kind, entries in (
        ("tools", [(name, about.get("description")) for name, about in tools]),
        ("prompts", [(name, about.get("description")) for name, about in prompts]),
        ("resources", [(uri, about.get("name")) for uri, about in resources]),
        ("resource templates", [(entry["uriTemplate"], entry.get("name")) for entry in templates]),
    ):
        if entries:
            print(f"{kind} ({len(entries)})")
            lines = [(name, (about or "").partition("\n")[0][:100]) for name, about in entries]
            show_table(lines, indent="  ")


def _unasked_scopes(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark if tools require scopes while `auth` is none, because every caller then has
    all scopes."""
    catalogs = [served, *(served.of_view(view.name) for view in file.config.views)]
    scoped = {
        name: tool
        for catalog in catalogs
        for name, tool in catalog.tools.items()
        if tool.tool.scopes
    }
    if file.config.auth == "none" and scoped:
        yield file.origin.at("auth").problem(
            f"{_named(list(scoped))}: scopes are required, and without `auth` every caller has them",
            "set `auth`, or remove the scopes",
        )


def _nameless_callers(file: ConfigFile) -> Iterator[Problem]:
    """Yield a remark for headers that name the caller while `auth` is none."""
    for index, backend in enumerate(file.backends if file.config.auth == "none" else ()):
        references = backend.callers_headers if isinstance(backend, RemoteConfig) else {}
        if any(reference.fact != "call" for reference in references.values()):
            yield (
                file.backend_origin(index)
                .at("headers")
                .problem(
                    "callers have no names without `auth`, so the headers about them are not sent",
                    "set `auth`",
                )
            )


def _argument_remarks(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield the remarks about the arguments at which rules look."""
    for number, rule in enumerate(() if served.policy is None else served.policy.rules):
        schema = rule.config.match.arguments or {}
        named, required = set(schema.get("properties") or ()), set(schema.get("required") or ())
        tools = {n: t for n, t in served.tools.items() if t.rules and rule in t.rules.rules}
        if named or required:
            place = file.origin.at("policy", number, "allow" if rule.allows else "deny")
            remarks = [*_optional(tools, named - required)] if rule.allows else []
            remarks += [*_unknown(file, tools, named | required)]
            remarks += [*_unreadable(tools, named | required, allows=rule.allows)]
            for message, remedy in remarks:
                yield place.at("arguments").problem(message, remedy)


def _optional(tools: Mapping[str, ServedTool], names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield a remark for a rule that allows calls by an argument that they may omit, because JSON
    Schema ignores a missing member."""
    for name, tool in tools.items():
        own = tool.tool.definition["inputSchema"]
        members = (own.get("properties") or {}).items()
        with_default = {n for n, about in members if isinstance(about, dict) and "default" in about}
        if omitted := ", ".join(sorted(names - with_default - set(own.get("required") or ()))):
            yield f"also matches calls of {name} without {omitted}", f"add `required: [{omitted}]`"
            return


def _unknown(
    file: ConfigFile, tools: Mapping[str, ServedTool], names: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield a remark for a rule about an argument that none of its tools has, because a rule that
    denies by it denies nothing."""
    known = [_own_arguments(file, tool) for tool in tools.values()]
    if not known or None in known:
        return
    if unknown := sorted(names.difference(*(own or () for own in known))):
        yield (
            f"no tool of this rule has an argument {', '.join(unknown)}",
            "use the names in the schema of the back end, before `override` renames them",
        )


def _unreadable(
    tools: Mapping[str, ServedTool], names: set[str], *, allows: bool
) -> Iterator[tuple[str, str]]:
    """Yield a remark for each argument that a rule cannot read as its schema says, because a call
    with such a value matches a rule that denies, and no rule that allows."""
    effect = "no call matches" if allows else "each call matches"
    for name, tool in tools.items():
        if never := ", ".join(sorted(names & tool.tool.unreadable())):
            message = f"{never} of {name} cannot be read: if the rule looks there, {effect}"
            yield message, "look at other members, or give the argument a type that JSON has"
        schema = ArgumentSchema(tool.tool.definition["inputSchema"])
        if tool.tool.bind is None and (texts := ", ".join(sorted(names & ambiguous(schema)))):
            message = (
                f"{texts} of {name} may be text: for a text that reads as another value, {effect}"
            )
            yield message, "narrow the type in the schema, if the service allows it"


def _own_arguments(file: ConfigFile, served: ServedTool) -> set[str] | None:
    """Return the names of a tool's arguments at its back end; `None` if its schema names none."""
    properties = served.tool.definition["inputSchema"].get("properties")
    backend = next((entry for entry in file.backends if entry.name == served.backend), None)
    if not properties or backend is None:
        return None
    _, override = override_of(backend, served.whole_name)
    arguments = {} if override is None else override.arguments
    renamed = {argument.name for argument in arguments.values() if argument.name}
    return {*(set(properties) - renamed), *arguments}


def _backend_remarks(file: ConfigFile, fetched: dict[str, bytes]) -> Iterator[Problem]:
    for index, backend in enumerate(file.backends):
        if checker := kind_of(backend).checker:
            yield from imported(checker)(backend, file.backend_origin(index), fetched)


def _dotted_names(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark for tools whose names several clients refuse."""
    catalogs = [served, *(served.of_view(view.name) for view in file.config.views)]
    named: dict[str, str] = {
        name: tool.backend
        for catalog in catalogs
        for name, tool in catalog.tools.items()
        if NOT_PLAIN.search(name)
    }
    for index, backend in enumerate(file.backends):
        if names := [name for name, owner in named.items() if owner == backend.name]:
            yield (
                file.backend_origin(index)
                .at("names")
                .problem(
                    f"{_named(names)}: several clients refuse names with other characters than"
                    " A-Z a-z 0-9 _ -",
                    'set `names: {dots: "_"}`, or rename tools by `override`',
                )
            )


def _useless_pages(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark for tools whose pages no host can show, or may show without data."""
    hidden: dict[str, None] = {}
    cut: dict[str, None] = {}
    for catalog in (served, *(served.of_view(view.name) for view in file.config.views)):
        listed = {name for name, _ in catalog.tool_pages.items}
        for name, tool in catalog.tools.items():
            if any(page_uris(meta_of(tool.tool.definition))):
                hidden |= {} if name in listed else {name: None}
                cut |= {} if tool.tool.max_result is None else {name: None}
    if hidden:
        yield file.origin.at("search").problem(
            f"{_named(list(hidden))}: hosts show no page for a call through call_tool",
            "add the tools to `pinned`",
        )
    if cut:
        yield file.origin.at("backends").problem(
            f"{_named(list(cut))}: max_result removes structuredContent, so a page may have no data",
            "remove max_result, or let the page call another tool",
        )


def _client_remarks(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark for each client capability whose absence makes some tools fail."""
    fallback = Fallback.of(served, file.config.fallback)
    tools = {name: entry.tool for name, entry in served.tools.items()}
    asking = [name for name, tool in tools.items() if _asks(tool) and name not in fallback.in_words]
    if asking:
        yield _place(file, served, asking).problem(
            f"{_named(asking)}: a client without elicitation gets an error (-32021)",
            "set ask_in_words: true if a model may answer for its user; `roundgate docs clients` "
            "lists the clients with elicitation",
        )
    if approved := [name for name, tool in tools.items() if tool.asks_first]:
        yield _place(file, served, approved).problem(
            f"{_named(approved)}: a client that cannot show forms gets an error (-32021), because a "
            "person must approve each call",
            "use clients that can show forms (`roundgate docs clients`); there is no substitute",
        )
    substituted = fallback.waiting | fallback.with_handles
    required = {name for name, tool in tools.items() if tool.task == "required"}
    if tasks := [name for name in tools if name in required - substituted]:
        yield _place(file, served, tasks).problem(
            f"{_named(tasks)}: a client that does not support tasks gets an error (-32021)",
            "set without_tasks: wait for work of a few minutes, or tools for a handle; most "
            "clients do not support tasks",
        )


def _asks(tool: Tool) -> bool:
    return tool.may_ask or bool(_ASKS & tool.requires.keys())


def _place(file: ConfigFile, served: Catalog, names: Sequence[str]) -> Origin:
    """Return the place of a remark on tools: `fallback` if the file has it, otherwise the back end
    of the first tool."""
    if "fallback" in file.config.model_fields_set:
        return file.origin.at("fallback")
    owner = served.tools[names[0]].backend
    index = next((n for n, backend in enumerate(file.backends) if backend.name == owner), None)
    return file.origin if index is None else file.backend_origin(index)


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _environment(environ: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """Return the settings from the valid variables of an environment, and the problems of the
    invalid variables."""
    try:
        return settings.from_environment(environ), []
    except ConfigError as error:
        wrong = {problem.path for problem in error.problems}
        rest = {name: value for name, value in environ.items() if name not in wrong}
        return settings.from_environment(rest), list(error.problems)


def _stores_and_keys(using: Settings) -> Iterator[Problem]:
    yield from _collect_problems(lambda: _check_keys(using))
    if using.store_kind.is_file:
        yield from _store_file(using.store_file)
    if problem := using.store_kind.missing():
        yield problem
    at_aws = {
        "GATEWAY_QUEUE": using.sqs_url,
        "GATEWAY_STATE_KEYS_SECRET": using.state_keys_secret,
        "GATEWAY_STATE_KEYS_KMS": using.state_keys_kms,
    }
    for name, value in at_aws.items():
        if value is not None and find_spec("boto3") is None:
            remedy = "pip install 'roundgate[aws]'"
            yield Problem(_ENVIRONMENT, name, "needs the extra aws, which is not installed", remedy)


def _serving(file: ConfigFile, using: Settings, host: str, port: int | None) -> Iterator[Problem]:
    """Yield the problems of the file in combination with the environment and the address. A file
    with an authorizer is for functions, whatever the environment."""
    if isinstance(file.config.auth, AuthorizerConfig):
        yield from checks.problems(file, checks.FUNCTION)
        return
    yield from checks.problems(file, using)
    yield from checks.exposure(file, using, host)
    if port is not None:
        try:
            bind(host, port).close()
        except UsageError as error:
            remedy = "choose another port, or end the process that uses it"
            yield Problem("command line", "--port", str(error), remedy)


def _collect_problems(check: Callable[[], object]) -> Iterator[Problem]:
    try:
        check()
    except ConfigError as error:
        yield from error.problems


def _check_keys(using: Settings) -> None:
    """Raise ConfigError if the keys are invalid or missing. Do not read keys at AWS, or create
    keys."""
    if using.state_keys is not None:
        keys.parse(using.state_keys, using.state_keys_source)
    elif using.state_keys_secret is None and using.state_keys_kms is None:
        require_one_host(using)
        file = using.store_file.with_suffix(".key")
        if file.exists():
            keys.from_file(file)


def _store_file(path: Path) -> Iterator[Problem]:
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    is_usable = existing.is_file() if existing == path else existing.is_dir()
    if not is_usable or not os.access(existing, os.W_OK):
        message = f"{path} is a directory" if path.is_dir() else f"{path} cannot be written"
        remedy = (
            "choose a file in a writable directory, such as sqlite:///.roundgate/gateway.sqlite3"
        )
        yield Problem(_ENVIRONMENT, "GATEWAY_STORE", message, remedy)
