"""What `scripts/template` does: every check for every set of parameters, a line each; problems on
stderr.

python -m infra.template.check [--quick] [template.yaml]     --quick: lint and create with the defaults alone
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from cfnlint.api import lint
from cfnlint.config import ManualArgs

from infra.template import replacement
from infra.template.create import created_and_updated
from infra.template.expand import expand
from infra.template.graph import Circular, Settled, order, references

Parameters: TypeAlias = Mapping[str, str]
Choices: TypeAlias = Mapping[str, tuple[str, ...]]

REGIONS: Final = ["us-east-1", "eu-central-1"]
FUNCTION: Final = "arn:aws:lambda:eu-central-1:123456789012:function:orders"
CERTIFICATE: Final = "arn:aws:acm:eu-central-1:123456789012:certificate/12345678"
MATTERS: Final[Choices] = {
    "PublicUrl": ("", "https://mcp.example.com"),
    "StageName": ("$default", "prod"),
    "ApiEndpoint": ("auto", "enabled", "disabled"),
    "DomainName": ("", "mcp.example.com"),
    "HostedZoneId": ("", "Z0123456789ABCDEFGHIJ"),
    "AuthorizerIssuer": ("", "https://issuer.example"),
    "AllowAnonymous": ("false", "true"),
    "Architecture": ("arm64", "x86_64"),
    "GatewayTimeout": ("29", "10"),
    "WorkerTimeout": ("900", "300"),
    "SnapStart": ("off", "on"),
    "SubnetIds": ("none", "subnet-0123456789abcdef0,subnet-0123456789abcdef1"),
    "GatewayConcurrency": ("0", "50"),
    "FunctionArns": ("none", f"{FUNCTION},{FUNCTION}:live"),
    "DurableFunctionArns": ("none", f"{FUNCTION}:*"),
    "TableEncryption": ("aws-owned", "aws-managed"),
    "ProtectTable": ("true", "false"),
    "AlarmTopicArn": ("", "arn:aws:sns:eu-central-1:123456789012:alarms"),
}
"""Each parameter that decides what there is, or of what kind; the first value is the default."""
WITH_DOMAIN: Final = {"DomainName": "mcp.example.com", "CertificateArn": CERTIFICATE}
NEEDS: Final[Mapping[str, Parameters]] = {
    "DomainName": WITH_DOMAIN,
    "HostedZoneId": WITH_DOMAIN,
    "AuthorizerIssuer": {"AuthorizerAudience": "https://mcp.example.com/mcp,other"},
    "SubnetIds": {"SecurityGroupIds": "sg-0123456789abcdef0"},
}
"""What has to be given with another value than the default, as the template's rules say."""
REPLACED_BY: Final[Mapping[str, list[str]]] = {
    "StageName": ["ApiStage"],
    "SnapStart": ["ApiPermission"],
}
"""What another value of a parameter makes anew; of all others it is nothing."""
SLOW: Final = 6
"""So many sets, of those that have all pairs, for what takes seconds a set; they have most
pairs."""
CANDIDATES: Final = 40
"""Of how many sets the best is taken: more find fewer sets, and take longer."""


def whole(chosen: Parameters, matters: Choices) -> Parameters:
    """Chosen values with what they need."""
    others = [name for name, value in chosen.items() if value != matters[name][0]]
    needed = {key: one for name in others for key, one in NEEDS.get(name, {}).items()}
    return {**chosen, **needed}


def each_alone(matters: Choices) -> Iterator[tuple[str, Parameters]]:
    """Each value that is no default, as a text, and with what it needs."""
    for name, values in matters.items():
        for value in values[1:]:
            yield f"{name}={value}", whole({name: value}, matters)


def every_few(matters: Choices, few: int) -> list[Parameters]:
    """The defaults, and sets in which any so many parameters have all their
    values with each other."""
    draw = random.Random(20261122)  # the same sets each time
    left = {
        tuple(zip(names, values, strict=True))
        for names in itertools.combinations(matters, few)
        for values in itertools.product(*(matters[name] for name in names))
    }
    found = [{name: values[0] for name, values in matters.items()}]
    left -= _covered(found[0], few)
    while left:
        begun = dict(min(left))
        drawn = [
            {
                name: begun[name] if name in begun else draw.choice(values)
                for name, values in matters.items()
            }
            for _ in range(CANDIDATES)
        ]
        best = max(drawn, key=lambda one: len(left & _covered(one, few)))
        left -= _covered(best, few)
        found.append(best)
    return [whole(one, matters) for one in found]


def _covered(chosen: Parameters, few: int) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(chosen.items(), few))


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
    for changed, parameters in each_alone(matters):
        found = replacement.replaced(before, settled(expanded, parameters).resources)
        if found != REPLACED_BY.get(changed.partition("=")[0], []):
            yield f"{changed} replaces {', '.join(found) or 'nothing'}"
        yield from (f"{changed} loses what {one} has" for one in found if _has_state(before[one]))


def releasing(expanded: Mapping[str, Any], matters: Choices) -> Iterator[str]:
    """With SnapStart, changes that the API would never call: it calls a version, and another
    Release has to publish one, of a function that has changed, and to move the alias there."""
    before = settled(expanded, {"SnapStart": "on", "Release": "before"}).resources
    if "GatewayVersion" not in references(before["GatewayAlias"]):
        yield "the alias stays at the version that it has"
    for changed, parameters in each_alone(matters):
        given = {**parameters, "SnapStart": "on", "Release": "after"}
        after = settled(expanded, given).resources
        if "GatewayVersion" not in replacement.replaced(before, after):
            yield f"{changed} with another Release publishes no version"
        if before["GatewayFunction"] == after["GatewayFunction"]:
            yield f"{changed} with another Release publishes a version of a function as it was"


def _has_state(resource: Mapping[str, Any]) -> bool:
    return resource["Type"] in replacement.KEEP_STATE


def problems(path: Path, *, is_quick: bool = False) -> Iterator[str]:
    """Everything that is wrong with a template; if it is to be quick, what takes seconds is done
    for the defaults."""
    expanded = expand(path, {})
    matters = {name: values for name, values in MATTERS.items() if name in expanded["Parameters"]}
    yield from (f"has no parameter {name}" for name in MATTERS.keys() - matters.keys())
    pairs = [{}] if is_quick else every_few(matters, 2)[:SLOW]
    triples = every_few(matters, 3)
    yield from _report(
        f"cfn-lint on the expanded template, errors and warnings: {_of(pairs)}",
        (problem for one in pairs for problem in linted(path, one)),
    )
    yield from _report(
        f"an order of creation: {_of(triples)}",
        (problem for one in different(expanded, triples) for problem in ordered(expanded, one)),
    )
    yield from _report(
        f"names and lengths: {_of(triples)}",
        (problem for one in triples for problem in well_named(expanded, one)),
    )
    yield from _report(
        f"what {len(matters)} changed parameters replace", replacing(expanded, matters)
    )
    yield from _report(
        f"with SnapStart, {len(matters)} changed parameters reach the API",
        releasing(expanded, matters),
    )
    yield from _report("moto creates the stack and updates it", created_and_updated(path, pairs))


def _of(sets: Sequence[Parameters]) -> str:
    return f"{len(sets)} set{'s' * (len(sets) > 1)} of parameters"


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
