"""What a client does next, without any I/O: the flows are driven by lists of
what came of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from roundgate.client import flows
from roundgate.client.flows import Ask, FinishedCall, Flow, Pause, Send, Show, Tell
from roundgate.client.transport import Limits
from roundgate.client.types import Json, TaskState
from roundgate.errors import (
    BadAnswer,
    ClientError,
    ConnectionLost,
    HttpRefused,
    NoCommonVersion,
    RpcError,
    TaskEnded,
    TooManyRounds,
)

FORM = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object"}},
}
DONE = {"resultType": "complete", "content": []}
LIMITS = Limits(max_rounds=4, max_state=50, max_questions=3)


def asking(state: str | None = None, **requests: Any) -> Json:
    about: Json = {"resultType": "input_required"}
    about |= {"inputRequests": requests} if requests else {}
    return about | ({} if state is None else {"requestState": state})


def task(status: str, **more: Any) -> Json:
    return {"taskId": "t1", "status": status, "pollIntervalMs": 40, **more}


def drive(flow: Flow[Any], replies: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The end of a flow, and all it wanted; replies are for what it sends, and answers are empty."""
    wanted: list[Any] = []
    left = list(replies)
    sent: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = flow.send(sent) if failure is None else flow.throw(failure)
        except StopIteration as stop:
            assert not left, "every reply is used"
            return stop.value, wanted
        wanted.append(effect)
        sent = failure = None
        if isinstance(effect, Send):
            reply = left.pop(0)
            failure = reply if isinstance(reply, Exception) else None
            sent = reply if failure is None else None
        elif isinstance(effect, Ask):
            sent = {question.key: {"action": "accept"} for question in effect.questions}


def called(*replies: Any, **options: Any) -> tuple[FinishedCall, list[Any]]:
    params = {"name": "t", "arguments": {"a": 1}}
    return drive(
        flows.call("tools/call", params, "t", LIMITS, may_repeat=False, **options), replies
    )


def sent(wanted: Sequence[Any]) -> list[Json]:
    return [effect.params for effect in wanted if isinstance(effect, Send)]


def test_a_call_that_asks_nothing_is_one_request() -> None:
    finished, wanted = called(DONE)
    assert (finished.result, finished.rounds, len(wanted)) == (DONE, 1, 1)


def test_a_result_without_a_type_is_complete() -> None:
    assert called({"content": []})[0].rounds == 1


def test_each_round_sends_the_first_params_with_the_last_answers_and_the_last_state() -> None:
    _, wanted = called(asking("one", a=FORM), asking("two", b=FORM), DONE)
    base = {"name": "t", "arguments": {"a": 1}}
    assert sent(wanted) == [
        base,
        {**base, "inputResponses": {"a": {"action": "accept"}}, "requestState": "one"},
        {**base, "inputResponses": {"b": {"action": "accept"}}, "requestState": "two"},
    ]


def test_a_state_that_is_gone_is_not_sent_again() -> None:
    _, wanted = called(asking("one", a=FORM), asking(None, b=FORM), DONE)
    assert "requestState" not in sent(wanted)[2]


def test_an_empty_state_is_a_state() -> None:
    assert sent(called(asking("", a=FORM), DONE)[1])[1]["requestState"] == ""


def test_a_round_that_only_sheds_is_sent_again_at_once() -> None:
    _, wanted = called(asking("later"), DONE)
    assert not [effect for effect in wanted if isinstance(effect, Ask)]
    assert "inputResponses" not in sent(wanted)[1]


def test_only_a_round_with_a_state_may_be_repeated() -> None:
    _, wanted = called(asking("one", a=FORM), asking(None, b=FORM), DONE)
    assert [effect.may_repeat for effect in wanted if isinstance(effect, Send)] == [
        False,
        True,
        False,
    ]


def test_a_server_that_never_stops_asking_is_stopped() -> None:
    with pytest.raises(TooManyRounds, match="after 4 rounds"):
        called(*[asking("again")] * 4)
    with pytest.raises(TooManyRounds, match="after 2 rounds"):
        called(*[asking("again")] * 2, max_rounds=2)


def test_a_call_that_becomes_a_task_is_followed_to_its_end() -> None:
    finished, wanted = called(
        {"resultType": "task", **task("working")}, task("working"), task("completed", result=DONE)
    )
    assert finished.result == DONE
    assert [type(effect).__name__ for effect in wanted] == [
        "Send",
        "Show",
        "Pause",
        "Send",
        "Show",
        "Pause",
        "Send",
        "Show",
    ]
    assert [effect.ms for effect in wanted if isinstance(effect, Pause)] == [40, 40]


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_what_came_of_a_task_that_was_over_when_it_was_created_is_fetched(status: str) -> None:
    error = {"code": -32603, "message": "broken"}
    replies = [
        {"resultType": "task", **task(status)},
        task("completed", result=DONE) if status == "completed" else task("failed", error=error),
    ]
    if status == "completed":
        assert called(*replies)[0].result == DONE
        return
    with pytest.raises(TaskEnded, match="broken"):
        called(*replies)


def test_a_task_can_be_handed_over_at_once() -> None:
    finished, wanted = called({"resultType": "task", **task("working")}, detach=True)
    assert finished.task is not None
    assert (finished.task.task_id, len(wanted)) == ("t1", 1)


def test_a_task_is_answered_once_for_each_key() -> None:
    replies = [
        task("input_required", inputRequests={"a": FORM}),
        {},
        task("input_required", inputRequests={"a": FORM, "b": FORM}),
        {},
        task("completed", result=DONE),
    ]
    result, wanted = drive(flows.follow("t1", LIMITS), replies)
    updates = [
        effect.params
        for effect in wanted
        if isinstance(effect, Send) and effect.method == "tasks/update"
    ]
    assert result == DONE
    assert [list(update["inputResponses"]) for update in updates] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("asks", "said"),
    [({"inputRequests": {"a": FORM}}, r"were answered \(a\)"), ({}, "names no question")],
)
def test_a_task_that_asks_for_ever_what_it_was_answered_is_given_up(asks: Json, said: str) -> None:
    polled = [task("input_required", **asks)] * 10_000
    with pytest.raises(BadAnswer, match=said):
        drive(flows.follow("t1", LIMITS), polled if not asks else [polled[0], {}, *polled])


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (task("failed", error={"code": -32603, "message": "broken"}), "failed", "broken"),
        (task("cancelled", statusMessage="enough"), "cancelled", "enough"),
    ],
)
def test_a_task_without_a_result_is_an_error_that_says_how_it_ended(
    end: Json, status: str, said: str
) -> None:
    with pytest.raises(TaskEnded, match=said) as caught:
        drive(flows.follow("t1", LIMITS), [end])
    assert caught.value.status == status


@pytest.mark.parametrize(
    "odd", [task("completed"), task("resting"), {**task("working"), "taskId": "other"}]
)
def test_a_task_that_makes_no_sense_is_refused(odd: Json) -> None:
    with pytest.raises(BadAnswer):
        drive(flows.follow("t1", LIMITS), [odd])


@pytest.mark.parametrize(
    ("asked", "waited"), [(None, 1_000), (0, 20), (-5, 20), (10**9, 60_000), (300, 300)]
)
def test_polls_are_as_frequent_as_the_server_says_within_bounds(
    asked: int | None, waited: float
) -> None:
    assert (
        flows.poll_ms(TaskState.read({**task("working"), "pollIntervalMs": asked}), LIMITS)
        == waited
    )


ABOUT = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
OLD = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "serverInfo": {"name": "old", "version": "1"},
}


def unsupported(*versions: str) -> RpcError:
    return RpcError(-32022, "no", {"supported": list(versions)})


def negotiated(*replies: Any) -> tuple[str, list[tuple[str, str | None]]]:
    server, wanted = drive(flows.negotiate({"name": "c", "version": "1"}, {}), replies)
    steps = [(one.method, one.version) for one in wanted if isinstance(one, (Send, Tell))]
    return server.protocol_version, steps


DISCOVER = ("server/discover", "2026-07-28")
OLDER = [("initialize", "2025-11-25"), ("notifications/initialized", "2025-06-18")]


@pytest.mark.parametrize(
    ("replies", "version", "steps"),
    [
        ([ABOUT], "2026-07-28", [DISCOVER]),
        ([unsupported("2026-07-28"), ABOUT], "2026-07-28", [DISCOVER, DISCOVER]),
        ([HttpRefused(400, "no"), OLD], "2025-06-18", [DISCOVER, *OLDER]),
        ([RpcError(-32602, "no"), OLD], "2025-06-18", [DISCOVER, *OLDER]),
        (
            [HttpRefused(400, "no"), {**OLD, "protocolVersion": "2024-11-05"}],
            "2024-11-05",
            [DISCOVER, ("initialize", "2025-11-25"), ("notifications/initialized", "2024-11-05")],
        ),
        (
            [unsupported("2025-06-18"), OLD],
            "2025-06-18",
            [DISCOVER, ("initialize", "2025-06-18"), ("notifications/initialized", "2025-06-18")],
        ),
    ],
)
def test_the_era_of_a_server_follows_from_what_it_answers(
    replies: list[Any], version: str, steps: list[tuple[str, str]]
) -> None:
    assert negotiated(*replies) == (version, steps)


@pytest.mark.parametrize(
    "replies",
    [
        [unsupported("2027-01-01")],
        [{"supportedVersions": ["2031-01-01"]}],
        [HttpRefused(404, "no"), {**OLD, "protocolVersion": "2024-10-07"}],
        [HttpRefused(404, "no"), RpcError(-32601, "no")],
        [*[unsupported("2026-07-28")] * 3],
    ],
)
def test_without_a_common_revision_it_says_which_there_are(replies: list[Any]) -> None:
    with pytest.raises(NoCommonVersion, match="revision"):
        negotiated(*replies)


LISTED = Limits(max_pages=3, max_items=4, max_message=300)


def listing(*replies: Any) -> flows.WholeList:
    found: flows.WholeList = drive(flows.whole_list("tools/list", "tools", LISTED), replies)[0]
    return found


def test_lists_are_read_page_after_page() -> None:
    second = {"tools": [2, {"n": 2}], "nextCursor": ""}
    found = listing({"tools": [{"n": 1}], "nextCursor": "x"}, second)
    assert (found.items, found.error) == ([{"n": 1}, {}, {"n": 2}], None)


@pytest.mark.parametrize(
    ("replies", "complaint"),
    [
        ([{"tools": [{}] * 5}], "max_items"),
        ([{"tools": "all"}], "without a list"),
        ([{"tools": [], "nextCursor": 5}], "an invalid cursor"),
        ([{"tools": [], "nextCursor": "x" * 100_000}], "an invalid cursor"),
        ([{"tools": [{"n": "x" * 400}], "nextCursor": "1"}], "max_message"),
        ([RpcError(-32601, "no")], "no"),
    ],
)
def test_a_list_whose_first_page_makes_no_sense_is_refused(
    replies: list[Any], complaint: str
) -> None:
    with pytest.raises(ClientError, match=complaint):
        listing(*replies)


FIRST: Json = {"tools": [{"n": 1}], "nextCursor": "0"}


@pytest.mark.parametrize(
    ("replies", "complaint"),
    [
        ([FIRST], "sent before"),
        ([{"tools": [], "nextCursor": str(n)} for n in range(1, 3)], "max_pages"),
        ([{"tools": [{}] * 5}], "max_items"),
        ([{"tools": "all"}], "without a list"),
        ([{"tools": [{}], "nextCursor": 5}], "an invalid cursor"),
        ([{"tools": [{"n": "x" * 300}]}], "max_message"),
        ([RpcError(-32603, "broken")], "broken"),
        ([HttpRefused(500, "gone")], "gone"),
    ],
)
def test_the_pages_before_one_that_makes_no_sense_are_kept(
    replies: list[Any], complaint: str
) -> None:
    found = listing(FIRST, *replies)
    assert found.items == [{"n": 1}]
    assert complaint in str(found.error)


def test_a_list_that_breaks_off_with_its_connection_is_not_kept() -> None:
    with pytest.raises(ConnectionLost):
        listing(FIRST, ConnectionLost("away"))


def test_what_is_seen_of_a_task_is_shown() -> None:
    _, wanted = drive(flows.follow("t1", LIMITS), [task("working"), task("completed", result=DONE)])
    assert [effect.task.status for effect in wanted if isinstance(effect, Show)] == [
        "working",
        "completed",
    ]
