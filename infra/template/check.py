"""The checks of `scripts/template` on the expanded template, with several sets of parameters:
cfn-lint, and moto's CloudFormation. Problems go to stderr.

python -m infra.template.check [--quick] [template.yaml]     --quick: only the default parameters
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

from infra.template.create import created_and_updated
from infra.template.expand import expand
from infra.template.sets import MATTERS, Parameters, every_few

REGIONS: Final = ["us-east-1", "eu-central-1"]
SLOW: Final = 6
"""The number of sets to check, because each takes seconds. They cover most pairs of values."""


def linted(path: Path, parameters: Parameters) -> Iterator[str]:
    """Yield cfn-lint's errors and warnings on the expanded template."""
    text = json.dumps(expand(path, parameters))
    for match in lint(text, config=ManualArgs(regions=REGIONS)):
        yield f"{match.rule.id} {match.message}"


def problems(path: Path, *, is_quick: bool = False) -> Iterator[str]:
    """Yield all problems of a template."""
    sets = [{}] if is_quick else every_few(MATTERS, 2)[:SLOW]
    of_sets = f"{len(sets)} set{'s' * (len(sets) > 1)} of parameters"
    all_problems = (problem for parameters in sets for problem in linted(path, parameters))
    yield from _report(
        f"cfn-lint on the expanded template, errors and warnings: {of_sets}", all_problems
    )
    yield from _report("moto creates the stack and updates it", created_and_updated(path, sets))


def _report(check: str, problems_found: Iterator[str]) -> Iterator[str]:
    unique = list(dict.fromkeys(problems_found))
    print(f"{'NOT OK' if unique else 'ok':7} {check}", flush=True)
    yield from unique


def main() -> int:
    logging.disable(logging.ERROR)  # silence the translator and moto
    paths = [argument for argument in sys.argv[1:] if argument != "--quick"]
    path = Path(paths[0] if paths else "template.yaml")
    all_problems = list(problems(path, is_quick="--quick" in sys.argv[1:]))
    for problem in all_problems:
        print(f"{path}: {problem}", file=sys.stderr)
    return 1 if all_problems else 0


if __name__ == "__main__":
    sys.exit(main())
