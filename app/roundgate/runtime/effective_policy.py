"""The effective policy: the protection of each tool in each view, and of the gateway as a whole.

The policy is computed from a loaded configuration and its catalog, so it covers gateway.yaml,
decorators and OpenAPI documents alike. `losses` lists the protection that a new policy lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct, field

from roundgate.backends import BackendConfig, Catalog, ServedTool, ToolOverride
from roundgate.backends.http.secrets import SECRET_NAME
from roundgate.config import ConfigFile
from roundgate.policy.config import KINDS, CallMatch, Kind, RuleConfig
from roundgate.protocol.tool_hints import HINTS
from roundgate.settings import CallLimits, RateConfig

_LEVELS: Final = (
    ("never", "destructive", "always"),  # `approve` of a back end
    ("take", "announce", "quarantine"),  # `changes` of an MCP server
)
"""The values of settings that are words, each from weakest to strongest."""
_PARTS: Final = ("prompts", "resources")
_Effects: TypeAlias = tuple[CallMatch | None, CallMatch | None]
"""The `allow` and the `deny` of a rule."""
_Key: TypeAlias = tuple[str, str, str]
"""A view ("" is the endpoint of all tools), a back end, and a name or URI in that back end."""
_NO_OVERRIDE: Final = ToolOverride.model_construct(_fields_set=set())


class Protection(Struct, frozen=True):
    """The protection of one tool, item or back end, or of all calls."""

    place: str
    """The subject of the sentences about its losses: `tool drop`."""
    needs: tuple[str, ...] = ()
    """Its protections, each as the sentence about its loss: `no longer asks for an approval`."""
    admits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The only values that are admitted, by the beginning of the sentence about a further one; a
    restriction that there is not is absent."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of which lower ones are stronger, and words of `_LEVELS`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """The values of arguments that the model cannot set."""
    name: str = ""
    """The full name of a tool, or name or URI of an item."""
    rules: Sequence[RuleConfig] = ()
    """The rules of `policy` for its calls, in order."""

    def losses(self, after: Protection) -> Iterator[str]:
        """Yield each protection that `after` lacks, as a sentence about `after`."""
        for sentence in self.needs:
            if sentence not in after.needs:
                yield f"{after.place} {sentence}"
        for sentence, values in self.admits.items():
            for value in sorted(after.admits.get(sentence, frozenset()) - values):
                yield f"{after.place} {sentence} {value}"
        for argument in sorted(self.fixed.keys() & after.fixed.keys()):
            if self.fixed[argument] != after.fixed[argument]:
                yield f"{after.place} has another fixed value of the argument {argument}"
        for name, was in self.settings.items():
            if _is_weaker(was, now := after.settings.get(name)):
                shown = "not set" if now is None else _shown(now)
                yield f"{after.place} {name} is {shown}; it was {_shown(was)}"


class EffectivePolicy(Struct, frozen=True):
    """The protection of a configuration."""

    auth: Mapping[str, Any]
    """The `auth` section; empty if calls need no token."""
    limits: Protection
    rate: RateConfig
    """The limits on the calls of a caller."""
    rules: Sequence[RuleConfig] | None
    """The section `policy`; `None` without it."""
    backends: Mapping[str, Protection]
    """The protection of all tools of each back end, including future tools."""
    tools: Mapping[_Key, Protection]
    items: Mapping[_Key, Protection]
    """The prompts, resources and templates; names begin with their kind: `prompt greet`."""
    selected: frozenset[tuple[str, str]]
    """The views and back ends whose tools are selected by `include` or `exclude`."""
    missing: frozenset[str]
    """The back ends that could not be served; their tools are unknown."""


def effective_policy(file: ConfigFile, catalog: Catalog) -> EffectivePolicy:
    """Return the effective policy of a configuration and its catalog."""
    config = file.config
    selecting = {view.name for view in config.views if view.include or view.exclude}
    return EffectivePolicy(
        auth={} if config.auth == "none" else config.auth.model_dump(),
        limits=Protection("limits:", settings=_numbers(config.limits.model_dump())),
        rate=config.rate,
        rules=config.policy,
        backends={backend.name: _of_backend(backend) for backend in file.backends},
        tools=dict(_tools(file, catalog)),
        items=dict(_items(file, catalog)),
        selected=frozenset(
            (view, backend.name)
            for view in ("", *catalog.views)
            for backend in file.backends
            if backend.include or backend.exclude or view in selecting
        ),
        missing=frozenset(catalog.missing),
    )


def losses(before: EffectivePolicy, after: EffectivePolicy) -> list[str]:
    """Return each protection of `before` that `after` lacks, as a sentence that names its place.

    A new back end that serves tools of a removed one counts as renamed, so that a half-written name
    hides no loss. A tool that takes another tool's name is compared with that tool. The removal of
    a protected back end is a loss, because a later write may restore the back end without its
    protection.
    """
    all_losses = [f"auth: {loss}" for loss in _auth_losses(before.auth, after.auth)]
    all_losses += before.limits.losses(after.limits)
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
            all_losses += was.losses(backend)
    named = {(view, tool.name): tool for (view, *_), tool in before.tools.items()}
    kept = _kept_rules(before.rules, after.rules)
    for (view, name, own_name), tool in after.tools.items():
        earlier = renamed.get(name, name)
        was = before.tools.get((view, earlier, own_name)) or named.get((view, tool.name))
        if was is not None:
            all_losses += was.losses(tool)
            all_losses += _losses_by_name(was, tool, kept)
        elif (view, earlier) in before.selected and earlier not in before.missing:
            all_losses.append(
                f"{tool.place} is served; include or exclude left it out before, or it is new"
            )
    for (view, name, own_name), item in after.items.items():
        was = before.items.get((view, renamed.get(name, name), own_name))
        if was is not None:
            all_losses += was.losses(item)
            all_losses += _losses_by_name(was, item, kept) if was.name != item.name else ()
    return all_losses


def _is_protected(backend: str, policy: EffectivePolicy) -> bool:
    """Return whether a back end has approvals, scopes, withheld arguments, a selection or a lock
    file."""
    of_backend = policy.backends[backend]
    words = [of_backend.settings[name] for name in ("approve", "changes")]
    is_strict = words != [level[0] for level in _LEVELS] or bool(of_backend.needs)
    has_strict_tool = any(
        tool.fixed or any(need.startswith("no longer") for need in tool.needs)
        for (_, name, _), tool in policy.tools.items()
        if name == backend
    )
    is_selected = ("", backend) in policy.selected or any(
        sentence.endswith("include") for sentence in of_backend.admits
    )
    return is_strict or has_strict_tool or is_selected


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


def _tools(file: ConfigFile, catalog: Catalog) -> Iterator[tuple[_Key, Protection]]:
    backends = {backend.name: backend for backend in file.backends}
    for view in (None, *file.config.views):
        served_tools = catalog.tools if view is None else catalog.views[view.name].tools
        overrides = {} if view is None else view.override
        called = {override.name or name: name for name, override in overrides.items()}
        for name, served in served_tools.items():
            if served.backend not in backends:
                continue
            whole = called.get(name, name)
            own_name, override = override_of(backends[served.backend], whole)
            of_view = overrides.get(whole, _NO_OVERRIDE)
            in_view = "" if view is None else view.name
            key = (in_view, served.backend, own_name)
            yield key, _of_tool(_place(f"tool {name}", in_view), name, served, override, of_view)


def _items(file: ConfigFile, catalog: Catalog) -> Iterator[tuple[_Key, Protection]]:
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
                Protection(
                    _place(f"{kind} {name}", view),
                    needs=_sentences("no longer needs the scope", item.scopes),
                    name=name,
                    rules=[rule.config for rule in rules],
                ),
            )


def override_of(backend: BackendConfig, name: str) -> tuple[str, ToolOverride]:
    """Return a tool's name in its back end, and its override in that back end."""
    without_prefix = name.removeprefix(backend.effective_prefix)
    for own_name, override in backend.override.items():
        if override.name == without_prefix:
            return own_name, override
    return without_prefix, backend.override.get(without_prefix, _NO_OVERRIDE)


def _of_tool(place: str, name: str, served: ServedTool, *overrides: ToolOverride) -> Protection:
    tool = served.tool
    timeouts = [override.timeout_s for override in overrides if override.timeout_s]
    own = next((override.limits for override in overrides if override.limits), None)
    bounds = {"timeout_s": min(timeouts, default=None), "max_result": tool.max_result}
    bounds |= _call_bounds(own)
    hints = {**dict(HINTS.values()), **(tool.definition.get("annotations") or {})}
    fixed = _withheld(overrides)
    is_projected = any(override.fields or override.result is not None for override in overrides)
    is_destructive = hints["destructiveHint"] and not hints["readOnlyHint"]
    needs = {
        "no longer asks for an approval": tool.asks_first,
        "may run again when a client repeats a round (once)": tool.once,
        "is no longer marked as destructive": is_destructive,
        "is no longer marked as reaching the outside world (open_world)": hints["openWorldHint"],
        "now returns whole results (fields, result)": is_projected,
        **{f"no longer withholds the argument {name} from the model": True for name in fixed},
    }
    marks = {"read-only": hints["readOnlyHint"], "idempotent": hints["idempotentHint"]}
    return Protection(
        place,
        needs=(
            *_true(needs),
            *_sentences("no longer needs the scope", tool.scopes),
        ),
        admits={"is now marked as": frozenset(_true(marks))},
        settings=_numbers(bounds, "has a weaker limit: "),
        fixed=fixed,
        name=name,
        rules=[] if served.rules is None else [rule.config for rule in served.rules.rules],
    )


def _of_backend(backend: BackendConfig) -> Protection:
    is_mcp = backend.kind == "mcp"
    changes = getattr(backend, "changes", "take") if is_mcp else "take"
    bounds = {name: getattr(backend, name, None) for name in ("timeout_s", "max_response_bytes")}
    bounds |= _call_bounds(backend.limits)
    needs: tuple[str, ...] = ()
    admits: dict[str, frozenset[str]] = {}
    if trusted := _trusted(backend):
        admits["its credentials may go to"] = trusted
    if changes != "take":
        admits["no longer pins the pages"] = frozenset(getattr(backend, "dynamic_pages", ()))
    for name in _PARTS if is_mcp else ():
        part = getattr(backend, name)
        needs += _sentences(f"{name} no longer need the scope", part.scopes)
        needs += _sentences(f"{name} no longer exclude", map(repr, part.exclude))
        if "*" not in part.include:
            admits[f"{name} now include"] = frozenset(map(repr, part.include))
    settings = {"approve": backend.approve, "changes": changes, **_numbers(bounds)}
    return Protection(f"back end {backend.name}:", needs, admits, settings)


def _call_bounds(limits: CallLimits | None, prefix: str = "limits.") -> dict[str, Any]:
    if limits is None:
        return {}
    bounds = {
        "calls_per_minute": limits.calls_per_minute,
        "burst": limits.burst or limits.calls_per_minute,
        "concurrent": limits.concurrent,
    }
    return {f"{prefix}{name}": bound for name, bound in bounds.items()}


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
    unlimited = CallLimits.model_construct()
    compared: list[tuple[str, CallLimits, CallLimits]] = [("rate", before, after)]
    for scope in {**before.scopes, **after.scopes}:
        was, now = before.scopes.get(scope, before), after.scopes.get(scope, after)
        compared.append((f"rate of scope {scope}", was, now))
    for pattern, was in before.tools.items():
        now = after.tools.get(pattern, unlimited)
        compared.append((f"rate of tools {pattern}", was, now))
    for place, was, now in compared:
        yield from _of_calls(place, was).losses(_of_calls(place, now))
    if before.shared and not after.shared:
        yield "rate: each process counts calls by itself (shared)"


def _of_calls(place: str, limits: CallLimits) -> Protection:
    return Protection(f"{place}:", settings=_numbers(_call_bounds(limits, "")))


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
    before: Protection, after: Protection, kept: Mapping[str, RuleConfig]
) -> Iterator[str]:
    """Yield the kept rules that deny calls of the target no longer, or allow them now, because it has
    another name, URI or other hints."""
    was, now = ([(rule.allow, rule.deny) for rule in target.rules] for target in (before, after))
    for name, rule in kept.items():
        matched, matches = ((rule.allow, rule.deny) in rules for rules in (was, now))
        if rule.deny is not None and matched and not matches:
            yield f"{after.place} is no longer denied by {name}"
        elif rule.allow is not None and matches and not matched:
            yield f"{after.place} is now allowed by {name}"


def _rule_name(rules: Sequence[RuleConfig], number: int) -> str:
    return f"rule {rules[number].name or f'policy[{number}]'}"


def _trusted(backend: BackendConfig) -> frozenset[str]:
    """Return the origins that receive a back end's credentials; none without credentials."""
    has_any = any(getattr(backend, name, None) for name in ("credential", "credentials"))
    if not has_any and not any(map(SECRET_NAME.search, getattr(backend, "headers", ()))):
        return frozenset()
    base_urls = [getattr(backend, name, None) for name in ("base_url", "url")]
    urls = [*base_urls, *getattr(backend, "origins", ())]
    parts = [urlsplit(url) for url in urls if url is not None]
    return frozenset(f"{part.scheme}://{part.netloc.lower()}" for part in parts)


def _is_weaker(was: Any, now: Any) -> bool:
    if isinstance(was, str):
        [level] = [level for level in _LEVELS if was in level]
        return level.index(now) < level.index(was)
    return now is None or bool(now > was)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    return {
        f"{prefix}{name}": value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _sentences(sentence: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{sentence} {value}" for value in sorted(values))


def _true(sentences: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(sentence for sentence, is_true in sentences.items() if is_true)


def _place(name: str, view: str) -> str:
    return f"{name} of view {view}" if view else name
