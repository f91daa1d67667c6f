"""The table of extensions: what an extension adds is served, discovered and refused like the rest."""

from __future__ import annotations

from collections import Counter

from roundgate.methods.extensions import EXTENSIONS, ROUTES
from roundgate.methods.table import capabilities
from roundgate.protocol.v2026_07_28 import METHODS


def test_each_extension_has_a_name_and_a_feature_of_its_own() -> None:
    for values in ([one.name for one in EXTENSIONS], [one.feature for one in EXTENSIONS]):
        assert max(Counter(values).values()) == 1


def test_no_method_belongs_to_two_extensions_or_to_the_revision() -> None:
    counts = Counter(method for one in EXTENSIONS for method in one.routes)
    assert all(count == 1 for count in counts.values())
    assert counts.keys() == ROUTES.keys()
    assert not counts.keys() & METHODS.keys()


def test_a_method_of_an_extension_needs_the_feature_of_the_extension() -> None:
    for extension in EXTENSIONS:
        assert {route.feature for route in extension.routes.values()} <= {extension.feature}


def test_an_extension_is_discovered_only_where_it_is_served() -> None:
    assert "extensions" not in capabilities(frozenset())
    served = capabilities(frozenset({"tasks", "search"}))
    assert served["extensions"] == {"io.modelcontextprotocol/tasks": {}}
