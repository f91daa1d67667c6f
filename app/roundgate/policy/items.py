"""The rules of `policy` for prompts and resources, which include the files and directories of skills.

Prompts need a rule as soon as any rule names a prompt, and resources as soon as any rule names a
resource. The page of a tool (`ui://`) belongs to the tool: it needs no rule, a caller that may not
call the tool cannot read it, and a rule that names the page may refuse it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from roundgate.auth import Principal
from roundgate.policy.config import Kind
from roundgate.policy.rules import NO_RULE, Caller, Policy, PolicyRule, RuleTarget, ToolRules
from roundgate.policy.texts import UriReadings, template_pattern


class ItemRules:
    """The rules for the prompts and resources of one endpoint.

    Args:
        policy: all rules.
        view: the name of the endpoint's view; empty for the endpoint of all tools.
        pages: the URIs of the pages of tools, with the rules of each tool.
    """

    def __init__(
        self, policy: Policy, view: str, pages: Iterable[tuple[str, ToolRules | None]]
    ) -> None:
        self.policy = policy
        self._view = view
        self._covers = {kind: policy.covers(kind) for kind in ("prompt", "resource")}
        self._tools_of_page: dict[str, list[ToolRules | None]] = {}
        for uri, rules in pages:
            for text in UriReadings.of(uri).normal:
                self._tools_of_page.setdefault(text, []).append(rules)

    def covers(self, kind: Kind) -> bool:
        """Return whether prompts or resources are checked."""
        return self._covers[kind] or (kind == "resource" and bool(self._tools_of_page))

    def is_personal(self, kind: Kind) -> bool:
        """Return whether callers may see different prompts or resources."""
        has_pages = kind == "resource" and bool(self._tools_of_page)
        return self.policy.is_personal(kind) or (has_pages and self.policy.is_personal("tool"))

    def caller(self, principal: Principal) -> Caller:
        """Return a caller for the other methods."""
        return Caller(principal)

    def allows(self, list_name: str, key: str, backend: str, caller: Caller) -> bool:
        """Return whether a caller may use an entry of a list, by its name, URI or template."""
        if list_name == "prompts":
            return self.prompt_refusal(key, backend, caller) is None
        if list_name == "templates":
            return self.may_match(key, {}, backend, caller)
        return self.resource_refusal(key, backend, caller) is None

    def prompt_refusal(self, name: str, backend: str, caller: Caller) -> str | None:
        """Return the name of the rule that refuses a prompt; `None` if it is allowed."""
        if not self._covers["prompt"]:
            return None
        return _refusal(deciding_rule(self.prompt_rules(name, backend), caller))

    def prompt_rules(self, name: str, backend: str) -> Sequence[PolicyRule]:
        """Return the rules that match a prompt, in order."""
        return self.policy.matching(RuleTarget("prompt", name, backend, self._view))

    def resource_refusal(self, uri: str, backend: str, caller: Caller) -> str | None:
        """Return the name of the rule that refuses a resource; `None` if it is allowed."""
        if not self.covers("resource"):
            return None
        readings = UriReadings.of(uri)
        rules = self._rules_at(uri, readings, backend)
        pages = self._tools_of_page.keys()
        if not pages.isdisjoint(texts := {*readings.all()}):
            refusal = self._page_refusal(texts & pages, rules, caller)
            if refusal is not None or readings.normal <= pages:
                return refusal
        return _refusal(deciding_rule(rules, caller)) if self._covers["resource"] else None

    def resource_rules(self, uri: str, backend: str) -> Sequence[PolicyRule]:
        """Return the rules that match a resource, in order. None match a URI with dot segments."""
        return self._rules_at(uri, UriReadings.of(uri), backend)

    def _rules_at(self, uri: str, readings: UriReadings, backend: str) -> Sequence[PolicyRule]:
        if readings.is_ambiguous:
            return ()
        return self.policy.matching(RuleTarget("resource", uri, backend, self._view, uri=readings))

    def is_page(self, uri: str) -> bool:
        """Return whether a server may read the page of a tool at a URI."""
        return not self._tools_of_page.keys().isdisjoint(UriReadings.of(uri).all())

    def _page_refusal(
        self, pages: Collection[str], rules_of_page: Sequence[PolicyRule], caller: Caller
    ) -> str | None:
        """Return the name of the rule that refuses some of the pages that a server may read."""
        rule = deciding_rule([rule for rule in rules_of_page if rule.uris is not None], caller)
        if rule is not None and not rule.allows:
            return rule.name
        for page in pages:
            if not any(
                rules is None or any(rule.allows for rule in rules.deciding(caller))
                for rules in self._tools_of_page[page]
            ):
                return NO_RULE
        return None

    def may_match(
        self, template: str, values: Mapping[str, str], backend: str, caller: Caller
    ) -> bool:
        """Return whether a caller may be allowed to read some URI of a template. `values` has texts of
        variables."""
        if not self._covers["resource"]:
            return True
        pattern = template_pattern(template, values)
        if "*" not in pattern:
            return self.resource_refusal(pattern, backend, caller) is None
        uris = UriReadings.of(pattern)
        for rule in self.template_rules(pattern, backend):
            if rule.is_for(caller):
                if rule.allows:
                    return True
                if rule.uris is None or rule.uris.covers(uris):
                    return False
        return False

    def rules_of(self, kind: Kind, name: str, backend: str) -> Sequence[PolicyRule]:
        """Return the rules that match a prompt, a resource or some URI of a template, in order; none
        if it needs no rule."""
        if not self._covers[kind]:
            return ()
        if kind == "prompt":
            return self.prompt_rules(name, backend)
        return (self.template_rules if "{" in name else self.resource_rules)(name, backend)

    def template_rules(self, template: str, backend: str) -> Sequence[PolicyRule]:
        """Return the rules that match some URI of a template, in order."""
        uris = UriReadings.of(template_pattern(template, {}))
        rules = self.policy.matching(RuleTarget("resource", template, backend, self._view))
        return [rule for rule in rules if rule.uris is None or rule.uris.overlaps(uris)]


def deciding_rule(rules: Sequence[PolicyRule], caller: Caller) -> PolicyRule | None:
    """Return the first of the rules that applies to a caller, or `None`."""
    return next((rule for rule in rules if rule.is_for(caller)), None)


def _refusal(rule: PolicyRule | None) -> str | None:
    if rule is None:
        return NO_RULE
    return None if rule.allows else rule.name
