"""A handler is replaced while its task lives: what it asks anew has a new key, what
it asked before is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth.principal import LOCAL
from roundgate.operators.finding import count_versions
from roundgate.replay.context import Context
from roundgate.replay.journal import Answered, Journal
from roundgate.replay.questions import Form, question_digest
from roundgate.settings import TasksConfig
from roundgate.tasks import events
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.long import examples
from tests.support.replay import Effects, Name
from tests.support.rounds import accept
from tests.support.tasks import Fast, Files, Shared


async def test_what_a_new_version_asks_differently_is_asked_anew_and_the_rest_is_kept(
    shared: Shared,
) -> None:
    effects = Effects()

    async def old(ctx: Context) -> list[str]:
        plan = await ctx.step("plan", effects.do, "the plan")
        answers = await ctx.ask({"who": Form("Who?", Name), "where": Form("Where?", Name)})
        return [plan, *(answer.get().name for answer in answers.values())]

    async def new(ctx: Context) -> list[str]:
        plan = await ctx.step("plan", effects.do, "the plan")
        answers = await ctx.ask({"who": Form("Who exactly?", Name), "where": Form("Where?", Name)})
        return [plan, *(answer.get().name for answer in answers.values()), "new"]

    before, after = shared.workshop(tool=old), shared.workshop(tool=new)
    ref = await before.begin("tool")
    assert await before.turns() == [TurnResult.ASKED]
    await before.answer(ref, where=accept(name="here"))
    await before.answer(ref, who=accept(name="somebody"))
    assert await after.turns() == [TurnResult.ASKED]
    requests = (await after.shown(ref))["inputRequests"]
    assert list(requests) == ["who~2"]
    assert requests["who~2"]["params"]["message"] == "Who exactly?"
    await after.answer(
        ref, who=accept(name="late")
    )  # under the key of before: nobody waits for it any more
    assert list((await after.shown(ref))["inputRequests"]) == ["who~2"]
    await after.answer(ref, who__2=accept(name="me"))
    await after.turns()
    assert await after.value(ref) == ["the plan", "me", "here", "new"]
    assert effects.seen == ["the plan"]


async def test_a_question_may_be_reworded_as_often_as_its_answer_was_good_in_between(
    shared: Shared,
) -> None:
    def version(number: int) -> Any:
        async def tool(ctx: Context) -> str:
            name = (await ctx.elicit("who", f"Who, in the words of version {number}?", Name)).name
            await ctx.elicit(f"go{number}", "Go on?", Name)
            return name

        return tool

    ref = await shared.workshop(tool=version(0)).begin("tool")
    for number in range(6):
        shop = shared.workshop(tool=version(number))
        assert await shop.all_turns() == ([TurnResult.ASKED] if number == 0 else [])
        key = "who" if number == 0 else f"who__{number + 1}"
        await shop.answer(ref, **{key: accept(name=f"answer {number}")})
        assert await shop.all_turns() == [TurnResult.ASKED]
        assert list((await shop.shown(ref))["inputRequests"]) == [f"go{number}"]
        await shop.answer(ref, **{f"go{number}": accept(name="yes")})
        if number < 5:
            assert await shared.workshop(tool=version(number + 1)).all_turns() == [TurnResult.ASKED]
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "answer 5"


async def test_an_answer_that_came_before_the_task_stays_with_the_question_that_took_it(
    shared: Shared,
) -> None:
    async def old(ctx: Context) -> str:
        name = (await ctx.elicit("who", "Who?", Name)).name
        await ctx.elicit("go", "Go on?", Name)
        return name

    async def new(ctx: Context) -> str:
        return (await ctx.elicit("who", "Who is to blame?", Name)).name

    journal = Journal()
    journal.add(
        Answered("who", question_digest("who", Form("Who?", Name)), 1, 0, accept(name="Ada"))
    )
    ref = await shared.workshop(tool=old).begin("tool", journal=journal)
    assert await shared.workshop(tool=old).all_turns() == [TurnResult.ASKED]
    shop = shared.workshop(tool=new)
    await shop.answer(ref, go=accept(name="yes"))
    assert await shop.all_turns() == [TurnResult.ASKED]
    assert list((await shop.shown(ref))["inputRequests"]) == ["who~2"]


async def test_an_upgrade_that_asks_the_same_goes_on_with_the_answer(shared: Shared) -> None:
    async def old(ctx: Context) -> str:
        return (await ctx.elicit("who", "Who?", Name)).name

    async def new(ctx: Context) -> str:
        name = (await ctx.elicit("who", "Who?", Name)).name
        return f"{await ctx.step('greet', lambda: 'hello')} {name}"

    before, after = shared.workshop(tool=old), shared.workshop(tool=new)
    ref = await before.begin("tool")
    await before.turns()
    await after.answer(ref, who=accept(name="me"))
    assert await after.turns() == [TurnResult.FINISHED]
    assert await after.value(ref) == "hello me"


async def test_both_versions_at_work_at_once_end_the_task_in_the_end(shared: Shared) -> None:
    """Each asks in its own words: after some turns one of them says that this does not end."""

    def version(number: int) -> Any:
        async def handler(ctx: Context) -> str:
            return (await ctx.elicit("who", f"Who, asks version {number}?", Name)).name

        return handler

    shops = [shared.workshop(tool=version(number)) for number in range(2)]
    ref, keys = await shops[0].begin("tool"), []
    for turn in range(10):
        await shops[turn % 2].turns()
        shown = await shops[0].shown(ref)
        if shown["status"] == "completed":
            break
        (key,) = shown["inputRequests"]
        keys.append(key)
        await shops[0].tasks.update(LOCAL, ref.id, {key: accept(name="me")})
    assert keys == ["who", "who~2", "who~3"]
    assert shown["result"]["isError"] is True


def changed(newest: int, oldest: int = 1) -> Any:
    """A handler after some changes; before the first one if `newest` is 1."""

    async def handler(ctx: Context) -> int:
        await ctx.step("plan", lambda: None)
        await ctx.elicit("before", "Go on?", Name)
        version = ctx.version("change", newest, oldest=oldest) if newest > 1 else 1
        await ctx.step(f"charge{version}", lambda: None)
        await ctx.elicit("after", "Go on?", Name)
        return version

    return handler


async def go_on(shop: Any, ref: Any) -> list[TurnResult]:
    (key,) = (await shop.shown(ref))["inputRequests"]
    await shop.answer(ref, **{key: accept(name="yes")})
    turns: list[TurnResult] = await shop.all_turns()
    return turns


async def test_tasks_keep_their_version_and_it_is_counted_until_they_end(shared: Shared) -> None:
    old, new = shared.workshop(tool=changed(1)), shared.workshop(tool=changed(2))
    beyond, before = await old.begin("tool"), await old.begin("tool")
    await old.all_turns()
    await go_on(old, beyond)
    young = await new.begin("tool")
    await new.all_turns()
    assert await counted(new) == [(None, None, 3)]
    await go_on(new, before)
    assert await counted(new) == [("change", None, 2), ("change", 2, 1)]
    await go_on(new, young)
    assert await counted(new) == [("change", None, 1), ("change", 2, 2)]
    for ref, version in ((beyond, 1), (before, 2), (young, 2)):
        assert await go_on(new, ref) == [TurnResult.FINISHED]
        assert await new.value(ref) == version
    assert await counted(new) == []


async def counted(shop: Any) -> list[tuple[str | None, int | None, int]]:
    counts = await count_versions(shop.store, "tool", shop.clock.now_ms())
    assert await count_versions(shop.store, "another", shop.clock.now_ms()) == []
    return [(count.name, count.version, count.tasks) for count in counts]


async def test_the_old_way_is_counted_once_a_task_has_run_on_it(shared: Shared) -> None:
    old, new = shared.workshop(tool=changed(1)), shared.workshop(tool=changed(2))
    ref = await old.begin("tool")
    await old.all_turns()
    await go_on(old, ref)

    async def asks_more(ctx: Context) -> None:
        await changed(2)(ctx)
        await ctx.elicit("more", "Go on?", Name)

    new = shared.workshop(tool=asks_more)
    assert await go_on(new, ref) == [TurnResult.ASKED]
    assert await counted(new) == [("change", 1, 1)]


async def test_a_task_whose_version_is_gone_is_parked_until_it_is_served_again(
    shared: Shared,
) -> None:
    old, new = shared.workshop(tool=changed(1)), shared.workshop(tool=changed(2, oldest=2))
    ref = await old.begin("tool")
    await old.all_turns()
    await go_on(old, ref)
    assert await go_on(new, ref) == [TurnResult.PARKED]
    message = (await new.shown(ref))["statusMessage"]
    assert "the handler does not support version 1 any more, at 'version:change'" in message, (
        message
    )
    both = shared.workshop(tool=changed(2))
    assert (
        await both.store.apply(ref, events.Requeue(both.clock.now_ms()), both.clock.now_ms())
    ).happened
    await both.queue.send(ref)
    assert await both.all_turns() == [TurnResult.FINISHED]
    assert await both.value(ref) == 1


async def test_a_task_with_a_newer_version_waits_for_a_worker_that_knows_it(
    tmp_path: Path,
) -> None:
    clock = FixedClock()
    shared = Shared(tmp_path / "tasks.sqlite3", clock, TasksConfig())
    old, new = shared.workshop(tool=changed(2)), shared.workshop(tool=changed(3))
    ref = await new.begin("tool")
    await new.all_turns()
    await go_on(new, ref)
    assert await go_on(old, ref) == [TurnResult.DECLINED]
    message = (await new.shown(ref))["statusMessage"]
    assert message == "Waiting for a worker that knows version 3 of 'change' in tool"
    clock.skip(2)
    assert await new.all_turns() == [TurnResult.FINISHED]
    assert await new.value(ref) == 3
    await shared.aclose()


Version: TypeAlias = list[Any]
"""What a version of the handler asks, in order: {name: text} at once, or a name and text in the low-level form."""

NAMES, TEXTS = st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y", "z"])
VERSIONS = st.lists(
    st.one_of(st.dictionaries(NAMES, TEXTS, min_size=1, max_size=2), st.tuples(NAMES, TEXTS)),
    min_size=1,
    max_size=4,
)
MANNERS = st.lists(st.sampled_from(["accept", "decline", "invalid", "one"]), max_size=12)


def handler_of(version: Version) -> Any:
    async def handler(ctx: Context) -> list[Any]:
        learned: list[Any] = []
        for asked in version:
            if isinstance(asked, dict):
                answers = await ctx.ask(
                    {name: Form(f"{text}?", Name) for name, text in asked.items()}
                )
                learned += [answer.action for answer in answers.values()]
            elif (response := ctx.input_response(asked[0])) is None or response[
                "action"
            ] != "accept":
                form = Form(f"{asked[1]}?", Name)
                await ctx.request_input({asked[0]: form.to_wire()})
            else:
                learned.append(response)
        return learned

    return handler


@examples(120)
@given(st.lists(VERSIONS, min_size=1, max_size=4), MANNERS)
def test_a_key_never_means_two_questions_whatever_versions_ask(
    files: Files, versions: list[Version], manners: list[str]
) -> None:
    async def scenario() -> None:
        clock = FixedClock()
        shared = Shared(files.new(), clock, TasksConfig(), database=Fast)
        shops = [shared.workshop(tool=handler_of(version)) for version in versions]
        ref, meant, given = await shops[0].begin("tool"), dict[str, str](), set[str]()
        left = [*manners]
        for turn in range(60):
            shop = shops[min(turn, len(shops) - 1)]
            await shop.turns()
            shown = await shop.shown(ref)
            for key, request in shown.get("inputRequests", {}).items():
                assert key not in given
                assert meant.setdefault(key, json.dumps(request)) == json.dumps(request)
            if shown["status"] == "completed":
                break
            manner = left.pop(0) if left else "accept"
            keys = list(shown["inputRequests"])[: 1 if manner == "one" else None]
            response = {"decline": {"action": "decline"}, "invalid": {"action": "perhaps"}}.get(
                manner
            )
            await shop.tasks.update(
                LOCAL, ref.id, {key: response or accept(name=key) for key in keys}
            )
            given |= set(keys)
        else:
            raise AssertionError("it never ended")
        await shared.aclose()

    asyncio.run(scenario())
