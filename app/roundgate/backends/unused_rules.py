"""The texts of rules that match nothing that is served, such as misspelt names."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from roundgate.backends.catalog import Catalog
from roundgate.backends.rule_texts import Texts, UriReadings, UriTexts, template_pattern
from roundgate.backends.rules import Policy
from roundgate.protocol import skills


def unused_texts(
    policy: Policy, catalog: Catalog, backends: Collection[str], views: Collection[str]
) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each rule with a member and a text that matches no tool, prompt, resource,
    back end or view. Tools, prompts and resources that may be missing now count as known.

    Args:
        policy: the rules.
        catalog: the catalog of all tools.
        backends: the names of all back ends.
        views: the names of all views, with "" for the endpoint of all tools.
    """
    known: dict[str, Collection[str]] = {"backend": backends, "view": views}
    uris: list[UriReadings] = []
    if is_complete := not (catalog.missing or catalog.is_tolerant):
        known["tool"] = {tool.whole_name for tool in catalog.tools.values() if tool.backend}
        known["prompt"] = catalog.prompts.keys()
        uris += map(UriReadings.of, _uris(catalog))
    for number, rule in enumerate(policy.rules):
        match = rule.config.match
        for member, names in known.items():
            for text in getattr(match, member) or ():
                if not any(map(Texts([text]).match, names)):
                    yield number, member, text
        for text in (match.resource or ()) if is_complete else ():
            if not any(map(UriTexts([text]).overlaps, uris)):
                yield number, "resource", text


def _uris(catalog: Catalog) -> Iterator[str]:
    """Yield the URIs of resources, and patterns of the URIs of templates, pages and skills."""
    yield from catalog.resources
    for template in catalog.templates:
        yield template_pattern(template.resource.definition["uriTemplate"], {})
    yield from (f"{start}*" for start in catalog.unlisted)
    for name in catalog.skill_sources:
        yield from (f"{skills.SCHEME}{name}", f"{skills.SCHEME}{name}/*")
