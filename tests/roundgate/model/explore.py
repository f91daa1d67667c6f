"""One world from a seed: what is in it, how it is run, and what must be true in the end.

For a while everything goes wrong that may. Then nothing does any more, and every
task has to come to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from roundgate import json
from roundgate.auth.principal import LOCAL
from roundgate.errors import Unavailable
from roundgate.protocol import detailed
from roundgate.protocol.tasks import OPEN, Status
from roundgate.replay.journal import Journal
from roundgate.settings import TasksConfig
from roundgate.tasks.call import TaskCall
from tests.roundgate.model.network import Weather
from tests.roundgate.model.processes import Process, Shared
from tests.roundgate.model.stories import Plan, right, serving
from tests.roundgate.model.world import World, Wrong
from tests.support.rounds import CAPABILITIES, accept

CALM_AFTER_S: Final = 60.0
SETTLED_BY_S: Final = 900.0
MAX_STEPS: Final = 250_000
LEASE_S: Final = 6
SKEW_S: Final = 5
POLL_S: Final = 2.0


BAD: Final = Weather(before=0.02, after=0.03, hang=0.01, lost=0.15, doubled=0.3)


@dataclass(frozen=True)
class Profile:
    """What kind of world."""

    tools: tuple[str, ...]
    tasks: int = 5
    workers: int = 3
    weather: Weather = BAD
    harm: float = 0.01
    budget: int = 6
    away_s: float = 0.0
    cancels: float = 0.15
    pauses: tuple[float, float] = (0.05, 2.5)
    steps: tuple[int, int] = (1, 3)


HONEST: Final = ("orders", "orders", "branches", "asks", "once", "restarts", "waits")
PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "everything": Profile(HONEST),
        "answers": Profile(
            HONEST, weather=Weather(before=0.05, after=0.15, doubled=0.3), harm=0.002
        ),
        "stops": Profile(
            ("orders", *HONEST), harm=0.03, budget=16, pauses=(0.5, 3.0), steps=(2, 4)
        ),
        "events": Profile(
            ("waits",), weather=Weather(before=0.03, after=0.08, hang=0.02, doubled=0.3), budget=10
        ),
        "away": Profile(HONEST, away_s=20.0, harm=0.002),
        "hangs": Profile(HONEST, weather=Weather(hang=0.06, doubled=0.3), harm=0.004, budget=14),
        "once": Profile(
            ("once",),
            tasks=4,
            weather=Weather(hang=0.15, doubled=0.5),
            budget=40,
            harm=0.004,
            pauses=(0.1, 6.0),
        ),
        "cancels": Profile(
            HONEST, weather=Weather(doubled=0.3), harm=0.004, cancels=0.9, pauses=(1.0, 8.0)
        ),
        "poison": Profile(
            ("dies", "orders", "orders", "blocks", "orders", "branches"),
            tasks=6,
            workers=2,
            budget=1,
        ),
        "clocks": Profile(
            HONEST, workers=4, weather=Weather(lost=0.1, doubled=0.6), harm=0.002, pauses=(2.0, 9.0)
        ),
    }
)
POISON: Final = frozenset({"dies", "blocks"})


@dataclass(frozen=True)
class Ran:
    """What came of one world."""

    seed: int
    profile: str
    steps: int
    seconds: float
    counts: Mapping[str, int]
    digest: str
    """Of everything that happened: the same for the same seed."""


def run(seed: int, profile: str) -> Ran:
    """Run one world to its end.

    Raises:
        Wrong: with the seed, what was broken, and what had happened.
    """
    world, kind = World(seed), PROFILES[profile]
    config = TasksConfig(
        lease_s=LEASE_S,
        clock_skew_s=SKEW_S,
        requeue_after_s=10,
        sweep_every_s=5,
        stop_grace_s=12,
        max_deaths=4,
    )
    shared = Shared(world, config, replace(kind.weather), kind.budget)
    before = random.getstate()
    random.seed(seed)  # sweeps take shards in any order
    try:
        _Story(shared, kind).play()
        return _ran(world, shared, profile)
    except Wrong as error:
        raise Wrong(_report(world, profile, str(error))) from None
    finally:
        random.setstate(before)
        with _quiet():
            shared.close()


def _ran(world: World, shared: Shared, profile: str) -> Ran:
    counts = shared.witness.counts
    digest = hashlib.sha256(
        repr((world.told, sorted(counts.items()), world.steps)).encode()
    ).hexdigest()
    return Ran(world.seed, profile, world.steps, world.now_s, dict(counts), digest)


def _report(world: World, profile: str, what: str) -> str:
    command = f"scripts/chaos model --seed {world.seed} --profile {profile}"
    return "\n".join(
        [f"seed {world.seed}, profile {profile}: {what}", *world.told, f"again: {command}"]
    )


class _Story:
    """The tasks of one world, and the clients that want them."""

    def __init__(self, shared: Shared, profile: Profile) -> None:
        self._shared = shared
        self._world = shared.world
        self._profile = profile
        self._settled: set[str] = set()
        self._plans = [self._plan(number) for number in range(profile.tasks)]
        shared.witness.poison = {plan.id for plan in self._plans if plan.tool in POISON}

    def _plan(self, number: int) -> Plan:
        chance, kind = self._world.chance, self._profile
        tool = (
            kind.tools[number % len(kind.tools)]
            if chance.random() < 0.5
            else chance.choice(kind.tools)
        )
        pauses = [
            round(chance.uniform(*kind.pauses), 2) for _ in range(chance.randint(*kind.steps))
        ]
        arguments: dict[str, Any] = {"pauses": pauses}
        if tool == "orders":
            arguments |= {
                "nap_s": chance.choice([0, 0.5, 4]),
                "think_s": chance.choice([0, 0.5, 3]),
            }
        delivers_s: tuple[float, ...] = ()
        if tool == "restarts":
            arguments["left"] = 1
        if tool == "waits":
            arguments["limit_s"] = chance.choice([3, 15, 7_200])
            times = chance.randint(0 if arguments["limit_s"] < 7_200 else 1, 3)
            delivers_s = tuple(sorted(chance.uniform(0, 20) for _ in range(times)))
        if tool == "blocks":
            arguments["pauses"] = [(LEASE_S + SKEW_S) * 1.5]
        if tool == "dies":
            arguments["pauses"] = [round(chance.uniform(0, 1.5), 2)]
        cancels_s = (
            chance.uniform(0, 30) if chance.random() < kind.cancels and tool not in POISON else None
        )
        return Plan(
            f"task{number}",
            tool,
            arguments,
            chance.uniform(0, 20),
            cancels_s,
            chance.choice([1, 1, 2]),
            delivers_s=delivers_s,
        )

    def play(self) -> None:
        """Everything that happens.

        Raises:
            Wrong
        """
        shared, world = self._shared, self._world
        with _quiet():
            shared.serve(serving(shared), self._profile.workers)
            shared.harm = self._profile.harm
            for plan in self._plans:
                client = Process(shared, f"client of {plan.id}")
                shared.all.append(client)
                client.begin(partial(self._want, client, plan))
            if self._profile.away_s:
                world.after(world.chance.uniform(5, 40), self._go_away)
            world.after(CALM_AFTER_S, shared.calm_down)
            is_over = world.run(self._is_over, until_s=SETTLED_BY_S, max_steps=MAX_STEPS)
        if world.wrongs:
            raise Wrong(world.wrongs[0])
        if not is_over:
            waiting = [plan.id for plan in self._plans if plan.id not in self._settled]
            raise Wrong(
                f"{', '.join(waiting)}: not over {world.now_s:.0f} s after the beginning ({world.steps} steps)"
            )
        (rows,) = shared.db.execute("select count(*) from tasks").fetchone()
        if rows != len(self._plans):
            raise Wrong(f"{rows} tasks came of {len(self._plans)} requests")
        for plan in self._plans:
            self._check(plan)

    def _go_away(self) -> None:
        self._world.tell("the store is away")
        self._shared.weather.away_until_s = self._world.now_s + self._profile.away_s

    def _is_over(self) -> bool:
        return len(self._settled) == len(self._plans)

    # a client

    async def _want(self, client: Process, plan: Plan) -> None:
        await asyncio.sleep(plan.begins_s)
        call = TaskCall(plan.tool, plan.arguments, LOCAL, CAPABILITIES)
        for _ in range(plan.sends):
            # the id follows from what the client was given: it is the same
            # however often that is sent
            await _insist(lambda: client.tasks.create(call, Journal(), task_id=plan.id))
        created = self._shared.witness.seen.get(plan.id)
        if created is None:
            self._world.wrong(f"{plan.id}: the client was told of a task that is not there")
        cancelling = asyncio.create_task(self._cancel(client, plan))
        delivering = asyncio.create_task(self._deliver(client, plan))
        await self._poll(client, plan)
        cancelling.cancel()
        delivering.cancel()
        self._settled.add(plan.id)

    async def _poll(self, client: Process, plan: Plan) -> None:
        is_over = False
        while not is_over:
            await asyncio.sleep(POLL_S)
            is_over = await self._look(client, plan)

    async def _cancel(self, client: Process, plan: Plan) -> None:
        if plan.cancels_after_s is not None:
            await asyncio.sleep(plan.cancels_after_s)
            await _insist(lambda: client.tasks.cancel(LOCAL, plan.id))
            if self._shared.witness.seen[plan.id].row["status"] in OPEN:
                self._world.wrong(f"{plan.id}: its cancellation was acknowledged, and it goes on")

    async def _deliver(self, client: Process, plan: Plan) -> None:
        """A service posts the payload, from when on the order has happened."""
        for delay_s in plan.delivers_s:
            await asyncio.sleep(delay_s)
            while True:
                await asyncio.sleep(0.5)
                if self._shared.witness.effects.get((plan.id, "order")):
                    break
            ref = client.tasks.ref(LOCAL, plan.id)
            told = await _insist(
                lambda ref=ref: client.deliveries.deliver(ref, "event:paid", "paid")
            )
            plan.delivered.add(str(told))
            client.world.tell(f"{plan.id}: the delivery is {told}")

    async def _look(self, client: Process, plan: Plan) -> bool:
        record = await _insist(lambda: client.tasks.record(LOCAL, plan.id))
        shown = json.decode(detailed(record.view(client.clock.now_ms()), 1_000))
        if shown["status"] == Status.INPUT_REQUIRED:
            key, name = next(iter(shown["inputRequests"])), f"answer {len(plan.accepted)}"
            plan.accepted.append(name)
            answers = {key: accept(name=name)}
            await _insist(lambda: client.tasks.update(LOCAL, plan.id, answers))
            self._is_taken(plan, key)
        return Status(shown["status"]) not in OPEN

    def _is_taken(self, plan: Plan, key: str) -> None:
        seen = self._shared.witness.seen[plan.id]
        if seen.row["status"] == Status.INPUT_REQUIRED and key not in seen.answers:
            self._world.wrong(f"{plan.id}: an answer was acknowledged and not taken")

    # the end

    def _check(self, plan: Plan) -> None:
        seen = self._shared.witness.seen[plan.id]
        status = Status(seen.row["status"])
        select = "select value from payloads where task = ? and kind = 'outcome'"
        found = self._shared.db.execute(select, (seen.row["n"],)).fetchone()
        if plan.tool in POISON or (status is Status.CANCELLED and plan.cancels_after_s is not None):
            return
        value = None if found is None else json.decode(found[0]).get("structuredContent")
        if status is not Status.COMPLETED or value is None or not right(plan, value):
            raise Wrong(
                f"{plan.id} ({plan.tool} {plan.arguments}): {status} with {found}: {seen.row}"
            )
        if plan.tool == "asks" and value["values"][1] not in str(seen.answers.values()):
            raise Wrong(
                f"{plan.id}: went on with another answer than the one taken: {value}, {seen.answers}"
            )


async def _insist(ask: Any) -> Any:
    """What a client does: again, until there is an answer."""
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.5)


@contextmanager
def _quiet() -> Iterator[None]:
    """Thousands of warnings are as it should be where everything goes wrong."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def main(arguments: argparse.Namespace) -> bool:
    """`scripts/chaos model`: one world after another until the time is over; whether all was right."""
    until_s = time.monotonic() + arguments.count * 60
    profiles = [arguments.profile] if arguments.profile else list(PROFILES)
    chance, totals, seed = random.Random(arguments.seed), Counter[str](), arguments.seed
    while True:
        for profile in profiles:
            try:
                ran = run(seed, profile)
            except Wrong as error:
                print(error)
                return False
            totals += Counter({"worlds": 1, "moves": ran.steps, **ran.counts})
        if time.monotonic() >= until_s:
            break
        seed = chance.randrange(2**31)
    print(
        "model: "
        + ", ".join(f"{count} {what}" for what, count in totals.items())
        + ", nothing wrong"
    )
    return True
