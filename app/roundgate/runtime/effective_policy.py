"""The effective policy: the protection of each tool in each view, and of the gateway as a whole.

The policy is computed from a loaded configuration and its catalog, so it covers gateway.yaml,
decorators and OpenAPI documents alike. `losses` lists the protection that a new policy lacks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct, field

from roundgate.backends import BackendConfig, Catalog, Selector, ServedTool, ToolOverride
from roundgate.backends.http.secrets import SECRET_NAME
from roundgate.backends.shaping import HINTS
from roundgate.config import ConfigFile
from roundgate.settings import KINDS, CallLimits, CallMatch, Kind, RateConfig, RuleConfig

if TYPE_CHECKING:  # few configurations have MCP servers
    from roundgate.backends.mcp.config import PartConfig

_APPROVE: Final = ("never", "destructive", "always")
"""The values of a back end's `approve`, from weakest to strongest."""
_CHANGES: Final = ("take", "announce", "quarantine")
"""The values of an MCP server's `changes`, from weakest to strongest."""
_PARTS: Final = ("prompts", "resources")
_Effects: TypeAlias = tuple[CallMatch | None, CallMatch | None]
"""The `allow` and the `deny` of a rule."""
_NO_OVERRIDE: Final = ToolOverride.model_construct(_fields_set=set())


class ToolPolicy(Struct, frozen=True):
    """The protection of one tool at one endpoint."""

    name: str
    asks_first: bool
    once: bool
    scopes: frozenset[str]
    hints: Mapping[str, bool]
    """The hints on the wire, with the protocol's defaults."""
    withheld: Mapping[str, Any]
    """The arguments that the model cannot set, with their fixed value or default, or `None`."""
    is_projected: bool
    """Whether results contain only selected members (`fields` or `result`)."""
    bounds: Mapping[str, float]
    """The limits of the tool: `timeout_s` and `max_result`."""
    rules: Sequence[RuleConfig] = ()
    """The rules of `policy` for its calls, in order."""


class ItemPolicy(Struct, frozen=True):
    """The protection of one prompt, resource or template at one endpoint."""

    name: str
    """Its kind, and its name or URI: `prompt greet`."""
    scopes: frozenset[str]
    rules: Sequence[RuleConfig]
    """The rules of `policy` for it, in order."""


class BackendPolicy(Struct, frozen=True):
    """The protection of all tools of one back end, including future tools."""

    approve: str
    selection: Sequence[str]
    """The back end's `include` and `exclude`, as text."""
    trusted: frozenset[str] = frozenset()
    """The origins that receive the back end's credentials."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    changes: str = "take"
    """The treatment of definitions of an MCP server that differ from its lock file."""
    dynamic_pages: frozenset[str] = frozenset()
    """The pages of an MCP server that are not compared with its lock file."""
    parts: Mapping[str, PartConfig] = field(default_factory=dict)
    """The selection and scopes of an MCP server's prompts and resources."""


class EffectivePolicy(Struct, frozen=True):
    """The protection of a configuration."""

    auth: Mapping[str, Any]
    """The `auth` section; empty if calls need no token."""
    bounds: Mapping[str, float]
    """The numeric settings of the `limits` section."""
    backends: Mapping[str, BackendPolicy]
    selections: Mapping[str, Sequence[str]]
    """The `include` and `exclude` of each view, as text."""
    tools: Mapping[tuple[str, str, str], ToolPolicy]
    """The tools by view ("" is the endpoint of all tools), back end, and name in that back end."""
    missing: frozenset[str] = frozenset()
    """The back ends that could not be served; their tools are unknown."""
    rate: RateConfig = field(default_factory=RateConfig.model_construct)
    """The limits on the calls of a caller."""
    items: Mapping[tuple[str, str, str], ItemPolicy] = field(default_factory=dict)
    """The prompts, resources and templates by view, back end, and name or URI in that back end."""
    rules: Sequence[RuleConfig] | None = None
    """The section `policy`; `None` without it."""


def effective_policy(file: ConfigFile, catalog: Catalog) -> EffectivePolicy:
    """Return the effective policy of a configuration and its catalog."""
    config = file.config
    return EffectivePolicy(
        auth={} if config.auth == "none" else config.auth.model_dump(),
        bounds=_numbers(config.limits.model_dump()),
        backends={
            backend.name: BackendPolicy(
                backend.approve,
                _selection(backend.include, backend.exclude),
                _trusted(backend),
                _backend_bounds(backend),
                getattr(backend, "changes", "take") if backend.kind == "mcp" else "take",
                frozenset(getattr(backend, "dynamic_pages", ())),
                {part: getattr(backend, part) for part in _PARTS} if backend.kind == "mcp" else {},
            )
            for backend in file.backends
        },
        selections={view.name: _selection(view.include, view.exclude) for view in config.views},
        tools=dict(_tools(file, catalog)),
        missing=frozenset(catalog.missing),
        rate=config.rate,
        rules=config.policy,
        items=dict(_items(file, catalog)),
    )


def losses(before: EffectivePolicy, after: EffectivePolicy) -> list[str]:
    """Return each protection of `before` that `after` lacks, as a sentence that names its place.

    A new back end that serves tools of a removed one counts as renamed, so that a half-written name
    hides no loss. A tool that takes another tool's name is compared with that tool. The removal of
    a protected back end is a loss, because a later write may restore the back end without its
    protection.
    """
    all_losses = [f"auth: {loss}" for loss in _auth_losses(before.auth, after.auth)]
    all_losses += _loosened("limits", before.bounds, after.bounds)
    all_losses += _rate_losses(before.rate, after.rate)
    all_losses += _rule_losses(before.rules, after.rules)
    renamed = _renamed(before, after)
    removed = before.backends.keys() - after.backends.keys() - {*renamed.values()}
    all_losses += (
        f"back end {name} is removed, with its protection"
        for name in sorted(removed)
        if _is_protected(name, before)
    )
    for name, backend in after.backends.items():
        if (was := before.backends.get(renamed.get(name, name))) is not None:
            all_losses += _backend_losses(f"back end {name}", was, backend)
    named = {(view, tool.name): tool for (view, *_), tool in before.tools.items()}
    kept = _kept_rules(before.rules, after.rules)
    for (view, name, own_name), tool in after.tools.items():
        place, earlier = _place(view, tool.name), renamed.get(name, name)
        earlier_tool = before.tools.get((view, earlier, own_name)) or named.get((view, tool.name))
        if earlier_tool is not None:
            all_losses += (f"{place} {loss}" for loss in _tool_losses(earlier_tool, tool))
            all_losses += (f"{place} {loss}" for loss in _losses_by_name(earlier_tool, tool, kept))
        elif _is_selected(view, earlier, before):
            all_losses.append(
                f"{place} is served; include or exclude left it out before, or it is new"
            )
    for (view, name, own_name), item in after.items.items():
        earlier_item = before.items.get((view, renamed.get(name, name), own_name))
        if earlier_item is not None:
            place = f"{item.name} of view {view}" if view else item.name
            all_losses += (f"{place} {loss}" for loss in _item_losses(earlier_item, item, kept))
    return all_losses


def _is_protected(backend: str, policy: EffectivePolicy) -> bool:
    """Return whether a back end has approvals, scopes, withheld arguments, a selection or a lock
    file."""
    policy_of_backend = policy.backends[backend]
    return (
        policy_of_backend.approve != "never"
        or bool(policy_of_backend.selection)
        or policy_of_backend.changes != "take"
        or any(
            part.scopes or part.exclude or "*" not in part.include
            for part in policy_of_backend.parts.values()
        )
        or any(
            tool.asks_first or tool.scopes or tool.withheld
            for (_, name, _), tool in policy.tools.items()
            if name == backend
        )
    )


def _renamed(before: EffectivePolicy, after: EffectivePolicy) -> dict[str, str]:
    """Return the name of a removed back end for each new one that serves a tool of the removed
    one."""
    removed = {
        own_name: name
        for view, name, own_name in before.tools
        if not view and name not in after.backends
    }
    return {
        name: removed[own_name]
        for view, name, own_name in after.tools
        if not view and name not in before.backends and own_name in removed
    }


def _tools(file: ConfigFile, catalog: Catalog) -> Iterator[tuple[tuple[str, str, str], ToolPolicy]]:
    backends = {backend.name: backend for backend in file.backends}
    for name, served in catalog.tools.items():
        if served.backend in backends:
            own_name, override = override_of(backends[served.backend], name)
            yield ("", served.backend, own_name), _tool_policy(name, served, override)
    for view in file.config.views:
        called = {backend.name or name: name for name, backend in view.override.items()}
        for name, served in catalog.views[view.name].tools.items():
            if served.backend in backends:
                whole = called.get(name, name)
                own_name, override = override_of(backends[served.backend], whole)
                of_view = view.override.get(whole, _NO_OVERRIDE)
                policy = _tool_policy(name, served, override, of_view)
                yield (view.name, served.backend, own_name), policy


def _items(file: ConfigFile, catalog: Catalog) -> Iterator[tuple[tuple[str, str, str], ItemPolicy]]:
    prefixes = {backend.name: backend.effective_prefix for backend in file.backends}
    for view in ("", *catalog.views):
        served = catalog.of_view(view)
        for kind, name, item in served.items():
            backend = item.backend
            if kind == "prompt":
                own_name = name.removeprefix(prefixes.get(backend, ""))
            else:  # without the name that `uris: named` puts in front
                own_name = re.sub(rf"(?<=[:/]){re.escape(backend)}/", "", name, count=1)
            of_item = served.item_rules
            rules = () if of_item is None else of_item.rules_of(kind, name, backend)
            yield (
                (view, backend, f"{kind} {own_name}"),
                ItemPolicy(f"{kind} {name}", item.scopes, [rule.config for rule in rules]),
            )


def override_of(backend: BackendConfig, name: str) -> tuple[str, ToolOverride]:
    """Return a tool's name in its back end, and its override in that back end."""
    without_prefix = name.removeprefix(backend.effective_prefix)
    for own_name, override in backend.override.items():
        if override.name == without_prefix:
            return own_name, override
    return without_prefix, backend.override.get(without_prefix, _NO_OVERRIDE)


def _tool_policy(name: str, served: ServedTool, *overrides: ToolOverride) -> ToolPolicy:
    tool = served.tool
    timeouts = [override.timeout_s for override in overrides if override.timeout_s]
    return ToolPolicy(
        name,
        tool.asks_first,
        tool.once,
        tool.scopes,
        hints={**dict(HINTS.values()), **(tool.definition.get("annotations") or {})},
        withheld=_withheld(overrides),
        is_projected=any(override.fields or override.result is not None for override in overrides),
        bounds=_numbers({"timeout_s": min(timeouts, default=None), "max_result": tool.max_result}),
        rules=[] if served.rules is None else [rule.config for rule in served.rules.rules],
    )


def _withheld(overrides: Sequence[ToolOverride]) -> dict[str, Any]:
    """Return the arguments that the model cannot set, each with its fixed value or the default of
    the hidden argument. `overrides` has the override of the back end, then the override of the
    view, which may hide an argument with a default of the back end."""
    defaults: dict[str, Any] = {}
    withheld: dict[str, Any] = {}
    for override in overrides:
        for argument, rule in override.arguments.items():
            if "default" in rule.model_fields_set:
                defaults[rule.name or argument] = rule.default
            if "fixed" in rule.model_fields_set:
                withheld[argument] = rule.fixed
            elif rule.hidden:
                withheld[argument] = defaults.get(argument)
    return withheld


def _tool_losses(before: ToolPolicy, after: ToolPolicy) -> Iterator[str]:
    if before.asks_first and not after.asks_first:
        yield "no longer asks for an approval"
    for scope in sorted(before.scopes - after.scopes):
        yield f"no longer needs the scope {scope}"
    if before.once and not after.once:
        yield "may run again when a client repeats a round (once)"
    was, now = before.hints, after.hints
    if now["readOnlyHint"] and not was["readOnlyHint"]:
        yield "is now marked as read-only"
    elif was["destructiveHint"] and not was["readOnlyHint"] and not now["destructiveHint"]:
        yield "is no longer marked as destructive"
    if now["idempotentHint"] and not was["idempotentHint"]:
        yield "is now marked as idempotent"
    if was["openWorldHint"] and not now["openWorldHint"]:
        yield "is no longer marked as reaching the outside world (open_world)"
    for argument, value in sorted(before.withheld.items()):
        if argument not in after.withheld:
            yield f"no longer withholds the argument {argument} from the model"
        elif after.withheld[argument] != value:
            yield f"has another fixed value of the argument {argument}"
    if before.is_projected and not after.is_projected:
        yield "now returns whole results (fields, result)"
    for loss in _loosened("", before.bounds, after.bounds):
        yield f"has a weaker limit: {loss}"


def _backend_losses(place: str, before: BackendPolicy, after: BackendPolicy) -> Iterator[str]:
    if _APPROVE.index(after.approve) < _APPROVE.index(before.approve):
        yield f"{place}: approve is {after.approve}; it was {before.approve}"
    if _CHANGES.index(after.changes) < _CHANGES.index(before.changes):
        yield f"{place}: changes is {after.changes}; it was {before.changes}"
    if before.changes != "take":
        for pages in sorted(after.dynamic_pages - before.dynamic_pages):
            yield f"{place}: pages {pages} are no longer pinned"
    for origin in sorted(after.trusted - before.trusted if before.trusted else ()):
        yield f"{place}: its credentials may go to {origin}"
    for part, was in before.parts.items():
        if (now := after.parts.get(part)) is not None:
            yield from (f"{place}: {part} {loss}" for loss in _part_losses(was, now))
    yield from _loosened(place, before.bounds, after.bounds)


def _part_losses(before: PartConfig, after: PartConfig) -> Iterator[str]:
    for scope in sorted(set(before.scopes) - set(after.scopes)):
        yield f"no longer need the scope {scope}"
    for pattern in sorted(set(before.exclude) - set(after.exclude)):
        yield f"no longer exclude {pattern!r}"
    if "*" not in before.include:
        for pattern in sorted(set(after.include) - set(before.include)):
            yield f"now include {pattern!r}"


def _auth_losses(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before and not after:
        yield "callers no longer need a token"
    elif before:
        for scope in sorted(set(before["scopes"]) - set(after["scopes"])):
            yield f"calls no longer need the scope {scope}"
        for name in sorted((before.keys() | after.keys()) - {"scopes", "scopes_supported"}):
            if before.get(name) != after.get(name):
                yield f"{name} has changed"


def _rate_losses(before: RateConfig, after: RateConfig) -> Iterator[str]:
    yield from _loosened("rate", _call_bounds(before), _call_bounds(after))
    for scope in {**before.scopes, **after.scopes}:
        was, now = before.scopes.get(scope, before), after.scopes.get(scope, after)
        yield from _loosened(f"rate of scope {scope}", _call_bounds(was), _call_bounds(now))
    for pattern, was in before.tools.items():
        now = after.tools.get(pattern, CallLimits.model_construct())
        yield from _loosened(f"rate of tools {pattern}", _call_bounds(was), _call_bounds(now))
    if before.shared and not after.shared:
        yield "rate: each process counts calls by itself (shared)"


def _rule_losses(
    before: Sequence[RuleConfig] | None, after: Sequence[RuleConfig] | None
) -> Iterator[str]:
    """Yield the changes of rules that may allow more. Since the first rule that matches decides, a
    rule that denies may be added anywhere, and a rule that allows may be removed; whether another
    change allows more depends on the calls."""
    if before is None:
        return
    if after is None:
        yield "policy: calls no longer need a rule"
        return
    yield from dict.fromkeys(
        loss for kind in KINDS for loss in _losses_of_kind(kind, before, after)
    )


def _losses_of_kind(
    kind: Kind, rules_before: Sequence[RuleConfig], rules_after: Sequence[RuleConfig]
) -> Iterator[str]:
    before, after = _rules_about(kind, rules_before), _rules_about(kind, rules_after)
    if before is None:
        return
    if after is None:
        yield f"policy: {kind}s no longer need a rule, because none names a {kind}"
        return
    was, now = ([*rules.values()] for rules in (before, after))
    changed = [
        f"policy: {name} no longer denies calls"
        for name, rule in before.items()
        if rule[1] is not None and rule not in now
    ]
    changed += (
        f"policy: {name} allows calls; it is new or has changed"
        for name, rule in after.items()
        if rule[0] is not None and rule not in was
    )
    kept = [rule for rule in was if rule[1] is not None or rule in now]
    if not changed and kept != [rule for rule in now if rule[0] is not None or rule in was]:
        changed.append("policy: the rules have another order")
    yield from changed


def _rules_about(kind: Kind, rules: Sequence[RuleConfig]) -> dict[str, _Effects] | None:
    """Return the effects of the rules that concern a kind of target, by their names; `None` if such
    targets need no rule."""
    if kind != "tool" and not any(getattr(rule.match, kind) for rule in rules):
        return None
    return {
        f"{_rule_name(rules, number)}": (rule.allow, rule.deny)
        for number, rule in enumerate(rules)
        if kind in rule.match.kinds
    }


def _kept_rules(
    before: Sequence[RuleConfig] | None, after: Sequence[RuleConfig] | None
) -> dict[str, RuleConfig]:
    """Return the rules of `after` that `before` has too, by their names."""
    was = [(rule.allow, rule.deny) for rule in before or ()]
    return {
        _rule_name(after or (), number): rule
        for number, rule in enumerate(after or ())
        if (rule.allow, rule.deny) in was
    }


def _losses_by_name(
    before: ToolPolicy | ItemPolicy, after: ToolPolicy | ItemPolicy, kept: Mapping[str, RuleConfig]
) -> Iterator[str]:
    """Yield the kept rules that deny calls of the target no longer, or allow them now, because it has
    another name, URI or other hints."""
    was, now = ([(rule.allow, rule.deny) for rule in target.rules] for target in (before, after))
    for name, rule in kept.items():
        matched, matches = ((rule.allow, rule.deny) in rules for rules in (was, now))
        if rule.deny is not None and matched and not matches:
            yield f"is no longer denied by {name}"
        elif rule.allow is not None and matches and not matched:
            yield f"is now allowed by {name}"


def _item_losses(
    before: ItemPolicy, after: ItemPolicy, kept: Mapping[str, RuleConfig]
) -> Iterator[str]:
    for scope in sorted(before.scopes - after.scopes):
        yield f"no longer needs the scope {scope}"
    if before.name != after.name:
        yield from _losses_by_name(before, after, kept)


def _rule_name(rules: Sequence[RuleConfig], number: int) -> str:
    return f"rule {rules[number].name or f'policy[{number}]'}"


def _call_bounds(limits: CallLimits) -> dict[str, float]:
    burst = limits.burst or limits.calls_per_minute
    bounds = {"calls_per_minute": limits.calls_per_minute, "burst": burst}
    return _numbers({**bounds, "concurrent": limits.concurrent})


def _is_selected(view: str, backend: str, policy: EffectivePolicy) -> bool:
    """Return whether `include` or `exclude` selects the tools of a back end in a view; False for a
    missing back end."""
    if backend not in policy.backends or backend in policy.missing:
        return False
    return bool(policy.backends[backend].selection or policy.selections.get(view))


def _loosened(place: str, before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    for name, bound in before.items():
        bound_now = after.get(name, math.inf)
        if bound_now > bound:
            now = "not set" if math.isinf(bound_now) else f"{bound_now:g}"
            loss = f"{name} is {now}; it was {bound:g}"
            yield f"{place}: {loss}" if place else loss


def _trusted(backend: BackendConfig) -> frozenset[str]:
    """Return the origins that receive a back end's credentials; none without credentials."""
    has_any = any(getattr(backend, name, None) for name in ("credential", "credentials"))
    if not has_any and not any(map(SECRET_NAME.search, getattr(backend, "headers", ()))):
        return frozenset()
    base_urls = [getattr(backend, name, None) for name in ("base_url", "url")]
    urls = [*base_urls, *getattr(backend, "origins", ())]
    parts = [urlsplit(url) for url in urls if url is not None]
    return frozenset(f"{part.scheme}://{part.netloc.lower()}" for part in parts)


def _backend_bounds(backend: BackendConfig) -> dict[str, float]:
    limit = getattr(backend, "limit", None)
    bounds = {name: getattr(backend, name, None) for name in ("timeout_s", "max_response_bytes")}
    bounds["limit.concurrent"] = None if limit is None else limit.concurrent
    return _numbers(bounds)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _selection(include: Collection[Selector], exclude: Collection[Selector]) -> list[str]:
    return [repr(selector) for selector in include] + [f"not {selector!r}" for selector in exclude]


def _place(view: str, tool: str) -> str:
    return f"tool {tool} of view {view}" if view else f"tool {tool}"
