"""Prints a pip constraints file: each dependency of the gateway at the lowest version
that pyproject.toml admits."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for line in project["dependencies"]:
    found = re.match(r"([A-Za-z0-9_.-]+)(?:\[.*\])?>=([0-9][^,; ]*)", line)
    if found:
        print(f"{found[1]}=={found[2]}")
