"""`scripts/chaos`: which run, with which seed."""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import functions, poison, tasks
from tests.model import explore

COUNTS = {"tasks": 500, "poison": 500, "lambda": 300, "model": 0}
SHORT = {"tasks": 100, "poison": 20, "lambda": 60, "model": 0}
"""Tasks of a run that nobody asked for in particular. (The model counts minutes.)"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Real processes, killed while they work, and a model of them.")
    parser.add_argument("run", nargs="?", choices=tuple(COUNTS), help="the run (default: all, in their short form)")
    parser.add_argument("--seed", type=int, help="repeat a run's choices (default: a new one, printed)")
    stores = ("sqlite", "dynamodb", "both")
    parser.add_argument("--store", choices=stores, default="both", help="of the run `tasks` (default: %(default)s)")
    parser.add_argument("--count", type=int, help=f"tasks (default: {COUNTS}, in the short form {SHORT})")
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="default: %(default)s s")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="of the model (default: %(default)s)")
    parser.add_argument("--profile", choices=tuple(explore.PROFILES), help="of the model (default: each in turn)")
    arguments = parser.parse_args()
    arguments.seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {arguments.seed}")
    runs = {"tasks": tasks.main, "poison": poison.main, "lambda": functions.main, "model": explore.main}
    results = []
    for name in runs if arguments.run is None else [arguments.run]:
        count = arguments.count or (SHORT if arguments.run is None else COUNTS)[name]
        results.append(runs[name](argparse.Namespace(**{**vars(arguments), "count": count})))
    return 0 if all(results) else 1


sys.exit(main())
