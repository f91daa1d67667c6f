"""`roundgate policy`: the decision of the rules of gateway.yaml about a call, or about recorded calls.

The commands load the configuration as `roundgate check` does. They call no tool.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

from roundgate import config
from roundgate.audit.trail import MAX_NAME
from roundgate.audit.verifying import files_of, lines_of
from roundgate.auth.principal import LOCAL, Principal
from roundgate.backends import Catalog, ServedTool
from roundgate.backends.catalog import skill_backend
from roundgate.cli.arguments import Commands, add_config_option, command, configuration_file
from roundgate.cli.audit import add_audit_paths
from roundgate.cli.output import say, show_table
from roundgate.clock import Clock, Deadline
from roundgate.config import ConfigFile
from roundgate.errors import Inside, ParseError, ToolError, Unauthenticated, UsageError
from roundgate.json import decode
from roundgate.policy.config import Kind
from roundgate.policy.items import deciding_rule
from roundgate.policy.rules import NO_RULE, Caller, Policy, PolicyRule, RuleTarget, decision
from roundgate.policy.texts import UriReadings
from roundgate.protocol import ClientCapabilities, Meta, PartlyKnown
from roundgate.replay import Call, Context, Failed, Journal, Run, engine
from roundgate.runtime import loading
from roundgate.runtime.audit_log import audit_directory
from roundgate.settings import AuthorizerConfig

RECORDED: Final = frozenset({"subject", "client"})
"""The members of rules about facts that a record of the audit log has."""
RECORDED_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
)
"""The methods of recorded calls, with the kinds of their targets."""


def declare(commands: Commands) -> None:
    """Add `roundgate policy`."""
    about = "explain the decisions of the rules in gateway.yaml"
    policy = command(commands, "policy", about, run=run)
    actions = policy.add_subparsers(dest="action", required=True)
    about = "print which rules apply to a call, and which of them decides"
    explain = command(
        actions, "explain", about, "roundgate policy explain ann refund",
        'roundgate policy explain \'{"sub": "ann", "groups": "ops"}\' refund --arguments \'{"amount": 70}\'',
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
    replay = command(
        actions, "replay", about, "roundgate policy replay", "roundgate policy replay audit/"
    )
    add_audit_paths(replay)
    add_config_option(explain, "with the rules")


def run(arguments: argparse.Namespace) -> int:
    """Run a `policy` action and return its exit status: 1 if the explained call is refused.

    Raises:
        UsageError: there is no policy, or an argument of the command is wrong.
        ConfigError: the configuration has problems.
    """
    file = config.load(configuration_file(arguments.config))
    if file.config.policy is None:
        raise UsageError(f"{file.origin.located.file} has no section policy")
    catalog = loading.load(file, fetches=True).catalog
    if arguments.action == "explain":
        return _explain(arguments, file, catalog)
    return _replay(arguments.paths or [_directory(file)], catalog)


# one call


def _explain(arguments: argparse.Namespace, file: ConfigFile, catalog: Catalog) -> int:
    view, name = arguments.view or "", arguments.name
    if view and view not in catalog.views:
        raise UsageError(f"--view: there is no view {view!r}")
    served = catalog.of_view(view)
    principal = _principal(arguments.principal, file)
    if (tool := served.tools.get(name)) is None:
        return _explain_item(name, served, principal, view, file)
    if name in served.prompts:
        say(f"the prompt {name}:")
        _explain_item(name, served, principal, view, file)
        say(f"the tool {name}:")
    if tool.rules is None or catalog.policy is None:
        say(f"allowed: {name} is a tool of the gateway, which needs no rule")
        return 0
    if _lacks_scopes("tool", tool.tool.scopes, principal, file):
        return 1
    sent = None
    if arguments.arguments is not None:
        sent = _sent(tool, principal, _object(arguments.arguments, "--arguments"))
        for place in sent.unknown:
            where = f"arguments{''.join(f'.{step}' for step in place)}"
            say(f"{where}: unknown, so a deny that looks at it matches, and an allow does not")
    target = RuleTarget("tool", tool.whole_name, tool.backend, view, tool.tool.definition)
    show_table(list(_rows(catalog.policy, target, Caller(principal), sent, file)))
    rules = tool.rules.deciding(Caller(principal))
    if sent is None and any(rule.arguments for rule in rules):
        if any(rule.allows for rule in rules):
            say("depends on the arguments: give them with --arguments")
            return 0
        say("refused, whatever the arguments")
        return 1
    return _say_decision(decision(rules, lambda: sent or PartlyKnown({})), file)


def _explain_item(
    name: str, served: Catalog, principal: Principal, view: str, file: ConfigFile
) -> int:
    rules, caller = served.item_rules, Caller(principal)
    assert rules is not None, "there is a policy"
    kind: Kind = "prompt" if name in served.prompts else "resource"
    item = served.prompts.get(name) or served.find_resource(name)
    backend, scopes = ("", frozenset[str]()) if item is None else (item.backend, item.scopes)
    if item is None and (source := served.skill_source(name)) is not None:
        backend, scopes = skill_backend(name), source.scopes
    elif item is None:
        raise UsageError(
            f"there is no tool, prompt or resource {name!r}; `roundgate check` lists them. "
            "In place of a template, give one of its URIs"
        )
    if _lacks_scopes(kind, scopes, principal, file):
        return 1
    if kind == "prompt":
        target = RuleTarget(kind, name, backend, view)
        refusal = rules.prompt_refusal(name, backend, caller)
    else:
        target = RuleTarget(kind, name, backend, view, uri=UriReadings.of(name))
        refusal = rules.resource_refusal(name, backend, caller)
    is_page = kind == "resource" and rules.is_page(name)
    if is_page:
        say(
            f"{name} is the page of a tool: callers of the tool may read it, unless a rule denies it"
        )
    elif not rules.policy.covers(kind):
        say(f"allowed: no rule names a {kind}, so {kind}s need no rule")
        return 0
    elif target.uri is not None and target.uri.is_ambiguous:
        say("refused: a URI with a segment . or .. is not served")
        return 1
    show_table(list(_rows(rules.policy, target, caller, None, file)))
    if is_page:
        why = "no call of the tool is allowed" if refusal == NO_RULE else f"by {refusal}"
        say("allowed, as the tool" if refusal is None else f"refused: {why}")
        return 0 if refusal is None else 1
    return _say_decision(deciding_rule(rules.policy.matching(target), caller), file)


def _lacks_scopes(
    kind: str, scopes: frozenset[str], principal: Principal, file: ConfigFile
) -> bool:
    """Print the scopes that a caller lacks; return whether there are any."""
    missing = scopes - principal.scopes if file.config.auth != "none" else None
    if missing:
        say(f"refused: the {kind} needs the scope {' '.join(sorted(missing))}")
    return bool(missing)


def _say_decision(rule: PolicyRule | None, file: ConfigFile) -> int:
    if rule is None:
        say("refused: no rule matches")
    else:
        say(f"{'allowed' if rule.allows else 'refused'} by {rule.name}, {_place(rule, file)}")
    return 0 if rule is not None and rule.allows else 1


def _rows(
    policy: Policy,
    target: RuleTarget,
    caller: Caller,
    sent: PartlyKnown | None,
    file: ConfigFile,
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each rule: its place, name and effect, and whether it matches."""
    is_decided = False
    for rule in policy.rules:
        wrong = [*rule.mismatches(target), *rule.caller_mismatches(caller)]
        if is_decided:
            verdict = "not reached"
        elif wrong:
            verdict = f"does not match: {', '.join(wrong)}"
        elif rule.arguments is not None and sent is None:
            verdict = "depends on the arguments"
        elif rule.fits(sent or PartlyKnown({})):
            verdict, is_decided = "matches", True
        else:
            verdict = "does not match: arguments"
        yield (_place(rule, file), rule.name, _effect(rule), verdict)


def _place(rule: PolicyRule, file: ConfigFile) -> str:
    path = str(file.origin.located.file)
    return path if rule.line is None else f"{path}:{rule.line}"


def _effect(rule: PolicyRule) -> str:
    return "allow" if rule.allows else "deny"


def _principal(text: str, file: ConfigFile) -> Principal:
    auth = file.config.auth
    if auth == "none":
        return LOCAL
    from roundgate.auth.verifier import principal_from_authorizer, principal_from_claims

    claims = _object(text, "PRINCIPAL") if text.lstrip().startswith("{") else {"sub": text}
    try:
        if isinstance(auth, AuthorizerConfig):
            return principal_from_authorizer(
                auth, {auth.subject_claim: claims.get("sub"), **claims}
            )
        return principal_from_claims({"iss": auth.issuer, "exp": None, "sub": "", **claims})
    except Unauthenticated as error:
        raise UsageError(f"PRINCIPAL: {error}") from None


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        value = decode(text.encode())
    except (ParseError, UnicodeError) as error:
        raise UsageError(f"{option}: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{option}: write a JSON object")
    return value


class _Sent(Inside):
    """The arguments that the back end of a call would get."""

    def __init__(self, arguments: PartlyKnown) -> None:
        super().__init__()
        self.arguments = arguments


def _sent(served: ServedTool, principal: Principal, arguments: Mapping[str, Any]) -> PartlyKnown:
    """Return the arguments that the back end would get, by running the call up to the check of its
    rules. Raise UsageError if the call would not get there."""
    if problems := served.arguments.problems(dict(arguments), "arguments"):
        raise UsageError("; ".join(problems))

    def authorize(known: Callable[[], PartlyKnown]) -> NoReturn:
        raise _Sent(known())

    call = Call(
        principal=principal,
        meta=Meta(ClientCapabilities({}), None, None, None),
        deadline=Deadline(Clock(), None),
        authorize=authorize,
    )
    run_of_call = Run(call, Journal())
    context = Context(run_of_call)
    outcome = asyncio.run(
        engine.run_handler(lambda: served.call(context, dict(arguments)), run_of_call)
    )
    match outcome:
        case Failed(_Sent(arguments=known)):
            return known
        case Failed(ToolError() as error):
            raise UsageError(str(error))
    raise UsageError("the call asks its user for arguments; give all of them")


# recorded calls


def _directory(file: ConfigFile) -> Path:
    if file.config.audit is None:
        raise UsageError("name the files of an audit log, or set `audit` in gateway.yaml")
    return audit_directory(file, file.config.audit)


def _replay(paths: Sequence[Path], catalog: Catalog) -> int:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for line in lines_of(files_of(paths)):
        try:
            record = decode(line.data)
        except ParseError:
            continue
        if isinstance(record, dict) and _is_call(record):
            happened = "refused" if record["event"] == "refused" else "began"
            name, view = str(record.get("name")), str(record.get("view", ""))
            counts[(happened, view, name, _verdict(record, name, view, catalog))] += 1
    rows = sorted(counts.items(), key=lambda item: (item[0][3], -item[1]))
    show_table(
        [
            (f"{count:,}", f"{name} (view {view})" if view else name, happened, verdict)
            for (happened, view, name, verdict), count in rows
        ]
    )
    say(
        f"{counts.total():,} calls. Records have no scopes, claims or arguments: if a rule that may"
        " decide looks at them, the decision depends on them"
    )
    return 0


def _is_call(record: Mapping[str, Any]) -> bool:
    is_first = record.get("event") == "refused" or (
        record.get("event") == "called" and record.get("round") == 1
    )
    return (
        is_first and record.get("method") in RECORDED_KINDS and isinstance(record.get("who"), dict)
    )


def _rules_of(kind: Kind, name: str, served: Catalog) -> Sequence[PolicyRule] | str:
    """Return the rules that match a target, or the verdict if there are no rules for it."""
    if kind == "tool":
        tool = served.tools.get(name)
        if tool is None:
            return "no such tool"
        return "allowed: needs no rule" if tool.rules is None else tool.rules.rules
    item = served.prompts.get(name) if kind == "prompt" else served.find_resource(name)
    rules = served.item_rules
    if kind == "resource" and len(name) == MAX_NAME:
        return "unknown: the record has only the beginning of the URI"
    if item is None or rules is None:
        return f"no such {kind}"
    if kind == "resource" and rules.is_page(name):
        return "as the tools of the page"
    if not rules.policy.covers(kind):
        return "allowed: needs no rule"
    return (rules.prompt_rules if kind == "prompt" else rules.resource_rules)(name, item.backend)


def _verdict(record: Mapping[str, Any], name: str, view: str, catalog: Catalog) -> str:
    kind = RECORDED_KINDS[record["method"]]
    if view and view not in catalog.views:
        return f"no such {kind}"
    rules = _rules_of(kind, name, catalog.of_view(view))
    if isinstance(rules, str):
        return rules
    who = record["who"]
    issuer, subject, client = (
        str(who.get(member, "")) for member in ("issuer", "subject", "client")
    )
    caller, possible = Caller(Principal(issuer, subject, client)), list[PolicyRule | None]()
    unknown: dict[str, None] = {}
    for rule in rules:
        if not RECORDED.isdisjoint(rule.caller_mismatches(caller)):
            continue
        possible.append(rule)
        needs = [member for member, _ in rule.of_caller if member not in RECORDED]
        needs += ["arguments"] if rule.arguments is not None else []
        unknown |= dict.fromkeys(needs)
        if not needs:
            break
    else:
        possible.append(None)
    effects = {rule is not None and rule.allows for rule in possible}
    if len(effects) == 2:
        return f"depends on {', '.join(unknown)}"
    names = [rule.name if rule is not None else "no rule" for rule in possible]
    return f"{'allowed' if effects == {True} else 'refused'}: {', '.join(names)}"
