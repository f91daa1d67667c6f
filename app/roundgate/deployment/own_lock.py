"""`scripts/package --lock`: infra/lambda.lock, the packages that roundgate itself needs in
functions, resolved anew."""

from __future__ import annotations

import sys

from roundgate.deployment import locking, places
from roundgate.errors import ConfigError


def main() -> int:
    """Write it, in a checkout."""
    try:
        lock = locking.of_roundgate(places.PACKAGE.parents[1])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    lock.file.write_text(lock.text(), "utf-8")
    print(f"{lock.file}: {len(lock.pins)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
