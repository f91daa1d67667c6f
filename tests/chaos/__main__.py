"""`scripts/chaos`: which run, with which seed."""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import tasks

SHORT = 100
"""Tasks of a run that nobody asked for in particular."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Real processes, killed while they work.")
    parser.add_argument("run", nargs="?", choices=("tasks",), help="the run (default: all, in their short form)")
    parser.add_argument("--seed", type=int, help="repeat a run's choices (default: a new one, printed)")
    parser.add_argument("--store", choices=("sqlite", "dynamodb", "both"), default="both", help="default: %(default)s")
    parser.add_argument("--count", type=int, help=f"tasks (default: 500, or {SHORT} in the short form)")
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="default: %(default)s s")
    arguments = parser.parse_args()
    arguments.seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    arguments.count = arguments.count or (SHORT if arguments.run is None else 500)
    print(f"seed {arguments.seed}")
    return 0 if tasks.main(arguments) else 1


sys.exit(main())
