"""`python -m roundgate.cli` is `roundgate`."""

from roundgate.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
