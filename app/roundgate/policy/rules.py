"""The rules of `policy`: which callers may call which tools with which arguments, and which prompts
and resources they may get (`items`).

Rules are tried in order, and the first that matches a call decides. A call that no rule matches is
refused. A rule has three parts, which are known at different times:

    the target    name, back end, view, hints     when the catalog is built    `Policy.matching`
    the caller    subject, client, scope, claims  when a request arrives       `ToolRules.deciding`
    the arguments                                 when the handler begins      `ToolRules.authorizer`

A list contains the tools of which some call may be allowed. The arguments are checked as the back
end gets them, around the tool's own call (`backends.approvals.guarded`), in each round and in each turn of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.errors import ArgumentsRefused, CallRefused, ConfigError, Problem
from roundgate.policy.arguments import compiled_arguments, looks_at
from roundgate.policy.config import KINDS, CallMatch, Kind, RuleConfig
from roundgate.policy.texts import RuleTexts, UriReadings, UriTexts
from roundgate.protocol import PartlyKnown, Schema
from roundgate.protocol.content import has_hint
from roundgate.protocol.uri_template import has_dot_segments
from roundgate.settings import Origin

NO_RULE: Final = "policy"
"""The name, in logs and metrics, of the refusal of a call that no rule matches."""


class Caller:
    """A caller, with the values of its claims."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self._claims: dict[str, frozenset[str] | None] = {}

    def values(self, claim: str) -> frozenset[str] | None:
        """Return the values of a claim; `None` if they are unknown."""
        if claim not in self._claims:
            self._claims[claim] = self.principal.claim(claim)
        return self._claims[claim]


Authorize: TypeAlias = Callable[[Callable[[], PartlyKnown]], None]
"""Checks a call with its arguments, which it reads only if a rule looks at them."""
Matches: TypeAlias = Callable[[Caller], bool | None]
"""Returns whether a caller matches; `None` if that is unknown."""


class RuleTarget(Struct, frozen=True):
    """A tool, prompt or resource at an endpoint."""

    kind: Kind
    name: str
    """The whole name of a tool or prompt, or the URI of a resource."""
    backend: str
    """The name of its back end."""
    view: str
    """The name of the endpoint's view; empty for the endpoint of all tools."""
    definition: Mapping[str, Any] | None = None
    """The definition of a tool, with the hints that the endpoint lists."""
    uri: UriReadings | None = None
    """The readings of a resource's URI; `None` for a pattern of URIs, too."""


class PolicyRule(Struct, frozen=True):
    """A rule, compiled."""

    name: str
    config: RuleConfig
    line: int | None
    """The line of the rule in gateway.yaml, if known."""
    of_target: Mapping[str, RuleTexts]
    """The members about the name, back end and view of the tool or prompt."""
    uris: UriTexts | None
    """The member `resource`."""
    of_caller: Sequence[tuple[str, Matches]]
    """The members about the caller, with their tests."""
    arguments: Schema | None
    allows: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PolicyRule) and (self.name, self.config) == (
            other.name,
            other.config,
        )

    @classmethod
    def of(cls, config: RuleConfig, origin: Origin, number: int) -> PolicyRule:
        """Compile a rule. Raise ValueError if the schema of its arguments is not usable."""
        match = config.match
        members = {
            "tool": match.tool,
            "prompt": match.prompt,
            "backend": match.backend,
            "view": match.view,
        }
        return cls(
            config.name or f"policy[{number}]",
            config,
            origin.located.line(origin.loc),
            {name: RuleTexts(texts) for name, texts in members.items() if texts is not None},
            None if match.resource is None else UriTexts(match.resource),
            list(_caller_tests(match)),
            None if match.arguments is None else compiled_arguments(match.arguments),
            config.allow is not None,
        )

    def mismatches(self, target: RuleTarget) -> list[str]:
        """Return the members about the target that do not match, or that make the rule concern
        other kinds of targets."""
        match = self.config.match
        if target.kind not in match.kinds:
            members = (*KINDS, "hint", "arguments")
            return [name for name in members if getattr(match, name) is not None]
        values = {target.kind: target.name, "backend": target.backend, "view": target.view}
        wrong = [
            member
            for member, texts in self.of_target.items()
            if member in values and not texts.match(values[member])
        ]
        if self.uris is not None and target.uri is not None and not self._has(target.uri):
            wrong.append("resource")
        hints = match.hint
        if hints is not None and not (
            target.definition is not None
            and any(has_hint(target.definition, hint) for hint in hints)
        ):
            wrong.append("hint")
        return wrong

    def _has(self, uri: UriReadings) -> bool:
        assert self.uris is not None, "the rule names resources"
        return self.uris.match_all(uri) if self.allows else self.uris.match_any(uri)

    def caller_mismatches(self, caller: Caller) -> list[str]:
        """Return the members about the caller that do not match a caller."""
        return [member for member, matches in self.of_caller if not matches(caller)]

    def is_for(self, caller: Caller) -> bool:
        """Return whether the rule applies to a caller. If that is unknown, a rule that denies
        applies, and a rule that allows does not."""
        for _, matches in self.of_caller:
            result = matches(caller)
            if not result and (result is False or self.allows):
                return False
        return True

    def fits(self, arguments: PartlyKnown) -> bool:
        """Return whether the rule applies to arguments. If they cannot be validated, or the rule looks
        at an unknown part, a rule that denies applies, and a rule that allows does not."""
        if self.arguments is None:
            return True
        definition = self.config.match.arguments
        is_known = not any(looks_at(definition, place) for place in arguments.unknown)
        conforms = self.arguments.conforms(arguments.value) if is_known else None
        return not self.allows if conforms is None else conforms


def _caller_tests(match: CallMatch) -> Iterator[tuple[str, Matches]]:
    if match.subject is not None:
        subjects = RuleTexts(match.subject)
        yield "subject", lambda caller: subjects.match(caller.principal.subject)
    if match.client is not None:
        clients = RuleTexts(match.client)
        yield "client", lambda caller: clients.match(caller.principal.client_id)
    if match.scope is not None:
        scopes = RuleTexts(match.scope)
        yield "scope", lambda caller: scopes.match_any(caller.principal.scopes)
    for name, texts in match.claims.items():
        yield f"claims.{name}", _claim_test(name, RuleTexts(texts))


def _claim_test(name: str, texts: RuleTexts) -> Matches:
    def matches(caller: Caller) -> bool | None:
        values = caller.values(name)
        return None if values is None else texts.match_any(values)

    return matches


class ToolRules(Struct, frozen=True):
    """The rules that apply to one tool at one endpoint, in order."""

    tool: str
    rules: Sequence[PolicyRule]

    def deciding(self, caller: Caller) -> list[PolicyRule]:
        """Return the rules that may decide a call of a caller, in order. All but the last look at
        the arguments. The list is empty if no rule applies."""
        rules: list[PolicyRule] = []
        for rule in self.rules:
            if rule.is_for(caller):
                rules.append(rule)
                if rule.arguments is None:
                    break
        return rules

    def may_allow(self, principal: Principal) -> bool:
        """Return whether some call of a caller may be allowed."""
        return any(rule.allows for rule in self.deciding(Caller(principal)))

    def check(self, principal: Principal) -> None:
        """Raise CallRefused if no call of a caller can be allowed."""
        rules = self.deciding(Caller(principal))
        if not any(rule.allows for rule in rules):
            raise CallRefused(self.tool, _last(rules))

    def authorizer(self, principal: Principal) -> Authorize:
        """Return a function that checks calls of a caller."""
        return partial(self._authorize, Caller(principal))

    def _authorize(self, caller: Caller, arguments: Callable[[], PartlyKnown]) -> None:
        """Check a call with its arguments.

        Args:
            arguments: returns the arguments; called only if a rule looks at them.

        Raises:
            ArgumentsRefused: the rules refuse the call.
        """
        rules = self.deciding(caller)
        rule = decision(rules, arguments)
        if rule is None or not rule.allows:
            raise ArgumentsRefused(NO_RULE if rule is None else rule.name)


def decision(
    rules: Sequence[PolicyRule], arguments: Callable[[], PartlyKnown]
) -> PolicyRule | None:
    """Return the first of the rules that applies to arguments, or `None` if none does."""
    if rules and rules[0].arguments is None:
        return rules[0]
    values = arguments() if rules else PartlyKnown({})
    return next((rule for rule in rules if rule.fits(values)), None)


def _last(rules: Sequence[PolicyRule]) -> str:
    return rules[-1].name if rules and rules[-1].arguments is None else NO_RULE


class Policy(Struct, frozen=True):
    """All rules, in order."""

    rules: Sequence[PolicyRule]

    @classmethod
    def of(cls, configs: Sequence[RuleConfig], origin: Origin) -> Policy:
        """Compile the section `policy` at `origin`.

        Raises:
            ConfigError: the schema of a rule's arguments is not usable.
        """
        rules: list[PolicyRule] = []
        problems: list[Problem] = []
        for number, config in enumerate(configs):
            place = origin.at(number)
            try:
                rules.append(PolicyRule.of(config, place, number))
            except ValueError as error:
                place = place.at("deny" if config.allow is None else "allow", "arguments")
                problems.append(place.problem(str(error), "correct the JSON Schema"))
            if wrong := next(filter(has_dot_segments, config.match.resource or ()), None):
                place = origin.at(number, "deny" if config.allow is None else "allow", "resource")
                message = f"{wrong!r} has a segment . or .., and no such URI is served"
                problems.append(place.problem(message, "write the URI without it"))
        if problems:
            raise ConfigError(problems)
        return cls(rules)

    @property
    def claims(self) -> frozenset[str]:
        """The names of the claims that rules name."""
        return frozenset(name for rule in self.rules for name in rule.config.match.claims)

    def rules_about(self, kind: Kind) -> list[PolicyRule] | None:
        """Return the rules that may decide about targets of a kind; `None` if these need no rule."""
        if not self.covers(kind):
            return None
        return [rule for rule in self.rules if kind in rule.config.match.kinds]

    def is_personal(self, kind: Kind) -> bool:
        """Return whether callers may see different targets of a kind."""
        return any(rule.of_caller for rule in self.rules_about(kind) or ())

    def for_tool(
        self, definition: Mapping[str, Any], name: str, backend: str, view: str
    ) -> ToolRules | None:
        """Return the rules for a tool; `None` for the gateway's own tools, which need no rule.

        Args:
            definition: the tool's definition, with the hints that the endpoint lists.
            backend: the name of its back end; empty for the gateway's own tools.
            view: the name of the endpoint's view; empty for the endpoint of all tools.
        """
        if not backend:
            return None
        return ToolRules(name, self.matching(RuleTarget("tool", name, backend, view, definition)))

    def matching(self, target: RuleTarget) -> list[PolicyRule]:
        """Return the rules that match a target, in order."""
        return [rule for rule in self.rules if not rule.mismatches(target)]

    def covers(self, kind: Kind) -> bool:
        """Return whether targets of a kind need a rule. Prompts and resources need one if any rule
        names them."""
        return kind == "tool" or any(getattr(rule.config.match, kind) for rule in self.rules)

    def callers_key(self, principal: Principal) -> tuple[bool, ...]:
        """Return a key that two callers share if the same rules apply to them."""
        caller = Caller(principal)
        return tuple(rule.is_for(caller) for rule in self.rules)

    def unused_texts(
        self, known: Mapping[str, Collection[str]], uris: Collection[str] | None
    ) -> Iterator[tuple[int, str, str]]:
        """Yield the number of each rule with a member and a text that matches nothing that is
        served, such as a misspelt name.

        Args:
            known: the names that the members about the target may match.
            uris: URIs of resources, and patterns of URIs; `None` if some may be missing.
        """
        readings = [UriReadings.of(uri) for uri in uris or ()]
        for number, rule in enumerate(self.rules):
            match = rule.config.match
            for member, names in known.items():
                for text in getattr(match, member) or ():
                    if not any(map(RuleTexts([text]).match, names)):
                        yield number, member, text
            for text in (match.resource or ()) if uris is not None else ():
                if not any(map(UriTexts([text]).overlaps, readings)):
                    yield number, "resource", text
