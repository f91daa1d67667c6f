"""Arguments that are more than text (`argparse` types), and those that are settings as well."""

from __future__ import annotations

import argparse
import os
import re
from typing import Final

from roundgate.storage import TaskRef

UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def task_ref(text: str) -> TaskRef:
    """A task, as `roundgate tasks list` prints it.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        return TaskRef.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "give owner.id, as `roundgate tasks list` prints it"
        ) from None


def age_ms(text: str) -> int:
    """`90s`, `15m`, `2h` or `1d` in milliseconds.

    Raises:
        argparse.ArgumentTypeError: it is none of these.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError("give an age such as 90s, 15m, 2h or 1d")
    return int(found[1]) * UNITS_S[found[2]] * 1000


def into_environment(arguments: argparse.Namespace) -> None:
    """Put what was said on the command line into the environment, for this process and those that it starts."""
    if arguments.config is not None:
        os.environ["GATEWAY_CONFIG"] = str(arguments.config)
    if arguments.log_level is not None:
        os.environ["GATEWAY_LOG_LEVEL"] = arguments.log_level
    for name in ("allow_anonymous", "reload"):
        if getattr(arguments, name, False):
            os.environ[f"GATEWAY_{name.upper()}"] = "true"
