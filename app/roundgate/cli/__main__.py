"""The command `roundgate` as `python -m roundgate.cli`."""

from roundgate.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
