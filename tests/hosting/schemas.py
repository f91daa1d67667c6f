"""The schemas that `check-jsonschema` brings with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def fits(schema: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Whether a YAML file fits a schema (exit status 0), with the reasons on standard output."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
