"""Where the template, the lock and the rotation are: in the wheel, or in the repository
that the wheel is made of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1]
"""The code of roundgate itself, as it is installed here."""
_IN_WHEEL: Final = Path(__file__).with_name("files")
_REPOSITORY: Final = Path(__file__).parents[3]
IS_CHECKOUT: Final = not _IN_WHEEL.is_dir()


def _file(in_repository: str) -> Path:
    """One of the files that pyproject.toml puts into the wheel."""
    if IS_CHECKOUT:
        return _REPOSITORY / in_repository
    return _IN_WHEEL / Path(in_repository).name


TEMPLATE: Final = _file("template.yaml")
LOCK: Final = _file("infra/lambda.lock")
"""The packages that roundgate itself needs in a function."""
ROTATION: Final = _file("infra/rotation/rotate_keys.py")


def cache() -> Path:
    """Where tools and wheels are kept: `.cache` of a checkout, else below XDG_CACHE_HOME."""
    if IS_CHECKOUT:
        return _REPOSITORY / ".cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "roundgate"
