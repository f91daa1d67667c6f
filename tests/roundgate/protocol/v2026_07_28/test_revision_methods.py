"""The method table against the official one, and what callers of methods that are gone are told."""

from __future__ import annotations

import pytest
from mcp.shared.inbound import NAME_BEARING_METHODS
from mcp_types.methods import CLIENT_REQUESTS

from roundgate.methods.extensions import ROUTES
from roundgate.protocol.jsonrpc import SUPPORTED_VERSIONS
from roundgate.protocol.v2026_07_28 import METHODS, PROTOCOL_VERSION, SUCCESSORS, not_found

THIS_REVISION = {method for method, version in CLIENT_REQUESTS if version == PROTOCOL_VERSION}
TASKS = {"tasks/get", "tasks/update", "tasks/cancel"}
"""The methods of the tasks extension, which are not the revision's own."""
SKILLS = {"skills/list", "skills/get", "resources/directory/read"}
"""The methods of the skills extension."""
EARLIER_REVISIONS = {method for method, version in CLIENT_REQUESTS if version < PROTOCOL_VERSION}


def test_the_table_has_the_methods_of_the_revision_and_extensions_have_none_of_them() -> None:
    assert set(METHODS) == THIS_REVISION
    assert set(ROUTES) == TASKS | SKILLS
    assert not THIS_REVISION & set(ROUTES)


def test_mcp_name_mirrors_what_the_official_client_mirrors() -> None:
    ours = {
        name: route.named_by
        for name, route in {**METHODS, **ROUTES}.items()
        if route.named_by is not None
    }
    assert ours == {**NAME_BEARING_METHODS, **dict.fromkeys(TASKS, "taskId")}


def test_the_version_we_write_is_one_we_read() -> None:
    assert PROTOCOL_VERSION in SUPPORTED_VERSIONS


def test_every_method_that_the_revision_removed_names_its_successor() -> None:
    assert (EARLIER_REVISIONS - set(METHODS)).issubset(SUCCESSORS)
    assert not set(METHODS).intersection(SUCCESSORS)


@pytest.mark.parametrize(
    ("method", "successor"),
    [
        ("initialize", "params._meta"),
        ("ping", "server/discover"),
        ("logging/setLevel", "io.modelcontextprotocol/logLevel"),
        ("resources/subscribe", "subscriptions/listen"),
        ("resources/unsubscribe", "subscriptions/listen"),
        ("tasks/result", "tasks/get"),
        ("tasks/list", "tasks/get"),
        ("tasks/input_response", "tasks/update"),
    ],
)
def test_a_removed_method_is_told_what_to_do_instead(method: str, successor: str) -> None:
    message = str(not_found(method))
    assert message.startswith(f"Method not found: {method} was removed")
    assert successor in message


def test_initialize_is_told_the_versions_in_message_and_data() -> None:
    error = not_found("initialize")
    assert error.data == {"supported": ["2026-07-28"]}
    assert "this server speaks 2026-07-28" in str(error)


def test_no_other_method_is_told_versions() -> None:
    assert [not_found(method).data for method in ("ping", "tools/list", "unknown/method")] == [
        None,
        None,
        None,
    ]


def test_a_method_with_nothing_behind_it_says_what_is_not_offered() -> None:
    assert (
        str(not_found("prompts/get", METHODS["prompts/get"]))
        == "Method not found: this server offers no prompts; see server/discover"
    )


def test_an_unknown_method_is_named_but_not_at_any_length() -> None:
    assert str(not_found("unknown/method")) == "Method not found: unknown/method"
    assert len(str(not_found("m" * 10_000))) < 150
