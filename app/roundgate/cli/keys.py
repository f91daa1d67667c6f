"""`roundgate keys`: make state keys, and rotate them without losing a round
(docs/runbooks/rotate-keys.md)."""

from __future__ import annotations

import argparse
import os
import sys

from roundgate.tokens import keys


def run(arguments: argparse.Namespace) -> int:
    """Print a new key, or the ring for the next stage of a rotation."""
    if arguments.action == "new":
        print(keys.new_key())
        return 0
    current = os.environ.get("GATEWAY_STATE_KEYS", "")
    if not current:
        print("set GATEWAY_STATE_KEYS to the ring that is in use", file=sys.stderr)
        return 2
    keys.parse(current, "GATEWAY_STATE_KEYS")
    ring = [key.strip() for key in current.split(",")]
    if arguments.stage > 1 and len(ring) < 2:
        print("the ring has one key: begin with --stage 1", file=sys.stderr)
        return 2
    print(",".join(keys.rotate(ring, arguments.stage)))
    return 0
