"""Prints a pip constraints file that pins each direct dependency to the lowest version pyproject.toml admits."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
optional = [line for extra in project["optional-dependencies"].values() for line in extra]
for line in [*project["dependencies"], *optional]:
    found = re.match(r"([A-Za-z0-9_.-]+)>=([0-9][^,; ]*)", line)
    if found:
        print(f"{found[1]}=={found[2]}")
