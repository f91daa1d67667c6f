"""What `scripts/template` does: every check for every set of parameters, a line each; problems on
stderr.

python -m infra.template.check [--quick] [template.yaml]     --quick: lint and create with the defaults alone
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from cfnlint.api import lint
from cfnlint.config import ManualArgs

from infra.template import replacement
from infra.template.create import created_and_updated
from infra.template.expand import expand
from infra.template.graph import Circular, Settled, order

Parameters: TypeAlias = Mapping[str, str]
Choices: TypeAlias = Mapping[str, tuple[str, ...]]

REGIONS: Final = ["us-east-1", "eu-central-1"]
FUNCTION: Final = "arn:aws:lambda:eu-central-1:123456789012:function:orders"
MATTERS: Final[Choices] = {
    "PublicUrl": ("", "https://mcp.example.com"),
    "StageName": ("$default", "prod"),
    "ApiEndpoint": ("auto", "enabled", "disabled"),
    "AllowAnonymous": ("false", "true"),
    "Architecture": ("arm64", "x86_64"),
    "GatewayConcurrency": ("0", "50"),
    "FunctionArns": ("none", f"{FUNCTION},{FUNCTION}:live"),
    "DurableFunctionArns": ("none", f"{FUNCTION}:*"),
    "TableEncryption": ("aws-owned", "aws-managed"),
    "ProtectTable": ("true", "false"),
    "AlarmTopicArn": ("", "arn:aws:sns:eu-central-1:123456789012:alarms"),
}
"""Each parameter that decides what there is, or of what kind; the first value is the default."""
REPLACED_BY: Final[Mapping[str, list[str]]] = {"StageName": ["ApiStage"]}
"""What another value of a parameter makes anew; of all others it is nothing."""


def some_combinations(matters: Choices) -> Iterator[Parameters]:
    """The defaults, each other value alone, and all others together: for what takes seconds."""
    yield {}
    for name, values in matters.items():
        for value in values[1:]:
            yield {name: value}
    yield {name: values[-1] for name, values in matters.items()}


def every_combination(matters: Choices) -> Iterator[Parameters]:
    """All there are."""
    for values in itertools.product(*matters.values()):
        yield dict(zip(matters, values, strict=True))


def linted(path: Path, parameters: Parameters) -> Iterator[str]:
    """What cfn-lint says of the expanded template: errors and warnings."""
    text = json.dumps(expand(path, parameters))
    for match in lint(text, config=ManualArgs(regions=REGIONS)):
        yield f"{match.rule.id} {match.message}"


def settled(expanded: Mapping[str, Any], parameters: Parameters) -> Settled:
    """The expanded template with these parameters."""
    declared = {
        name: {**one, "Default": parameters.get(name, one.get("Default"))}
        for name, one in expanded["Parameters"].items()
    }
    return Settled({**expanded, "Parameters": declared})


def different(expanded: Mapping[str, Any], sets: Sequence[Parameters]) -> list[Parameters]:
    """One set for each outcome of the conditions: what there is, and what names what, depends on
    nothing else."""
    found: dict[tuple[bool, ...], Parameters] = {}
    names = [{"Condition": name} for name in expanded.get("Conditions", {})]
    nothing = {**expanded, "Resources": {}, "Outputs": {}}
    for one in sets:
        there = settled(nothing, one)
        found.setdefault(tuple(map(there.holds, names)), one)
    return list(found.values())


def ordered(expanded: Mapping[str, Any], parameters: Parameters) -> Iterator[str]:
    """Whether the resources can be made one after another, and the outputs name what is there."""
    there = settled(expanded, parameters)
    try:
        order({**there.resources, "Outputs": there.outputs})
    except Circular as error:
        yield f"no order of creation: {error}"
    except KeyError as error:
        yield f"{error} is referred to and not there"


def well_named(expanded: Mapping[str, Any], parameters: Parameters) -> Iterator[str]:
    """Names that a second stack or a replacement would collide with, and what is too long."""
    there = settled(expanded, parameters).resources
    yield from (f"has a name of its own: {name}" for name in replacement.named(there))
    yield from (f"too long: {name}" for name in replacement.short_enough(there))


def replacing(expanded: Mapping[str, Any], matters: Choices) -> Iterator[str]:
    """What a changed parameter replaces that it should not; nothing with state ever."""
    before = settled(expanded, {}).resources
    for name, values in matters.items():
        for value in values[1:]:
            found = replacement.replaced(before, settled(expanded, {name: value}).resources)
            if found != REPLACED_BY.get(name, []):
                yield f"{name}={value} replaces {', '.join(found) or 'nothing'}"
            yield from (
                f"{name}={value} loses what {one} has" for one in found if _has_state(before[one])
            )


def _has_state(resource: Mapping[str, Any]) -> bool:
    return resource["Type"] in replacement.KEEP_STATE


def problems(path: Path, *, is_quick: bool = False) -> Iterator[str]:
    """Everything that is wrong with a template; if it is to be quick, what takes seconds is done
    for the defaults."""
    expanded = expand(path, {})
    matters = {name: values for name, values in MATTERS.items() if name in expanded["Parameters"]}
    yield from (f"has no parameter {name}" for name in MATTERS.keys() - matters.keys())
    some = [{}] if is_quick else list(some_combinations(matters))
    every = list(every_combination(matters))
    yield from _report(
        f"cfn-lint on the expanded template, errors and warnings: {len(some)} sets of parameters",
        (problem for one in some for problem in linted(path, one)),
    )
    yield from _report(
        f"an order of creation: {len(every)} sets",
        (problem for one in different(expanded, every) for problem in ordered(expanded, one)),
    )
    yield from _report(
        f"names and lengths: {len(some)} sets",
        (problem for one in some for problem in well_named(expanded, one)),
    )
    yield from _report(
        f"what {len(matters)} changed parameters replace", replacing(expanded, matters)
    )
    yield from _report("moto creates the stack and updates it", created_and_updated(path, some))


def _report(what: str, found: Iterator[str]) -> Iterator[str]:
    unique = list(dict.fromkeys(found))
    print(f"{'NOT OK' if unique else 'ok':7} {what}", flush=True)
    yield from unique


def main() -> int:
    logging.disable(logging.ERROR)  # of the translator and of moto
    paths = [argument for argument in sys.argv[1:] if argument != "--quick"]
    path = Path(paths[0] if paths else "template.yaml")
    found = list(problems(path, is_quick="--quick" in sys.argv[1:]))
    for problem in found:
        print(f"{path}: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
