"""`scripts/tools image-lock`: updates infra/image.lock and infra/image-build.lock.

The locks list the container's wheels with their hashes: the newest versions that pyproject.toml
allows. The image has the Python of the functions, and can load the same wheels.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from roundgate_aws import machine
from roundgate_aws.locking import pins_for

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write both locks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for name, requirements in (
        ("image.lock", [f"{ROOT}[aws,console,otel,postgres,prometheus]"]),
        ("image-build.lock", project["build-system"]["requires"]),
    ):
        pins = pins_for(ROOT, tuple(requirements), frozenset({"roundgate"}))
        head = f"# Written by scripts/tools image-lock for Python {machine.PYTHON}."
        lines = [head, *(pin.line() for pin in pins), ""]
        (ROOT / "infra" / name).write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
