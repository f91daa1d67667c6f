"""The check of `scripts/template` on the expanded template, by cfn-lint with several sets of
parameters. Problems go to stderr.

python -m infra.template.check [--quick] FILE [FILE …]

--quick checks only the default parameters. Otherwise the name of a file, http.yaml or rest.yaml,
chooses the sets.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cfnlint.api import lint
from cfnlint.config import ManualArgs

from infra.template.expand import expand
from infra.template.sets import OF_API, Parameters, every_few

REGIONS: Final = ["us-east-1", "eu-central-1"]
SLOW: Final = 6
"""The number of sets to check, because each takes seconds. They cover most pairs of values."""


def linted(path: Path, parameters: Parameters) -> Iterator[str]:
    """Yield cfn-lint's errors and warnings on the expanded template."""
    text = json.dumps(expand(path, parameters))
    for match in lint(text, config=ManualArgs(regions=REGIONS)):
        yield f"{match.rule.id} {match.message}"


def problems(path: Path, *, is_quick: bool = False) -> list[str]:
    """Return all problems of a template, and print the outcome of the check."""
    sets = [{}] if is_quick else every_few(OF_API[path.stem], 2)[:SLOW]
    found = list(dict.fromkeys(problem for each in sets for problem in linted(path, each)))
    of_sets = f"{len(sets)} set{'s' * (len(sets) > 1)} of parameters"
    outcome = "NOT OK" if found else "ok"
    print(
        f"{outcome:7} cfn-lint on {path.name}, expanded, errors and warnings: {of_sets}", flush=True
    )
    return found


def main() -> int:
    logging.disable(logging.ERROR)  # silence the translator
    is_quick = "--quick" in sys.argv[1:]
    paths = [Path(argument) for argument in sys.argv[1:] if argument != "--quick"]
    found = [f"{path}: {one}" for path in paths for one in problems(path, is_quick=is_quick)]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
