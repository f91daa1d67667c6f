"""The access of callers to the tools, prompts, resources and tasks of a catalog: by the scopes of
their tokens, and by the rules of `policy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate.auth import Principal
from roundgate.backends import Catalog
from roundgate.backends.base import Prompt, Resource
from roundgate.backends.catalog import ListName, skill_backend, unknown_template
from roundgate.errors import (
    MAX_URI,
    CallRefused,
    InsufficientScope,
    PromptNotFound,
    ResourceNotFound,
    Unavailable,
)
from roundgate.observability.metrics import Metrics
from roundgate.policy.config import Kind
from roundgate.protocol import Completion, Pages
from roundgate.tasks import tell_refused

MAX_SCOPE_SETS: Final = 256
"""The maximum number of sets of scopes and rules with cached pages."""


class Access:
    """Decides which tools, prompts, resources and tasks of a catalog a caller may use.

    Scopes and rules are checked at each use, against the token of that request.

    Args:
        catalog: the catalog.
        metrics: counts calls that rules refuse.
    """

    def __init__(self, catalog: Catalog, metrics: Metrics) -> None:
        self._catalog = catalog
        self._metrics = metrics
        self._checks_scopes = checks_scopes = catalog.checks_scopes
        self._scopes = catalog.all_scopes() if checks_scopes else frozenset[str]()
        self._pages: Mapping[ListName, Pages] = {
            "prompts": catalog.prompt_pages,
            "resources": catalog.resource_pages,
            "templates": catalog.template_pages,
            "skills": catalog.skill_pages,
        }
        self._visible: dict[tuple[Any, ...], Pages] = {}
        """Cached pages of the entries that some callers see."""
        self._rules = catalog.item_rules
        self._has_policy = catalog.policy is not None
        self.checks_tools = checks_scopes or self._has_policy
        """Whether `check` may refuse a call."""
        tools = [served.tool for served in catalog.tools.values()] if checks_scopes else []
        scoped = [tool for tool in tools if tool.scopes]
        resources = (
            *catalog.resources.values(),
            *(item.resource for item in catalog.templates),
            *catalog.unlisted.values(),
        )
        sources = catalog.skill_sources.values()
        of_resources = checks_scopes and any(item.scopes for item in resources)
        self._has_scopes: Mapping[ListName, bool] = {
            "prompts": checks_scopes and any(item.scopes for item in catalog.prompts.values()),
            "resources": of_resources,
            "templates": of_resources,
            "skills": checks_scopes and any(source.scopes for source in sources),
        }
        self.any_tool = bool(scoped) or (
            catalog.policy is not None and catalog.policy.is_personal("tool")
        )
        """Whether callers may see different tools."""
        self.any_prompt = self._is_personal("prompts", "prompt")
        """Whether callers may see different prompts."""
        self.any_resource = self._is_personal("resources", "resource")
        """Whether callers may see different resources."""
        self.any_skill = self._is_personal("skills", "resource")
        """Whether callers may see different skills."""
        self.any_task = (
            self._has_policy
            or any(tool.task != "forbidden" or catalog.task_sources for tool in scoped)
            or bool(checks_scopes and catalog.missing)
        )
        """Whether any task belongs, or may belong, to a tool that needs scopes or a rule."""

    def _is_personal(self, name: ListName, kind: Kind) -> bool:
        by_rules = self._rules is not None and self._rules.is_personal(kind)
        return self._has_scopes[name] or by_rules

    def check(self, tool: str, principal: Principal) -> None:
        """Raise an error unless the caller may use a tool and read its tasks.

        Owners keep the tasks of a tool that is no longer served. But while a back end is missing,
        the tool may belong to it, and its scopes and rules are unknown.

        Raises:
            InsufficientScope: the tool needs scopes that the token lacks.
            CallRefused: the rules of `policy` allow the caller no call of the tool.
            Unavailable: the scopes and rules of the tool are not known now.
        """
        if not self.checks_tools:
            return
        served = self._catalog.tools.get(tool)
        if served is None and self._catalog.missing:
            names = ", ".join(sorted(self._catalog.missing))
            raise Unavailable(
                f"The scopes and rules of {tool} are unknown while {names} is not served; try later"
            )
        if served is None:
            return
        if self._checks_scopes and not served.tool.scopes <= principal.scopes:
            raise InsufficientScope(f"tool {tool}", sorted(served.tool.scopes))
        if served.rules is not None:
            try:
                served.rules.check(principal)
            except CallRefused as error:
                self.tell_refused(error.rule, principal)
                raise

    def check_prompt(self, name: str, prompt: Prompt, principal: Principal) -> None:
        """Raise an error unless the caller may get a prompt.

        Raises:
            PromptNotFound: the rules of `policy` refuse it.
            InsufficientScope: the prompt needs scopes that the token lacks.
        """
        if self._rules is not None:
            caller = self._rules.caller(principal)
            rule = self._rules.prompt_refusal(name, prompt.backend, caller)
            if rule is not None:
                self.tell_refused(rule, principal)
                raise PromptNotFound(name, rule)
        self._require(f"prompt {name}", prompt.scopes, principal)

    def check_resource(self, uri: str, resource: Resource, principal: Principal) -> None:
        """Raise an error unless the caller may read a resource.

        Raises:
            ResourceNotFound: the rules of `policy` refuse it.
            InsufficientScope: the resource needs scopes that the token lacks.
        """
        self._check_uri(uri, resource.backend, principal)
        self._require(f"resource {uri[:MAX_URI]}", resource.scopes, principal)

    def check_skill(self, uri: str, scopes: frozenset[str], principal: Principal) -> None:
        """Raise an error unless the caller may read a skill or directory; see `check_resource`."""
        self._check_uri(uri, skill_backend(uri), principal)
        self._require(f"skill {uri[:MAX_URI]}", scopes, principal)

    def _check_uri(self, uri: str, backend: str, principal: Principal) -> None:
        """Raise ResourceNotFound if the rules of `policy` refuse a URI of a back end."""
        if self._rules is not None:
            caller = self._rules.caller(principal)
            rule = self._rules.resource_refusal(uri, backend, caller)
            if rule is not None:
                self.tell_refused(rule, principal)
                raise ResourceNotFound(uri, rule)

    def _require(self, name: str, scopes: frozenset[str], principal: Principal) -> None:
        if self._checks_scopes and not scopes <= principal.scopes:
            raise InsufficientScope(name, sorted(scopes))

    def tell_refused(self, rule: str, principal: Principal) -> None:
        """Count and log a request that a rule of `policy` refuses."""
        tell_refused(rule, principal, self._metrics)

    def readable_children(
        self, uri: str, children: Sequence[Mapping[str, Any]], principal: Principal
    ) -> list[dict[str, Any]]:
        """Return the children of a directory that the rules of `policy` do not refuse."""
        if self._rules is None:
            return [dict(child) for child in children]
        rules, caller, backend = self._rules, self._rules.caller(principal), skill_backend(uri)
        return [
            dict(child)
            for child in children
            if rules.resource_refusal(child["uri"], backend, caller) is None
        ]

    def check_completion(self, name: str, item: Prompt | Resource, principal: Principal) -> None:
        """Raise an error unless the caller may complete arguments of a prompt, template or resource.

        Raises:
            PromptNotFound: the rules of `policy` refuse the prompt.
            InvalidParams: they allow no resource of the template; as for an unknown template.
            InsufficientScope: the item needs scopes that the token lacks.
        """
        if isinstance(item, Prompt):
            self.check_prompt(name, item, principal)
            return
        if self._rules is not None:
            caller = self._rules.caller(principal)
            if not self._rules.may_match(name, {}, item.backend, caller):
                raise unknown_template(name)
        self._require(name[:MAX_URI], item.scopes, principal)

    def allowed_values(
        self,
        completion: Completion,
        template: Resource,
        argument: str,
        known: Mapping[str, str],
        principal: Principal,
    ) -> Completion:
        """Return the completion of a template's argument without the values that lead only to
        resources that the rules of `policy` refuse. `known` has the values of other arguments."""
        if self._rules is None:
            return completion
        rules, caller = self._rules, self._rules.caller(principal)
        uri = template.definition.get("uriTemplate", "")
        values = [
            value
            for value in completion.values
            if rules.may_match(uri, {**known, argument: value}, template.backend, caller)
        ]
        if len(values) == len(completion.values):
            return completion
        return Completion(values, has_more=completion.has_more)

    def may_subscribe(self, uri: str, principal: Principal, view: str) -> bool:
        """Return whether the caller may learn of changes at a URI. Only a view refuses a URI without
        a resource; outside of views, such a resource may appear later."""
        if not view and not self.any_resource and self._rules is None:
            return True
        resource = self._catalog.find_resource(uri)
        if self._rules is not None:
            backend = "" if resource is None else resource.backend
            caller = self._rules.caller(principal)
            if self._rules.resource_refusal(uri, backend, caller) is not None:
                return False
        if resource is None:
            return not view
        return not self._checks_scopes or resource.scopes <= principal.scopes

    def tool_pages(self, principal: Principal) -> Pages:
        """Return the list of the tools that the caller may use."""
        catalog, checks_scopes = self._catalog, self._checks_scopes
        rules = None if catalog.policy is None else catalog.policy.callers_key(principal)
        if not checks_scopes and rules is None:
            return catalog.tool_pages
        return self._visible_pages(
            ("tools", self._granted(principal, checks_scopes=checks_scopes), rules),
            catalog.tool_pages,
            lambda name: catalog.tools[name].is_for(principal, checks_scopes=checks_scopes),
        )

    def pages(self, name: ListName, principal: Principal) -> Pages:
        """Return the entries of a list that the caller may use."""
        pages, rules = self._pages[name], self._rules
        checks_scopes = self._has_scopes[name]
        if rules is not None and not rules.covers("prompt" if name == "prompts" else "resource"):
            rules = None
        if rules is None and not checks_scopes:
            return pages
        granted = self._granted(principal, checks_scopes=checks_scopes)
        caller = None if rules is None else rules.caller(principal)
        entries: dict[str, tuple[frozenset[str], str]] = {}

        def is_for_caller(key: str) -> bool:
            if not entries:
                entries.update(self._entries(name))
            scopes, backend = entries[key]
            has_scopes = granted is None or scopes <= granted
            return has_scopes and (
                rules is None or caller is None or rules.allows(name, key, backend, caller)
            )

        by_rules = None if rules is None else rules.policy.callers_key(principal)
        return self._visible_pages((name, granted, by_rules), pages, is_for_caller)

    def _granted(self, principal: Principal, *, checks_scopes: bool) -> frozenset[str] | None:
        """Return the scopes of the caller that anything needs; `None` if none is needed."""
        return principal.scopes & self._scopes if checks_scopes else None

    def _entries(self, name: ListName) -> Iterator[tuple[str, tuple[frozenset[str], str]]]:
        """Yield the key of each entry of a list, with its scopes and its back end."""
        if name == "skills":
            for backend, source in self._catalog.skill_sources.items():
                yield from ((entry["uri"], (source.scopes, backend)) for entry in source.entries)
            return
        of_kind = "prompt" if name == "prompts" else "resource"
        for kind, key, item in self._catalog.items():
            if kind == of_kind:
                yield key, (item.scopes, item.backend)

    def _visible_pages(
        self, key: tuple[Any, ...], pages: Pages, is_visible: Callable[[str], bool]
    ) -> Pages:
        """Return the pages of the entries whose keys are visible, cached under `key`."""
        visible = self._visible.get(key)
        if visible is None:
            visible = Pages([item for item in pages.items if is_visible(item[0])], pages.size)
            if len(self._visible) < MAX_SCOPE_SETS:
                self._visible[key] = visible
        return visible
