"""The whole template of each kind of API, as files for `infra.template.check`.

python -m infra.template.render FOLDER      write http.yaml and rest.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

from roundgate_aws import parts

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for api in (parts.HTTP, parts.REST):
        (folder / f"{api}.yaml").write_text(parts.dump(parts.assembled(api)), "utf-8")
