"""Each revision that this server speaks has a row in the table, and answers for itself."""

from __future__ import annotations

import json

import pytest

from roundgate.errors import GatewayError, InvalidParams, MissingCapability, ToolError
from roundgate.protocol.jsonrpc import SUPPORTED_VERSIONS
from roundgate.protocol.revision import ErrorTable, Revision, WireError
from roundgate.protocol.revisions import NEWEST, REVISIONS

EVERY = pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS.keys())


def test_the_table_has_what_clients_are_told_newest_first() -> None:
    assert tuple(REVISIONS) == SUPPORTED_VERSIONS
    assert REVISIONS[SUPPORTED_VERSIONS[0]] is NEWEST


@EVERY
def test_a_result_has_the_members_that_it_was_made_of(revision: Revision) -> None:
    written = revision.result_format({"name": "gateway", "version": "1"}).write({"tools": []})
    assert json.loads(written)["tools"] == []


@EVERY
def test_what_follows_members_that_are_written_already_ends_the_result(revision: Revision) -> None:
    rest = revision.result_format({"name": "gateway", "version": "1"}).rest()
    assert json.loads(b'{"tools":[]' + rest)["tools"] == []


@EVERY
def test_an_error_is_answered_with_its_code_under_its_id(revision: Revision) -> None:
    error = MissingCapability("no capability", {"sampling": {}})
    status, body = revision.render(error, "seven")
    row = revision.look_up(error)
    assert (status, json.loads(body)["id"]) == (row.status, "seven")
    assert json.loads(body)["error"]["code"] == row.code


@EVERY
def test_a_failed_task_keeps_the_error_that_its_call_would_return(
    revision: Revision,
) -> None:
    error = MissingCapability("no capability", {"sampling": {}})
    _, body = revision.render(error, 1)
    assert json.loads(revision.kept_error(error)) == json.loads(body)["error"]


@EVERY
def test_a_completed_task_keeps_the_result_that_its_call_would_return(
    revision: Revision,
) -> None:
    result = {"content": [{"type": "text", "text": "done"}]}
    written = json.loads(revision.result_format({"name": "gateway", "version": "1"}).write(result))
    written.pop("_meta", None)  # the reply in which the result is told has it
    assert json.loads(revision.kept_result(result)) == written


@EVERY
def test_a_tool_s_own_failure_is_no_error_of_the_protocol(revision: Revision) -> None:
    with pytest.raises(KeyError, match="ToolError"):
        revision.look_up(ToolError("no such city"))


def test_a_row_holds_for_the_classes_below_unless_they_have_their_own() -> None:
    class Odd(InvalidParams):
        """A row of its own."""

    class Other(InvalidParams):
        """None."""

    rows: dict[type[GatewayError], WireError] = {
        InvalidParams: WireError(-32602, 400),
        Odd: WireError(-32600, 409),
    }
    table = ErrorTable(rows)
    assert table.look_up(Odd("x")) == WireError(-32600, 409)
    assert table.look_up(Other("x")) == WireError(-32602, 400)
