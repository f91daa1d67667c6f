"""`scripts/chaos`: which run, with which seed."""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import backlog, chains, functions, poison, tasks

COUNTS = {"tasks": 500, "poison": 500, "lambda": 300, "backlog": 10_000, "chains": 100}
SHORT = {"tasks": 100, "poison": 20, "lambda": 60, "backlog": 1_000, "chains": 20}
"""Tasks, or sleeps, of a run that nobody asked for in particular."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Real processes, killed while they work.")
    parser.add_argument("run", nargs="?", choices=tuple(COUNTS), help="the run (default: all, in their short form)")
    parser.add_argument("--seed", type=int, help="repeat a run's choices (default: a new one, printed)")
    stores = ("sqlite", "dynamodb", "both")
    parser.add_argument(
        "--store", choices=stores, default="both", help="of the runs `tasks` and `backlog` (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, help=f"tasks (default: {COUNTS}, in the short form {SHORT})")
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="default: %(default)s s")
    arguments = parser.parse_args()
    arguments.seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {arguments.seed}")
    runs = {
        "tasks": tasks.main,
        "poison": poison.main,
        "lambda": functions.main,
        "backlog": backlog.main,
        "chains": chains.main,
    }
    results = []
    for name in runs if arguments.run is None else [arguments.run]:
        count = arguments.count or (SHORT if arguments.run is None else COUNTS)[name]
        results.append(runs[name](argparse.Namespace(**{**vars(arguments), "count": count})))
    return 0 if all(results) else 1


sys.exit(main())
