"""`scripts/chaos`: which run, with which seed."""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import functions, handlers, tasks

COUNTS = {"handlers": 5000, "tasks": 500, "lambda": 300}
SHORT = {"handlers": 300, "tasks": 100, "lambda": 60}
"""Handlers or tasks of a run that nobody asked for in particular."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Real processes, killed while they work.")
    parser.add_argument("run", nargs="?", choices=tuple(COUNTS), help="the run (default: all, in their short form)")
    parser.add_argument("--seed", type=int, help="repeat a run's choices (default: a new one, printed)")
    stores = ("sqlite", "dynamodb", "both")
    parser.add_argument(
        "--store", choices=stores, default="both", help="of the runs `handlers` and `tasks` (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, help=f"handlers or tasks (default: {COUNTS}, in the short form {SHORT})")
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="default: %(default)s s")
    arguments = parser.parse_args()
    arguments.seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {arguments.seed}")
    runs = {"handlers": handlers.main, "tasks": tasks.main, "lambda": functions.main}
    results = []
    for name in runs if arguments.run is None else [arguments.run]:
        count = arguments.count or (SHORT if arguments.run is None else COUNTS)[name]
        results.append(runs[name](argparse.Namespace(**{**vars(arguments), "count": count})))
    return 0 if all(results) else 1


sys.exit(main())
