"""`scripts/chaos`: which run, with which seed."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.chaos import (
    away,
    backlog,
    chains,
    draining,
    edge,
    functions,
    handlers,
    issuer,
    poison,
    questions,
    rates,
    requests,
    rolling,
    sessions,
    streams,
    tasks,
)
from tests.roundgate.model import explore


@dataclass(frozen=True)
class Run:
    """A run, and how much of `unit` it gets when it is asked for by name, and among all in their short form.

    With a `short` of 0 it is run only when it is asked for.
    """

    main: Callable[[argparse.Namespace], bool]
    count: int
    short: int
    unit: str = "tasks"


RUNS: Final[Mapping[str, Run]] = {
    "handlers": Run(handlers.main, 5_000, 100, "handlers"),
    "tasks": Run(tasks.main, 500, 100),
    "poison": Run(poison.main, 500, 20),
    "sessions": Run(sessions.main, 200, 12, "calls"),
    "questions": Run(questions.main, 480, 24, "calls"),
    "lambda": Run(functions.main, 300, 60),
    "chains": Run(chains.main, 100, 0, "sleeps"),
    "backlog": Run(backlog.main, 10_000, 0),
    "edge": Run(edge.main, 600, 0, "seconds"),
    "draining": Run(draining.main, 20, 2, "stops"),
    "rolling": Run(rolling.main, 2, 0, "rotations"),
    "away": Run(away.main, 10, 10, "seconds"),
    "issuer": Run(issuer.main, 10, 0, "seconds"),
    "rates": Run(rates.main, 1_000, 20, "callers"),
    "streams": Run(streams.main, 4_000, 0, "streams"),
    "requests": Run(requests.main, 1_000_000, 0, "requests"),
    "model": Run(explore.main, 30, 1, "minutes"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Real processes, killed while they work, and a model."
    )
    parser.add_argument(
        "run", nargs="?", choices=tuple(RUNS), help="the run (default: all, in their short form)"
    )
    parser.add_argument(
        "--seed", type=int, help="repeat a run's choices (default: a new one, printed)"
    )
    stores = ("sqlite", "dynamodb", "postgres", *tasks.POOLED, "all")
    parser.add_argument(
        "--store",
        choices=stores,
        default="all",
        help="where there is a choice (default: %(default)s)",
    )
    counts = ", ".join(f"{name} {run.count:,} {run.unit}" for name, run in RUNS.items())
    parser.add_argument(
        "--count", type=int, help=f"how much of it (default: {counts}; in the short form less)"
    )
    parser.add_argument(
        "--kill-every", type=float, default=2.0, metavar="S", help="default: %(default)s s"
    )
    parser.add_argument(
        "--profile", choices=tuple(explore.PROFILES), help="of the model (default: each in turn)"
    )
    parser.add_argument(
        "--part",
        metavar="WORDS",
        help="of poison, those whose title has these words; of backlog, `drain` or `sweepers`; of sessions, `lambda`",
    )
    arguments = parser.parse_args()
    arguments.seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {arguments.seed}")
    results = []
    asked = (
        [name for name, run in RUNS.items() if run.short]
        if arguments.run is None
        else [arguments.run]
    )
    for run in map(RUNS.__getitem__, asked):
        count = arguments.count or (run.short if arguments.run is None else run.count)
        results.append(run.main(argparse.Namespace(**{**vars(arguments), "count": count})))
    return 0 if all(results) else 1


sys.exit(main())
