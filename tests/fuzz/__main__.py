"""`scripts/tools fuzz`: inputs that coverage leads to, or random changes without atheris.

    scripts/tools fuzz                        every target for a minute
    scripts/tools fuzz requests --seconds 3600

What is found is written to `.cache/fuzz/TARGET/crash-…` and raised; give it to
a target again to see it.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).parents[2] / ".cache/fuzz"
NAMES = ("requests", "events", "tokens", "templates", "files")


def changed(data: bytes, dice: random.Random) -> bytes:
    """Bytes with a few changes: one replaced, one taken out, a piece doubled, one put in."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 8))):
        at = dice.randrange(len(made) + 1)
        match dice.randrange(4):
            case 0:
                made[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del made[at : at + dice.choice((1, 1, 4, 40))]
            case 2:
                made[at:at] = made[at : at + dice.choice((1, 8, 80))]
            case _:
                made[at:at] = dice.choice(
                    (b"\x00", b"\xff", b"%", b"{", b"}", b"..", b"\r\n", b'"', b"[", b"9" * 30)
                )
    return bytes(made)


def changes(seeds: list[bytes], seed: int) -> Iterator[bytes]:
    """The seeds, and then changes of them without end."""
    dice = random.Random(seed)
    yield from seeds
    while True:
        yield changed(dice.choice(seeds), dice)


def with_coverage(name: str, seconds: float) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["roundgate"]):
        from tests.fuzz.targets import SEEDS, TARGETS
    corpus = CORPUS / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(SEEDS[name]()):
        (corpus / f"seed-{number}").write_bytes(data)
    options = [
        f"-max_total_time={int(seconds)}",
        f"-artifact_prefix={CORPUS / name}/",
        "-timeout=20",
        "-max_len=20000",
    ]
    atheris.Setup(
        [sys.argv[0], str(corpus), *options, "-rss_limit_mb=2048", "-print_final_stats=1"],
        TARGETS[name],
    )
    atheris.Fuzz()


def at_random(name: str, seconds: float, seed: int) -> None:
    from tests.fuzz.targets import SEEDS, TARGETS

    until, count = time.monotonic() + seconds, 0
    for data in changes(SEEDS[name](), seed):
        if time.monotonic() > until:
            break
        try:
            TARGETS[name](data)
        except BaseException:
            CORPUS.joinpath(name).mkdir(parents=True, exist_ok=True)
            CORPUS.joinpath(name, f"crash-{seed}-{count}").write_bytes(data)
            raise
        count += 1
    print(f"{name}: {count} inputs, none of which did harm")


def main() -> int:
    description = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/tools fuzz", description=description)
    parser.add_argument("target", nargs="?", choices=NAMES, help="default: all, one after another")
    parser.add_argument(
        "--seconds", type=float, default=60, help="for each target (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="where there is no atheris (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.target is None:
        options = ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
        commands = [[sys.executable, "-m", "tests.fuzz", name, *options] for name in NAMES]
        return max(subprocess.run(command).returncode for command in commands)
    try:
        import atheris  # noqa: F401
    except ImportError:
        at_random(arguments.target, arguments.seconds, arguments.seed)
    else:
        with_coverage(arguments.target, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
