"""`python -m app.cli` is `mcp-gateway`."""

from app.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
