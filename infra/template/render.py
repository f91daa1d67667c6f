"""The whole template of each kind of API, as files for `infra.template.check`.

python -m infra.template.render FOLDER      write http.yaml and rest.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

from roundgate_aws import template

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for api in (template.HTTP, template.REST):
        (folder / f"{api}.yaml").write_text(template.dump(template.assembled(api)), "utf-8")
